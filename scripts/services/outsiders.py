#!/usr/bin/env python3
"""What outsiders feel: a redis under light load and a compile, next to the demo's mix that the loop evens out.

  scripts/services/outsiders.py --evenkeel BINARY --client OPEN_LOOP [--rounds 5] [--seconds 15] [--kind closed] [--json FILE]

The mix (five loads per CPU, 75 % of the host, periods of 100 ms +-50 %) is the loop's scope, in a cgroup of its own; redis, its client
(a request each 10 ms) and the compiler are in others and are never touched. Each round measures the outsiders under the kernel's default,
lets the loop decide, measures them under its choice, and restores everything. Printed: each round, the verdicts where nothing was kept,
and the median ratio. Status 1: the slowest answers take 1.1 times as long, or a compile 1.05 times.
"""
import math, os, statistics, subprocess, sys, time

from parts import Service, Workspace, answers, ask, options, save

# One compile after the other, with the instant and the time each took, nanoseconds.
COMPILE = "while :; do from=$(date +%s%N); cc -O2 -c -o {dir}/out.o {dir}/source.c; echo $from $(($(date +%s%N) - from)); done >{dir}/compiles"
DECIDE_SECONDS = 90


def measure(args, work):
    """The redis' answers, and what compiles took that ended meanwhile, milliseconds."""
    began = time.time_ns()
    found = answers(ask(args.client, work.groups["clients"], work.groups["service"].served, 10_000, args.seconds))
    rows = [tuple(map(int, line.split())) for line in open(f"{work.dir}/compiles")]
    times = [took / 1e6 for at, took in rows if at + took >= began]
    return found | {"compile_ms": statistics.mean(times) if times else math.nan}


def show(number, settings, one):
    print(f"{number:<6}{settings:<24}{one['p50']:>10.0f}{one['p99']:>10.0f}{one['compile_ms']:>12.0f}", flush=True)


def main():
    parser = options(__doc__, rounds=5)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--kind", default="closed", choices=["closed", "wall"])
    args = parser.parse_args()
    rounds = []
    with Workspace("mix", "service", "clients", "compiler") as work:
        mix = work.groups["mix"]
        for seed in range(1, 5 * os.cpu_count() + 1):
            load = ["load", "duty", "--percent", str(5 * (1 + seed % 5)), "--kind", args.kind, "--seed", str(seed), "--seconds", "100000"]
            mix.start([args.evenkeel, *load], stdout=subprocess.DEVNULL)
        work.groups["service"].served = Service("redis", work.groups["service"], work.dir)
        work.groups["compiler"].start(["sh", "-c", COMPILE.format(dir=work.dir)])
        time.sleep(3)
        print(f"{'round':<6}{'settings':<24}{'p50 us':>10}{'p99 us':>10}{'compile ms':>12}")
        for number in range(1, args.rounds + 1):
            before = measure(args, work)
            show(number, "kernel default", before)
            work.start_run(args.evenkeel, of=["--scope", f"cgroup:{mix.path}"])
            work.wait_until(work.kept, DECIDE_SECONDS)
            choice = work.kept()[2:26].strip() if work.kept() else "nothing decided"
            after = measure(args, work)
            show(number, choice, after)
            work.end_run()
            if choice in ("kernel default", "nothing decided"):
                # Nothing was changed, so there is nothing to compare.
                print("\n".join("       " + line.strip()[:160] for line in work.said().splitlines() if "taken back: " in line))
            else:
                rounds.append({"choice": choice, "before": before, "after": after})
    save(args, rounds)
    if not rounds:
        print("nothing was changed in any round: nothing to compare")
        return 0
    ratio = {key: statistics.median(one["after"][key] / one["before"][key] for one in rounds) for key in ("p50", "p99", "compile_ms")}
    print(f"median ratio, choice to default, of {len(rounds)} rounds: redis p50 {ratio['p50']:.2f}, p99 {ratio['p99']:.2f} (goal: 1.10), "
          f"compile time {ratio['compile_ms']:.2f} (goal: 1.05)")
    return int(ratio["p99"] > 1.1 or ratio["compile_ms"] > 1.05)


sys.exit(main())
