#!/bin/sh
# Runs scenarios in an emulated arm64 machine with Debian's arm64 kernel: scripts/guest/arm64.sh PROGRAM CACHEDIR [SCENARIO..]
#
# PROGRAM is a static evenkeel for arm64 (scripts/static.sh aarch64), SCENARIO a name such as `kernel`, the default. Kernel and
# busybox are fetched into CACHEDIR, or taken from there. For the scenario `unit`, EVENKEEL_GUEST_TESTS lists static test programs. EVENKEEL_GUEST_KERNEL names the series (6.1). What a scenario hands back
# is in CACHEDIR/arm64/out/results.
# Status: the first scenario's that failed.
set -eu
. "$(dirname "$0")/../lib.sh"
here=$(cd "$(dirname "$0")" && pwd)

[ $# -ge 2 ] || die "usage: scripts/guest/arm64.sh PROGRAM CACHEDIR [SCENARIO..]"
program=$1
mkdir -p "$2/arm64/out"
cache=$(cd "$2" && pwd)
shift 2
[ $# -gt 0 ] || set -- kernel
(cd "$here/../.." && scripts/packages.sh cross arm64-guest)
kernel=$("$here/kernel.sh" "${EVENKEEL_GUEST_KERNEL:-6.1}" "$cache" arm64)
busybox=$("$here/kernel.sh" busybox "$cache" arm64)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for name in "$@"; do
    root=$work/$name
    mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev"
    cp "$busybox" "$root/bin/busybox"
    cp "$program" "$root/bin/evenkeel"
    aarch64-linux-gnu-strip "$root/bin/evenkeel"
    cp "$here/init" "$root/init"
    cp "$here/guest.sh" "$root/guest.sh"
    cp "$here/scenarios/$name.sh" "$root/scenario"
    if [ "$name" = unit ]; then
        mkdir "$root/tests"
        for test in ${EVENKEEL_GUEST_TESTS:?no test programs are named}; do
            aarch64-linux-gnu-strip -o "$root/tests/$(basename "$test" | sed 's/-[0-9a-f]*$//')" "$test"
        done
    fi
    chmod 755 "$root/init"
    (cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null) >"$work/initramfs"
    say "$name"
    "$here/run.sh" "$root/scenario" "$kernel" "$work/initramfs" "$cache/arm64/out"
done
