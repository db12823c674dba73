#!/usr/bin/env python3
"""What manifests ask of a node, held to what they may: check-manifests.py observes|acts|privileged|exposed FILE

check-manifests.py secret FILE KEY prints what the only secret with that key holds."""

import base64
import sys

import yaml

OBSERVES = {"DAC_READ_SEARCH", "BPF", "PERFMON"}
ACTS = OBSERVES | {"SYS_NICE", "DAC_OVERRIDE"}
faults = []


def expect(what, holds):
    if not holds:
        faults.append(what)


def main():
    kind, path = sys.argv[1:3]
    with open(path) as file:
        text = file.read()
    documents = [document for document in yaml.safe_load_all(text) if document]
    if kind == "secret":
        (held,) = [d["data"][sys.argv[3]] for d in documents if d["kind"] == "Secret" and sys.argv[3] in d["data"]]
        sys.stdout.write(base64.b64decode(held).decode())
        return
    kinds = sorted(document["kind"] for document in documents)
    expect(f"no roles and no CRDs: {kinds}", not {"ClusterRole", "Role", "CustomResourceDefinition"} & set(kinds))
    account = next(d for d in documents if d["kind"] == "ServiceAccount")
    expect("the account has no token of the API server", account["automountServiceAccountToken"] is False)
    pod = next(d for d in documents if d["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    agent = pod["containers"][0]
    acts = kind == "acts"
    expect("the command is the one asked for", agent["args"][0] == ("run" if acts else "serve"))
    expect("no --apply unless it is in a value", "--apply" not in agent["args"])
    listens = [a.split("=")[1].rsplit(":", 1) for a in agent["args"] if a.startswith("--listen=")]
    address = "0.0.0.0" if kind == "exposed" else "127.0.0.1"
    expect("it listens where it may", [listen[0] for listen in listens] == [address])
    for option in ["--token-file=/run/evenkeel/token", "--tls-cert=/run/evenkeel/tls.crt", "--tls-key=/run/evenkeel/tls.key"]:
        expect(f"it asks for a token over https: {option}", option in agent["args"])
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
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"]:
        get = agent[probe]["httpGet"]
        expect(f"{probe} asks where it listens", (get["host"], get["path"]) == ("127.0.0.1", "/healthz"))
        expect(f"{probe} asks the port over https", get.get("scheme") == "HTTPS" and [str(get["port"])] == [l[1] for l in listens])
    (access,) = [volume["projected"] for volume in pod["volumes"] if volume["name"] == "access"]
    sources = {source["secret"]["name"]: [item["path"] for item in source["secret"]["items"]] for source in access["sources"]}
    expect("its owner alone reads token and key", access["defaultMode"] == 0o400)
    expect(f"token and certificate are there: {sources}", sorted(sum(sources.values(), [])) == ["tls.crt", "tls.key", "token"])
    if kind == "exposed":
        monitor = next(d for d in documents if d["kind"] == "PodMonitor")
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        ports = {port["name"]: port["containerPort"] for port in agent["ports"]}
        expect("what is scraped is where it listens", [str(ports[endpoint["port"]])] == [l[1] for l in listens])
        expect("it is scraped over https", endpoint["scheme"] == "https")
        credentials, tls = endpoint["authorization"]["credentials"], endpoint["tlsConfig"]
        expect("it is scraped with the token", credentials["key"] == "token" and "token" in sources[credentials["name"]])
        expect("the certificate is verified", "insecureSkipVerify" not in tls and tls["serverName"].endswith(".svc"))
        expect("by its authority", "tls.crt" in sources[tls["ca"]["secret"]["name"]])
        expect("labels are those of what was seen", endpoint["honorLabels"] is True)
        relabelings = endpoint["relabelings"]
        expect("the node is named", any(one.get("targetLabel") == "node" for one in relabelings))
        dropped = [one["regex"].split("|") for one in relabelings if one.get("action") == "labeldrop"]
        expect("nothing of the host is evenkeel's own pod's", dropped == [["namespace", "container"]])
        secrets = {d["metadata"]["name"] for d in documents if d["kind"] == "Secret"}
        expect(f"the chart makes what is mounted: {secrets}", secrets == set(sources))
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
