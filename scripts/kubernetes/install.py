"""Installing the chart as it is, and what it shows of the node."""

import base64
import json
import os
import subprocess
import time

import loads
from cluster import await_, check, read, say

CHART = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../packaging/kubernetes/chart"))


def helm(cluster, *words):
    return cluster.tool("helm", *words, timeout=180)


def install(cluster):
    """Observe only, with every default."""
    cluster.apply([loads.namespace("prod")])
    cluster.apply([loads.pod("api", loads.WORKS, cpu="50m"), loads.pod("batch", loads.hog(4), cpu="300m")])
    cluster.await_running("prod", "api")
    cluster.await_running("prod", "batch")
    began = time.monotonic()
    helm(cluster, "install", "evenkeel", CHART, "--namespace", "evenkeel", "--create-namespace")
    answer = await_("the first answer of why", 120, lambda: first(cluster))
    took = time.monotonic() - began
    seen = f"{took:.1f} s ({len(answer.splitlines())} lines)"
    check("from `helm install` to the first answer of `why`", "60 s at most", seen, took <= 60)


def first(cluster):
    pod = cluster.agent()
    if not pod or pod["status"]["phase"] != "Running":
        return None
    # As the documentation says it.
    agent = ["-n", "evenkeel", "exec", "ds/evenkeel", "--", "/usr/bin/evenkeel"]
    return cluster.kubectl(*agent, "why", "pod:prod/api", "--for", "2s", fails=True)


def ready(cluster):
    """Ready by its probes, over https, with the token, and not privileged."""
    pod = cluster.await_agent()
    (container,) = pod["spec"]["containers"]
    security = container["securityContext"]
    few = not security.get("privileged") and security["capabilities"]["drop"] == ["ALL"]
    check("privileges", "none, and a list of capabilities", security, few)
    filters = [line.split()[1] for line in (read(f"/proc/{cluster.agent_pid()}/status") or "").splitlines() if line.startswith("Seccomp:")]
    check("seccomp of the agent's process", "2, a filter", filters, filters == ["2"])
    (status,) = pod["status"]["containerStatuses"]
    check("restarts of the agent, which is ready by its probe", 0, status["restartCount"], status["restartCount"] == 0)
    probe = container["readinessProbe"]["httpGet"]
    check("the probe asks", "https", probe["scheme"], probe["scheme"] == "HTTPS")
    token = cluster.get("-n", "evenkeel", "secret", "evenkeel-token")["data"]["token"]
    for words, expected in [([], "401"), (["-H", "Authorization: Bearer " + decoded(token)], "200")]:
        address = "https://127.0.0.1:9190/metrics"
        seen = inside(cluster, "curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", *words, address)
        check(f"/metrics {'with' if words else 'without'} the token", expected, seen, seen == expected)


def decoded(text):
    return base64.b64decode(text).decode()


def inside(cluster, *words):
    """A command of this host, in the node's network."""
    holder = open(os.path.join(cluster.run, "pids/holder"), encoding="utf-8").read().strip()
    return subprocess.run(["nsenter", "-t", holder, "-n", *words], capture_output=True, text=True, timeout=60, check=False).stdout


def names(cluster):
    """Pods are named, and `why` names the other one both ways."""
    text = cluster.evenkeel("ps", "--by", "pod")
    print(text)
    seen = sorted(line.split()[0] for line in text.splitlines() if line.startswith("prod/"))
    check("ps --by pod", ["prod/api", "prod/batch"], seen, seen == ["prod/api", "prod/batch"])
    text = cluster.evenkeel("why", "pod:prod/api", "--for", "5s")
    print(text)
    api = seen = json.loads(cluster.evenkeel("why", "pod:prod/api", "--for", "5s", "-o", "json"))
    check("why is counted in the kernel", "bpf", seen["source"], seen["source"] == "bpf")
    # By pod: what else runs on this host is in none.
    blame = {}
    for row in seen["blame"] or []:
        if row["pod"] and not row["own"]:
            blame[row["pod"]] = round(blame.get(row["pod"], 0) + row["share_pct"], 1)
    first_pod = max(blame, key=blame.get, default=None)
    check("why pod:prod/api: the pod that ran meanwhile", "prod/batch first", blame, first_pod == "prod/batch")
    lines = [line for line in text.splitlines() if "prod/batch/main" in line]
    check("why pod:prod/api, in words", "a line with prod/batch/main", lines[:1], bool(lines))
    seen = json.loads(cluster.evenkeel("why", "pod:prod/batch", "--for", "5s", "-o", "json"))
    blame = [row["pod"] for row in seen["blame"] or []]
    took = (round(seen["ran_s"], 2), round(api["ran_s"], 2))
    check("why pod:prod/batch: what it took, and what prod/api had", "more, in seconds", took, took[0] > took[1])
    pods = sorted({pod for pod in blame if pod})
    check("why pod:prod/batch: who ran while it waited", "prod/api among them", pods, "prod/api" in pods)
    whole = json.loads(cluster.evenkeel("why", "--all", "--for", "5s", "-o", "json"))
    cells = pairs(whole)
    waits = [cell[1:] for cell in cells if cell[0] == "prod/api"]
    check("why --all: prod/api waited for", "prod/batch among them", waits[:4], any(culprit == "prod/batch" for culprit, _ in waits))
    say("nothing was changed: " + str(cluster.evenkeel("status").splitlines()[0]))


def pairs(whole):
    """(who waited, for whom, percent) of a matrix, most first."""
    groups = [group["pod"] or group["name"] for group in whole["groups"]]
    column = lambda c: groups[c["group"]] if c["group"] is not None else c["name"]  # noqa: E731
    culprits = [column(culprit) for culprit in whole["culprits"]]
    cells = [(groups[c["victim"]], culprits[c["culprit"]], round(c["share_pct"])) for c in whole["matrix"]]
    return sorted(cells, key=lambda cell: -cell[2])
