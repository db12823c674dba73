#!/bin/bash
# The simulator against this kernel: scripts/validate.sh [--record FILE] [--seconds N] [--compare-only]
#
# Measures 32 random mixes of loads and 4 families of levers, five runs of 3.4 s each (about 20 minutes on a machine that is
# otherwise quiet; runs in which others used the CPUs are thrown away and repeated), simulates the same mixes, and prints
# measured beside simulated. The record (JSON lines) lies outside the repository's files and is resumed: --seconds N stops
# after N seconds of measuring, the next call goes on. --compare-only simulates what the record holds.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

record='' seconds='' measure=yes
while [ $# -gt 0 ]; do
    case $1 in
    --record) record=${2:?--record needs a file} && shift 2 ;;
    --seconds) seconds=${2:?--seconds needs a number} && shift 2 ;;
    --compare-only) measure='' && shift ;;
    *) echo "error: $1: only --record, --seconds and --compare-only are known" >&2 && exit 2 ;;
    esac
done
scripts/packages.sh build
need_cargo
cpus=$(nproc)
release=$(uname -r | cut -d. -f1,2)
record=${record:-$(target_dir)/validation-$release-$cpus.jsonl}
# Both examples have this name and one directory: built one after the other, each copied away.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for part in lab model; do
    cargo build --locked --release -p "evenkeel-$part" --example validate
    cp "$(target_dir)/release/examples/validate" "$work/$part"
done

if [ -n "$measure" ]; then
    is_root || die "measuring needs root (cgroups, scheduling policies): run as root"
    say "measuring; record: $record"
    for _ in $(seq 40); do
        if "$work/lab" measure --record "$record" ${seconds:+--seconds "$seconds"}; then break; fi
        if [ -n "$seconds" ]; then break; fi
    done
fi
say "simulating the mixes of $record"
"$work/model" "$record" --cpus "$cpus" --kernel "$release"
