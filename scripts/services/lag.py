#!/usr/bin/env python3
"""How late an event loop is under a small quota that it shares with background work, such as a small virtual machine has.

  scripts/services/lag.py --evenkeel BINARY --client OPEN_LOOP [--share 0.0375] [--rounds 5] [--json FILE]

A redis and, next to it, one busy loop share a cgroup with a quota of 5 ms in each 80 ms. The redis gets a request each 10 ms, and
all of them take SHARE of a CPU (3 ms in each 80). Each round measures, in random order: the redis alone; next to the busy loop; and next
to it under `evenkeel run --service --background`, which is started anew: until it has decided, and after that.
"""
import time

from parts import Workspace, ask, beside, in_rounds, options, save, say_p99

QUOTA_US, PERIOD_US, REQUEST_US = 5_000, 80_000, 10_000
TRIAL_SECONDS = 150


def arm(name, args, work):
    service, clients, batch = (work.groups[name] for name in ("service", "clients", "batch"))
    if name != "alone":
        work.start_batch(args.evenkeel, "loops", 1)
    time.sleep(2)
    found = {}
    if name == "run":
        load = ask(args.client, clients, service.served, REQUEST_US, TRIAL_SECONDS)
        found = work.decide(args.evenkeel, load, TRIAL_SECONDS)
        time.sleep(1)
    found |= beside(batch, ask(args.client, clients, service.served, REQUEST_US, args.seconds))
    work.end_arm()
    return found


def main():
    parser = options(__doc__, rounds=5)
    parser.add_argument("--share", type=float, default=0.0375)
    parser.add_argument("--seconds", type=int, default=30)
    args = parser.parse_args()
    rounds = []
    with Workspace("pod", "pod/service", "pod/batch", "clients") as work:
        work.start_redis(args.client, args.share, REQUEST_US)
        work.groups["pod"].limit(QUOTA_US, PERIOD_US)
        print(f"redis with a request each 10 ms, {100 * args.share:.2f} % of a CPU, in a quota of 5 ms in 80; milliseconds")
        print(f"{'round':<6}{'arm':<9}{'p50':>8}{'p99':>8}{'p99.9':>8}{'batch, % of a CPU':>20}  decided")
        for number, name, one in in_rounds(args.rounds, ["alone", "default", "run"], lambda name: arm(name, args, work), rounds):
            times = "".join(f"{one[key] / 1000:>8.2f}" for key in ("p50", "p99", "p999"))
            decided = f"  after {one['decided_s']:.0f} s: {one['kept']}" if name == "run" else ""
            print(f"{number:<6}{name:<9}{times}{100 * one['batch_cpus']:>20.2f}{decided}", flush=True)
    say_p99(rounds)
    save(args, rounds)


main()
