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
import os, subprocess, time

from parts import BATCH, Service, Workspace, answers, ask, beside, in_rounds, interval, options, save


def arm(name, args, work):
    """One arm: what clients saw, and CPUs that batch got meanwhile."""
    groups = work.groups
    service, clients, batch, spinners = (groups[name] for name in ("service", "clients", "batch", "spinners"))
    if name == "awake":
        spinners.idle()
        for _ in range(os.cpu_count()):
            spinners.start([args.evenkeel, "load", "spin", "--seconds", "100000"], stdout=subprocess.DEVNULL)
    if name in ("default", "evenkeel"):
        work.start_batch(args.evenkeel, args.batch, args.tasks)
    time.sleep(2)
    found = {}
    if name == "evenkeel":
        start = ask(args.client, clients, service.served, args.period_us, args.decide)
        work.start_run(args.evenkeel)
        found["from start"] = answers(start)
        kept = work.kept()
        found["choice"] = kept[2:26].strip() if kept else "none"
        found["said"] = kept or work.said()[-300:]
    found |= beside(batch, ask(args.client, clients, service.served, args.period_us, args.seconds))
    work.end_arm()
    return found


def main():
    parser = options(__doc__, rounds=3)
    parser.add_argument("--service", default="redis")
    parser.add_argument("--batch", default="loops", choices=BATCH)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--decide", type=int, default=45)
    parser.add_argument("--tasks", type=int, default=0, help="batch tasks (two for each CPU)")
    parser.add_argument("--period-us", type=int, default=1000)
    args = parser.parse_args()
    rounds = []
    with Workspace("service", "clients", "batch", "spinners") as work:
        service = work.groups["service"]
        service.served = Service(args.service, service, work.dir)
        print(f"{args.service}, a request each {args.period_us} us, beside {args.batch}; microseconds")
        print(f"{'round':<6}{'arm':<10}{'p50':>8}{'p99':>9}{'p99.9':>9}{'>10 ms':>8}{'batch CPUs':>12}  from start: p99, p99.9; choice")
        arms = ["alone", "awake", "default", "evenkeel"]
        for number, name, one in in_rounds(args.rounds, arms, lambda name: arm(name, args, work), rounds):
            start = one.get("from start")
            more = f"  {start['p99']:.0f}, {start['p999']:.0f}; {one['choice']}" if start else ""
            print(
                f"{number:<6}{name:<10}{one['p50']:>8.0f}{one['p99']:>9.0f}{one['p999']:>9.0f}"
                f"{one['beyond_10ms']:>8.0f}{one['batch_cpus']:>12.2f}{more}",
                flush=True,
            )
    print(rounds[-1]["evenkeel"]["said"])
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
    seen |= {"alone": lambda found: found["alone"], "awake": lambda found: found["awake"]}
    for name, arm_of in seen.items():
        slow, all_of = (sum(arm_of(found)[key] for found in whole) for key in ("slow_seconds", "seconds"))
        print(f"  {name:<15} seconds with p99 beyond 1 ms: {slow} of {all_of}")
    for name in ("default", "evenkeel"):
        spare = [found[name]["batch_cpus"] for found in whole]
        value, low, high = interval(spare)
        print(f"  {name:<15} batch CPUs      {value:7.2f} [{low:.2f}, {high:.2f}]")
    save(args, rounds)


main()
