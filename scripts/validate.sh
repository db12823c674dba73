#!/bin/bash
# The simulator against this kernel: scripts/validate.sh [--record FILE] [--seconds N] [--compare-only]
#
# Measures 32 random mixes of loads and 4 families of levers, five runs of 3.4 s each (280 runs, 20 minutes on a machine that
# is otherwise quiet; runs in which others used the CPUs are thrown away and repeated), simulates the same mixes (a few
# seconds), and prints measured next to simulated. The record (JSON lines) lies with what was built and is resumed, also
# after a kill: --seconds N stops after N seconds of measuring, the next call goes on. --compare-only simulates what the
# record holds.
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
cargo build --locked --release -p evenkeel-lab --example validate
# A copy: a build meanwhile must not take it away.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$(target_dir)/release/examples/validate" "$work/validate"

if [ -n "$measure" ]; then
    is_root || die "measuring needs root (cgroups, scheduling policies): run as root"
    say "measuring; record: $record"
    for round in $(seq 40); do
        status=0
        "$work/validate" measure --record "$record" ${seconds:+--seconds "$seconds"} || status=$?
        # 75: runs are left, because others used the CPUs or the time was over.
        case $status in
        0) break ;;
        75) if [ -n "$seconds" ]; then break; fi ;;
        *) exit "$status" ;;
        esac
        if [ "$round" = 40 ]; then say "the machine was never quiet enough: some runs are missing"; fi
    done
fi
say "simulating the mixes of $record"
"$work/validate" compare --record "$record"
