#!/bin/bash
# What `exec --cpu-limit auto` does for a real build under hypervisors of four kinds: scripts/governor-figures.sh [RULE..]
#
# RULES: window (use above 20 % over 5 s is punished by 97 %: the t1.micro as its owner told it, twenty times faster),
# credits (3 CPU seconds saved up, then 10 %), shared (45 % stolen all the time), none. The rules are enforced by the quota of
# an outer cgroup; the build is sqlite3.c from cargo's registry, compiled again and again, one process at a time. All limits
# run side by side; about five minutes in all.
#
# Needs root, clang (or cc) and a quiet machine. BIN names a directory that holds evenkeel and examples/governor.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."
is_root || die "root is needed: run as root"
cc=$(command -v clang || command -v cc) || die "a C compiler is missing: apt-get install clang"
bin=${BIN:-}
if [ -z "$bin" ]; then
    need_cargo
    cargo build --release --locked -p evenkeel
    cargo build --release --locked -p evenkeel-lab --example governor
    bin=$(target_dir)/release
fi
source=$(find "${CARGO_HOME:-$HOME/.cargo}/registry/src" -path '*libsqlite3-sys*/sqlite3/sqlite3.c' 2>/dev/null | head -1)
[ -n "$source" ] || die "sqlite3.c is not in cargo's registry: cargo fetch"

# A build of so many compilations.
build() { echo "for i in $(seq -s ' ' "$1"); do $cc -O0 -w -c '$source' -o /dev/null; done"; }
govern() {
    local began=$SECONDS rule=$1 size=$2
    shift 2
    echo "== $rule"
    "$bin/examples/governor" "$bin/evenkeel" "$rule" "$@" -- sh -c "$(build "$size")"
    echo "$rule took $((SECONDS - began)) s"
    echo
}
[ $# -gt 0 ] || set -- window credits shared none
for rule in "$@"; do
    case $rule in
    window)
        govern window 3 --scale 20 --limits 16,18,19,20,22 --within 75
        # Some twenty windows; the source's own build took 45.
        govern window 24 --scale 20 --limits 18,19,19.5 --within 135
        ;;
    credits) govern credits 2 --credit-s 3 --rounds 2 --within 75 ;;
    shared) govern shared 8 --within 60 ;;
    none) govern none 2 --rounds 6 --within 60 ;;
    *) echo "error: no rule $rule: window, credits, shared, none" >&2 && exit 2 ;;
    esac
done
