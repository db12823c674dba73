#!/bin/sh
# Builds evenkeel and runs its demo: scripts/demo.sh [ARGUMENTS OF `evenkeel demo`]
set -eu
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

is_root || have sudo || die "the demo sets scheduling attributes and cgroups of the loads it starts, which needs root: \
run it as root (there is no sudo here)"
scripts/packages.sh build
need_cargo
say "building evenkeel (release; a few minutes the first time)"
cargo build --release --locked -p evenkeel >&2
binary=$(target_dir)/release/evenkeel

# A Docker Engine is used where one is installed, so that the containers' part of the demo has real ones.
set -- scripts/with-docker.sh --optional "$binary" demo "$@"
if is_root; then exec "$@"; fi
say "the demo needs root from here on: it makes cgroups for the loads it starts and sets their weights, nice values"
say "and slices. It touches nothing else and leaves nothing behind. Running by sudo: $*"
exec sudo "$@"
