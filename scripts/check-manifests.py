#!/usr/bin/env python3
"""What manifests ask of a node, held to what they may: check-manifests.py observes|acts|privileged FILE"""

import sys

import yaml

OBSERVES = {"SYS_PTRACE", "DAC_READ_SEARCH", "BPF", "PERFMON"}
ACTS = OBSERVES | {"SYS_NICE", "SYS_RESOURCE", "DAC_OVERRIDE"}
faults = []


def expect(what, holds):
    if not holds:
        faults.append(what)


def main():
    kind, path = sys.argv[1:]
    with open(path) as file:
        text = file.read()
    documents = [document for document in yaml.safe_load_all(text) if document]
    kinds = sorted(document["kind"] for document in documents)
    expect(f"no roles and no CRDs: {kinds}", not {"ClusterRole", "Role", "CustomResourceDefinition"} & set(kinds))
    account = next(d for d in documents if d["kind"] == "ServiceAccount")
    expect("the account has no token of the API server", account["automountServiceAccountToken"] is False)
    pod = next(d for d in documents if d["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    agent = pod["containers"][0]
    acts = kind == "acts"
    expect("the command is the one asked for", agent["args"][0] == ("run" if acts else "serve"))
    expect("no --apply unless it is in a value", "--apply" not in agent["args"])
    listens = [a for a in agent["args"] if a.startswith("--listen=")]
    expect("it listens on the loopback address", [a.split("=")[1].rsplit(":", 1)[0] for a in listens] == ["127.0.0.1"])
    expect("it asks for a token", "--token-file=/run/evenkeel/token" in agent["args"])
    security = agent["securityContext"]
    expect("privileged only where asked for", bool(security.get("privileged")) == (kind == "privileged"))
    if kind != "privileged":
        expect("all capabilities are dropped", security["capabilities"]["drop"] == ["ALL"])
        added = set(security["capabilities"]["add"])
        expect(f"capabilities: {sorted(added)}", added == (ACTS if acts else OBSERVES))
        expect("no gain of privileges", security["allowPrivilegeEscalation"] is False)
    expect("the image's file system is read-only", security["readOnlyRootFilesystem"] is True)
    mounts = {mount["mountPath"]: mount for mount in agent["volumeMounts"]}
    expect("cgroups are writable only for what acts", mounts["/sys/fs/cgroup"]["readOnly"] is not acts)
    host = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    known = {"/sys/fs/cgroup", "/run/containerd", "/var/lib/evenkeel"}
    expect(f"of the node is mounted: {sorted(host.values())}", set(host.values()) == known)
    volumes = {volume["name"] for volume in pod["volumes"]}
    expect("each mount has a volume", {mount["name"] for mount in agent["volumeMounts"]} <= volumes)
    for probe in ["livenessProbe", "readinessProbe"]:
        get = agent[probe]["httpGet"]
        expect(f"{probe} asks where it listens", (get["host"], get["path"]) == ("127.0.0.1", "/healthz"))
        expect(f"{probe} asks the port", f"--listen=127.0.0.1:{get['port']}" in agent["args"])
    expect("CPU and memory are requested", {"cpu", "memory"} <= set(agent["resources"]["requests"]))
    expect("no CPU limit", "cpu" not in agent["resources"].get("limits", {}))
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if line.strip().startswith("- ") and line.strip()[2:].split(" ")[0] in ACTS:
            expect(f"line {at + 1} says why", "#" in line)
    for fault in faults:
        print(f"{path}: does not hold: {fault}", file=sys.stderr)
    sys.exit(1 if faults else 0)


main()
