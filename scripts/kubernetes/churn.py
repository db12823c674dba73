"""Pods that start, resize, restart and end for many minutes, beside a promise: who writes which setting, and is one lost or fought over?"""

import contextlib
import json
import os
import random
import signal
import time

import acts
import install
import kubelet
import loads
from cluster import CPU, await_, check, read, say
from writers import Writers

# Pods of the churn that live at the same time.
AT_ONCE = 8
# The kubelet's value is answered so soon, or stays.
ANSWER_S = 5.0
# An answer, and a first step of the promise right after it, are two writes; two within this time are a fight.
FIGHT_S = 1.0
REQUESTS = ["50m", "60m", "70m"]
KINDS = [{}, {"cpu": "10m"}, {"cpu": "20m"}, {"cpu": "10m", "limit": "10m"}, {"cpu": "20m", "limit": "40m"}]


class Churn:
    """What happens to the pods, drawn at random."""

    def __init__(self, cluster, luck):
        self.cluster, self.luck, self.alive = cluster, luck, {}
        self.starts = self.resizes = self.restarts = 0

    def step(self):
        for name in [name for name, ends in self.alive.items() if ends < time.monotonic()]:
            self.delete(name)
        act = self.luck.choices([self.start, self.resize, self.restart], [6, 2, 1])[0]
        act()

    def start(self):
        if len(self.alive) >= AT_ONCE:
            self.delete(min(self.alive, key=self.alive.get))
        name, how = f"churn-{self.starts}", self.luck.choice(KINDS)
        script = self.luck.choice(["exec sleep 1000", loads.WORKS, loads.hog(1)])
        self.cluster.apply([loads.pod(name, script, **how)])
        self.cluster.await_running("prod", name)
        self.alive[name] = time.monotonic() + self.luck.uniform(5, 60)
        self.starts += 1

    def resize(self, to=None):
        """The promised pod's request, in place: the kubelet writes the weights of pod, container and group."""
        pod = self.cluster.pod("prod", "api")
        now = pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]
        wanted = to or self.luck.choice([cpu for cpu in REQUESTS if cpu != now])
        if wanted == now:
            return
        patch = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": wanted}}}]}}
        self.cluster.kubectl("-n", "prod", "patch", "pod", "api", "--subresource", "resize", "--patch", json.dumps(patch))
        await_("the kubelet has resized the pod", 90, lambda: self.actuated() == wanted)
        self.resizes += 1

    def actuated(self):
        (status,) = self.cluster.pod("prod", "api")["status"]["containerStatuses"]
        return status.get("resources", {}).get("requests", {}).get("cpu")

    def restart(self):
        """One of the pods' programs is killed; the kubelet starts it again, in a cgroup of its own."""
        if not self.alive:
            return
        name = self.luck.choice(list(self.alive))
        (status,) = self.cluster.pod("prod", name)["status"]["containerStatuses"]
        container = status["containerID"].rpartition("/")[2]
        for pid in (read(f"{CPU}{self.cluster.group('prod', name)}/{container}/cgroup.procs") or "").split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        # The kubelet waits longer and longer before it starts one again.
        again = lambda: self.cluster.pod("prod", name)["status"]["containerStatuses"][0]["restartCount"] > status["restartCount"]  # noqa: E731
        await_(f"{name} is started again", 120, again)
        self.restarts += 1

    def delete(self, name):
        self.cluster.kubectl("-n", "prod", "delete", "pod", name, "--wait=false")
        del self.alive[name]

    def end(self):
        for name in list(self.alive):
            self.delete(name)
        self.resize(to=REQUESTS[0])
        gone = lambda: all(pod["metadata"]["name"] in ("api", "batch") for pod in self.cluster.get("-n", "prod", "pods")["items"])  # noqa: E731
        await_("the pods of the churn are gone", 120, gone)


def memory_kib(cluster):
    """What the agent's process has in memory."""
    text = read(f"/proc/{cluster.agent_pid()}/status") or ""
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS:")), None)


def run(cluster, pods, minutes, seed):
    """At least so many pods in at least so many minutes."""
    luck = random.Random(seed)
    say(f"{pods} pods in {minutes} minutes, drawn from seed {seed}")
    # The agent's own request is part of what the kubelet reckons with: it is there before and after.
    install.install(cluster)
    cluster.await_agent()
    before = kubelet.settled(cluster)
    acts.promised(cluster, before)
    uid, pid, at_first = cluster.agent()["metadata"]["uid"], cluster.agent_pid(), memory_kib(cluster)
    churn = Churn(cluster, luck)
    with Writers(CPU) as writers:
        began, told = writers.began, 0
        while churn.starts < pods or time.monotonic() - began < minutes * 60:
            churn.step()
            # As many as asked for, over the whole time.
            due = began + churn.starts * minutes * 60 / pods
            time.sleep(max(0.0, min(due - time.monotonic(), 10.0)))
            if time.monotonic() - began > told * 60:
                told += 1
                print(f"   after {told - 1} minutes: {churn.starts} pods, {churn.resizes} resizes, {churn.restarts} restarts,"
                      f" agent {memory_kib(cluster)} KiB", flush=True)  # fmt: skip
        churn.end()
        # With the pods gone the kubelet's weight is again what it was; it writes that within a minute or two.
        (path, kubelets), ended = (f"{kubelet.GROUP}/cpu.shares", before[f"{kubelet.GROUP} cpu.shares"]), time.monotonic() - began
        is_last = lambda write: write[0] > ended and write[1] != pid and write[2:] == (path, kubelets)  # noqa: E731
        await_(f"the kubelet sets {kubelets} again", 180, lambda: any(map(is_last, list(writers.found))))
        time.sleep(2 * ANSWER_S)
    took = time.monotonic() - began
    say(f"{took / 60:.1f} minutes: {churn.starts} pods started, {churn.resizes} resized in place, {churn.restarts} programs restarted")
    check("records of writes lost", 0, writers.lost, writers.lost == 0)
    judge(writers.found, pid, cluster.log())
    restarts = cluster.agent()["status"]["containerStatuses"][0]["restartCount"]
    same = cluster.agent()["metadata"]["uid"] == uid and restarts == 0
    check("the agent", "the same, 0 restarts", f"{restarts} restarts, of {at_first} KiB at first {memory_kib(cluster)} KiB", same)
    acts.uninstalled(cluster, before)


def judge(found, pid, log):
    """Which settings somebody else wrote after us, and what we did then."""
    ours, rewrites, fights, lost = {}, 0, [], []
    for at, (when, writer, path, value) in enumerate(found):
        if writer == pid:
            ours[path] = value
            continue
        if ours.get(path) in (None, value):
            continue
        later = [(w, who, v) for w, who, p, v in found[at + 1 :] if p == path]
        theirs_next = next((w for w, who, _ in later if who != pid), float("inf"))
        answers = [w - when for w, who, _ in later if who == pid and w < theirs_next]
        rewrites += 1
        if len([after for after in answers if after <= FIGHT_S]) > 1:
            ours_then = [f"{v} after {w - when:.2f} s" for w, who, v in later if who == pid and w < theirs_next]
            fights.append(f"{path} at {when:.1f} s: theirs {value}, ours " + ", ".join(ours_then[:4]))
        unanswered = theirs_next - when > ANSWER_S and not [after for after in answers if after <= ANSWER_S]
        if unanswered and read(CPU + path) is not None:
            lost.append((round(when, 1), path, value))
    written = len([1 for _, writer, _, _ in found if writer == pid])
    say(f"{written} writes of ours to {len(ours)} files; {rewrites} times somebody else wrote one of them")
    say("said of it in the log: " + ("; ".join(line for line in log.splitlines() if "somebody else" in line) or "nothing"))
    check("rewrites of what is set", "as many as pods came and went, at least 10", rewrites, rewrites >= 10)
    check(f"rewrites without an answer within {ANSWER_S:.0f} s", "none", lost[:5] or "none", not lost)
    check("more than one write of ours in answer to one", "none", f"{len(fights)}: {fights[:5]}" if fights else "none", not fights)
