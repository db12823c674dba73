#!/bin/bash
# How many trials each method of `evenkeel tune` needs with two real services: scripts/tune-figures.sh [DIR]
#
# Measures every point of a grid of settings of redis and nginx once (96 and 128, about a minute each; stopped and run
# again it goes on), then lets the methods search in what was measured, ten seeds each: one set of measurements for all,
# so that luck of the machine favours none. Prints, for each, the value that half the grid's number of random trials
# reach, and how many trials Bayesian search needs for it. Needs root (quotas, cpusets) and, as packages, redis-server,
# redis-tools, nginx and apache2-utils.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."
dir=${1:-$(target_dir)/tune}
for command in redis-server redis-benchmark nginx ab; do
    have "$command" || die "$command is missing: apt-get install redis-server redis-tools nginx apache2-utils"
done
need_cargo
cargo build --release --locked -p evenkeel
cargo build --release --locked -p evenkeel-policy --example tune_replay
bin=$(target_dir)/release
mkdir -p "$dir"
for service in redis nginx; do
    points=128
    [ $service = redis ] && points=96
    # A measurement needs a quiet machine: QUIET may name a command that provides one, for at most a minute.
    while ! ${QUIET:-} timeout -s INT 55 "$bin/evenkeel" --state-dir "$dir/state" tune "scripts/tune/$service.toml" \
        --dir "$dir/$service" --method exhaustive --trials "$points" >"$dir/$service.txt"; do
        [ -s "$dir/$service/trials.jsonl" ] || die "$service: nothing was measured, see $dir/$service.txt"
        say "$service: going on after $(($(wc -l <"$dir/$service/trials.jsonl") - 1)) of $points trials"
    done
done
"$bin/examples/tune_replay" "$dir/redis/trials.csv" "$dir/nginx/trials.csv"
