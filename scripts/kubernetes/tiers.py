"""Who is a service and who is background work, as the agent derives it from real pods."""

import json

import loads
from cluster import check

CRITICAL = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 100000}
# Name, tier that is expected (None: it keeps its place), and how the pod is made.
PODS = [
    ("guaranteed", "service", {"cpu": "50m", "limit": "50m"}),
    ("burstable", None, {"cpu": "50m"}),
    ("besteffort", "background", {}),
    ("urgent", "background", {"priority": "urgent"}),
    ("lowered", "background", {"cpu": "50m", "limit": "50m", "annotations": {"evenkeel.io/tier": "background"}}),
    ("raised", None, {"cpu": "50m", "annotations": {"evenkeel.io/tier": "service"}}),
    ("besteffort-raised", "background", {"annotations": {"evenkeel.io/tier": "service"}}),
    ("nonsense", "service", {"cpu": "50m", "limit": "50m", "annotations": {"evenkeel.io/tier": "nonsense"}}),
]


def derived(cluster):
    """Tiers by quality of service and annotation; an annotation can only lower."""
    cluster.apply([loads.namespace("tiers"), CRITICAL])
    cluster.apply([loads.pod(name, "exec sleep 1000", namespace="tiers", **how) for name, _, how in PODS])
    for name, _, _ in PODS:
        cluster.await_running("tiers", name)
    document = json.loads(cluster.evenkeel("plan", "--tiers", "auto", "-o", "json"))
    text = cluster.evenkeel("plan", "--tiers", "auto")
    print(text[text.find("TIER AS THE HOST SAYS") :].split("\n\n")[0])
    seen = {row["name"].removeprefix("pod:tiers/"): row for row in document["tiers"] if row["name"].startswith("pod:tiers/")}
    for name, expected, _ in PODS:
        row = seen.get(name)
        check(f"tier of {name}", expected, (row["tier"], row["from"]) if row else None, (row["tier"] if row else None) == expected)
    cluster.kubectl("delete", "namespace", "tiers", "--wait=true", timeout=90)
    cluster.kubectl("delete", "priorityclass", "urgent")
