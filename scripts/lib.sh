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

# The architecture that a name stands for, as the kernel calls it: x86_64 or aarch64; this host's without a name.
architecture() {
    case "${1:-$(uname -m)}" in
        x86_64 | amd64) echo x86_64 ;;
        aarch64 | arm64) echo aarch64 ;;
        *) die "nothing is built for ${1:-$(uname -m)}: x86_64 and aarch64 (amd64 and arm64) are known" ;;
    esac
}

# The name that Debian has for it.
debian_architecture() { if [ "$1" = aarch64 ]; then echo arm64; else echo amd64; fi; }

# Whether what is built for an architecture runs here only under an emulator.
is_foreign() { [ "$1" != "$(architecture)" ]; }

# What runs a program of another architecture: qemu's user emulation, with the libraries of the cross compiler.
emulator() { printf 'qemu-%s-static -L /usr/%s-linux-gnu\n' "$1" "$1"; }

# Prepares cargo to build for an architecture: compiler, linker and emulator of another than this host's, and Rust's own
# libraries for it.
need_target() {
    need_cargo
    is_foreign "$1" || return 0
    [ "$1" = aarch64 ] || die "there is a cross build to aarch64 only; this host is $(uname -m)"
    scripts/packages.sh cross
    triple=$1-unknown-linux-gnu
    if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$triple/lib" ]; then
        have rustup || die "this Rust toolchain has no libraries for $triple, and there is no rustup to add them"
        say "adding Rust's libraries for $triple (rustup target add)"
        rustup target add "$triple" >&2
    fi
    export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$(emulator "$1")
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER
}

# Prepares cargo to build for an architecture without shared libraries, and without what nothing uses. Works with --target
# alone: the flags are for the program, not for build scripts and procedural macros.
static_build() {
    need_target "$1"
    # SQLite's full-text search, spatial index, statistics, JSON functions and extensions.
    export LIBSQLITE3_FLAGS="-USQLITE_ENABLE_FTS3 -USQLITE_ENABLE_FTS3_PARENTHESIS -USQLITE_ENABLE_FTS5 \
-USQLITE_ENABLE_RTREE -USQLITE_ENABLE_DBSTAT_VTAB -USQLITE_ENABLE_STAT4 -USQLITE_ENABLE_JSON1 -DSQLITE_OMIT_JSON \
-USQLITE_ENABLE_LOAD_EXTENSION -DSQLITE_OMIT_LOAD_EXTENSION"
    # No panic unwinds through C. zstd's levels up to 3, of which the history and Parquet files are, take none of these.
    CFLAGS="${CFLAGS:-} -fno-asynchronous-unwind-tables"
    for strategy in GREEDY LAZY LAZY2 BTLAZY2 BTOPT BTULTRA; do
        CFLAGS="$CFLAGS -DZSTD_EXCLUDE_${strategy}_BLOCK_COMPRESSOR"
    done
    export CFLAGS
    case "${RUSTFLAGS:-}" in *crt-static*) return ;; esac
    RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static"
    # Addresses to be adjusted at start take an eighth of a byte each instead of 24 bytes. The C library has to know of it.
    if [ "$1" = x86_64 ] && at_least "$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)" 2.36; then
        RUSTFLAGS="$RUSTFLAGS -C link-arg=-Wl,-z,pack-relative-relocs"
    fi
    # Functions of the same code are there once. Rust brings a linker that can do it.
    if ! is_foreign "$1" && can_link -Wl,--icf=all; then RUSTFLAGS="$RUSTFLAGS -C link-arg=-Wl,--icf=all"; fi
    export RUSTFLAGS
}

# Whether Rust's linker for this host takes an argument.
can_link() {
    trial=$(mktemp -d)
    answer=1
    if echo 'fn main() {}' | rustc -C "link-arg=$1" -o "$trial/program" - 2>"$trial/said"; then answer=0; fi
    rm -rf "$trial"
    return $answer
}

# Whether a version is another or newer: `at_least 2.40 2.36`.
at_least() { [ "$(printf '%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

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
