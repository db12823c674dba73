#!/usr/bin/env python3
"""Puts evenkeel into a real one-node Kubernetes and looks at what comes of it: test.py FOLDER IMAGE --program PROGRAM [--decisions N | --churn PODS | --jobs]

FOLDER is that of build.sh, IMAGE an archive that make-packages.sh wrote. Needs root; takes some eight minutes. The cluster is
ended whatever happens, and the host compared with what it was. With --decisions: only these, of some 90 s each.
With --churn: only so many pods that come and go within --minutes, beside a promise. With --jobs: only the indexed
Jobs, a minute. PROGRAM writes their manifests and merges what they leave.
"""

import argparse
import os
import signal
import subprocess
import sys
import time

import acts
import churn
import decisions
import install
import jobs
import kubelet
import tiers
from cluster import HERE, Cluster, Failed, check, read, say

sys.path.insert(0, os.path.join(HERE, "../ends"))
import dump  # noqa: E402

SYSCTLS = ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"]


def host():
    """What a cluster may change of a host, as far as it is ours to give back."""
    state = dump.take(net=False)
    state["sysctls"] = {name: read(f"/proc/sys/{name}") for name in SYSCTLS}
    state["mounts"] = sorted(line.split(" ", 2)[2] for line in read("/proc/self/mountinfo").splitlines())
    state["paths"] = [path for path in ("/var/lib/kubelet", "/var/lib/evenkeel", "/run/containerd", "/var/log/pods") if os.path.exists(path)]
    return state


def compare(before, cluster):
    """The host after the cluster."""
    after = host()
    for what in ["sysctls", "mounts", "paths"]:
        check(f"{what} of the host", "as before", "as before" if before[what] == after[what] else after[what], before[what] == after[what])
    # Other programs of the host go on: what counts is what is set of those that live through it, and what a cluster leaves.
    # A value of a task that nobody set changes with its own program.
    found = [words for name, words in dump.compare(before, after) if ours(name)]
    check("settings of tasks and cgroups, and cgroups left over", "as before", found[:9] or "as before", not found)
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and cluster.folder in (read(f"/proc/{pid}/cmdline") or "")]
    left = [pid for pid in left if int(pid) != os.getpid() and int(pid) != os.getppid()]
    check("processes of the cluster", "none", left or "none", not left)


def ours(name):
    if name.startswith("groups "):
        return "kubepods" in name
    return not name.endswith((" autogroup", " cgroup"))


def stop(number, _):
    raise Failed(f"interrupted by signal {number}")


def start(cluster, image):
    say("the cluster starts")
    cluster.up()
    cluster.tool("ctr", "-n", "k8s.io", "images", "import", image)


def steps(cluster, program):
    say("one experiment in many pods")
    jobs.indexed(cluster, program)
    say("observing, with every default")
    install.install(cluster)
    install.ready(cluster)
    install.names(cluster)
    tiers.derived(cluster)
    say("acting")
    before = kubelet.settled(cluster)
    acts.decides(cluster)
    acts.tiers(cluster)
    acts.promised(cluster, before)
    acts.pod_deleted(cluster, before)
    acts.killed(cluster, before)
    acts.force_deleted(cluster)
    acts.await_changes(cluster, before)
    kubelet.rewrites(cluster)
    acts.uninstalled(cluster, before)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("image")
    parser.add_argument("--program", required=True)
    parser.add_argument("--jobs", action="store_true")
    parser.add_argument("--decisions", type=int, default=0, metavar="N")
    parser.add_argument("--churn", type=int, default=0, metavar="PODS")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    cluster = Cluster(os.path.realpath(args.folder))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    # What a killed test left behind.
    cluster.down()
    before, failed, began = host(), None, time.monotonic()
    try:
        start(cluster, args.image)
        if args.jobs:
            jobs.indexed(cluster, args.program)
        elif args.decisions:
            decisions.run(cluster, args.decisions, args.seed)
        elif args.churn:
            churn.run(cluster, args.churn, args.minutes, args.seed)
        else:
            steps(cluster, args.program)
    except (Failed, OSError, KeyError, ValueError, subprocess.SubprocessError) as error:
        failed = error
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        say("the cluster ends")
        if cluster.down():
            failed = failed or Failed("the cluster left something behind")
    try:
        compare(before, cluster)
    except Failed as error:
        failed = failed or error
    if failed:
        sys.exit(f"failed: {failed}; logs of the cluster: {cluster.folder}/logs")
    print(f"passed, in {time.monotonic() - began:.0f} s")


main()
