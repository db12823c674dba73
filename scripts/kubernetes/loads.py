"""The pods that are watched."""

from cluster import read

BUSYBOX = "k8s.test/busybox:1"
# Some milliseconds of work, then a nap: it sleeps of itself, and its program never ends.
WORKS = "while :; do i=0; while [ $i -lt 4000 ]; do i=$((i+1)); done; read -t 0.02 x <> /tmp/nap; done"
# Never sleeps.
SPINS = "for n in {n}; do while :; do :; done & done; wait"


def hog(count):
    return SPINS.format(n=" ".join(str(n) for n in range(count)))


def pod(name, script, cpu=None, limit=None, priority=None, annotations=None, namespace="prod"):
    """A pod of one container that runs a script of the shell."""
    resources = {}
    if cpu:
        resources["requests"] = {"cpu": cpu, "memory": "16Mi"}
    if limit:
        resources["limits"] = {"cpu": limit, "memory": "16Mi"}
    setup = "mkfifo /tmp/nap; " if "/tmp/nap" in script else ""
    spec = {
        "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False,
        "containers": [{"name": "main", "image": BUSYBOX, "args": ["-c", setup + script], "resources": resources}],
    }  # fmt: skip
    if priority:
        spec["priorityClassName"] = priority
    metadata = {"name": name, "namespace": namespace, "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def namespace(name):
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def used_ns(group):
    """CPU that a cgroup has had, nanoseconds."""
    text = read(f"/sys/fs/cgroup/cpuacct{group}/cpuacct.usage")
    return int(text) if text else None
