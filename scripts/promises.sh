#!/bin/bash
# Are promised shares kept? Prints what each load got, second by second broken ones counted (docs/guarantees.md).
#
#   scripts/promises.sh [--part PART].. [--seconds 12] [--sets 20] [--binary target/release/evenkeel]
#
# Parts (all of them without --part; about 12 minutes in all):
#   one-cgroup   40/50/10 on one CPU in one cgroup, six cases, open and closed       2 minutes
#   cgroups      the same in three cgroups                                            2 minutes
#   containers   the same in three Docker containers (needs dockerd)                  2 minutes
#   spike        a neighbour that goes from 10 % to 100 %, in one cgroup and in three half a minute
#   random       sets that pack onto two CPUs with 10 % slack                         6 minutes
#
# Run it on a quiet machine, as root. Status 1 if in a part more than 1 % of the seconds were broken by more than 2 points.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

seconds=12 sets=20 binary='' parts=()
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) seconds=${2:?} && shift ;;
    --sets) sets=${2:?} && shift ;;
    --binary) binary=${2:?} && shift ;;
    --part)
        case ${2:-} in
        one-cgroup | cgroups | containers | spike | random) parts+=("$2") ;;
        *) echo "error: --part ${2:-}: there are one-cgroup, cgroups, containers, spike and random" >&2 && exit 2 ;;
        esac
        shift
        ;;
    *) echo "error: $1: only --part, --seconds, --sets and --binary are known" >&2 && exit 2 ;;
    esac
    shift
done
[ ${#parts[@]} -gt 0 ] || parts=(one-cgroup cgroups containers spike random)
is_root || die "root is needed: run as root"
[ -n "$binary" ] || binary=$(release_binary)
status=0
prove=("$binary" prove --seconds "$seconds" --promises)
for part in "${parts[@]}"; do
    began=$SECONDS
    echo "== $part"
    case $part in
    one-cgroup) "${prove[@]}" fixed --place one-cgroup || status=$? ;;
    cgroups) "${prove[@]}" fixed --place cgroup-each || status=$? ;;
    containers) scripts/with-docker.sh "${prove[@]}" fixed --place container-each || status=$? ;;
    spike) "${prove[@]}" spike || status=$? ;;
    random) "${prove[@]}" random --mixes "$sets" || status=$? ;;
    esac
    echo "$part took $((SECONDS - began)) s"
    echo
done
echo "all took $SECONDS s; $([ $status = 0 ] && echo "every part kept" || echo "status $status: see above")"
exit $status
