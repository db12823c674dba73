#!/bin/bash
# What `serve` and its dashboard cost, each figure with its goal. Wants root and a quiet host; ten minutes.
# usage: scripts/serve-figures.sh [paint|store|metrics|agent..]; EVENKEEL names the binary (target/release/evenkeel).
#
#   paint    the dashboard's first paint with 2,000 tasks and 24 h of history, bytes of the page, CPU of an update
#   store    size of the history of 24 h: 500 tasks of which 100 change each second, 50 cgroups; what a kill -9 of serve costs of its own
#   metrics  a scrape with 200 containers, and its CPU next to Debian's process exporter and cAdvisor, where they are to be had
#   agent    CPU of the whole agent a task, at 2,000 tasks once a second (scripts/compare.sh)
#
# FIGURE_TASKS (2000), FIGURE_CONTAINERS (200) and FIGURE_HOURS (24) make it smaller, FIGURE_DEBUG=1 takes a debug build, to try it. Other tools are unpacked below target/, never
# installed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/crowd.sh
. "$(dirname "$0")/crowd.sh"
# shellcheck source=scripts/unpacked.sh
. "$(dirname "$0")/unpacked.sh"
cd "$(dirname "$0")/.."

evenkeel=${EVENKEEL:-$(target_dir)/release/evenkeel}
[ -x "$evenkeel" ] || die "$evenkeel is not there: cargo build --release -p evenkeel"
is_root || die "root is needed: run as root"
profile=(--release)
if [ -n "${FIGURE_DEBUG:-}" ]; then profile=(); fi
tasks=${FIGURE_TASKS:-2000} containers=${FIGURE_CONTAINERS:-200} hours=${FIGURE_HOURS:-24}
for figure in "$@"; do
    case $figure in paint | store | metrics | agent) ;; *) echo "error: $figure: only paint, store, metrics and agent are known" >&2 && exit 2 ;; esac
done

work=$(mktemp -d)
serve='' other='' scraper='' boxes=''
stop() { # PID
    [ -n "$1" ] || return 0
    kill "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}
empty() {
    local box
    [ -n "$boxes" ] || return 0
    for _ in $(seq 100); do
        for box in "$hierarchy$boxes"/docker/*/; do xargs -r kill -9 <"$box/cgroup.procs" 2>/dev/null || true; done
        if rmdir "$hierarchy$boxes"/docker/*/ "$hierarchy$boxes/docker" "$hierarchy$boxes" 2>/dev/null; then break; fi
        if [ ! -d "$hierarchy$boxes" ]; then break; fi
        sleep 0.1
    done
    boxes=
}
clean() {
    stop "$scraper"
    stop "$other"
    stop "$serve"
    empty
    disperse
    rm -rf "$work"
}
trap clean EXIT

figure() { printf '%-58s %14s   goal: %s\n' "$1" "$2" "$3"; }
field() { jq -r ".$1"; }

# serve OPTIONS..: starts it in a state directory of its own (or STATE); sets `serve` and `url`.
start() {
    "$evenkeel" --state-dir "${STATE:-$work/state}" serve --listen 127.0.0.1:0 "$@" >/dev/null 2>"$work/serve.err" &
    serve=$!
    url=
    for _ in $(seq 600); do
        url=$(sed -n 's/.*listening on \(http.*\)/\1/p' "$work/serve.err")
        if [ -n "$url" ] && curl -sf -o /dev/null "$url/healthz"; then return; fi
        [ -d "/proc/$serve" ] || break
        sleep 0.1
    done
    die "serve did not start: $(cat "$work/serve.err")"
}

# CPU that a process uses while its address is scraped once a second for 20 s, percent of one CPU.
scraped() { # PID URL
    local from at to until
    while sleep 1; do curl -s -o /dev/null "$2" || true; done &
    scraper=$!
    sleep 3
    from=$(ran "$1") at=$(date +%s%N)
    sleep 20
    to=$(ran "$1") until=$(date +%s%N)
    stop "$scraper"
    scraper=
    awk -v ran=$((to - from)) -v wall=$((until - at)) 'BEGIN { printf "%.2f\n", 100 * ran / wall }'
}

# A history of so many hours, with its last sample now. made_up TASKS CHANGING DIRECTORY
made_up() {
    mkdir -p "$3"
    need_cargo
    cargo run -q --locked ${profile[@]+"${profile[@]}"} -p evenkeel-store --example history_cost -- "$1" "$2" $((hours * 3600)) 50 "$3"
}

figure_paint() {
    local painted live timeline
    say "making $hours h of history of $tasks tasks"
    made_up "$tasks" 50 "$work/paint" >&2
    crowd "$tasks" 50 "$evenkeel"
    STATE=$work/paint start --blame
    sleep 15
    painted=$(python3 scripts/serve/first_paint.py "$url/")
    figure "first contentful paint, $tasks tasks, $hours h of history" "$(field first_paint_ms <<<"$painted") ms" '<= 1000 ms'
    figure 'first chart drawn' "$(field first_chart_ms <<<"$painted") ms" 'none (beside the paint)'
    figure 'page with all that it loads until then' "$(field bytes <<<"$painted" | awk '{ printf "%.2f MB", $1 / 1e6 }')" '<= 5 MB'
    live=$(python3 scripts/serve/requests.py "$serve" "$url/api/live")
    timeline=$(python3 scripts/serve/requests.py "$serve" "$url/api/timeline?since=$(($(date +%s) * 1000))")
    figure "CPU of an update (live and timeline)" \
        "$(jq -rn --argjson a "$live" --argjson b "$timeline" '($a.cpu_ms + $b.cpu_ms) * 100 | round / 100') ms" '<= 5 ms'
    stop "$serve"
    serve=
    disperse
}

figure_store() {
    local said bytes wait seen kept lost
    said=$(made_up 500 100 "$work/store")
    say "$said"
    bytes=$(du -cb "$work"/store/history.db* | tail -1 | cut -f1)
    figure "history of $hours h, 500 tasks, 50 cgroups, default thinning" "$(awk -v b="$bytes" 'BEGIN { printf "%.1f MB", b / 1e6 }')" '<= 100 MB'
    lost=0
    # Five instants of the time between two commits; what was seen last before each, less what is in the history then.
    for wait in 8.3 9.1 9.9 10.7 11.5; do
        rm -rf "$work/killed"
        STATE=$work/killed start
        sleep "$wait"
        seen=$(curl -sf "$url/metrics" | awk '$1 == "evenkeel_observed_timestamp_seconds" { print $2 }')
        kill -9 "$serve"
        wait "$serve" 2>/dev/null || true
        serve=
        kept=$(newest "$work/killed/history.db")
        lost=$(awk -v seen="$seen" -v kept="$kept" -v most="$lost" 'BEGIN { lost = seen - kept; printf "%.1f", (lost > most ? lost : most) }')
    done
    figure 'history lost by kill -9 of serve, worst of 5' "$lost s" '<= 5 s'
}

# When the newest sample of a history was taken, seconds since 1970.
newest() { # FILE
    python3 - "$1" <<'END'
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
newest = max(db.execute(f"SELECT coalesce(max(last_wall_ns), 0) FROM {table}").fetchone()[0] for table in ("block", "tail"))
print(newest / 1e9)
END
}

box() {
    local n id
    [ -n "$hierarchy" ] || hierarchy=$(cpu_hierarchy)
    boxes=/evenkeel-figures-$$
    mkdir "$hierarchy$boxes" "$hierarchy$boxes/docker"
    (
        for n in $(seq "$containers"); do
            id=$(printf '%064x' "$n")
            mkdir "$hierarchy$boxes/docker/$id"
            (
                echo 0 >"$hierarchy$boxes/docker/$id/cgroup.procs"
                exec "$evenkeel" load duty --percent 0.2 --period 100ms --seed "$n" --seconds 900
            ) &
        done
    ) </dev/null >/dev/null 2>&1
    sleep 5
}

figure_metrics() {
    local seen ours path theirs name port
    box
    start --blame --no-history
    sleep 20
    seen=$(python3 scripts/serve/requests.py "$serve" "$url/metrics")
    figure "/metrics with $containers containers" "$(field ms <<<"$seen") ms" '<= 20 ms'
    figure '  its CPU' "$(field cpu_ms <<<"$seen") ms" 'none'
    figure '  its size' "$(field bytes <<<"$seen" | awk '{ printf "%.0f kB", $1 / 1e3 }')" 'none'
    ours=$(scraped "$serve" "$url/metrics")
    stop "$serve"
    serve=
    figure 'serve --blame, scraped once a second' "$ours % CPU" '<= 1/10 of the others'
    for name in process-exporter cadvisor; do
        case $name in
        process-exporter) path=$(command_of prometheus-process-exporter prometheus-process-exporter || true) port=19256 ;;
        *) path=$(command_of cadvisor cadvisor || true) port=19280 ;;
        esac
        if [ -z "$path" ]; then
            figure "$name, scraped once a second" 'not to be had' 'none'
            continue
        fi
        case $name in
        process-exporter)
            printf 'process_names:\n  - name: "{{.Comm}}"\n    cmdline: [".+"]\n' >"$work/exporter.yml"
            "$path" -web.listen-address 127.0.0.1:$port -config.path "$work/exporter.yml" >/dev/null 2>"$work/$name.err" & ;;
        *) "$path" -listen_ip 127.0.0.1 -port $port -housekeeping_interval 1s >/dev/null 2>"$work/$name.err" & ;;
        esac
        other=$!
        sleep 5
        theirs=$(scraped "$other" "http://127.0.0.1:$port/metrics")
        stop "$other"
        other=
        figure "$name, scraped once a second" "$theirs % CPU" "10 of ours: $(awk -v a="$theirs" -v b="$ours" 'BEGIN { printf "%.1f", a / b }')"
    done
    empty
}

figure_agent() {
    local line
    scripts/compare.sh --tasks "$tasks" --binary "$evenkeel" --tools 'evenkeel-serve evenkeel-serve-blame' --seconds 30 >"$work/agent"
    while read -r line; do
        # shellcheck disable=SC2086 # columns
        set -- $line
        figure "$1, $tasks tasks" "$3 us a task" '<= 1 us a task'
    done < <(tail -n +2 "$work/agent")
}

if [ $# = 0 ]; then set -- paint store metrics agent; fi
for figure in "$@"; do "figure_$figure"; done
