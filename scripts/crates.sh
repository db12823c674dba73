#!/bin/bash
# Packs every crate for a registry, and builds each from its package without clang: scripts/crates.sh [OPTIONS OF cargo publish]
#
# The crate of the BPF programs is packed with their objects, so that `cargo install` needs no clang. Without options nothing is
# published (--dry-run). Takes as long as a build from nothing.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

scripts/packages.sh build test
need_cargo
objects=crates/bpf/objects
rm -rf "$objects"
trap 'rm -rf "$objects"' EXIT
built=$(cargo build --locked -p evenkeel-bpf --message-format=json |
    jq -r 'select(.reason == "build-script-executed" and (.package_id | contains("crates/bpf#"))).out_dir')
mkdir "$objects"
cp "$built"/*.bpf.o "$objects"
if [ $# = 0 ]; then set -- --dry-run; fi
# The objects are in no commit.
EVENKEEL_CLANG=/nonexistent/clang cargo publish --workspace --locked --allow-dirty "$@"
