#!/bin/sh
# The laboratory's own figures on this host: wake-up skew, own overhead, weights, quota, agreement with sysbench, and
# what an enforcer's rules do to a job under several limits, and how long every built-in experiment takes in short.
# About four minutes, and six more for the last; wants root and a quiet host.
# usage: scripts/lab-figures.sh [release|weights|quota|agreement|limits|suite..]; EVENKEEL names the binary to use.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
evenkeel=${EVENKEEL:-$here/target/release/evenkeel}
[ -x "$evenkeel" ] || { echo "$evenkeel is not there: cargo build --release -p evenkeel" >&2; exit 3; }
command -v jq >/dev/null || { echo "jq is needed: apt-get install jq" >&2; exit 3; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

run() { # NAME [EXPERIMENT [OPTIONS..]]
    name=$1; what=${2:-$here/docs/lab/$1.toml}; [ $# -lt 2 ] || shift; shift
    # shellcheck disable=SC2086  # HOLD is a command with arguments: what keeps the host quiet meanwhile
    ${HOLD:-} "$evenkeel" lab run "$what" --out "$work/$name" "$@" >/dev/null
}
median='def median: sort | if length == 0 then null elif length % 2 == 1 then .[length/2|floor] else (.[length/2-1] + .[length/2]) / 2 end;'
show() { jq -r "$median $2" "$work/$1/record.json"; }

release() {
    run release
    show release '
        ([.cells[].tenants[].release.woken_late_usec] | "wake-up of 20 tenants: median \(median / 1e3 * 1e3 | round / 1e3) ms, p100 \(max | round / 1e3) ms (at most 1)"),
        ([.cells[].tenants[].release.first_instruction_late_usec] | "their first instruction: median \(median | round / 1e3) ms, p100 \(max | round / 1e3) ms"),
        ("own use of CPU while runs are on: \([.cells[].host.harness_cpu_pct] | max * 1e3 | round / 1e3) % of one CPU at most (at most 0.5)")'
}
weights() {
    run weights
    show weights '
        [.cells[] | {label: .point.label, cpu: [.tenants[] | .total.user_s + .total.sys_s], units: [.tenants[].units]}]
        | group_by(.label)[] | .[0].units as $units | .[0].label as $point
        | ([.[].cpu] | transpose | map(median)) as $cpu
        | ($cpu | add) as $all | ($units | add) as $sum
        | [range(0; $units | length) | 100 * (($cpu[.] / $all) / ($units[.] / $sum) - 1)] as $off
        | "weights 1:2:4:8, \($point): CPU seconds \($cpu | map(. * 1e3 | round / 1e3) | join(" ")), worst \($off | map(fabs) | max * 100 | round / 100) % off its share"'
}
quota() {
    run quota
    show quota '[.cells[].tenants[0] | 100 * (.total.user_s + .total.sys_s) / .total.real_s]
        | "quota 25 %: measured \(map(. * 100 | round / 100) | join(" ")) (25 +- 0.5)"'
}
agreement() {
    run agreement
    # By pairs of neighbours: what drifts on the host drifts for both.
    show agreement '[.cells[] | {label: .point.label, pair: .repetition, eps: .tenants[0].runs[0].events_per_s}] | group_by(.pair)
        | map({own: (.[] | select(.label == "primes").eps), ref: (.[] | select(.label == "sysbench").eps)})
        | (map(100 * (.own / .ref - 1) * 100 | round / 100)) as $off
        | "events/s, medians of \(length) runs each by turns: primes \(map(.own) | median * 10 | round / 10), sysbench \(map(.ref) | median * 10 | round / 10); difference of a pair: median \($off | median) % (within 3), \($off | min) to \($off | max)"'
}
limits() {
    run limits limit-sweep --quick
    show limits '.cells | sort_by(.point.index)[]
        | "\(.point.label): \(.tenants[0].total.real_s * 100 | round / 100) s\(if .tenants[0].ended.how == "done" then "" else " (" + .tenants[0].ended.how + ")" end), predicted \((.predicted[0].elapsed_s // 0) * 100 | round / 100) s, stolen \(.enforcer.stolen_s * 100 | round / 100) s\(if .enforcer.credits then ", credits " + ([.enforcer.credits[] | . * 100 | round / 100 | tostring] | join(" -> ")) + ", predicted " + (.predicted[0].credits * 100 | round / 100 | tostring) else "" end)"'
    # The three shapes: a limit beats none by >= 2, none is first, none is first.
    show limits '[.cells[] | {rule: (.point.label | split(", ")[0]), limit: (.point.label | split(", ")[1]), s: .tenants[0].total.real_s, done: (.tenants[0].ended.how == "done")}]
        | group_by(.rule)[] | (map(select(.limit == "no limit"))[0]) as $none | (map(select(.done)) | min_by(.s)) as $best
        | "\(.[0].rule): first is \($best.limit), \($none.s / $best.s * 100 | round / 100) times as fast as without a limit\(if $none.done then "" else " (at least: that was ended)" end)"'
    jq -r '.verdicts[] | select(.id == "which-rule" or .id == "does-a-limit-help" or .id == "best-at-the-edge" or .id == "credits-as-predicted")
        | "verdict \(.id) (\(.about)): \(if .holds == null then "undecided" elif .holds then "yes" else "no" end): \(.text)"' "$work/limits/study.json"
}
suite() { # every built-in experiment in short, one after the other: how long each takes
    all=0
    for experiment in $("$evenkeel" lab list -o json | jq -r '.experiments[].name'); do
        expected=$("$evenkeel" lab list -o json | jq -r --arg name "$experiment" '.experiments[] | select(.name == $name).quick_s * 10 | round / 10')
        from=$(date +%s%N)
        run "suite-$experiment" "$experiment" --quick
        took=$((($(date +%s%N) - from) / 100000000))
        all=$((all + took))
        echo "$experiment --quick: $((took / 10)).$((took % 10)) s, expected at most $expected (at most 60)"
    done
    echo "all with --quick: $((all / 600)) min $((all % 600 / 10)) s (at most 12 min)"
}
[ $# -gt 0 ] || set -- release weights quota agreement limits suite
for figure; do "$figure"; done
