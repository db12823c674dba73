#!/usr/bin/env python3
"""How soon a limit of background work follows a service's demand, where both share a quota.

  scripts/services/follow.py --evenkeel BINARY --client OPEN_LOOP [--rounds 5] [--json FILE]

A redis and, next to it, busy loops share a cgroup with a quota of one CPU in each 100 ms. Requests a millisecond apart take 10 % of a CPU;
then 80 % more for two seconds, and 10 % again. Each round measures, in random order: the redis without the busy loops, next to them, and
next to them under `evenkeel run --service --background`, which has decided by then. Of the last: when the limit fell after the jump began and
when it rose after it ended.
"""
import argparse, os, statistics, time

from parts import Workspace, ask, buckets, calibrate, in_rounds, options, save, say_p99

QUOTA_US, PERIOD_US, REQUEST_US = 100_000, 100_000, 1_000
TRIAL_SECONDS, JUMP_SECONDS = 230, 2


def limit_pct(group):
    """The cgroup's limit, percent of one CPU."""
    try:
        quota, period = open(f"{group.dir}/cpu.max").read().split()
    except FileNotFoundError:
        quota, period = (open(f"{group.dir}/cpu.cfs_{name}_us").read().strip() for name in ("quota", "period"))
    return 100 * int(quota) / int(period) if quota not in ("max", "-1") else 1e9


def watch(batch, service, seconds, is_there, has_changed):
    """Seconds from the moment the service's use changed until the limit is as asked for; None where it is not in time.

    The use has changed with the first 10 ms whose use is as asked for, and did so when they began.
    """
    began, seen, changed = time.monotonic(), [], None
    while time.monotonic() - began < seconds:
        now, used = time.monotonic(), service.cpu_seconds()
        seen = [(then, was) for then, was in seen if now - then <= 0.01] + [(now, used)]
        then, was = seen[0]
        if changed is None and now - then > 0.008 and has_changed((used - was) / (now - then)):
            changed = then
        if is_there(limit_pct(batch)):
            return now - (changed or now)
        time.sleep(0.0005)
    return None


def arm(name, args, work):
    service, clients, batch = (work.groups[name] for name in ("service", "clients", "batch"))
    if name != "alone":
        work.start_batch(args.evenkeel, "loops", os.cpu_count())
    time.sleep(2)
    found = {}
    if name == "run":
        load = ask(args.client, clients, service.served, REQUEST_US, TRIAL_SECONDS)
        found = work.decide(args.evenkeel, load, TRIAL_SECONDS)
    seconds = 3 * JUMP_SECONDS
    steady = ask(args.client, clients, service.served, REQUEST_US, seconds, 100)
    time.sleep(JUMP_SECONDS)
    before_pct, cpu = limit_pct(batch), batch.cpu_seconds()
    jump = ask(args.client, clients, service.more, REQUEST_US, JUMP_SECONDS, 100)
    if name == "run":
        found["before_pct"] = before_pct
        found["falls_s"] = watch(
            batch, service, JUMP_SECONDS - 0.5, lambda pct: pct < before_pct / 4, lambda used: used > 0.5
        )
    jumped = buckets(jump)
    found["batch_in_jump_pct"] = 100 * (batch.cpu_seconds() - cpu) / JUMP_SECONDS
    if name == "run":
        found["rises_s"] = watch(
            batch, service, JUMP_SECONDS - 0.5, lambda pct: pct > before_pct / 2, lambda used: used < 0.5
        )
    cpu, began = batch.cpu_seconds(), time.monotonic()
    steady.wait()
    found["batch_after_pct"] = 100 * (batch.cpu_seconds() - cpu) / (time.monotonic() - began)
    all_of_it = jumped.pop("all")
    found |= {key: all_of_it[key] for key in ("p50", "p99", "p999", "beyond_10ms")}
    later = [one["p99"] for at, one in jumped.items() if int(at) >= 1]
    found["p99_later"] = statistics.median(later)
    work.end_arm()
    return found


def main():
    parser = options(__doc__, rounds=5)
    args = parser.parse_args()
    rounds = []
    with Workspace("pod", "pod/service", "pod/batch", "clients") as work:
        service = work.start_redis(args.client, 0.8, REQUEST_US)
        more = service.served.request
        calibrate(args.client, work.groups["clients"], service, 0.1, REQUEST_US)
        service.more = argparse.Namespace(address=service.served.address, request=more)
        work.groups["pod"].limit(QUOTA_US, PERIOD_US)
        print("a redis of 10 % of a CPU, and 80 % more for 2 s, in a quota of 100 %; milliseconds of those requests")
        print(f"{'round':<6}{'arm':<9}{'p50':>9}{'p99':>9}{'beyond 10':>11}{'batch, % in and after':>23}  limit falls, rises after, ms")
        for number, name, one in in_rounds(args.rounds, ["alone", "default", "run"], lambda name: arm(name, args, work), rounds):
            times = "".join(f"{one[key] / 1000:>9.2f}" for key in ("p50", "p99"))
            batch = f"{one['batch_in_jump_pct']:.0f}, {one['batch_after_pct']:.0f}"
            ms = lambda key: "never" if one.get(key) is None else f"{1000 * one[key]:.0f}"
            moved = f"  {ms('falls_s')}, {ms('rises_s')} of {one['before_pct']:.0f} %; {one['kept']}" if name == "run" else ""
            print(f"{number:<6}{name:<9}{times}{one['beyond_10ms']:>11.0f}{batch:>23}{moved}", flush=True)
    say_p99(rounds)
    save(args, rounds)


main()
