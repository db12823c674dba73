#!/usr/bin/env python3
"""What clients feel of a quota that is enough on average and not at every moment, and what `evenkeel run` makes of it.

  scripts/services/burst.py --evenkeel BINARY --client OPEN_LOOP [--service nginx] [--share 0.34] [--quota 0.4] [--rounds 10]
                            [--seconds 10] [--json FILE]

Requests come at random, independent of each other, and take SHARE of a CPU; the service has a QUOTA (CPUs, in 100 ms). nginx compresses a
page, PostgreSQL (asked by pgbench) counts, redis runs a loop. On the same host is a neighbour without a quota: a redis with a
GET each millisecond. Each round measures, in random order: the service without a quota ("free"), with it ("quota"), and with it
under `evenkeel run --service` ("run"), which is started anew and has until DECIDE seconds to decide. Printed: medians over rounds,
and ratios "quota" to "run" of the service, "run" to "quota" of the neighbour, round by round, with the 90 % interval of their median by bootstrap.
"""
import os, statistics, subprocess, time

from parts import Service, Workspace, answers, ask, calibrate, in_rounds, interval, options, save

PERIOD_US = 100_000
# CPU that a request takes, seconds.
WORK_S = 0.003


class Asked:
    """A service and who asks it, at random and so that it takes a share of a CPU."""

    def __init__(self, args, work):
        self.args, self.group, self.clients = args, work.groups["service"], work.groups["clients"]
        self.period_us = int(WORK_S / args.share * 1e6)
        self.start(args, work)

    def start(self, args, work):
        self.group.served = Service(args.service, self.group, work.dir)
        calibrate(args.client, self.clients, self.group, args.share, self.period_us)

    def ask(self, seconds):
        return ask(self.args.client, self.clients, self.group.served, f"~{self.period_us}", seconds)

    def answers(self, asked):
        return answers(asked)


class Compressing(Asked):
    """What a request takes is fixed; how often it comes is not."""

    def start(self, args, work):
        self.group.served = Service("nginx", self.group, work.dir, compress=True)
        before = self.group.cpu_seconds()
        asked = ask(args.client, self.clients, self.group.served, 20_000, 4)
        asked.communicate()
        self.period_us = int((self.group.cpu_seconds() - before) / 200 / args.share * 1e6)


class Database(Asked):
    """PostgreSQL; pgbench reckons from the instant at which a transaction was due."""

    def start(self, args, work):
        self.dir = f"{work.dir}/postgresql"
        os.chmod(work.dir, 0o755)
        os.mkdir(self.dir)
        subprocess.run(["chown", "nobody", self.dir], check=True)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([*self.as_nobody("initdb"), "-D", f"{self.dir}/data", "-A", "trust", "-N"], check=True, **quiet)
        self.group.start([*self.as_nobody("postgres"), "-D", f"{self.dir}/data", "-k", self.dir, "-c", "listen_addresses=",
                          "-c", "jit=off", "-c", "max_parallel_workers_per_gather=0"], **quiet)
        time.sleep(2)
        rows = 10_000
        for _ in range(3):
            with open(f"{self.dir}/count.sql", "w") as file:
                file.write(f"select count(*) from generate_series(1, {rows});\n")
            before = self.group.cpu_seconds()
            self.answers(self.ask(4))
            rows = int(rows * 4 * args.share / (self.group.cpu_seconds() - before))

    def as_nobody(self, program):
        path = next(f"{place}/{program}" for place in os.environ["PATH"].split(":") if os.path.exists(f"{place}/{program}"))
        return ["setpriv", "--reuid=nobody", "--clear-groups", "--", path]

    def ask(self, seconds):
        for name in os.listdir(self.dir):
            if name.startswith("log."):
                os.remove(f"{self.dir}/{name}")
        rate = str(1e6 / self.period_us)
        return self.clients.start([*self.as_nobody("pgbench"), "-h", self.dir, "-n", "-f", f"{self.dir}/count.sql", "-R", rate, "-T", str(seconds),
                                   "-c", "8", "-l", f"--log-prefix={self.dir}/log", "postgres"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def answers(self, asked):
        asked.communicate()
        times = []
        for name in os.listdir(self.dir):
            if name.startswith("log."):
                times += [float(line.split()[2]) for line in open(f"{self.dir}/{name}")]
        times.sort()
        at = lambda share: times[int(share * (len(times) - 1))]
        return {"answers": len(times), "p50": at(0.5), "p99": at(0.99), "p999": at(0.999)}


KINDS = {"nginx": Compressing, "postgresql": Database, "redis": Asked}


def arm(name, args, asked, work):
    groups, found = work.groups, {}
    groups["service"].limit(-1 if name == "free" else int(args.quota * PERIOD_US), PERIOD_US)
    time.sleep(1)
    if name == "run":
        load = asked.ask(args.decide)
        # Background work that does nothing: what is tried is for the service.
        groups["batch"].start(["sleep", "1000"])
        of = ["--service", f"cgroup:{groups['service'].path}", "--background", f"cgroup:{groups['batch'].path}"]
        found = work.decide(args.evenkeel, load, args.decide, of)
        time.sleep(1)
    before = groups["service"].cpu_seconds()
    began, neighbour = time.monotonic(), ask(args.client, groups["clients"], groups["neighbour"].served, 1000, args.seconds)
    found |= asked.answers(asked.ask(args.seconds))
    found["cpus"] = (groups["service"].cpu_seconds() - before) / (time.monotonic() - began)
    found["neighbour"] = answers(neighbour)
    work.end_run()
    groups["batch"].stop()
    return found


def main():
    parser = options(__doc__, rounds=10)
    parser.add_argument("--service", default="nginx", choices=KINDS)
    parser.add_argument("--share", type=float, default=0.34)
    parser.add_argument("--quota", type=float, default=0.4)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--decide", type=int, default=240)
    args = parser.parse_args()
    rounds = []
    with Workspace("service", "neighbour", "clients", "batch") as work:
        work.groups["neighbour"].served = Service("redis", work.groups["neighbour"], work.dir, "neighbour.sock")
        asked = KINDS[args.service](args, work)
        print(f"{args.service}, a request each {asked.period_us} us on average, {100 * args.share:.0f} % of a CPU, a quota of "
              f"{100 * args.quota:.0f} %; microseconds")
        print(f"{'round':<6}{'arm':<7}{'p50':>8}{'p99':>9}{'p99.9':>9}{'CPU, %':>8}{'neighbour p99':>15}  decided")
        for number, name, one in in_rounds(args.rounds, ["free", "quota", "run"], lambda name: arm(name, args, asked, work), rounds):
            decided = f"  after {one['decided_s']:.0f} s: {one['kept'][:60]}" if name == "run" else ""
            print(f"{number:<6}{name:<7}{one['p50']:>8.0f}{one['p99']:>9.0f}{one['p999']:>9.0f}{100 * one['cpus']:>8.1f}"
                  f"{one['neighbour']['p99']:>15.0f}{decided}", flush=True)
    for name in ("free", "quota", "run"):
        print(f"{name:<6} p99 {statistics.median(found[name]['p99'] for found in rounds):.0f} us, median of {len(rounds)} rounds")
    less = interval([found["quota"]["p99"] / found["run"]["p99"] for found in rounds])
    more = interval([found["run"]["neighbour"]["p99"] / found["quota"]["neighbour"]["p99"] for found in rounds])
    print("p99 is {:.2f} times less [{:.2f}, {:.2f}]; the neighbour's {:.3f} times as much [{:.3f}, {:.3f}]".format(*less, *more))
    save(args, rounds)


main()
