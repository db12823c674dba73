#!/bin/bash
# The figures on tenants, each by the command that prints it: scripts/tenants.sh [FOLDER]
# As root, on a quiet machine; about five minutes, with machines (VMS=1,2) more.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

out=${1:-$(target_dir)/tenants}
scripts/packages.sh build test
need_cargo
cargo build --release --locked -p evenkeel -p evenkeel-lab --bin evenkeel --example rr_reference
bin=$(target_dir)/release
mkdir -p "$out"
export EVENKEEL_STATE_DIR=$out/state

say "rr against a minimal C program in the same namespaces (1.00 is equal, 0.95 to 1.05 the aim)"
for flows in 1 8 32; do "$bin/examples/rr_reference" "$flows" 2 5; done

say "tenants net, twice: do the biases agree within their intervals?"
rm -rf "$out/net-1" "$out/net-2" "$out/cpu"
for run in 1 2; do "$bin/evenkeel" tenants net --quick --vms "${VMS:-0}" --repetitions 3 "$out/net-$run"; done
"$bin/evenkeel" tenants compare "$out/net-1" "$out/net-2" || true

say "weights 1:2 between cgroups, and between machines (the aim: within 3 %)"
"$bin/evenkeel" tenants cpu --tenants 2 --vms 2 --vcpus 2 --seconds 5 "$out/cpu"

say "24 Mbit/s by the class's own counters (the aim: 23.5 to 24.5)"
cargo build --release --locked -p evenkeel-lab --example load
cargo test --release --locked -p evenkeel-lab --test privileged_shape -- --nocapture | grep Mbit
