#!/usr/bin/env python3
"""Records what /metrics says of real scenes, once a second: record_scenes.py EVENKEEL [SECONDS] >scenes.csv. As root.

Each scene runs for SECONDS (40) on one CPU of this host. The victim's truth is what is done to it: a quota of so much, neighbours of such
weight. A line is: scene, what is wrong with the victim (nothing, throttled or starved), CPUs of the host, then a second: CPU seconds of
the victim, its waiting, its throttled time, and the CPU seconds of the whole host. alerts are judged on these, too
(crates/listen/src/notices/labelled)."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

EVENKEEL, SECONDS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40
ROOTS = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"]
ROOT = next(root for root in ROOTS if os.path.exists(root + "/cgroup.procs"))
V2 = os.path.exists(ROOT + "/cgroup.controllers")
TOP = f"{ROOT}/evenkeel-scenes-{os.getpid()}"
CPU = str(os.cpu_count() - 1)


def write(path, text):
    with open(path, "w") as file:
        file.write(str(text))


class Group:
    """A cgroup of loads. Weight: 1024 is the default."""

    def __init__(self, name, weight=1024, quota_pct=None, period_ms=100):
        self.dir = f"{TOP}/{name}"
        self.loads = []
        os.mkdir(self.dir)
        write(self.dir + ("/cpu.weight" if V2 else "/cpu.shares"), max(1, weight * 100 // 1024) if V2 else weight)
        if quota_pct:
            period = period_ms * 1000
            quota = int(period * quota_pct / 100)
            if V2:
                write(self.dir + "/cpu.max", f"{quota} {period}")
            else:
                write(self.dir + "/cpu.cfs_period_us", period)
                write(self.dir + "/cpu.cfs_quota_us", quota)

    def run(self, *args, times=1):
        for seed in range(times):
            join = f'echo 0 >{self.dir}/cgroup.procs; exec taskset -c {CPU} "$@"'
            extra = ["--seed", str(seed + 1)] if args[0] == "duty" else []
            command = [EVENKEEL, "load", *args, *extra, "--seconds", "600"]
            self.loads.append(subprocess.Popen(["sh", "-c", join, "sh", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return self

    def end(self):
        for load in self.loads:
            load.kill()
            load.wait()
        for _ in range(100):
            try:
                return os.rmdir(self.dir)
            except OSError:
                time.sleep(0.05)


def duty(percent, period="50ms"):
    return ("duty", "--percent", str(percent), "--period", period)


# Name, what is wrong with the victim, the victim, its neighbours.
SCENES = [
    ("idle", "nothing", lambda: [Group("victim").run(*duty(2))]),
    ("harmless-throttling", "nothing", lambda: [Group("victim", quota_pct=55).run(*duty(40, "100ms"))]),
    ("harmless-throttling-threads", "nothing", lambda: [Group("victim", quota_pct=50).run(*duty(9, "100ms"), times=4)]),
    ("harmful-throttling", "throttled", lambda: [Group("victim", quota_pct=25).run(*duty(80))]),
    ("harmful-throttling-threads", "throttled", lambda: [Group("victim", quota_pct=20).run("spin", times=4)]),
    ("harmful-throttling-short-period", "throttled", lambda: [Group("victim", quota_pct=30, period_ms=20).run("spin")]),
    ("neighbour", "starved", lambda: [Group("victim", 256).run(*duty(70)), Group("other", 1024).run("spin", times=2)]),
    ("neighbour-many", "starved", lambda: [Group("victim", 1024).run(*duty(60)), Group("other", 4096).run(*duty(90), times=4)]),
    ("neighbour-harmless", "nothing", lambda: [Group("victim", 4096).run(*duty(30)), Group("other", 512).run("spin")]),
    ("overload", "starved", lambda: [Group("victim").run("spin", times=2), *[Group(f"other{n}").run("spin", times=2) for n in range(3)]]),
    ("batch-alone", "nothing", lambda: [Group("victim").run("spin", times=3)]),
]


def sums(page):
    name = TOP.rsplit("/", 1)[1]
    found = []
    for metric in ["cpu_seconds_total", "cpu_wait_seconds_total", "cpu_throttled_seconds_total"]:
        match = re.search(rf'^evenkeel_{metric}{{[^}}]*id="/{name}/victim"}} (\S+)$', page, re.M)
        found.append(float(match.group(1)) if match else 0.0)
    busy = re.findall(r"^evenkeel_host_cpu_busy_seconds_total\S+ (\S+)$", page, re.M)
    return [*found, sum(map(float, busy))]


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    state = tempfile.mkdtemp()
    os.mkdir(TOP)
    # Whoever else works on this host hardly matters then.
    write(TOP + ("/cpu.weight" if V2 else "/cpu.shares"), 10000 if V2 else 65536)
    if V2:
        write(TOP + "/cgroup.subtree_control", "+cpu")
    serve = subprocess.Popen([EVENKEEL, "--state-dir", state, "serve", "--listen", "127.0.0.1:0", "--no-history"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    groups = []
    try:
        url = next(line for line in serve.stderr if "listening on" in line).split()[-1]
        print("scene,wrong,cpus,cpu,wait,throttled,busy")
        for name, wrong, make in SCENES:
            groups = make()
            time.sleep(4)
            before, seen = None, ""
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                with urllib.request.urlopen(url + "/metrics", timeout=60) as answer:
                    page = answer.read().decode()
                # A look of the agent is a second; the same page may be read twice.
                at = re.search(r"^evenkeel_observed_timestamp_seconds (\S+)$", page, re.M).group(1)
                if at != seen:
                    now = [float(at), *sums(page)]
                    if before:
                        wall = now[0] - before[0]
                        rates = ",".join(f"{(b - a) / wall:.3f}" for a, b in zip(before[1:], now[1:]))
                        print(f"{name},{wrong},{os.cpu_count()},{rates}", flush=True)
                    before, seen = now, at
                time.sleep(0.3)
            for group in groups:
                group.end()
            groups = []
    finally:
        for group in groups:
            group.end()
        serve.kill()
        serve.wait()
        shutil.rmtree(state, ignore_errors=True)
        os.rmdir(TOP)


main()
