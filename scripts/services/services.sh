#!/bin/bash
# Builds what the measurements of services need, and runs one as root:
#   scripts/services/services.sh [--part services|jump|overhead] [ARGUMENT...]
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
nice -n 10 cargo build --locked --release --bin evenkeel
work=$(target_dir)/services
mkdir -p "$work"
cc -O2 -Wall -o "$work/open_loop" scripts/services/open_loop.c
set -- --evenkeel "$(target_dir)/release/evenkeel" "$@"
if [ "$part" != overhead ]; then
    set -- --client "$work/open_loop" "$@"
fi
as_root python3 "scripts/services/$part.py" "$@"
