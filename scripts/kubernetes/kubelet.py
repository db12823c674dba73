"""What the kubelet sets again within a minute: noticed, and not fought over."""

import time

from cluster import CPU, await_, check, read, say, settings

GROUP = "/kubepods/burstable"
# A promise moves weights by itself, every few seconds. What comes this soon after the kubelet's write is an answer to it.
ANSWER_S = 1.0


def settled(cluster):
    """The settings of all pods, once the kubelet has set its group's weight to what is there now."""
    await_("the kubelet sets its group's weight", 90, lambda: read(f"{CPU}{GROUP}/cpu.shares") == str(own_value(cluster)))
    return settings()


def rewrites(cluster, seconds=150):
    """Counts who writes the weight of the kubelet's group, under a promise that needs that weight raised."""
    path, kubelets = f"{CPU}{GROUP}/cpu.shares", str(own_value(cluster))
    await_("a promise raises the group's weight", 60, lambda: read(path) != kubelets)
    writes, seen = [], read(path)
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        now = read(path)
        if now != seen:
            writes.append((time.monotonic() - began, now))
            seen = now
        time.sleep(0.01)
    theirs = [at for at, value in writes if value == kubelets]
    answers = [[at for at, value in writes if value != kubelets and since < at <= since + ANSWER_S] for since in theirs]
    between = [later - at for at, later in zip(theirs, theirs[1:])]
    after = [rounded([at - since for at in found]) for since, found in zip(theirs, answers)]
    say(f"{GROUP} over {seconds} s: {len(writes)} writes, by the kubelet (weight {kubelets}) at {rounded(theirs)} s, ours so soon after: {after}")
    check("the kubelet set its group's weight again", "twice at least", f"{len(theirs)} times", len(theirs) >= 2)
    check("the kubelet is not made to set it more often", "30 s between two at least", rounded(between), all(gap >= 30 for gap in between))
    check("writes of ours for each of the kubelet's", "at most one", [len(found) for found in answers], all(len(found) <= 1 for found in answers))
    noticed = [line for line in cluster.log().splitlines() if "somebody else set weight" in line]
    say(f"said of it in the log: {noticed or 'nothing'}")
    return len(writes) - len(theirs), len(theirs)


def rounded(times):
    return [round(at, 1) for at in times]


def own_value(cluster):
    """What the kubelet gives its group of Burstable pods: the shares of what they request together."""
    milli = 0
    for pod in cluster.get("pods", "-A")["items"]:
        if pod["status"]["phase"] in ("Succeeded", "Failed") or pod["status"].get("qosClass") != "Burstable":
            continue
        for container in pod["spec"]["containers"]:
            cpu = container.get("resources", {}).get("requests", {}).get("cpu", "0")
            milli += int(cpu[:-1]) if cpu.endswith("m") else int(cpu) * 1000
    return max(2, milli * 1024 // 1000)
