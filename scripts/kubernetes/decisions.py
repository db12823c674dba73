"""Decisions beside loops that never sleep, while other programs come and go: is one kept whose gain is the loops'?"""

import os
import random
import subprocess
import time

import acts
import loads
from cluster import CPU, Beside, await_, check, read, say

# A block in which what is kept is held against the default, seconds.
BLOCK_S = 15
# CPU that a pod gets more by chance from block to block, points.
CHANCE_POINTS = 2.0


class Outside(Beside):
    """A busy loop on the host, outside every pod, that is started and ended at random instants."""

    def __init__(self, luck):
        super().__init__()
        self.luck, self.starts = luck, 0

    def run(self):
        while not self.over.wait(self.luck.uniform(2, 15)):
            loop = subprocess.Popen(["sh", "-c", "while :; do :; done"])
            self.starts += 1
            self.over.wait(self.luck.uniform(2, 15))
            loop.kill()
            loop.wait()


def run(cluster, count, seed):
    """So many decisions, each of an agent that has just been installed. Fails where a kept change is the loops' gain."""
    luck = random.Random(seed)
    say(f"{count} decisions, drawn from seed {seed}")
    cluster.apply([loads.namespace("prod")])
    cluster.apply([loads.pod("api", loads.WORKS, cpu="50m"), loads.pod("batch", loads.hog(2))])
    for name, quality in (("api", "Burstable"), ("batch", "BestEffort")):
        seen = cluster.await_running("prod", name)["status"]["qosClass"]
        check(f"quality of service of {name}", quality, seen, seen == quality)
    kept = wrong = 0
    for number in range(1, count + 1):
        began = time.monotonic()
        with Outside(luck) as outside:
            acts.upgrade(cluster)
            verdicts = await_("a decision in the log", 200, lambda: acts.decided(cluster.log()) or calm(cluster.log()))
        took = time.monotonic() - began
        winner = next((line for line in verdicts if line.startswith("* ") and not line.startswith("* kernel default")), None)
        words = f"{number:3} of {count}, {took:3.0f} s, another program started {outside.starts} times: "
        if not winner:
            print(words + (verdicts[0] if calm(verdicts[0]) else "nothing kept"), flush=True)
            acts.uninstall(cluster)
            continue
        kept += 1
        changed = measure(cluster)
        acts.uninstall(cluster)
        default = measure(cluster)
        service, loop, wait = (now - was for now, was in zip(changed, default))
        # Whom it serves: the service gets more, or waits less.
        hogs = loop > CHANCE_POINTS and loop > service and wait > -CHANCE_POINTS
        wrong += hogs
        print(f"{words}{winner[2:]}", flush=True)
        effect = f"service {service:+.1f} points of CPU, its waits {wait:+.1f}, the loops {loop:+.1f}"
        whose = "the LOOPS'" if hogs else "not the loops'"
        print(f"      against the default: {effect}: the gain is {whose}", flush=True)
    check(f"of {count} decisions {kept} kept a change; those whose gain is the loops'", 0, wrong, wrong == 0)


def calm(log):
    """A decision without a trial: nobody waits."""
    return [line for line in log.splitlines() if "nothing to do: " in line]


def measure(cluster):
    """CPU of the service and of the loops, and waits of the service, in percent of one CPU."""
    groups = [cluster.group("prod", name) for name in ("api", "batch")]
    time.sleep(2)
    began = time.monotonic()
    before = [loads.used_ns(groups[0]), loads.used_ns(groups[1]), waited_ns(groups[0])]
    time.sleep(BLOCK_S)
    after = [loads.used_ns(groups[0]), loads.used_ns(groups[1]), waited_ns(groups[0])]
    return [(b - a) / (time.monotonic() - began) / 1e7 for a, b in zip(before, after)]


def waited_ns(group):
    """What the tasks of a cgroup, and of those below it, have waited for a CPU."""
    sum_ns = 0
    for where, _, _ in os.walk(CPU + group):
        for tid in (read(f"{where}/tasks") or "").split():
            text = read(f"/proc/{tid}/schedstat")
            sum_ns += int(text.split()[1]) if text else 0
    return sum_ns
