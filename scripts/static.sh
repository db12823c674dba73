#!/bin/sh
# Builds evenkeel without shared libraries and prints where it is: scripts/static.sh [--profile PROFILE] [ARCHITECTURE]
#
# ARCHITECTURE is x86_64 or aarch64 (amd64 and arm64 are the same), this host's by default. The profile is `dist`, which
# takes long; `--profile dev` is for trying whether it builds and starts.
set -eu
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

profile=dist
if [ "${1:-}" = --profile ]; then
    profile=${2:?--profile needs a profile}
    shift 2
fi
[ $# -le 1 ] || die "usage: scripts/static.sh [--profile PROFILE] [x86_64|aarch64]"
arch=$(architecture "${1:-}")
scripts/packages.sh build
static_build "$arch"
triple=$(host_triple)
if is_foreign "$arch"; then triple=$arch-unknown-linux-gnu; fi
cargo build --profile "$profile" --locked --target "$triple" -p evenkeel >&2
if [ "$profile" = dev ]; then profile=debug; fi
binary=$(target_dir)/$triple/$profile/evenkeel
bytes=$(stat -c %s "$binary")
say "$bytes bytes"
# What is promised of a released program; for arm64 equal functions are not folded, and it may be larger.
if [ "$profile" = dist ] && [ "$arch" = x86_64 ] && [ "$bytes" -gt 20000000 ]; then die "$binary is larger than 20 MB"; fi
printf '%s\n' "$binary"
