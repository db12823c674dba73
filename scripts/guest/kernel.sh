#!/bin/bash
# Fetches Debian's cloud kernel of a series and prints the path of its vmlinuz: scripts/guest/kernel.sh SERIES CACHEDIR [ARCHITECTURE]
#
# ARCHITECTURE is Debian's name of one (arm64); this host's by default.
# SERIES is one of those below (`scripts/guest/kernel.sh 6.12 target/kernels`). apt-get fetches with a configuration of its
# own, all of it in CACHEDIR: the host's sources, lists and packages stay as they are, and nothing is installed. Debian's
# keyring verifies what arrives. A kernel that is in CACHEDIR already is used without a network.
# The mirror is the host's own for Debian; EVENKEEL_DEBIAN_MIRROR names another.
# Status: 3 when the kernel cannot be had, with the reason on stderr.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=scripts/lib.sh
. "$here/../lib.sh"

[ $# = 2 ] || [ $# = 3 ] || die "usage: scripts/guest/kernel.sh SERIES CACHEDIR [ARCHITECTURE]"
series=$1
host=$(dpkg --print-architecture 2>/dev/null || true)
arch=${3:-$host}
case "$series" in
    5.10) suites=bullseye ;;
    6.1) suites=bookworm ;;
    6.12) suites=bookworm-backports ;;
    6.19) suites=trixie-backports ;;
    # The newest of both.
    7) suites="trixie-backports sid" ;;
    # Not a kernel: the guest's shell, for a guest of another architecture.
    busybox) suites=bookworm ;;
    *) die "no suite is known for kernel $series" ;;
esac
cache=$2
if [ "$arch" != "$host" ]; then cache=$cache/$arch; fi
mkdir -p "$cache/$series"
cache=$(cd "$cache" && pwd)

kept() { find "$cache/$series" -maxdepth 1 \( -name 'vmlinuz-*' -o -name busybox-static \) | sort -V | tail -n 1; }
kernel=$(kept)
if [ -n "$kernel" ]; then
    printf '%s\n' "$kernel"
    exit
fi

for program in apt-get apt-cache dpkg-deb; do
    have $program || die "kernel $series cannot be fetched: there is no $program"
done
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e $keyring ] || die "kernel $series cannot be verified: $keyring is missing (package debian-archive-keyring)"
# The host's mirrors for Debian itself, not those for security updates; of its sources where it has no lists yet.
host_mirrors() {
    # shellcheck disable=SC2016 # apt-get's own variables
    apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' | sed -n 's/^Debian Debian //p'
    apt-get update --print-uris | sed -n "s#^'\(.*/debian\)/dists/.*#\1#p"
}
mirror=${EVENKEEL_DEBIAN_MIRROR:-$(host_mirrors 2>/dev/null | sed -n 1p)}
[ -n "$mirror" ] || die "kernel $series cannot be fetched: this host has no Debian mirror (EVENKEEL_DEBIAN_MIRROR names one)"

apt=$cache/apt/$series
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
: >"$apt/status"
for suite in $suites; do echo "deb [signed-by=$keyring] $mirror $suite main"; done >"$apt/sources"
options=(-q -o "Dir::Etc::sourcelist=$apt/sources" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$apt/lists"
    -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root
    -o "APT::Architecture=$arch" -o "APT::Architectures=$arch"
    -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::Languages=none)
if ! apt-get "${options[@]}" update >"$apt/log" 2>&1 || grep -q '^[EW]: ' "$apt/log"; then
    die "kernel $series cannot be fetched: apt-get update: $(grep '^[EW]: ' "$apt/log" | tr '\n' ' ')"
fi

# From 7.x on (and in some 6.19) the image is split: linux-binary-.. holds vmlinuz.
packages() {
    if [ "$series" = busybox ]; then
        [ "$1" = binary ] || echo busybox-static
        return
    fi
    apt-cache "${options[@]}" pkgnames "linux-$1-$series." | grep "^linux-$1-[0-9.+a-z-]*-cloud-$arch\$" | sort -rV | head -n 3
}
work=$(mktemp -d "$cache/$series/part.XXXXXX")
trap 'rm -rf "$work" "$apt"' EXIT
cd "$work"
# An index may name a package that the mirror has no more: then the next older one.
for package in $(packages binary || true) $(packages image || true); do
    apt-get "${options[@]}" download "$package" >>"$apt/log" 2>&1 || continue
    dpkg-deb --fsys-tarfile ./*.deb | tar -x --wildcards './boot/vmlinuz-*' './usr/lib/modules/*/vmlinuz' ./bin/busybox 2>/dev/null || true
    rm -f ./*.deb
    file=$(find . \( -name 'vmlinuz*' -o -path ./bin/busybox \) -size +1M | head -n 1)
    if [ -n "$file" ]; then
        release=${package#linux-*-}
        if [ "$series" = busybox ]; then release=busybox-static; else release=vmlinuz-$release; fi
        mv "$file" "$cache/$series/$release"
        break
    fi
done
kernel=$(kept)
[ -n "$kernel" ] || die "kernel $series cannot be fetched: no package of it in $suites: $(grep '^E: ' "$apt/log" | tail -n 1)"
printf '%s\n' "$kernel"
