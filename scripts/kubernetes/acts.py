"""Letting it act: what is tried says why, and everything goes back, however the agent ends."""

import os
import signal
import tempfile

import install
import loads
from cluster import CPU, await_, check, differences, say, settings

SCOPE = "scope={pod:prod/*}"
# A promise is written at once, and reaches above the pod: the kubelet's own groups get other weights.
PROMISE = '[[guarantee]]\nscope = "pod:prod/api"\ncpu = "60%"\n'


def upgrade(cluster, config="", whom=SCOPE):
    """The chart with `apply`, and the agent of before gone."""
    before = cluster.agent()
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(config)
        file.flush()
        where = ["evenkeel", install.CHART, "-n", "evenkeel", "--create-namespace"]
        install.helm(cluster, "upgrade", "--install", *where, "--set", "apply=true", "--set", whom, "--set-file", f"config={file.name}")
    return cluster.await_agent(other_than=before and before["metadata"]["uid"])


def decides(cluster):
    """A decision: each candidate is kept or not, with its reason in the log."""
    upgrade(cluster)
    verdicts = await_("a decision in the log", 200, lambda: decided(cluster.log()))
    for line in verdicts:
        print("   ", line)
    reasons = [line for line in verdicts if line.split("  ")[-1].strip()]
    check("every candidate has its reason", f"{len(verdicts)} reasons", len(reasons), len(reasons) == len(verdicts) > 1)


def decided(log):
    """The lines of the last decision, once all are there."""
    lines = [line for line in log.splitlines() if line]
    begins = [at for at, line in enumerate(lines) if line.startswith("trial of ")]
    if not begins:
        return None
    wanted = lines[begins[-1]].removeprefix("trial of ").rsplit(": ", 1)[0].split(" | ")
    of_candidate = lambda line: line[:2] in ("  ", "* ") and any(line[2:].startswith(name + " ") for name in wanted)  # noqa: E731
    found = [line for line in lines[begins[-1] + 1 :] if of_candidate(line)]
    return found if len(found) >= len(wanted) else None


def tiers(cluster):
    """Instead of a scope: the agent takes its services and background work from the pods. Nobody is short of CPU here."""
    upgrade(cluster, whom="tiers=true")
    # The record may still be that of the run before.
    new = lambda scope: scope if scope == "tiers:background" else None  # noqa: E731
    scope = await_("the run with tiers is recorded", 60, lambda: new(scope_of(cluster.evenkeel("status", fails=True) or "")))
    check("the scope of `tiers: true`", "tiers:background", scope, scope == "tiers:background")


def scope_of(status):
    return status.partition("scope")[2].split("\n")[0].strip()


def promised(cluster, before):
    """A change is in force: some value below kubepods differs."""
    upgrade(cluster, config=PROMISE)
    return await_changes(cluster, before)


def await_changes(cluster, before):
    changed = await_("a promise changes weights", 60, lambda: differences(before, settings()))
    say("in force: " + "; ".join(changed))
    return changed


def pod_deleted(cluster, before):
    """A pod goes while its weight is changed: the agent goes on."""
    agent = cluster.agent()["metadata"]["uid"]
    group = cluster.group("prod", "batch")
    cluster.kubectl("-n", "prod", "delete", "pod", "batch", "--grace-period=0", "--force")
    await_("the pod's cgroup is gone", 30, lambda: not os.path.exists(CPU + group))
    cluster.apply([loads.pod("batch", loads.hog(4), cpu="300m")])
    cluster.await_running("prod", "batch")
    pod = cluster.await_agent()
    restarts = pod["status"]["containerStatuses"][0]["restartCount"]
    check("the agent after a changed pod was deleted", "the same, 0 restarts", (pod["metadata"]["uid"] == agent, restarts),
          pod["metadata"]["uid"] == agent and restarts == 0)  # fmt: skip
    return await_changes(cluster, before)


def killed(cluster, before):
    """`kill -9`: the kubelet starts the next one, which goes on with the promise."""
    pid = cluster.agent_pid()
    os.kill(pid, signal.SIGKILL)
    left = differences(before, settings())
    check("kill -9 leaves behind", "what was in force", left, bool(left))
    await_("another process of the agent", 60, lambda: cluster.agent_pid() not in (None, pid))
    cluster.await_agent()
    line = await_("the next one says what it found", 30, lambda: find(cluster.log(), "the run before") or find(cluster.log(), "a predecessor"))
    check("the next one keeps the promise", ".. are kept without a gap ..", line, "are kept without a gap" in line)


def force_deleted(cluster):
    """The pod deleted without grace: the next one, with another pid and other namespaces, puts back what is left."""
    before = cluster.agent()
    cluster.kubectl("-n", "evenkeel", "delete", "pod", before["metadata"]["name"], "--grace-period=0", "--force")
    cluster.await_agent(other_than=before["metadata"]["uid"])
    say("after a forced delete: " + (find(cluster.log(), "a predecessor") or "nothing was left to put back"))
    await_("the next one's run is recorded", 30, lambda: '"state": "running"' in (cluster.evenkeel("status", "-o", "json", fails=True) or ""))


def find(log, words):
    return next((line for line in log.splitlines() if words in line), None)


def uninstall(cluster):
    """The chart goes, and the agent with it."""
    install.helm(cluster, "uninstall", "evenkeel", "-n", "evenkeel", "--wait", "--timeout", "90s")
    await_("the agent's pod is gone", 90, lambda: not cluster.get("-n", "evenkeel", "pods")["items"])


def uninstalled(cluster, before):
    """Without the chart every value is as before."""
    uninstall(cluster)
    found = differences(before, settings())
    check("values of cgroups below kubepods after the chart is gone", "as before", found or "as before", not found)
