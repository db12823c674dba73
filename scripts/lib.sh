# shellcheck shell=sh
# Shared by the other scripts, which source it: `. "$(dirname "$0")/lib.sh"`.

# Says what happens, on stderr: stdout is for results.
say() { printf '== %s\n' "$*" >&2; }

# Ends with a message. Status 3: the host cannot or may not, as with evenkeel itself.
die() {
    printf 'error: %s\n' "$*" >&2
    exit 3
}

have() { command -v "$1" >/dev/null 2>&1; }

is_root() { [ "$(id -u)" = 0 ]; }

# Runs a command as root: directly, or by sudo. Nothing is run if neither is possible.
as_root() {
    if is_root; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        die "root is needed for: $* (not root, and there is no sudo)"
    fi
}

# rustup's directory is not always in PATH (cron, CI, sudo).
if ! have cargo && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
    PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
fi
# Debian keeps ip, dockerd and the like where only root's PATH looks; Ubuntu has chromium as a snap.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin:/snap/bin"
export PATH

need_cargo() {
    have cargo || die "cargo is not in PATH: install a Rust toolchain (https://rustup.rs), version 1.95 or later"
}

# Where cargo puts what it builds.
target_dir() { printf '%s\n' "${CARGO_TARGET_DIR:-$PWD/target}"; }

# The host's target triple, such as x86_64-unknown-linux-gnu.
host_triple() { rustc -vV | sed -n 's/^host: //p'; }

# Builds the program as it is released, and prints where it is.
release_binary() {
    need_cargo
    cargo build --locked --release --bin evenkeel
    printf '%s\n' "$(target_dir)/release/evenkeel"
}

# Where the cgroups of the cpu controller are mounted.
cpu_hierarchy() {
    for place in /sys/fs/cgroup/cpu /sys/fs/cgroup/cpu,cpuacct /sys/fs/cgroup; do
        if [ -e "$place/cgroup.procs" ]; then
            printf '%s\n' "$place"
            return
        fi
    done
    die "no cgroup hierarchy found"
}

# Ends whoever is in a cgroup (a directory) that the script made, and removes it.
end_group() {
    for _ in $(seq 100); do
        if rmdir "$1" 2>/dev/null || [ ! -d "$1" ]; then return; fi
        xargs -r kill -9 <"$1/cgroup.procs" 2>/dev/null || true
        sleep 0.05
    done
}
