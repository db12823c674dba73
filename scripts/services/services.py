#!/usr/bin/env python3
"""What a service's clients see beside batch work: alone, under the kernel's default, and under `evenkeel run`.

  scripts/services/services.py --evenkeel BINARY --client OPEN_LOOP [--service redis] [--batch loops] [--rounds 3]
                               [--seconds 20] [--decide 45] [--period-us 1000] [--json FILE]

Each round measures, in random order: the service alone; "awake", alone beside an idle-class spinner on each CPU (idle CPUs of
a virtual machine wake slowly); beside the batch under the kernel's default; and beside the batch under `evenkeel run --service
--background`, which is started anew: its clients are measured from its start ("from start"), and again once it has
decided ("in force"). The client is open-loop (open_loop.c): a request each PERIOD, latency from the instant at which it was
due. Both are in cgroups of their own, which go at the end. Printed: medians over rounds, and ratios to "alone" and "awake"
round by round with the 90 % interval of their median by bootstrap.
"""
import argparse, json, os, random, shutil, signal, statistics, subprocess, sys, tempfile, time

BATCH = {
    "loops": ["{evenkeel}", "load", "spin", "--seconds", "100000"],
    "compile": ["sh", "-c", "while :; do cc -O2 -c -o {dir}/$$.o {dir}/source.c; done"],
    "stream": ["{evenkeel}", "load", "stream", "--seconds", "100000"],
    "fsync": ["sh", "-c", "while :; do dd if=/dev/zero of={dir}/$$.out bs=64k count=64 conv=fsync 2>/dev/null; done"],
}
GET = "GET key\\r\\n"


# The `run` at work, for the end.
RUNS = [None]


def hierarchy():
    for place in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"):
        if os.path.exists(f"{place}/cgroup.procs"):
            return place
    sys.exit("no cgroup hierarchy of the cpu controller was found")


class Group:
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
        self.children = []

    def start(self, command, **more):
        join = "".join(f'echo 0 > "{place}/cgroup.procs" && ' for place in self.dirs) + 'exec "$@"'
        child = subprocess.Popen(["sh", "-c", join, "sh", *command], stdin=subprocess.DEVNULL, start_new_session=True, **more)
        self.children.append(child)
        return child

    def cpu_seconds(self):
        try:
            return int(open(f"{self.dirs[-1]}/cpuacct.usage").read()) / 1e9
        except FileNotFoundError:
            return int(open(f"{self.dir}/cpu.stat").read().split("usage_usec ")[1].split()[0]) / 1e6

    def idle(self):
        with open(f"{self.dir}/cpu.idle", "w") as file:
            file.write("1")

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

    def __init__(self, kind, group, work):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        value = "x" * 500
        if kind == "redis":
            self.address, self.request = f"{work}/redis.sock", GET
            group.start(["redis-server", "--port", "0", "--unixsocket", self.address, "--save", "", "--dir", work], **quiet)
            self.prepare = ["redis-cli", "-s", self.address, "set", "key", value]
        elif kind == "memcached":
            self.address, self.request = f"{work}/memcached.sock", "get key\\r\\n"
            group.start(["memcached", "-u", "root", "-t", "1", "-s", self.address], **quiet)
            self.prepare = None
        elif kind == "nginx":
            self.address, self.request = "127.0.0.1:18080", "GET /page HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"
            with open(f"{work}/page", "w") as file:
                file.write(value)
            os.chmod(work, 0o755)
            with open(f"{work}/nginx.conf", "w") as file:
                file.write(
                    f"daemon off; worker_processes 1; pid {work}/nginx.pid; error_log /dev/null; user root;"
                    "events {} http { access_log off; keepalive_requests 100000000;"
                    f" server {{ listen {self.address}; root {work}; default_type text/plain; }} }}"
                )
            group.start(["nginx", "-c", f"{work}/nginx.conf"], **quiet)
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


def ask(args, group, service, seconds):
    command = [args.client, service.address, str(args.period_us), str(int(seconds)), service.request]
    return group.start(command, stdout=subprocess.PIPE, text=True)


def answers(client):
    out, _ = client.communicate()
    last = out.strip().splitlines()[-1].split()
    if last[0] != "all":
        sys.exit("the client had no answers")
    names = ("answers", "p50", "p99", "p999", "longest", "beyond_10ms")
    return dict(zip(names, map(float, last[1:])))


def arm(name, args, service, clients, batch, spinners, work, state):
    """One arm: what clients saw, and CPUs that batch got meanwhile."""
    cpus = os.cpu_count()
    if name == "awake":
        spinners.idle()
        for _ in range(cpus):
            spinners.start([args.evenkeel, "load", "spin", "--seconds", "100000"], stdout=subprocess.DEVNULL)
    if name in ("default", "evenkeel"):
        command = [part.format(evenkeel=args.evenkeel, dir=work) for part in BATCH[args.batch]]
        for _ in range(args.tasks or 2 * cpus):
            batch.start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(2)
    found = {}
    run = None
    if name == "evenkeel":
        words = open(f"{work}/run.err", "w")
        # What asks is a service, too: its own waits are part of what it measures.
        named = [f"--service=cgroup:{group.path}" for group in (service, clients)]
        command = ["--state-dir", state, "run", *named, "--background", f"cgroup:{batch.path}"]
        start = ask(args, clients, service.served, args.decide)
        run = RUNS[0] = subprocess.Popen([args.evenkeel, *command], stdout=subprocess.DEVNULL, stderr=words, stdin=subprocess.DEVNULL)
        found["from start"] = answers(start)
        kept = [line for line in open(f"{work}/run.err") if line.startswith("* ")]
        found["choice"] = kept[-1][2:26].strip() if kept else "none"
        found["said"] = kept[-1].strip() if kept else open(f"{work}/run.err").read()[-300:]
    before, began = batch.cpu_seconds(), time.monotonic()
    found |= answers(ask(args, clients, service.served, args.seconds))
    found["batch_cpus"] = (batch.cpu_seconds() - before) / (time.monotonic() - began)
    if run:
        run.send_signal(signal.SIGINT)
        run.wait(60)
    batch.stop()
    spinners.stop()
    time.sleep(1)
    return found


def interval(values):
    """Median, and its 90 % interval by bootstrap."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(4000))
    return statistics.median(values), medians[200], medians[3799]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evenkeel", required=True)
    parser.add_argument("--client", required=True)
    parser.add_argument("--service", default="redis")
    parser.add_argument("--batch", default="loops", choices=BATCH)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--decide", type=int, default=45)
    parser.add_argument("--tasks", type=int, default=0, help="batch tasks (two for each CPU)")
    parser.add_argument("--period-us", type=int, default=1000)
    parser.add_argument("--json")
    args = parser.parse_args()
    # What is made goes also when this is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    work = tempfile.mkdtemp(prefix="evenkeel-services-")
    with open(f"{work}/source.c", "w") as file:
        file.write("#include <math.h>\n")
        for n in range(600):
            file.write(f"double f{n}(double x) {{ double s={n}; for (int i=0;i<9;i++) s+=sin(x*i)/(i+{n}); return s*s; }}\n")
    groups = {name: Group(name) for name in ("service", "clients", "batch", "spinners")}
    rounds = []
    try:
        service = groups["service"]
        service.served = Service(args.service, service, work)
        print(f"{args.service}, a request each {args.period_us} us, beside {args.batch}; microseconds")
        print(f"{'round':<6}{'arm':<10}{'p50':>8}{'p99':>9}{'p99.9':>9}{'>10 ms':>8}{'batch CPUs':>12}  from start: p99, p99.9; choice")
        for number in range(1, args.rounds + 1):
            arms = ["alone", "awake", "default", "evenkeel"]
            random.shuffle(arms)
            found = {}
            for name in arms:
                one = arm(name, args, service, groups["clients"], groups["batch"], groups["spinners"], work, f"{work}/state")
                found[name] = one
                start = one.get("from start")
                more = f"  {start['p99']:.0f}, {start['p999']:.0f}; {one['choice']}" if start else ""
                print(
                    f"{number:<6}{name:<10}{one['p50']:>8.0f}{one['p99']:>9.0f}{one['p999']:>9.0f}"
                    f"{one['beyond_10ms']:>8.0f}{one['batch_cpus']:>12.2f}{more}",
                    flush=True,
                )
            rounds.append(found)
    finally:
        if RUNS[0] and RUNS[0].poll() is None:
            RUNS[0].send_signal(signal.SIGINT)
            RUNS[0].wait(60)
        for group in groups.values():
            group.remove()
        if rounds:
            print(rounds[-1]["evenkeel"]["said"] if "evenkeel" in rounds[-1] else "")
        shutil.rmtree(work, ignore_errors=True)
    whole = [found for found in rounds if len(found) == 4]
    print(f"\nmedian ratios of {len(whole)} rounds [90 % interval]")
    seen = {
        "default": lambda found: found["default"],
        "evenkeel": lambda found: found["evenkeel"],
        f"its first {args.decide} s": lambda found: found["evenkeel"]["from start"],
    }
    for of in ("alone", "awake"):
        for name, arm_of in seen.items():
            for quantile in ("p99", "p999"):
                ratios = [arm_of(found)[quantile] / found[of][quantile] for found in whole]
                value, low, high = interval(ratios)
                print(f"  {name:<15} {quantile:<5} to {of:<6} {value:7.2f} [{low:.2f}, {high:.2f}]")
    for name in ("default", "evenkeel"):
        spare = [found[name]["batch_cpus"] for found in whole]
        value, low, high = interval(spare)
        print(f"  {name:<15} batch CPUs      {value:7.2f} [{low:.2f}, {high:.2f}]")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"args": vars(args), "rounds": rounds}, file, indent=1)


main()
