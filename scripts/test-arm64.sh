#!/bin/sh
# Unit tests of the crates, built for arm64 and run under qemu's user emulation: scripts/test-arm64.sh [--no-run] [CRATE..]
#
# --no-run only builds them, and prints where the test programs are.
# CRATE is a package such as evenkeel-exec; without one, those that are known to pass. The
# program itself is built as well, without shared libraries, and started. System calls are the host's, translated by the
# emulator. It does not know BPF, and before qemu 8 not openat2 either, by which evenkeel-linux reads a directory as a host:
# that crate's tests run in the guest (make test-arm64-guest).
# One test is left out: it bets on thousands of made-up cases, which takes long here, and only reckons.
# Status: 1 when a test fails. The last lines are one for each crate, as cargo says it; whole output: target/test-arm64.log.
set -eu
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

run=yes
if [ "${1:-}" = --no-run ]; then run='' && shift; fi
if [ $# = 0 ]; then
    set -- evenkeel-base evenkeel-actuate evenkeel-exec evenkeel-store evenkeel-workload
fi
scripts/packages.sh build
# As the program is built, so that what both need is built once.
static_build aarch64
log=$(target_dir)/test-arm64.log
mkdir -p "$(target_dir)"
: >"$log"
# Small files instead of line numbers in traces.
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_TEST_DEBUG=0

if [ -z "$run" ]; then
    for crate in "$@"; do
        cargo test --locked --target aarch64-unknown-linux-gnu -p "$crate" --lib --no-run >"$log" 2>&1 || die "$(tail "$log")"
        sed -n "s#.*Executable unittests.*(\([^/].*\))#$PWD/\1#p; s#.*Executable unittests.*(\(/.*\))#\1#p" "$log"
    done
    exit
fi
lines='' failed=''
for crate in "$@"; do
    say "$crate"
    if ! cargo test --locked --target aarch64-unknown-linux-gnu -p "$crate" --lib --no-fail-fast \
        -- --skip among_equals_wealth >"$log.part" 2>&1; then
        failed="$failed $crate"
        grep -E '^(error|test .* FAILED)' "$log.part" >&2 || true
    fi
    lines="$lines$(printf '%-22s %s' "$crate" "$(sed -n 's/^test result: //p' "$log.part")")
"
    cat "$log.part" >>"$log"
    rm "$log.part"
done
say "the program"
program=$(scripts/static.sh --profile dev aarch64)
# shellcheck disable=SC2046 # an emulator and its options
version=$($(emulator aarch64) "$program" --version) || failed="$failed program"
printf '%s%-22s %s\n' "$lines" program "${version:-did not start}"
[ -z "$failed" ] || { say "failed:$failed" && exit 1; }
