#!/bin/sh
# Formatting, clippy with warnings denied, shellcheck where it is installed.
set -eu
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

scripts/packages.sh build
need_cargo
cargo fmt --all --check
scripts/unused-dependencies.py
scripts/import-circles.py
# Said by each crate and not by the workspace, which would mean the tests, too.
for lib in crates/*/src/lib.rs; do
    grep -q 'deny(.*clippy::unwrap_used, clippy::expect_used, clippy::panic)' "$lib" || die "$lib does not deny panics"
done
if grep -rnE '\.(unwrap|expect)\(|\bpanic!\(' crates/*/build.rs crates/*/src/main.rs crates/*/examples; then
    die "programs, build scripts and examples fail with a message, too"
fi
cargo clippy --locked --workspace --all-targets -- -D warnings
if have shellcheck; then
    shellcheck .ci/run scripts/*.sh scripts/kubernetes/*.sh scripts/services/*.sh scripts/guest/*.sh scripts/guest/scenarios/*.sh
else
    say "shellcheck is not installed: shell scripts not checked"
fi
