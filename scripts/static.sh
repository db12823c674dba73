#!/bin/sh
# Builds evenkeel without shared libraries and prints where it is.
set -eu
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

scripts/packages.sh build
need_cargo
# With --target the flag applies to the program alone, not to build scripts and procedural macros.
triple=$(host_triple)
RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static" \
    cargo build --profile dist --locked --target "$triple" -p evenkeel >&2
printf '%s\n' "$(target_dir)/$triple/dist/evenkeel"
