#!/usr/bin/env python3
"""Writes an OCI image with the files of a folder: image.py NAME:TAG OUTPUT FOLDER COMMAND.."""

import hashlib
import io
import json
import platform
import sys
import tarfile

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
OCI = "application/vnd.oci.image."
blobs = {}


def blob(data, kind):
    digest = hashlib.sha256(data).hexdigest()
    blobs[digest] = data
    return {"mediaType": OCI + kind, "digest": "sha256:" + digest, "size": len(data)}


def roots(info):
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = "root"
    return info


def main():
    name, output, folder, *command = sys.argv[1:]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(folder, arcname=".", filter=roots)
    layer = blob(packed.getvalue(), "layer.v1.tar")
    config = blob(json.dumps({
        "architecture": ARCHITECTURE, "os": "linux", "config": {"Entrypoint": command, "Env": ["PATH=/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }).encode(), "config.v1+json")
    kind = OCI + "manifest.v1+json"
    manifest = blob(json.dumps({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": [layer]}).encode(), "manifest.v1+json")
    manifest["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rsplit(":", 1)[1]}
    manifest["platform"] = {"architecture": ARCHITECTURE, "os": "linux"}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode()}
    files.update({"blobs/sha256/" + digest: data for digest, data in blobs.items()})
    with tarfile.open(output, "w") as tar:
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


main()
