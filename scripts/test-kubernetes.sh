#!/bin/bash
# Installs evenkeel in a real one-node Kubernetes, made for it: scripts/test-kubernetes.sh PROGRAM [ARGUMENT OF scripts/kubernetes/test.py..]
#
# The image is made of PROGRAM, with the shared libraries of this host that it needs. What the test does: scripts/kubernetes.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

program=${1:?usage: scripts/test-kubernetes.sh PROGRAM [ARGUMENT..]}
shift
is_root || die "root is needed: namespaces, mounts, cgroups"
[ -d /sys/fs/cgroup/cpu ] || die "this test reads what cgroup v1 has: no /sys/fs/cgroup/cpu here"
folder=$(scripts/kubernetes/build.sh)
image=$(scripts/make-packages.sh --fast --binary "$program" --out "$folder/img" oci)
exec python3 scripts/kubernetes/test.py "$folder" "$image" --program "$(realpath "$program")" "$@"
