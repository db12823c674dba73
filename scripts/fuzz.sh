#!/bin/bash
# Every parser under libFuzzer: scripts/fuzz.sh [TARGET...]
#
# FUZZ_SECONDS (600) is the time of each target; without arguments FUZZ_TARGETS names them, and without that all run. Inputs that
# reached new code are kept in target/fuzz/TARGET/corpus, where the next run goes on. What fails is made small and written to
# crates/fuzz/corpus/TARGET/found-*: mend the cause with a test of its own, and commit the file, which `cargo test` tries from then
# on. Status 1: something failed. The last lines are a table of what was tried.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

scripts/packages.sh build fuzz
need_cargo
seconds=${FUZZ_SECONDS:-600}
target=$(target_dir)
host=$(host_triple)

# As cargo-fuzz has it, but for the address sanitizer, which takes an unstable compiler: the parsers have no unsafe code, and
# memory is counted by an allocator (crates/fuzz/src/memory.rs).
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
coverage+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
coverage+=" -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
# With --target, build scripts are built without these flags.
say "building with coverage (minutes at the first time)"
RUSTFLAGS="${RUSTFLAGS:-} $coverage" nice -n 10 cargo build --locked --profile fuzz --target "$host" --target-dir "$target" \
    -p evenkeel-fuzz --features libfuzzer --bins
fuzz=$target/$host/fuzz/evenkeel-fuzz

if [ $# -gt 0 ]; then
    names=("$@")
elif [ -n "${FUZZ_TARGETS:-}" ]; then
    read -r -a names <<<"$FUZZ_TARGETS"
else
    mapfile -t names < <(FUZZ_DO=list "$fuzz" 2>/dev/null)
fi

failed=() table=()
for name in "${names[@]}"; do
    work=$target/fuzz/$name
    mkdir -p "$work/corpus" "$work/samples"
    rm -f "$work"/samples/* "$work"/failed-*
    FUZZ_DO=samples FUZZ_TARGET=$name FUZZ_PATH=$work/samples "$fuzz" 2> >(grep -v __sanitizer_ >&2)
    say "$name: $seconds s"
    status=0 runs=0
    : >"$work/log"
    # Mostly short inputs, of which many are tried in a second; a tenth of the time long ones, where time with the square of the
    # length shows. What takes longer than a target may is found by its CPU time; -timeout is for what never ends.
    for part in "4096 $((seconds - seconds / 10))" "65536 $((seconds / 10 + 1))"; do
        [ $status = 0 ] || break
        FUZZ_TARGET=$name nice -n 10 "$fuzz" -max_len="${part% *}" -max_total_time="${part#* }" -timeout=30 -rss_limit_mb=4096 \
            -print_final_stats=1 -verbosity=0 -artifact_prefix="$work/failed-" "$work/corpus" "$work/samples" \
            >>"$work/log" 2>&1 || status=$?
        tried=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log" | tail -n 1)
        runs=$((runs + ${tried:-0}))
    done
    found=
    if [ $status != 0 ]; then
        failed+=("$name")
        tail -n 200 "$work/log" | grep -E "^$name: |panicked at|ERROR: libFuzzer" | head -n 4 >&2 || true
        for input in "$work"/failed-*; do
            [ -e "$input" ] || continue
            FUZZ_DO=shrink FUZZ_TARGET=$name FUZZ_PATH=$input timeout 120 "$fuzz" >&2 2>/dev/null ||
                { mkdir -p "crates/fuzz/corpus/$name" && cp "$input" "crates/fuzz/corpus/$name/found-$(basename "$input")"; }
        done
        found="  FAILED, see $work/log"
    fi
    table+=("$(printf '%-18s %12s runs %8s a second%s' "$name" "$runs" "$((runs / (seconds + 1)))" "$found")")
done
printf '%s\n' "${table[@]}"
if [ ${#failed[@]} -gt 0 ]; then
    say "failed: ${failed[*]}; the inputs are in crates/fuzz/corpus"
    exit 1
fi
