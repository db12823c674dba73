#!/bin/bash
# How many trials each method of `evenkeel tune` needs with two real services: scripts/tune-figures.sh [DIR [SECONDS]]
#
# Measures every point of a grid of settings of redis (96) and nginx (128) twice, about five minutes in all; stopped, it
# goes on where it was when run again, and with SECONDS it stops by itself after so long (status 4: not done yet). Then
# the methods search in what was measured, ten seeds each, drawing one of a point's runs at each trial: the same
# measurements and the same noise for all. Prints what random search reaches, and how many trials the others need for
# that (docs/tune.md). Status 1 when Bayesian search needed more than half of random's trials.
#
# Needs root (quotas, cpusets), a quiet machine and, as packages, redis-server, redis-tools, nginx and apache2-utils.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."
dir=${1:-$(target_dir)/tune}
within=${2:-}
for command in redis-server redis-benchmark nginx ab; do
    have "$command" || die "$command is missing: apt-get install redis-server redis-tools nginx apache2-utils"
done
is_root || die "root is needed: run as root"
bin=${BIN:-}
if [ -z "$bin" ]; then
    need_cargo
    cargo build --release --locked -p evenkeel
    cargo build --release --locked -p evenkeel-tune --example tune_replay
    bin=$(target_dir)/release
fi
mkdir -p "$dir"

# Trials on record.
recorded() { if [ -s "$1/trials.jsonl" ]; then echo $(($(wc -l <"$1/trials.jsonl") - 1)); else echo 0; fi; }

for run in redis-1:96 nginx-1:128 redis-2:96 nginx-2:128; do
    points=${run#*:} run=${run%:*} service=${run%-*}
    # Every point once: neither confirmations nor a final comparison ([search] is the file's last table).
    { cat "scripts/tune/$service.toml" && printf 'repeats = 1\nfinalists = 0\n'; } >"$dir/$service.toml"
    before=$(recorded "$dir/$run")
    [ "$before" -lt "$points" ] || continue
    limit=()
    if [ -n "$within" ]; then
        [ "$SECONDS" -lt "$within" ] || exit 4
        limit=(timeout -s INT $((within - SECONDS)))
    fi
    say "$run: from trial $((before + 1)) of $points"
    "${limit[@]}" "$bin/evenkeel" --state-dir "$dir/state" tune "$dir/$service.toml" --dir "$dir/$run" \
        --method exhaustive --trials "$points" >"$dir/$run.txt" || true
    if [ "$(recorded "$dir/$run")" -lt "$points" ]; then
        [ -n "$within" ] && [ "$(recorded "$dir/$run")" -gt "$before" ] && exit 4
        die "$run: stopped at trial $(recorded "$dir/$run") of $points; the same command goes on"
    fi
done
"$bin/examples/tune_replay" "$dir/redis-1/trials.csv,$dir/redis-2/trials.csv" \
    "$dir/nginx-1/trials.csv,$dir/nginx-2/trials.csv"
