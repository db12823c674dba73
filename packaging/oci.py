#!/usr/bin/env python3
"""Writes an OCI image with one program, without a network, an engine or a base image.

usage: oci.py BINARY VERSION ARCHITECTURE SECONDS LEVEL OUTPUT

OUTPUT is a tar archive of an OCI image layout; `manifest.json` in it is for engines that load Docker's older form. The
same input gives the same bytes: LEVEL is gzip's, all times are SECONDS (since 1970), all owners root. Of a program that is
not static, the shared libraries of this host that `ldd` names are in the image, too.
"""

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time


def read(path):
    with open(path, "rb") as file:
        return file.read()


def member(name, seconds, kind=tarfile.REGTYPE, mode=0o644, size=0, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size, info.linkname = kind, mode, size, link
    info.mtime, info.uid, info.gid, info.uname, info.gname = seconds, 0, 0, "root", "root"
    return info


def libraries(path):
    """What a program that is not static loads: files of this host, by the paths under which it looks for them."""
    said = subprocess.run(["ldd", path], capture_output=True, text=True)
    words = [word for line in said.stdout.splitlines() for word in line.split() if word.startswith("/")]
    return sorted(set(words)) if said.returncode == 0 else []


def layer(binary, shared, seconds):
    """The file system: the program, names of the users that hosts have, and mount points."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        directories = {"etc": 0o755, "etc/evenkeel": 0o755, "tmp": 0o1777, "usr": 0o755, "usr/bin": 0o755, "var": 0o755,
                       "var/lib": 0o755, "var/lib/evenkeel": 0o750}
        for name in shared:
            parts = name.strip("/").split("/")
            for length in range(1, len(parts)):
                directories.setdefault("/".join(parts[:length]), 0o755)
        for name, mode in directories.items():
            tar.addfile(member(name, seconds, tarfile.DIRTYPE, mode))
        for name in shared:
            tar.addfile(member(name.strip("/"), seconds, mode=0o755, size=os.path.getsize(name)), io.BytesIO(read(name)))
        for name, mode, data in [
            ("etc/passwd", 0o644, b"root:x:0:0:root:/:/usr/bin/evenkeel\nnobody:x:65534:65534:nobody:/:/usr/bin/evenkeel\n"),
            ("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n"),
            ("usr/bin/evenkeel", 0o755, binary),
        ]:
            tar.addfile(member(name, seconds, mode=mode, size=len(data)), io.BytesIO(data))
    return out.getvalue()


def main():
    if len(sys.argv) != 7:
        sys.exit(__doc__)
    path, version, architecture, seconds, level, output = sys.argv[1:]
    seconds = int(seconds)
    plain = layer(read(path), libraries(path), seconds)
    packed = gzip.compress(plain, int(level), mtime=0)
    blobs = {}

    def blob(data):
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return digest

    def document(value):
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    config = document({
        "created": created, "architecture": architecture, "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/evenkeel"], "Cmd": ["serve"], "WorkingDir": "/",
            "Env": ["PATH=/usr/bin"],
            "Labels": {"org.opencontainers.image.title": "evenkeel", "org.opencontainers.image.version": version,
                       "org.opencontainers.image.licenses": "Apache-2.0"},
        },
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(plain).hexdigest()]},
        "history": [{"created": created, "created_by": "packaging/oci.py"}],
    })
    of_layer, of_config = blob(packed), blob(config)
    manifest = document({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": "sha256:" + of_config, "size": len(config)},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": "sha256:" + of_layer,
                    "size": len(packed)}],
    })
    of_manifest = blob(manifest)
    name = "evenkeel:" + version
    files = {
        "oci-layout": document({"imageLayoutVersion": "1.0.0"}),
        "index.json": document({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:" + of_manifest,
                           "size": len(manifest), "platform": {"architecture": architecture, "os": "linux"},
                           "annotations": {"org.opencontainers.image.ref.name": version,
                                           "io.containerd.image.name": "docker.io/library/" + name}}],
        }),
        "manifest.json": document([{"Config": "blobs/sha256/" + of_config, "RepoTags": [name],
                                    "Layers": ["blobs/sha256/" + of_layer]}]),
    }
    with tarfile.open(output, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for directory in ["blobs", "blobs/sha256"]:
            tar.addfile(member(directory, seconds, tarfile.DIRTYPE, 0o755))
        for digest in sorted(blobs):
            files["blobs/sha256/" + digest] = blobs[digest]
        for path in sorted(files):
            tar.addfile(member(path, seconds, size=len(files[path])), io.BytesIO(files[path]))


main()
