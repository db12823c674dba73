#!/bin/sh
# The laboratory's own figures on this host: wake-up skew, own overhead, weights, quota, agreement with sysbench, and
# what an enforcer's rules do to a job under several limits. About four minutes; wants root and a quiet host.
# usage: scripts/lab-figures.sh [release|weights|quota|agreement|limits..]; EVENKEEL names the binary to use.
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
    show agreement '[.cells[] | {label: .point.label, eps: .tenants[0].runs[0].events_per_s}]
        | (map(select(.label == "primes").eps) | median) as $own | (map(select(.label == "sysbench").eps) | median) as $ref
        | "events/s, medians of 8: primes \($own), sysbench \($ref): \(100 * ($own / $ref - 1) * 100 | round / 100) % (within 3)"'
}
limits() {
    run limits limit-sweep --quick
    show limits '.cells | sort_by(.point.index)[]
        | "\(.point.label): \(.tenants[0].total.real_s * 100 | round / 100) s\(if .tenants[0].ended.how == "done" then "" else " (" + .tenants[0].ended.how + ")" end), predicted \((.predicted[0].elapsed_s // 0) * 100 | round / 100) s, stolen \(.enforcer.stolen_s * 100 | round / 100) s\(if .enforcer.credits then ", credits " + ([.enforcer.credits[] | . * 100 | round / 100 | tostring] | join(" -> ")) + ", predicted " + (.predicted[0].credits * 100 | round / 100 | tostring) else "" end)"'
}
[ $# -gt 0 ] || set -- release weights quota agreement limits
for figure; do "$figure"; done
