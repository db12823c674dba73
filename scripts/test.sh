#!/bin/bash
# Every test: scripts/test.sh [--only TEST_BINARY [--all]]
#
# --all runs the binary's tests that take too long for every run, too.
#
# Order: packages, formatting, clippy, then `cargo test` on the workspace, which holds the unit, property and fixture
# tests, the tests on the real kernel (privileged_*.rs) and those in an emulated machine (guest.rs). All steps run,
# also after one failed; the last line says what came of it. Whole output: target/test.log.
#
# Property tests draw new cases in every run; the seed is printed, and PROPTEST_RNG_SEED repeats a run.
# EVENKEEL_SECOND_ATTEMPTS (0): how many tests of `tests/` may fail at first and pass alone. The last line counts them.
#
# Built as the user who calls; only the test programs run as root, by sudo where need be. Two runs at a time would
# fight over the kernel's state, so the second waits.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

only=
options=()
if [ "${1:-}" = --only ]; then
    only=${2:?--only needs the name of a test binary}
    if [ "${3:-}" = --all ]; then options=(-- --include-ignored); fi
fi

started=$SECONDS
scripts/packages.sh build
need_cargo
# Only what follows clippy needs these; they are fetched while it works.
scripts/packages.sh test &
packages=$!

target=$(target_dir)
mkdir -p "$target"
log=$target/test.log
: >"$log"

if ! is_root; then
    have sudo || die "tests on the real kernel need root: run as root (there is no sudo here)"
    say "building as $(id -un); the test programs run by sudo, for they set scheduling attributes and make cgroups"
    host=$(host_triple | tr 'a-z-' 'A-Z_')
    export "CARGO_TARGET_${host}_RUNNER=sudo -E"
fi

export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}"
say "property tests draw from seed PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED"
allowed=${EVENKEEL_SECOND_ATTEMPTS:-0}

lock=/tmp/evenkeel-test.lock
[ -e "$lock" ] || : >"$lock"
exec 9<"$lock"
if ! flock -n 9; then
    say "waiting for another test run on this host"
    flock 9
fi

failed=()
step() {
    local name=$1
    shift
    say "$name: $*"
    if ! "$@" </dev/null 9>&-; then
        say "$name: FAILED"
        failed+=("$name")
    fi
}

if [ -n "$only" ]; then
    wait "$packages"
    tests=(cargo test --locked --test "$only" --no-fail-fast "${options[@]}")
else
    step formatting cargo fmt --all --check
    step clippy cargo clippy --locked --workspace --all-targets -- -D warnings
    wait "$packages"
    step dependencies scripts/unused-dependencies.py
    tests=(cargo test --locked --workspace --no-fail-fast)
fi
run_tests() { "${tests[@]}" 2>&1 | tee -a "$log"; }
# "test result: ok. 12 passed; 0 failed; 1 ignored; .." summed over all test binaries.
sum() { awk -v what="$1;" '/^test result: / { for (i = 2; i <= NF; i++) if ($i == what) n += $(i - 1) } END { print n + 0 }' "$log"; }

# Tests of the program and of the real kernel run on a host on which others (a hypervisor, too) take CPU as they like. As many
# as are allowed may fail and are run once more, alone. Unit and property tests must pass at once: a case that failed and
# is drawn again is another case.
again=()
run_again() {
    local failed
    # "BINARY TEST", from the lines "Running tests/BINARY.rs (..)" and "test TEST ... FAILED".
    failed=$(awk '/^ *Running .*\.rs \(/ { split($2 == "unittests" ? $3 : $2, part, "/"); binary = part[2]; sub(/\.rs$/, "", binary) }
        /^test .* \.\.\. FAILED$/ { print binary, $2 }' "$log")
    # A program that ended without saying so has failed, too.
    [ -n "$failed" ] && [ "$(wc -l <<<"$failed")" = "$(sum failed)" ] && [ "$(sum failed)" -le "$allowed" ] || return 1
    [ "$(awk '{ print $1 }' <<<"$failed" | sort -u | wc -l)" = "$(grep -c '^    `' "$log")" ] || return 1
    while read -r binary test; do
        case $binary in lib | main) return 1 ;; esac
        say "once more, alone: $test"
        cargo test --locked --test "$binary" -- --exact "$test" </dev/null 2>&1 | tee "$log.again" || return 1
        grep -q '^test result: ok. 1 passed' "$log.again" || return 1
        again+=("$test")
    done <<<"$failed"
}
tests_with_second_chance() { run_tests || run_again || { again=() && false; }; }
# Many tests wait most of the time: for a rate, a notice, a service that starts.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$((2 * $(nproc)))}"
step tests tests_with_second_chance

passed=$(($(sum passed) + ${#again[@]})) bad=$(($(sum failed) - ${#again[@]})) ignored=$(sum ignored)
if [ "$passed" = 0 ] && [ ${#failed[@]} = 0 ]; then failed+=("tests: none ran"); fi

word=failed
if [ ${#again[@]} -gt 0 ]; then word="failed at first, passed alone"; fi
sed -n "s/^test \(.*\) \.\.\. FAILED\$/     $word: \1/p" "$log"
if [ ${#failed[@]} -gt 0 ]; then
    outcome="FAILED ($(printf '%s, ' "${failed[@]}" | sed 's/, $//'))"
else
    outcome=ok
fi
echo "test result: $outcome. $passed passed; $bad failed; $ignored ignored; ${#again[@]} passed at a second attempt ($allowed allowed); finished in $((SECONDS - started))s"
[ "$outcome" = ok ]
