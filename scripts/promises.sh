#!/bin/bash
# Are promised shares kept? 40/50/10 on one CPU, random sets on two, a spike; with --containers the fixed ones in three
# Docker containers, too. Prints what each load got, second by second broken ones counted (docs/guarantees.md).
#
#   scripts/promises.sh [--seconds 15] [--sets 20] [--containers] [--binary target/release/evenkeel]
#
# Run it on a quiet machine, as root. Status 1 if more than 1 % of the seconds were broken by more than 2 points.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

seconds=15 sets=20 binary='' containers=''
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) seconds=${2:?} && shift ;;
    --sets) sets=${2:?} && shift ;;
    --binary) binary=${2:?} && shift ;;
    --containers) containers=yes ;;
    *) echo "error: $1: only --seconds, --sets, --containers and --binary are known" >&2 && exit 2 ;;
    esac
    shift
done
is_root || die "root is needed: run as root"
if [ -z "$binary" ]; then
    need_cargo
    cargo build --locked --release --bin evenkeel
    binary=$(target_dir)/release/evenkeel
fi
status=0
"$binary" prove --promises all --seconds "$seconds" --mixes "$sets" || status=$?
if [ -n "$containers" ]; then
    scripts/with-docker.sh "$binary" prove --promises fixed --place container-each --seconds "$seconds" || status=$?
fi
exit $status
