#!/bin/sh
# Prints the path of a kernel for the test guest, fetched once: the distribution's kernel for virtual machines,
# downloaded with apt-get and unpacked under the target directory, not installed.
# TEST_KERNEL=FILE uses another one.
set -eu
. "$(dirname "$0")/../lib.sh"

if [ -n "${TEST_KERNEL:-}" ]; then
    [ -r "$TEST_KERNEL" ] || die "TEST_KERNEL=$TEST_KERNEL cannot be read"
    printf '%s\n' "$TEST_KERNEL"
    exit 0
fi

cache=$(target_dir)/guest/kernel
found() { find "$cache" -path '*/boot/vmlinuz-*' -type f 2>/dev/null | sort | tail -n 1; }
kernel=$(found)
if [ -z "$kernel" ]; then
    have apt-get || die "no kernel for the test guest: there is no apt-get; give one with TEST_KERNEL=/path/to/vmlinuz"
    if grep -qs '^ID=ubuntu' /etc/os-release; then
        meta=linux-image-virtual
    else
        meta=linux-image-cloud-$(dpkg --print-architecture)
    fi
    # The metapackage names the kernel's package of the day.
    package() { apt-cache depends "$meta" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1; }
    fetch() { [ -n "$(package)" ] && (cd "$cache" && apt-get download -q "$(package)" >&2); }
    mkdir -p "$cache"
    if ! fetch; then
        say "fetching the package lists (apt-get update)"
        as_root apt-get update -q </dev/null >&2
        fetch || die "cannot download the kernel that $meta depends on"
    fi
    for deb in "$cache"/*.deb; do
        dpkg-deb -x "$deb" "$cache"
        rm -f "$deb"
    done
    # Modules are not used: what the guest needs is built in.
    rm -rf "${cache:?}/lib" "${cache:?}/usr"
    kernel=$(found)
    [ -n "$kernel" ] || die "$(package) holds no boot/vmlinuz-*"
fi
printf '%s\n' "$kernel"
