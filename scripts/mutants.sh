#!/bin/bash
# Do the tests notice when the code that decides and undoes is wrong? scripts/mutants.sh [--part PART] [ARGUMENT...]
#
# cargo-mutants changes one operator, bound or result at a time and runs the fast tests of that part. Parts: base
# (statistics), actuate (order of undo, adoption, recovery), trial, guard (with windows, services and limits that follow), monitor, place (which
# cgroup is governed, and the limit next to services) and wait (a wait that goes on). Arguments
# go to cargo-mutants, such as `--shard 0/4`, `--re bets.rs`, or `--iterate` for what was not caught last time.
# .cargo/mutants.toml holds the mutants that survive, each with the reason. What came of each is in target/mutants/PART.
# A line of counts for each part goes to stdout. Status 1: one survived without a reason, or the tests failed without any.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

parts="base actuate trial guard monitor place wait"
if [ "${1:-}" = --part ]; then
    parts=${2:?--part needs one of: $parts}
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
# A mutant that loops and allocates must not take the host's memory: the limit ends it, and it counts as noticed.
ulimit -v 8000000
# All but what was changed is taken from the build before: 2 s a mutant, not minutes.
export CARGO_INCREMENTAL=1
# Cases of the random tests of crashes.
export EVENKEEL_CRASH_CASES=${EVENKEEL_CRASH_CASES:-100}

# A copy of the tree for each part, kept with what is built in it. Mutants are made in the copy: the tree itself can be
# worked on meanwhile, and two parts can run at once. Files are as new as the copy, so that none passes for built already.
copy_tree() {
    rm -rf "$1"
    mkdir -p "$1"
    git ls-files -z --cached --others --exclude-standard --deduplicate |
        tar --null --ignore-failed-read -T - -cf - | tar -xmf - -C "$1"
}

count() { if [ -f "$1" ]; then grep -c . "$1" || true; else echo 0; fi; }

failed=()
for part in $parts; do
    build=(--lib) only=()
    case $part in
    base) crate=base files=(stats.rs 'stats/**/*.rs') only=(stats) ;;
    actuate)
        crate=actuate files=(actuator.rs 'actuator/**/*.rs' adopt.rs journal.rs ledger.rs recover.rs takeover.rs undo.rs)
        build+=(--test=undo --test=lend --test=set --test=crashes)
        # Those that try a crash at every operation take a minute: of a few hundred at random little is left over.
        only=(--skip=a_child_of_ --skip=a_child_that_could --skip=an_orphan_ --skip=an_affinity_
            --skip=what_an_untuned --skip=everything_is_as_found --skip=killed_anywhere)
        ;;
    trial) crate=policy files=(trial.rs 'trial/**/*.rs') only=(trial::) ;;
    guard)
        crate=policy files=(guard.rs 'guard/**/*.rs' window.rs protect.rs requests.rs follow.rs)
        only=(guard:: window:: protect:: requests:: follow::)
        ;;
    monitor) crate=policy files=('monitor/**/*.rs') only=(monitor::) ;;
    place) crate=agent files=(governor/beside.rs governor/place.rs) only=(governor::) ;;
    wait) crate=observe files=(open_wait.rs) only=(open_wait::) ;;
    *) die "no part is called $part: base, actuate, trial, guard, monitor, place, wait" ;;
    esac
    place=$target/mutants/$part
    say "mutants: $part"
    copy_tree "$place/tree"
    status=0
    # Only what is run is built: not the crate's examples, nor its long tests. The tests take some 2 s: 60 s are a loop
    # even on a busy host.
    (
        cd "$place/tree"
        CARGO_TARGET_DIR=$place/build nice -n 10 cargo mutants --in-place --timeout 60 --build-timeout 300 \
            --package "evenkeel-$crate" "${files[@]/#/--file=crates/$crate/src/}" --output "$place" \
            --cargo-arg=--locked "${build[@]/#/--cargo-arg=}" "$@" -- -- "${only[@]}"
    ) >&2 || status=$?
    out=$place/mutants.out
    printf '%s: %s caught, %s missed, %s without an end, %s that do not compile, %s caught before\n' "$part" \
        "$(count "$out/caught.txt")" "$(count "$out/missed.txt")" "$(count "$out/timeout.txt")" \
        "$(count "$out/unviable.txt")" "$(count "$out/previously_caught.txt")"
    # 3 says that some did not end, which is noticed.
    case $status in 0 | 3) ;; *) failed+=("$part") ;; esac
done
if [ ${#failed[@]} -gt 0 ]; then
    say "not noticed in: ${failed[*]} (target/mutants/PART/mutants.out/missed.txt)"
    exit 1
fi
