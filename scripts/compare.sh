#!/bin/bash
# What it costs to watch 2,000 tasks once a second: evenkeel next to Debian's atop, top, pidstat and process exporter.
#
#   scripts/compare.sh [--tasks 2000] [--busy 50] [--seconds 8] [--tools "evenkeel-serve evenkeel-bpf evenkeel-proc top pidstat atop
#                      atop-file exporter"] [--binary target/release/evenkeel]
#
# One after the other, on the same tasks (see crowd.sh), at the same interval; each tool's CPU is that of its whole process
# over SECONDS after it has settled, from /proc/PID/schedstat. The exporter is scraped once a second (curl's CPU is not
# counted). Tools that are not installed are fetched as Debian packages and unpacked below target/ (nothing is installed,
# no service started); one that cannot be had is said and left out. Run it on a quiet machine, as root.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/crowd.sh
. "$(dirname "$0")/crowd.sh"
# shellcheck source=scripts/unpacked.sh
. "$(dirname "$0")/unpacked.sh"
cd "$(dirname "$0")/.."

tasks=2000 busy=50 seconds=8 binary='' tools='evenkeel-serve evenkeel-bpf evenkeel-proc top pidstat atop atop-file exporter'
while [ $# -gt 0 ]; do
    case $1 in
    --tasks) tasks=${2:?} ;;
    --busy) busy=${2:?} ;;
    --seconds) seconds=${2:?} ;;
    --tools) tools=${2:?} ;;
    --binary) binary=${2:?} ;;
    *) echo "error: $1: only --tasks, --busy, --seconds, --tools and --binary are known" >&2 && exit 2 ;;
    esac
    shift 2
done
is_root || die "root is needed: run as root"
[ -n "$binary" ] || binary=$(release_binary)

library=
work=$(mktemp -d)
tool='' scraper=''
clean() {
    [ -z "$scraper" ] || kill "$scraper" 2>/dev/null || true
    [ -z "$tool" ] || kill -9 "$tool" 2>/dev/null || true
    disperse
    rm -rf "$work"
}
trap clean EXIT
binaries=
for name in $tools; do
    case $name in
    evenkeel-*) path=$binary ;;
    top) path=$(command_of top procps || true) ;;
    pidstat) path=$(command_of pidstat sysstat libsensors5 || true) ;;
    atop | atop-file) path=$(command_of atop atop || true) ;;
    exporter)
        path=
        if have curl; then path=$(command_of prometheus-process-exporter prometheus-process-exporter || true); fi ;;
    *) echo "error: --tools: $name is none" >&2 && exit 2 ;;
    esac
    if [ -n "$path" ]; then
        binaries="$binaries $name=$path"
    else
        say "$name: neither installed nor to be had here; left out"
    fi
done
library=$(unpacked_libraries)
crowd "$tasks" "$busy" "$binary"

start() {
    case $1 in
    top) TERM=dumb exec "$2" -b -d 1 ;;
    pidstat) LD_LIBRARY_PATH=${library:-/usr/lib} exec "$2" -p ALL 1 ;;
    atop) exec "$2" 1 ;;
    atop-file) exec "$2" -w "$work/atop.raw" 1 ;;
    exporter)
        printf 'process_names:\n  - name: "{{.Comm}}"\n    cmdline: [".+"]\n' >"$work/exporter.yml"
        exec "$2" -web.listen-address 127.0.0.1:19256 -config.path "$work/exporter.yml" ;;
    esac
}
printf '%-15s %12s %14s %10s\n' tool '% of one CPU' 'us a task' 'RSS MiB'
for pair in $binaries; do
    name=${pair%%=*} path=${pair#*=}
    case $name in
    evenkeel-serve | evenkeel-serve-blame)
        # What watches only, its history included; `evenkeel-serve-blame` counts waits one by one, too.
        options=(--listen 127.0.0.1:0)
        if [ "$name" = evenkeel-serve ]; then options+=(--blame off); else options+=(--blame); fi
        "$path" --state-dir "$work/$name" serve "${options[@]}" >/dev/null 2>"$work/$name.err" &
        settle=12 ;;
    evenkeel-*)
        # Without a shell in between: the process whose CPU counts is this one.
        "$path" --state-dir "$work/$name" --sampling "${name#evenkeel-}" run --scope "cgroup:$group/sleeping" \
            --for 600s -o json >/dev/null 2>"$work/$name.err" &
        settle=6 ;;
    *)
        (start "$name" "$path") >/dev/null 2>"$work/$name.err" </dev/null &
        settle=2 ;;
    esac
    tool=$!
    if [ "$name" = exporter ]; then
        while sleep 1; do curl -s -o /dev/null http://127.0.0.1:19256/metrics || true; done &
        scraper=$!
    fi
    sleep "$settle"
    if [ ! -d "/proc/$tool" ]; then
        say "$name ended by itself: $(head -1 "$work/$name.err")"
        tool=
        continue
    fi
    from=$(ran "$tool") at=$(date +%s%N)
    sleep "$seconds"
    to=$(ran "$tool") until=$(date +%s%N)
    rss=$(awk '/^VmRSS/ { printf "%.1f", $2 / 1024 }' "/proc/$tool/status")
    all=$(find /proc -maxdepth 1 -name '[0-9]*' | wc -l)
    awk -v name="$name" -v ran=$((to - from)) -v wall=$((until - at)) -v all="$all" -v rss="$rss" 'BEGIN {
        share = ran / wall
        printf "%-15s %12.2f %14.2f %10s\n", name, 100 * share, 1e6 * share / all, rss }'
    [ -z "$scraper" ] || kill "$scraper" 2>/dev/null || true
    scraper=
    kill "$tool" 2>/dev/null || true
    for _ in $(seq 50); do
        [ -d "/proc/$tool" ] || break
        sleep 0.1
    done
    kill -9 "$tool" 2>/dev/null || true
    wait "$tool" 2>/dev/null || true
    tool=
done
