"""The one-node cluster of a test: starting and ending it, its tools, and what is read of its cgroups."""

import json
import os
import subprocess
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CPU = "/sys/fs/cgroup/cpu"
VALUES = ["cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.idle"]


class Failed(Exception):
    """A step did not show what it should."""


def check(what, expected, seen, holds):
    """One line a check; what was expected and seen, either way."""
    print(f"{'ok  ' if holds else 'FAIL'} {what}: expected {expected}; seen {seen}", flush=True)
    if not holds:
        raise Failed(f"{what}: expected {expected}, seen {seen}")


def say(words):
    print(f"-- {words}", flush=True)


class Beside:
    """What `run` does in a thread while it is entered; `over` tells it to end."""

    def __init__(self):
        self.over, self.thread = threading.Event(), threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return None


def await_(what, seconds, probe):
    """The first answer of `probe` that is neither None nor False."""
    end = time.monotonic() + seconds
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {seconds} s")
        time.sleep(0.5)


class Cluster:
    """The cluster in a folder of scripts/kubernetes/build.sh."""

    def __init__(self, folder):
        self.folder = folder
        self.run = os.path.join(folder, "run")

    def up(self):
        # To a file: what up.sh starts would keep a pipe.
        with open(os.path.join(self.folder, "up.log"), "w", encoding="utf-8") as log:
            done = subprocess.run([f"{HERE}/up.sh", self.folder], stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise Failed("the cluster does not start: " + (read(os.path.join(self.folder, "up.log")) or "")[-2000:])

    def down(self):
        return subprocess.run([f"{HERE}/down.sh", self.folder], check=False).returncode

    def tool(self, name, *words, stdin=None, timeout=120, fails=False):
        """What kubectl, helm or ctr say, inside the cluster. `fails`: None where they fail."""
        done = subprocess.run([os.path.join(self.run, name), *words], input=stdin, capture_output=True, text=True,
                              timeout=timeout, check=False)  # fmt: skip
        if done.returncode and not fails:
            raise Failed(f"{name} {' '.join(words)}: status {done.returncode}: {done.stderr.strip()[-1500:]} {done.stdout.strip()[-500:]}")
        return None if done.returncode else done.stdout

    def kubectl(self, *words, **how):
        return self.tool("kubectl", *words, **how)

    def get(self, *words):
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def apply(self, documents):
        self.kubectl("apply", "-f", "-", stdin="\n---\n".join(json.dumps(document) for document in documents))

    def pod(self, namespace, name):
        """The pod, or None."""
        text = self.kubectl("-n", namespace, "get", "pod", name, "-o", "json", fails=True)
        return json.loads(text) if text else None

    def await_running(self, namespace, name, seconds=180):
        def running():
            pod = self.pod(namespace, name)
            return pod and pod["status"]["phase"] == "Running" and all(c["ready"] for c in pod["status"]["containerStatuses"]) and pod

        return await_(f"pod {namespace}/{name} is ready", seconds, running)

    def group(self, namespace, name):
        """A pod's cgroup, below the hierarchy's root."""
        pod = self.pod(namespace, name)
        uid, quality = pod["metadata"]["uid"], pod["status"]["qosClass"]
        above = {"Guaranteed": "", "Burstable": "/burstable", "BestEffort": "/besteffort"}[quality]
        return f"/kubepods{above}/pod{uid}"

    # The agent's pod, as the chart installs it.

    def agent(self):
        """The agent's pod that is not about to end, or None."""
        pods = self.get("-n", "evenkeel", "pods", "-l", "app.kubernetes.io/name=evenkeel")["items"]
        return next((pod for pod in pods if "deletionTimestamp" not in pod["metadata"]), None)

    def await_agent(self, seconds=90, other_than=None):
        def ready():
            pod = self.agent()
            if not pod or pod["metadata"]["uid"] == other_than:
                return None
            return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", [])) and pod

        return await_("the agent is ready by its probe", seconds, ready)

    def evenkeel(self, *words, timeout=120, fails=False):
        """What a command says in the agent's pod. While one pod follows another, `ds/evenkeel` may be the one that ends."""
        name = self.agent()["metadata"]["name"]
        return self.kubectl("-n", "evenkeel", "exec", name, "--", "/usr/bin/evenkeel", *words, timeout=timeout, fails=fails)

    def log(self, *words):
        """What the agent has said; of its pod's container before, with `--previous`."""
        pod = self.agent()
        return self.kubectl("-n", "evenkeel", "logs", pod["metadata"]["name"], *words, fails=True) or ""

    def agent_pid(self):
        """The agent's process on the host."""
        uid = self.agent()["metadata"]["uid"]
        for where, _, _ in os.walk(f"{CPU}/kubepods"):
            if uid not in where:
                continue
            for pid in (read(f"{where}/cgroup.procs") or "").split():
                if (read(f"/proc/{pid}/cmdline") or "").startswith("/usr/bin/evenkeel\0"):
                    return int(pid)
        return None


def values_of(group):
    """What a cgroup is set to."""
    return {name: read(f"{CPU}{group}/{name}") for name in VALUES}


def settings(below="/kubepods", without=()):
    """What every cgroup below one is set to, and every task's class, nice value and slice."""
    found = {}
    for where, _, _ in os.walk(CPU + below):
        group = where[len(CPU) :]
        if any(word in group for word in without):
            continue
        found.update({f"{group} {name}": value for name, value in values_of(group).items() if value is not None})
    return found


def differences(before, after):
    """In words, of what is in both."""
    return [f"{name}: {after[name]}, was {was}" for name, was in before.items() if name in after and after[name] != was]
