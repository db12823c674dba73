#!/bin/bash
# Builds what the measurements of services need, and runs one as root:
#   scripts/services/services.sh [--part services|jump|overhead|lag|follow|stolen|burst|outsiders|takeover] [ARGUMENT...]
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"
cd "$(dirname "$0")/../.."
part=services
if [ "${1:-}" = --part ]; then
    part=$2
    shift 2
fi
need_cargo
# shellcheck source=scripts/unpacked.sh
. scripts/unpacked.sh
# What is measured, where it is not installed: unpacked, so that no daemon starts.
tool() {
    local path
    path=$(command_of "$@") || die "$1 is needed: install the package $2"
    PATH="${path%/*}:$PATH"
    LD_LIBRARY_PATH=$(unpacked_libraries)
    export PATH LD_LIBRARY_PATH
}
case "$part $*" in
    *memcached*) tool memcached memcached libevent-2.1-7 ;;
    burst*redis*) ;;
    *postgresql*)
        # Where Debian installs it.
        for bin in /usr/lib/postgresql/*/bin; do PATH="$bin:$PATH"; done
        tool postgres "$(apt-cache depends postgresql | sed -n 's/.*Depends: \(postgresql-[0-9]*\)$/\1/p')"
        ;;
    *nginx* | burst*) tool nginx nginx ;;
    overhead*compile*) ;;
    overhead*) tool hackbench rt-tests libnuma1 ;;
esac
nice -n 10 cargo build --locked --release --bin evenkeel
work=$(target_dir)/services
mkdir -p "$work"
cc -O2 -Wall -o "$work/open_loop" scripts/services/open_loop.c -lm
set -- --evenkeel "$(target_dir)/release/evenkeel" "$@"
if [ "$part" != overhead ]; then
    set -- --client "$work/open_loop" "$@"
fi
as_root python3 "scripts/services/$part.py" "$@"
