#!/bin/sh
# Installs the Debian packages that are missing: scripts/packages.sh build|test|package|cross|arm64-guest|clean-root|kubernetes|fuzz
#
# A package counts as there when the file or command it is needed for is there, however it was installed
# (docker-ce serves as well as docker.io). Says what it installs and why, asks nothing, and does nothing at all
# when nothing is missing. `--list` only prints the table.
set -eu
. "$(dirname "$0")/lib.sh"

# package | what must be there: a command, or a path (alternatives separated by spaces) | why
table() {
    cat <<'TABLE'
build|build-essential|cc|compiles the bundled SQLite and zstd, and links
build|ca-certificates|/etc/ssl/certs/ca-certificates.crt|cargo fetches crates over HTTPS
build|clang|clang|compiles the BPF programs (crates/bpf/bpf)
test|docker.io|dockerd|tests of container discovery and of changes to real containers
test|curl|curl|asks an engine whether it is up
test|containerd|containerd|tests of the CRI socket, where a kubelet's pods are
test|runc|runc|runs those containers
test|busybox-static|/bin/busybox /usr/bin/busybox|the root file system of test containers and of the test guest
test|QEMU|QEMU_COMMAND|boots the test guest: cgroup v2, NUMA, isolated CPUs
test|libvirt-daemon|libvirtd|tests of machines that libvirt manages; no service of the host is started
test|libvirt-clients|virsh|asks it, as evenkeel and administrators do
test|iproute2|ip|network namespaces of test tenants
test|iperf3|iperf3|the network as another program measures it
test|xz-utils|xz|unpacks the drivers of kernels that have them compressed
test|redis-server|redis-server|an outsider whose latency must not suffer
test|redis-tools|redis-cli|asks it
test|stress-ng|stress-ng|foreign load that the loop has to cope with
test|sysbench|sysbench|reference for the built-in prime workload
test|jq|jq|prints the laboratory's figures
test|CHROMIUM|chromium|renders the HTML report as a reader's browser would
test|openssl|openssl|makes the certificates of the tests of https
test|prometheus|promtool|checks /metrics and the alert rules, and scrapes as a user would
test|util-linux|unshare|mount namespace of the test engine
test|tmux|tmux|a terminal of 80 columns and 24 lines, for `top`
test|python3|python3|drives the ends of commands, and dumps scheduling state independently of evenkeel (scripts/ends)
test|python3-yaml|/usr/lib/python3/dist-packages/yaml|reads the Kubernetes manifests
test|systemd|/lib/systemd/systemd|starts, kills and stops the units
test|procps|ps|reference for the process list
package|rpm|rpmbuild|makes the .rpm
package|python3|python3|writes the OCI image
test|rpm|rpmbuild|makes the .rpm, and installs it into a root
cross|gcc-aarch64-linux-gnu|aarch64-linux-gnu-gcc|compiles C and links for arm64
cross|libc6-dev-arm64-cross|/usr/aarch64-linux-gnu/lib/libc.a|the C library of a static program for arm64
cross|qemu-user-static|qemu-aarch64-static|runs programs for arm64
arm64-guest|qemu-system-arm|qemu-system-aarch64|boots an arm64 guest
arm64-guest|busybox-static|/bin/busybox /usr/bin/busybox|packs its root file system
kubernetes|iptables|iptables|the kubelet looks for it
fuzz|g++|c++|compiles libFuzzer
clean-root|debootstrap|debootstrap|the clean Debian root in which packages are installed and removed
TABLE
}

# Names that differ between architectures and distributions.
case "$(uname -m)" in
    aarch64) qemu_package=qemu-system-arm qemu_command=qemu-system-aarch64 ;;
    *) qemu_package=qemu-system-x86 qemu_command=qemu-system-x86_64 ;;
esac
chromium_package=chromium
if grep -qs '^ID=ubuntu' /etc/os-release; then chromium_package=chromium-browser; fi
resolved() {
    table | sed -e "s/QEMU_COMMAND/$qemu_command/; s/|QEMU|/|$qemu_package|/; s/|CHROMIUM|/|$chromium_package|/"
}

present() {
    for wanted in $1; do
        case "$wanted" in
            /*) [ -e "$wanted" ] && return 0 ;;
            *) have "$wanted" && return 0 ;;
        esac
    done
    return 1
}

# Prints "package<TAB>why" for each missing package of the groups given.
missing() {
    for group in "$@"; do
        resolved | while IFS='|' read -r in_group package check why; do
            [ "$in_group" = "$group" ] || continue
            present "$check" || printf '%s\t%s\n' "$package" "$why"
        done
    done
}

install() {
    # shellcheck disable=SC2086 # a list of package names
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
        apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends $1 </dev/null >&2
}

if [ "${1:-}" = --list ]; then
    resolved
    exit 0
fi
[ $# -gt 0 ] || die "usage: scripts/packages.sh [--list] build|test|package|cross|arm64-guest|clean-root|kubernetes|fuzz.."

lacking=$(missing "$@")
[ -n "$lacking" ] || exit 0
packages=$(printf '%s\n' "$lacking" | cut -f1 | sort -u | tr '\n' ' ')
say "missing on this host:"
printf '%s\n' "$lacking" | while IFS='	' read -r package why; do
    printf '     %-18s %s\n' "$package" "$why" >&2
done
have apt-get || die "there is no apt-get here: install these, or what your distribution calls them, by hand"
say "installing them with apt-get$(is_root || echo ' (by sudo)')"

# The package lists are fetched only where there are none, where they do not know a package, or where what they name
# is gone from the archive.
known() {
    for package in $packages; do
        apt-cache policy "$package" 2>/dev/null | grep -q 'Candidate: [^(]' || return 1
    done
}
updated=
update() {
    say "fetching the package lists (apt-get update)"
    as_root apt-get update -q </dev/null >&2
    updated=yes
}
known || update
if ! install "$packages"; then
    [ -z "$updated" ] || die "apt-get could not install: $packages"
    update
    install "$packages" || die "apt-get could not install: $packages"
fi
still=$(missing "$@" | cut -f1 | tr '\n' ' ')
[ -z "$still" ] || die "installed, but what they are needed for is still not found: $still"
