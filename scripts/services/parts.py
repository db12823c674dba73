"""What the measurements of services share: cgroups, services, batch work, the open-loop client, intervals."""
import argparse, json, os, random, shutil, signal, statistics, subprocess, sys, tempfile, time

BATCH = {
    "loops": ["{evenkeel}", "load", "spin", "--seconds", "100000"],
    "compile": ["sh", "-c", "while :; do cc -O2 -c -o {dir}/$$.o {dir}/source.c; done"],
    "stream": ["{evenkeel}", "load", "stream", "--seconds", "100000"],
    "fsync": ["sh", "-c", "while :; do dd if=/dev/zero of={dir}/$$.out bs=64k count=64 conv=fsync 2>/dev/null; done"],
}
GET = "GET key\\r\\n"
# Takes a redis so many turns of a loop, some tens of nanoseconds each.
WORK = 'EVAL "local x=0 for i=1,{turns} do x=x+i end return 1" 0\\r\\n'


def options(about, rounds):
    """What each measurement is told: the programs, how many rounds, and where the figures go."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evenkeel", required=True)
    parser.add_argument("--client", required=True)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json")
    return parser


def hierarchy():
    for place in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"):
        if os.path.exists(f"{place}/cgroup.procs"):
            return place
    sys.exit("no cgroup hierarchy of the cpu controller was found")


class Group:
    """A cgroup; a name with a slash is one below another, which comes first."""

    def __init__(self, name):
        self.path = f"/evenkeel-services-{os.getpid()}-{name}"
        self.dir = hierarchy() + self.path
        # On v1 the CPU used may be counted in a hierarchy of its own.
        account = "/sys/fs/cgroup/cpuacct"
        self.dirs = [self.dir]
        if not os.path.exists(f"{hierarchy()}/cpuacct.usage") and os.path.exists(f"{account}/cpuacct.usage"):
            self.dirs.append(account + self.path)
        for place in self.dirs:
            os.mkdir(place)
            if "/" in name and os.path.exists(f"{place}/cgroup.controllers"):
                with open(f"{os.path.dirname(place)}/cgroup.subtree_control", "w") as file:
                    file.write("+cpu")
        self.children, self.prefix = [], []

    def start(self, command, **more):
        join = "".join(f'echo 0 > "{place}/cgroup.procs" && ' for place in self.dirs) + 'exec "$@"'
        child = subprocess.Popen(["sh", "-c", join, "sh", *self.prefix, *command], stdin=subprocess.DEVNULL, start_new_session=True, **more)
        self.children.append(child)
        return child

    def cpu_seconds(self):
        try:
            return int(open(f"{self.dirs[-1]}/cpuacct.usage").read()) / 1e9
        except FileNotFoundError:
            return int(open(f"{self.dir}/cpu.stat").read().split("usage_usec ")[1].split()[0]) / 1e6

    def weigh(self, v1_shares, v2_weight):
        v2 = os.path.exists(f"{self.dir}/cpu.weight")
        with open(f"{self.dir}/{'cpu.weight' if v2 else 'cpu.shares'}", "w") as file:
            file.write(str(v2_weight if v2 else v1_shares))

    def idle(self):
        with open(f"{self.dir}/cpu.idle", "w") as file:
            file.write("1")

    def limit(self, quota_us, period_us):
        """A quota; none where it is negative."""
        if os.path.exists(f"{self.dir}/cpu.max"):
            values = {"cpu.max": f"{'max' if quota_us < 0 else quota_us} {period_us}"}
        else:
            values = {"cpu.cfs_period_us": period_us, "cpu.cfs_quota_us": quota_us}
        for name, value in values.items():
            with open(f"{self.dir}/{name}", "w") as file:
                file.write(str(value))

    def stop(self):
        for child in self.children:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
        self.children = []

    def remove(self):
        self.stop()
        for place in self.dirs:
            for _ in range(200):
                try:
                    os.rmdir(place)
                    break
                except OSError:
                    time.sleep(0.02)


class Service:
    """Started in its group; `address` and `request` are what the client wants."""

    def __init__(self, kind, group, work, socket=None, compress=False):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        value = "x" * 500
        if kind == "redis":
            self.address, self.request = f"{work}/{socket or 'redis.sock'}", GET
            group.start(["redis-server", "--port", "0", "--unixsocket", self.address, "--save", "", "--dir", work], **quiet)
            self.prepare = ["redis-cli", "-s", self.address, "set", "key", value]
        elif kind == "memcached":
            self.address, self.request = f"{work}/memcached.sock", "get key\\r\\n"
            group.start(["memcached", "-u", "root", "-t", "1", "-s", self.address], **quiet)
            self.prepare = None
        elif kind == "nginx":
            more = "Accept-Encoding: gzip\\r\\n" if compress else ""
            self.address, self.request = "127.0.0.1:18080", f"GET /page HTTP/1.1\\r\\nHost: x\\r\\n{more}\\r\\n"
            with open(f"{work}/page", "w") as file:
                # Words at random: a page of 60 kB takes a few milliseconds to compress.
                words = random.Random(1)
                file.write(" ".join(str(words.randrange(1000)) for _ in range(15_000)) if compress else value)
            os.chmod(work, 0o755)
            with open(f"{work}/nginx.conf", "w") as file:
                file.write(
                    f"daemon off; worker_processes 1; pid {work}/nginx.pid; error_log /dev/null; user root;"
                    "events {} http { access_log off; keepalive_requests 100000000;"
                    + (" gzip on; gzip_types text/plain; gzip_comp_level 6; gzip_http_version 1.1;" if compress else "")
                    + "".join(f" {use}_temp_path {work}/{use};" for use in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
                    + f" server {{ listen {self.address}; root {work}; default_type text/plain; }} }}"
                )
            group.start(["nginx", "-e", "/dev/null", "-c", f"{work}/nginx.conf"], **quiet)
            self.prepare = None
        else:
            sys.exit(f"--service {kind}: redis, memcached or nginx")
        for _ in range(100):
            time.sleep(0.1)
            if self.address[0] != "/" or os.path.exists(self.address):
                break
        time.sleep(0.5)
        if self.prepare:
            subprocess.run(self.prepare, check=True, stdout=subprocess.DEVNULL)


def ask(client, group, service, period_us, seconds, bucket_ms=1000):
    command = [client, service.address, str(period_us), str(int(seconds)), service.request, str(bucket_ms)]
    return group.start(command, stdout=subprocess.PIPE, text=True)


def calibrate(client, clients, service, share, period_us):
    """Has a redis do so much for each request that requests a `period_us` apart take this share of a CPU."""
    turns = 2000
    for _ in range(3):
        service.served.request = WORK.format(turns=turns)
        before = service.cpu_seconds()
        ask(client, clients, service.served, period_us, 2).communicate()
        turns = max(1, int(turns * 2 * share / (service.cpu_seconds() - before)))
    service.served.request = WORK.format(turns=turns)


def buckets(client):
    """What each part of the time and all of it ("all") had, in microseconds."""
    out, _ = client.communicate()
    names = ("answers", "p50", "p99", "p999", "longest", "beyond_10ms")
    rows = [line.split() for line in out.strip().splitlines()]
    if not rows or rows[-1][0] != "all":
        sys.exit("the client had no answers")
    return {row[0]: dict(zip(names, map(float, row[1:]))) for row in rows}


def answers(client):
    """What all of the time had, and in how many seconds the 99th percentile was beyond 1 ms."""
    seen = buckets(client)
    whole = seen.pop("all")
    return whole | {"seconds": len(seen), "slow_seconds": sum(one["p99"] > 1000 for one in seen.values())}


def beside(batch, client):
    """What a client's answers had, and CPUs that batch got meanwhile."""
    before, began = batch.cpu_seconds(), time.monotonic()
    found = answers(client)
    return found | {"batch_cpus": (batch.cpu_seconds() - before) / (time.monotonic() - began)}


def interval(values):
    """Median, and its 90 % interval by bootstrap."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(4000))
    return statistics.median(values), medians[200], medians[3799]


def say_p99(rounds):
    """The 99th percentile of each arm over rounds, which have it in microseconds."""
    for name in sorted(rounds[0]):
        value, low, high = interval([found[name]["p99"] / 1000 for found in rounds])
        print(f"{name:<9}p99 {value:.2f} ms [{low:.2f}, {high:.2f}], {len(rounds)} rounds")


def save(args, rounds):
    """All figures, where they were asked for."""
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"args": vars(args), "rounds": rounds}, file, indent=1)


def in_rounds(count, arms, measure, rounds):
    """Measures each arm once a round, in random order; `rounds` gets what was found, and so does who asks: number, arm, figures."""
    for number in range(1, count + 1):
        rounds.append({})
        for name in random.sample(arms, len(arms)):
            rounds[-1][name] = measure(name)
            yield number, name, rounds[-1][name]


class Workspace:
    """Cgroups, by the last part of their names, and a directory; all goes at the end, however that comes about."""

    def __init__(self, *names):
        self.names, self.run = names, None

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        self.dir = tempfile.mkdtemp(prefix="evenkeel-services-")
        with open(f"{self.dir}/source.c", "w") as file:
            file.write("#include <math.h>\n")
            for n in range(600):
                file.write(f"double f{n}(double x) {{ double s={n}; for (int i=0;i<9;i++) s+=sin(x*i)/(i+{n}); return s*s; }}\n")
        self.groups = {name.split("/")[-1]: Group(name) for name in self.names}
        return self

    def __exit__(self, *_):
        self.end_run()
        for group in reversed(self.groups.values()):
            group.remove()
        shutil.rmtree(self.dir, ignore_errors=True)

    def start_redis(self, client, share, request_us):
        """A service of which requests a `request_us` apart take this share of a CPU."""
        service = self.groups["service"]
        service.served = Service("redis", service, self.dir)
        calibrate(client, self.groups["clients"], service, share, request_us)
        return service

    def start_batch(self, evenkeel, kind, tasks):
        command = [part.format(evenkeel=evenkeel, dir=self.dir) for part in BATCH[kind]]
        for _ in range(tasks or 2 * os.cpu_count()):
            self.groups["batch"].start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def tiers(self):
        """The service and who asks it (whose own waits are part of what it measures), beside the batch."""
        services = [f"--service=cgroup:{self.groups[name].path}" for name in ("service", "clients")]
        return [*services, "--background", f"cgroup:{self.groups['batch'].path}"]

    def start_run(self, evenkeel, *more, of=None):
        """`run` for the tiers, or of another scope."""
        command = [evenkeel, "--state-dir", f"{self.dir}/state", "run", *(of or self.tiers()), *more]
        with open(f"{self.dir}/run.err", "w") as words:
            self.run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=words, stdin=subprocess.DEVNULL)

    def said(self):
        return open(f"{self.dir}/run.err").read()

    def kept(self):
        """The line of what is kept, if something is."""
        lines = [line for line in self.said().splitlines() if line.startswith("* ")]
        return lines[-1].strip() if lines else None

    def wait_until(self, holds, seconds):
        """Whether something holds in time, and before `run` ends."""
        until = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > until or self.run.poll() is not None:
                return False
            time.sleep(0.5)
        return True

    def decide(self, evenkeel, load, seconds, of=None):
        """Has `run` decide while `load` asks the service, which ends then; after how long, what it kept, and all it said."""
        began = time.monotonic()
        self.start_run(evenkeel, of=of)
        self.wait_until(self.kept, seconds)
        found = {"decided_s": time.monotonic() - began, "kept": self.kept() or "nothing is kept", "said": self.said()}
        load.kill()
        load.wait()
        return found

    def end_arm(self):
        """Ends `run` and all that is no service or client."""
        self.end_run()
        for name, group in self.groups.items():
            if name not in ("service", "clients"):
                group.stop()
        time.sleep(1)

    def end_run(self):
        if self.run and self.run.poll() is None:
            self.run.send_signal(signal.SIGINT)
            self.run.wait(60)
        self.run = None
