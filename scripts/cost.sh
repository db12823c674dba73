#!/bin/bash
# What watching costs: the agent's CPU and memory at 1 Hz next to 2,000 tasks, sampling by BPF (to stay within 0.3 % of one
# CPU and 40 MiB) and by /proc (within 2 %).
#
#   scripts/cost.sh [--tasks 2000] [--busy 50] [--seconds 24] [--sampling "bpf proc"] [--binary target/release/evenkeel]
#
# The tasks sleep but for BUSY, each of which runs 200 us every 50 ms. The sleeping ones are the scope, so that the agent
# finds nothing to do and watches; it samples all of them. Its CPU is counted twice: by itself over its whole run (its
# JSON's `self`), and here from /proc/PID/schedstat over the time after the start. Run it on a quiet machine, as root.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/crowd.sh
. "$(dirname "$0")/crowd.sh"
cd "$(dirname "$0")/.."

tasks=2000 busy=50 seconds=24 binary='' ways='bpf proc'
while [ $# -gt 0 ]; do
    case $1 in
    --tasks) tasks=${2:?} ;;
    --busy) busy=${2:?} ;;
    --seconds) seconds=${2:?} ;;
    --sampling) ways=${2:?} ;;
    --binary) binary=${2:?} ;;
    *) echo "error: $1: only --tasks, --busy, --seconds, --sampling and --binary are known" >&2 && exit 2 ;;
    esac
    shift 2
done
is_root || die "root is needed: run as root"
[ "$seconds" -ge 15 ] || { echo "error: --seconds: at least 15" >&2 && exit 2; }
[ -n "$binary" ] || binary=$(release_binary)

work=$(mktemp -d)
agent=
clean() {
    [ -z "$agent" ] || kill "$agent" 2>/dev/null || true
    disperse
    rm -rf "$work"
}
trap clean EXIT
crowd "$tasks" "$busy" "$binary"

for way in $ways; do
    say "sampling by $way"
    "$binary" --state-dir "$work/state-$way" --sampling "$way" run --scope "cgroup:$group/sleeping" \
        --for "${seconds}s" -o json >"$work/run.json" 2>"$work/run.err" &
    agent=$!
    sleep 6
    from=$(ran "$agent") at=$(date +%s%N)
    sleep $((seconds - 8))
    to=$(ran "$agent") until=$(date +%s%N)
    memory=$(awk '/^VmHWM|^VmRSS/ { printf "%s %.1f MiB  ", $1, $2 / 1024 }' "/proc/$agent/status")
    wait "$agent"
    agent=
    sed 's/^/    /' "$work/run.err"
    awk -v ran=$((to - from)) -v wall=$((until - at)) 'BEGIN {
        printf "watching, from /proc:  %.3f %% of one CPU over %.0f s\n", 100 * ran / wall, wall / 1e9 }'
    echo "memory, from /proc:    $memory"
    awk -F'[:,]' '/"cpu_pct"/ { cpu = $2 } /"rss_bytes"/ { rss = $2; exit } END {
        printf "by its own account:    %.2f %% of one CPU over the whole run, the start included; RSS %.1f MiB\n", cpu,
            rss / 1048576 }' \
        <(sed -n '/"self"/,$p' "$work/run.json")
done
