#!/bin/bash
# Do the tests notice when the code that decides and undoes is wrong? scripts/mutants.sh [--part PART] [ARGUMENT...]
#
# cargo-mutants changes one operator, bound or result at a time and runs the fast tests of that crate. Parts: base
# (statistics), policy (trial, guard, windows, watch, services), actuate (order of undo, tracking of forked children). Arguments go to
# cargo-mutants, such as `--shard 0/4` or `--file '*/bets.rs'`. .cargo/mutants.toml names the files, and the mutants that
# survive with the reason. What came of each is in target/mutants/PART. Status 1: one survived without a reason.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

parts="base policy actuate"
if [ "${1:-}" = --part ]; then
    parts=${2:?--part needs base, policy or actuate}
    shift 2
fi
need_cargo

# Outside the repository, so that `make clean` leaves it.
tools=${XDG_CACHE_HOME:-$HOME/.cache}/evenkeel-tools
PATH="$PATH:$tools/bin"
if ! have cargo-mutants; then
    say "installing cargo-mutants to $tools (some minutes)"
    nice -n 10 cargo install --locked cargo-mutants --root "$tools"
fi

target=$(target_dir)
# It builds in a copy of the tree.
unset CARGO_TARGET_DIR
failed=()
for part in $parts; do
    case $part in
    base) build=(--lib) only=(stats) ;;
    policy) build=(--lib) only=(trial:: guard:: window:: monitor:: protect:: requests::) ;;
    actuate) build=(--lib --test=undo --test=lend) only=() ;;
    *) die "no part is called $part" ;;
    esac
    say "mutants: $part"
    mkdir -p "$target/mutants/$part"
    # Only what is run is built: not the crate's examples, nor its long tests.
    nice -n 10 cargo mutants --no-shuffle --jobs 1 --package "evenkeel-$part" --output "$target/mutants/$part" \
        --cargo-arg=--locked "${build[@]/#/--cargo-arg=}" "$@" -- -- "${only[@]}" || failed+=("$part")
done
if [ ${#failed[@]} -gt 0 ]; then
    say "not noticed in: ${failed[*]} (target/mutants/*/mutants.out/missed.txt)"
    exit 1
fi
