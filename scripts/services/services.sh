#!/bin/bash
# Builds what services.py needs, and runs it as root: scripts/services/services.sh [ARGUMENT...]
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"
cd "$(dirname "$0")/../.."
need_cargo
nice -n 10 cargo build --locked --release --bin evenkeel
work=$(target_dir)/services
mkdir -p "$work"
cc -O2 -Wall -o "$work/open_loop" scripts/services/open_loop.c
as_root python3 scripts/services/services.py --evenkeel "$(target_dir)/release/evenkeel" --client "$work/open_loop" "$@"
