#!/usr/bin/env python3
"""What a restart costs: the agent is killed and started again while a change is in force, next to a redis that is asked all the while.

  scripts/services/takeover.py --evenkeel BINARY --client OPEN_LOOP [--rounds 30] [--seconds 10] [--json FILE]

Two short loads behind two busy loops share CPU 0 with the redis; the loop gives the short ones short slices. For each kill the 99th
percentile of redis' answers in SECONDS around it (a fifth of them before) is held against as many seconds undisturbed. Printed: each kill,
and the ratio of both with the upper end of its one-sided 95 % interval. Status 1: a restart did not take over, or the interval's end is
above 1.10.
"""
import math, statistics, subprocess, sys, time

from parts import Service, Workspace, answers, ask, options, save

# Wide limits: what is measured is a restart, whatever the change. Never held out: blocks would be in some of the windows only.
CONFIG = """
[run]
interval = "500ms"
closer_look = "150s"
levers = ["short first"]
holdout = 0.0
[guard]
cpu_loss = 0.9
outside_cpu_loss = 0.9
wait_factor = 50
tail_share = 0.9
"""
PATIENCE_SECONDS = 300


def upper(logs):
    """Upper end of the one-sided 95 % interval of a mean of logarithms: Student's t after Cornish and Fisher."""
    z, freedom = 1.6449, len(logs) - 1
    if freedom < 1:
        return math.inf
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return math.exp(statistics.mean(logs) + t * statistics.stdev(logs) / math.sqrt(len(logs)))


def main():
    parser = options(__doc__, rounds=30)
    parser.add_argument("--seconds", type=int, default=10)
    args = parser.parse_args()
    kills = []
    with Workspace("loads", "service", "clients") as work:
        loads, service = work.groups["loads"], work.groups["service"]
        loads.prefix = service.prefix = ["taskset", "-c", "0"]
        for group in work.groups.values():
            # Whatever else runs on this host hardly counts then.
            group.weigh(65536, 10000)
        for _ in range(2):
            duty = ["load", "duty", "--percent", "25", "--period", "10ms", "--kind", "closed", "--seconds", "100000"]
            loads.start([args.evenkeel, *duty], stdout=subprocess.DEVNULL)
            loads.start(["sh", "-c", "while :; do :; done"])
        service.served = Service("redis", service, work.dir)
        config = f"{work.dir}/takeover.toml"
        with open(config, "w") as file:
            file.write(CONFIG)

        def start():
            work.start_run(args.evenkeel, of=["--config", config, "--scope", f"cgroup:{loads.path}"])

        def asked():
            return ask(args.client, work.groups["clients"], service.served, 10_000, args.seconds)

        start()
        if not work.wait_until(lambda: "\n* short first" in "\n" + work.said(), PATIENCE_SECONDS):
            sys.exit(f"no change is in force: {work.said()[-300:]}")
        print(f"{'kill':<6}{'undisturbed us':>18}{'around it us':>18}  restart")
        for number in range(1, args.rounds + 1):
            time.sleep(3)
            quiet = answers(asked())["p99"]
            around = asked()
            time.sleep(0.2 * args.seconds)
            work.run.kill()
            work.run.wait()
            start()
            around = answers(around)["p99"]
            took = work.wait_until(lambda: "took over" in work.said(), PATIENCE_SECONDS)
            why = next((line for line in work.said().splitlines() if "not taken over" in line), "did not take over")
            print(f"{number:<6}{quiet:>18.0f}{around:>18.0f}  {'took over' if took else why}", flush=True)
            kills.append({"quiet": quiet, "around": around, "took_over": bool(took)})
        work.end_run()
        subprocess.run([args.evenkeel, "--state-dir", f"{work.dir}/state", "restore"], check=False, stdout=subprocess.DEVNULL)
    save(args, kills)
    logs = [math.log(one["around"] / one["quiet"]) for one in kills]
    lost = sum(not one["took_over"] for one in kills)
    print(f"p99 around a kill to undisturbed, {len(kills)} kills: {math.exp(statistics.mean(logs)):.3f}, at most {upper(logs):.3f} "
          f"(95 %; goal: 1.10); {lost} restarts did not take over")
    return int(upper(logs) > 1.1 or lost > 0)


sys.exit(main())
