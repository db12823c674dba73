#!/usr/bin/env python3
"""How late an event loop is when a hypervisor takes CPU back for what background work used.

  scripts/services/stolen.py --evenkeel BINARY --client OPEN_LOOP [--share 0.0375] [--rounds 5] [--json FILE]

A redis and, next to it, one busy loop are in a cgroup that stands for a small virtual machine with credits: it earns 6.25 % of a CPU,
begins with CREDIT seconds, and gets 5 ms in each 80 when they are spent. The redis gets a request each 10 ms, and all of them
take SHARE of a CPU (3 ms in each 80). Each round measures, in random order: the redis alone; next to the busy loop; and next to it under
`evenkeel run --service --background --cpu-limit auto --instance`, which is started anew. The cgroup's quota is seen, a virtual machine's
is not: so `run` gets one lever that has nothing to do with quotas. On cgroup v1 it cannot be left to find the rule: the kernel
refuses a cgroup less than one below it has.
"""
import threading, time

from parts import Workspace, ask, beside, in_rounds, options, save, say_p99

EARNED, QUOTA_US, PERIOD_US, REQUEST_US = 0.0625, 5_000, 80_000, 10_000
# Seconds until the client asks.
WARM = {"alone": 2, "default": 10, "run": 20}


class Hypervisor(threading.Thread):
    """Keeps the credits of a cgroup, and holds it back without any."""

    def __init__(self, group, credit):
        super().__init__(daemon=True)
        self.group, self.balance, self.goes_on, self.held_s = group, credit, True, 0.0

    def run(self):
        before, used, held = time.monotonic(), self.group.cpu_seconds(), False
        while self.goes_on:
            time.sleep(0.01)
            now, total = time.monotonic(), self.group.cpu_seconds()
            self.balance += EARNED * (now - before) - (total - used)
            self.held_s += (now - before) * held
            before, used = now, total
            holds = self.balance < (0.05 if held else 0.0)
            if holds != held:
                self.group.limit(QUOTA_US if holds else -1, PERIOD_US)
            held = holds

    def end(self):
        self.goes_on = False
        self.join()
        self.group.limit(-1, PERIOD_US)


def arm(name, args, work):
    service, clients, batch, pod = (work.groups[name] for name in ("service", "clients", "batch", "pod"))
    hypervisor = Hypervisor(pod, args.credit)
    hypervisor.start()
    if name != "alone":
        work.start_batch(args.evenkeel, "loops", 1)
    warm = ask(args.client, clients, service.served, REQUEST_US, WARM[name])
    if name == "run":
        of = ["--service", f"cgroup:{service.path}", "--background", f"cgroup:{batch.path}", "--lever", "idle groups"]
        work.start_run(args.evenkeel, "--cpu-limit", "auto", "--instance", "shared-cpu-1x", of=of)
    warm.communicate()
    hypervisor.held_s = 0.0
    found = beside(batch, ask(args.client, clients, service.served, REQUEST_US, args.seconds))
    found |= {"held": min(1.0, hypervisor.held_s / args.seconds), "credits_s": hypervisor.balance}
    if name == "run":
        found["said"] = work.said().splitlines()
    work.end_arm()
    hypervisor.end()
    return found


def main():
    parser = options(__doc__, rounds=5)
    parser.add_argument("--share", type=float, default=0.0375)
    parser.add_argument("--credit", type=float, default=2.0)
    parser.add_argument("--seconds", type=int, default=20)
    args = parser.parse_args()
    rounds = []
    with Workspace("pod", "pod/service", "pod/batch", "clients") as work:
        work.start_redis(args.client, args.share, REQUEST_US)
        print(f"redis with a request each 10 ms, {100 * args.share:.2f} % of a CPU, on a machine of 6.25 % of a CPU; milliseconds")
        print(f"{'round':<6}{'arm':<9}{'p50':>8}{'p99':>8}{'p99.9':>8}{'held back, %':>14}{'batch, % of a CPU':>20}")
        for number, name, one in in_rounds(args.rounds, list(WARM), lambda name: arm(name, args, work), rounds):
            times = "".join(f"{one[key] / 1000:>8.2f}" for key in ("p50", "p99", "p999"))
            print(f"{number:<6}{name:<9}{times}{100 * one['held']:>14.0f}{100 * one['batch_cpus']:>20.2f}", flush=True)
    print("\n".join(rounds[-1]["run"]["said"]))
    say_p99(rounds)
    save(args, rounds)


main()
