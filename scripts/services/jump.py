#!/usr/bin/env python3
"""What clients see when a service's load jumps from 10 to 90 % of a CPU: alone, beside batch work, and under `evenkeel run`.

  scripts/services/jump.py --evenkeel BINARY --client OPEN_LOOP [--batch loops] [--rounds 10] [--json FILE]

A redis is asked 1,000 times a second for some 0.1 ms of work; 2 s later 8,000 times more. `run` is started once and has decided
before the rounds under it begin; alone there means that the batch is stopped (SIGSTOP) meanwhile, in random order with it. Counted
are the answers to the additional requests, each from the instant at which it was due: 99th percentile in the first 100 ms and
after that, and how many took more than 10 ms.
"""
import os, random, signal, time

from parts import BATCH, Workspace, ask, buckets, interval, options, save

STEADY_US, JUMP_US, BUCKET_MS, SECONDS = 1000, 125, 100, 3


def jump(args, work):
    clients, served = work.groups["clients"], work.groups["service"].served
    steady = ask(args.client, clients, served, STEADY_US, SECONDS + 3)
    time.sleep(2)
    seen = buckets(ask(args.client, clients, served, JUMP_US, SECONDS, BUCKET_MS))
    steady.communicate()
    parts = [seen[str(n)] for n in range(SECONDS * 1000 // BUCKET_MS)]
    after = sorted(part["p99"] for part in parts[1:])
    return {
        "first": parts[0]["p99"],
        "after": after[len(after) // 2],
        "beyond": sum(part["beyond_10ms"] for part in parts),
        "beyond_later": sum(part["beyond_10ms"] for part in parts[1:]),
    }


def show(number, name, one):
    first, after, beyond, later = (one[key] for key in ("first", "after", "beyond", "beyond_later"))
    print(f"{number:<6}{name:<18}{first:>12.0f}{after:>12.0f}{beyond:>10.0f}{later:>22.0f}", flush=True)


def main():
    parser = options(__doc__, rounds=10)
    parser.add_argument("--batch", default="loops", choices=BATCH)
    parser.add_argument("--tasks", type=int, default=0, help="batch tasks (two for each CPU)")
    args = parser.parse_args()
    rounds = [{} for _ in range(args.rounds)]
    with Workspace("service", "clients", "batch") as work:
        batch, service = work.groups["batch"], work.start_redis(args.client, 0.1, STEADY_US)
        print(f"redis, 10 -> 90 % of a CPU, beside {args.batch}; 99th percentiles in microseconds")
        print(f"{'round':<6}{'arm':<18}{'first 0.1 s':>12}{'after':>12}{'> 10 ms':>10}{'of them after 0.1 s':>22}")
        work.start_batch(args.evenkeel, args.batch, args.tasks)

        def batch_runs(runs):
            for child in batch.children:
                os.killpg(child.pid, signal.SIGCONT if runs else signal.SIGSTOP)
            time.sleep(0.5)

        def measure(number, name):
            batch_runs(not name.startswith("alone"))
            one = rounds[number][name] = jump(args, work)
            show(number + 1, name, one)

        for number in range(args.rounds):
            for name in random.sample(["alone", "default"], 2):
                measure(number, name)
        batch_runs(True)
        load = ask(args.client, work.groups["clients"], service.served, STEADY_US, 90)
        work.start_run(args.evenkeel)
        work.wait_until(work.kept, 90)
        load.kill()
        load.wait()
        print(work.kept() or "nothing is kept")
        for number in range(args.rounds):
            for name in random.sample(["alone, under run", "run"], 2):
                measure(number, name)
        batch_runs(True)
    for name, of in (("default", "alone"), ("run", "alone, under run")):
        for key in ("first", "after"):
            value, low, high = interval([one[name][key] / one[of][key] for one in rounds])
            print(f"{name}: p99 {key} to alone {value:.2f} [{low:.2f}, {high:.2f}]")
        more = [one[name]["beyond"] - one[of]["beyond"] for one in rounds]
        print(f"{name}: requests beyond 10 ms, more than alone, by round: {' '.join(f'{n:+.0f}' for n in more)}")
    save(args, rounds)


main()
