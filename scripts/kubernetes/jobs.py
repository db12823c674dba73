"""One experiment in many pods: the indexed Jobs that `evenkeel lab job` writes, and their shards merged."""

import glob
import json
import os
import subprocess

from cluster import CPU, Failed, await_, check

FILE = """
name = "half"
repetitions = 2
[[tenant]]
name = "a"
count = 2
load = "primes"
run_s = 0.5
runs = 2
[[sweep]]
field = "tenant.a.quota_pct"
values = [25, "none"]
"""


def indexed(cluster, program):
    folder = os.path.join(cluster.run, "lab")
    os.makedirs(folder)
    file = os.path.join(folder, "half.toml")
    with open(file, "w", encoding="utf-8") as out:
        out.write(FILE)
    results = os.path.join(folder, "results")
    measured(cluster, program, file, results)
    simulated(cluster, program, file, results)


def evenkeel(program, *words):
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise Failed(f"evenkeel {' '.join(words)}: status {done.returncode}: {done.stderr[-1500:]}")
    return done.stdout


def finish(cluster, program, name, *words):
    """Applies a manifest, waits for its Job, and returns its pods."""
    cluster.kubectl("apply", "-f", "-", stdin=evenkeel(program, "lab", "job", *words, "--name", name))

    def over():
        kinds = {c["type"] for c in cluster.get("job", name)["status"].get("conditions", []) if c["status"] == "True"}
        return kinds & {"Complete", "Failed"}

    try:
        ended = await_(f"job {name} ends", 240, over)
    except Failed:
        ended = {"no end"}
    log = ""
    if "Complete" not in ended:
        log = (cluster.kubectl("describe", "pods", "-l", f"job-name={name}", fails=True) or "")[-2000:]
        log += cluster.kubectl("logs", "-l", f"job-name={name}", "--prefix", fails=True) or ""
    check(f"job {name}", "Complete", sorted(ended) if not log else log, "Complete" in ended)
    return cluster.get("pods", "-l", f"job-name={name}")["items"]


def record(folder):
    with open(os.path.join(folder, "record.json"), encoding="utf-8") as file:
        return json.load(file)


def measured(cluster, program, file, results):
    """Two shards on one node: its pods take turns, since experiments must not measure one another."""
    pods = finish(cluster, program, "half", file, "--nodes", "2", "--host-path", results)
    ended = [status["state"]["terminated"] for pod in pods for status in pod["status"]["containerStatuses"]]
    runs = sorted((one["startedAt"], one["finishedAt"]) for one in ended)
    check("pods of one node", "2, one after the other", runs, len(runs) == 2 and runs[0][1] <= runs[1][0])
    node = pods[0]["spec"]["nodeName"]
    folders = sorted(os.listdir(f"{results}/half"))
    check("folders", "one a shard, with the node's name", folders, folders == [f"0-{node}", f"1-{node}"])
    merged = f"{results}/measured"
    print(evenkeel(program, "lab", "merge", f"{results}/half", "--out", merged))
    cells = record(merged)["cells"]
    nodes = [cell["node"] for cell in cells]
    check("cells of the merged record", f"4, of {node}", nodes, nodes == [node] * 4)
    how = sorted({tenant["ended"]["how"] for cell in cells for tenant in cell["tenants"]})
    check("tenants", "done", how, how == ["done"])
    left = [path for path in glob.glob(f"{CPU}/evenkeel-lab-*")]
    check("cgroups of the experiment", "none left", left or "none", not left)


def simulated(cluster, program, file, results):
    """Three pods simulate what one run here does."""
    machine = ["--cpus", "4", "--kernel", "6.12", "--events-per-s", "1000"]
    finish(cluster, program, "model", file, "--simulate", "3", "--host-path", results, *machine)
    evenkeel(program, "lab", "merge", f"{results}/model", "--out", f"{results}/merged")
    evenkeel(program, "sim", file, *machine, "--out", f"{results}/whole")
    together, whole = (record(f"{results}/{name}")["cells"] for name in ("merged", "whole"))
    check("cells that three pods simulated", "those of one run here", f"{len(together)} cells", together == whole)
