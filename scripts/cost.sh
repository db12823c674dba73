#!/bin/bash
# What watching costs: the agent's CPU and memory at 1 Hz beside 2,000 tasks (to stay within 2 % of one CPU and 40 MiB).
#
#   scripts/cost.sh [--tasks 2000] [--busy 50] [--seconds 30] [--binary target/release/evenkeel]
#
# The tasks sleep but for BUSY, each of which runs 200 us every 50 ms. The sleeping ones are the scope, so that the agent
# finds nothing to do and watches; it samples all of them. Its CPU is counted twice: by itself over its whole run (its
# JSON's `self`), and here from /proc/PID/schedstat over the time after the start. Run it on a quiet machine, as root.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

tasks=2000 busy=50 seconds=30 binary=
while [ $# -gt 0 ]; do
    case $1 in
    --tasks) tasks=${2:?} ;;
    --busy) busy=${2:?} ;;
    --seconds) seconds=${2:?} ;;
    --binary) binary=${2:?} ;;
    *) echo "error: $1: only --tasks, --busy, --seconds and --binary are known" >&2 && exit 2 ;;
    esac
    shift 2
done
is_root || die "root is needed: run as root"
[ "$seconds" -ge 15 ] || { echo "error: --seconds: at least 15" >&2 && exit 2; }
if [ -z "$binary" ]; then
    need_cargo
    cargo build --locked --release --bin evenkeel
    binary=$(target_dir)/release/evenkeel
fi

hierarchy=
for dir in /sys/fs/cgroup/cpu /sys/fs/cgroup/cpu,cpuacct /sys/fs/cgroup; do
    if [ -e "$dir/cgroup.procs" ]; then hierarchy=$dir && break; fi
done
[ -n "$hierarchy" ] || die "no cgroup hierarchy found"
group=/evenkeel-cost-$$
work=$(mktemp -d)
agent=
clean() {
    [ -z "$agent" ] || kill "$agent" 2>/dev/null || true
    # Only what was started here is in these groups.
    for sub in sleeping busy; do
        for _ in $(seq 100); do
            if rmdir "$hierarchy$group/$sub" 2>/dev/null || [ ! -d "$hierarchy$group/$sub" ]; then break; fi
            xargs -r kill -9 <"$hierarchy$group/$sub/cgroup.procs" 2>/dev/null || true
            sleep 0.05
        done
    done
    rmdir "$hierarchy$group" 2>/dev/null || true
    rm -rf "$work"
}
trap clean EXIT
mkdir "$hierarchy$group" "$hierarchy$group/sleeping" "$hierarchy$group/busy"
(
    echo 0 >"$hierarchy$group/sleeping/cgroup.procs"
    for _ in $(seq $((tasks - busy))); do sleep 600 & done
    echo 0 >"$hierarchy$group/busy/cgroup.procs"
    for n in $(seq "$busy"); do
        "$binary" load duty --percent 0.4 --period 50ms --seed "$n" --seconds 600 >/dev/null &
    done
) </dev/null >/dev/null 2>&1
sleep 3
there=$(cat "$hierarchy$group"/*/cgroup.procs | wc -l)
say "$there tasks, $busy of them busy, beside $(($(find /proc -maxdepth 1 -name '[0-9]*' | wc -l) - there)) others"
[ "$there" = "$tasks" ] || die "only $there of $tasks tasks could be started"

"$binary" --state-dir "$work/state" run --scope "cgroup:$group/sleeping" --for "${seconds}s" -o json \
    >"$work/run.json" 2>"$work/run.err" &
agent=$!
sleep 6
# Nanoseconds all threads of the agent have run.
ran() { { cat /proc/"$agent"/task/*/schedstat 2>/dev/null || true; } | awk '{ sum += $1 } END { printf "%.0f\n", sum }'; }
from=$(ran) at=$(date +%s%N)
sleep $((seconds - 8))
to=$(ran) until=$(date +%s%N)
memory=$(awk '/^VmHWM|^VmRSS/ { printf "%s %.1f MiB  ", $1, $2 / 1024 }' "/proc/$agent/status")
wait "$agent"
agent=
sed 's/^/    /' "$work/run.err"
awk -v ran=$((to - from)) -v wall=$((until - at)) 'BEGIN {
    printf "watching, from /proc:  %.2f %% of one CPU over %.0f s\n", 100 * ran / wall, wall / 1e9 }'
echo "memory, from /proc:    $memory"
awk -F'[:,]' '/"cpu_pct"/ { cpu = $2 } /"rss_bytes"/ { rss = $2; exit } END {
    printf "by its own account:   %.2f %% of one CPU over the whole run, the start included; RSS %.1f MiB\n", cpu, rss / 1048576 }' \
    <(sed -n '/"self"/,$p' "$work/run.json")
