#!/bin/bash
# Boots a qemu guest, runs one scenario in it, prints its results: scripts/guest/run.sh SCENARIO KERNEL INITRAMFS OUTDIR
#
# The initramfs holds the scenario, a shell script of scripts/guest/scenarios/: crates/evenkeel/tests/guest.rs makes it.
# Comment lines at the script's top choose the machine:
#   # smp: 4,sockets=2,cores=2        what follows qemu's -smp
#   # numa: 0-1 2-3                   CPUs of each node, memory shared out evenly; "none" for no NUMA
#   # memory: 1024                    MiB
#   # cmdline: isolcpus=3             added to the kernel's command line
#   # cgroup: v2                      v2, v1 or hybrid
#   # seconds: 300                    time allowed, boot included
#   # example: NAME                   a program of crates/*/examples in /bin
# The values shown are the defaults, except cmdline (empty) and example (none).
#
# The guest's processor is emulated (no /dev/kvm needed): several times slower than the host, so scenarios judge what
# was done, never how fast. OUTDIR receives `results` and `console`.
# Status: the scenario's own; 3 when the guest did not finish, with the console's last lines on stderr.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=scripts/lib.sh
. "$here/../lib.sh"

[ $# = 4 ] || die "usage: scripts/guest/run.sh SCENARIO KERNEL INITRAMFS OUTDIR"
scenario=$1 kernel=$2 initramfs=$3 out=$4
rm -f "$out/results" "$out/console"

setting() { sed -n "1,20s/^# $1: *//p" "$scenario" | head -n 1; }
smp=$(setting smp) numa=$(setting numa) memory=$(setting memory) cgroup=$(setting cgroup) seconds=$(setting seconds)
smp=${smp:-4,sockets=2,cores=2} numa=${numa:-0-1 2-3} memory=${memory:-1024} cgroup=${cgroup:-v2} seconds=${seconds:-300}

# The machine is the one that the kernel is for; an arm64 Image says so.
machine=$(uname -m)
if [ "$(dd if="$kernel" bs=1 skip=56 count=4 2>/dev/null | tr -d '\0')" = ARMd ]; then machine=aarch64; fi
case "$machine" in
    x86_64)
        # Without cmpxchg16b, which qemu 7.2 emulates wrongly: kernels from 6.12 on panic. As one of Intel, for
        # 6.1 sees no threads of a core of the AMD processor that qemu has by default.
        qemu=(qemu-system-x86_64 -machine q35 -cpu max,-cx16,vendor=GenuineIntel)
        console=ttyS0 results=ttyS1
        ports=(-serial "file:$out/console" -serial "file:$out/results")
        ;;
    aarch64)
        # A serial port on PCI, for the machine has one only, and Debian's kernel has virtio's as a module.
        qemu=(qemu-system-aarch64 -machine virt -cpu cortex-a72)
        console=ttyAMA0 results=ttyS0
        ports=(-serial "file:$out/console" -chardev "file,id=results,path=$out/results" -device "pci-serial,chardev=results")
        ;;
    *) die "no test guest for $machine" ;;
esac
have "${qemu[0]}" || die "${qemu[0]} is not installed: scripts/packages.sh test"

nodes=()
if [ "$numa" != none ]; then
    read -r -a cpus <<<"$numa"
    for node in "${!cpus[@]}"; do
        nodes+=(-object "memory-backend-ram,id=memory$node,size=$((memory / ${#cpus[@]}))M"
            -numa "node,nodeid=$node,cpus=${cpus[node]},memdev=memory$node")
    done
fi

append="console=$console quiet loglevel=3 panic=-1 rdinit=/init results=$results cgroup_layout=$cgroup"
# qemu's threads lock each other up at times (both CPUs in stop_machine): the machine ends after a minute of that, not at its limit.
append="$append softlockup_panic=1 watchdog_thresh=30"
[ "$cgroup" != v2 ] || append="$append cgroup_no_v1=all"
append="$append $(setting cmdline)"

status=0
timeout --kill-after=5 "$seconds" "${qemu[@]}" -accel tcg,thread=multi -smp "$smp" -m "$memory" "${nodes[@]}" \
    -kernel "$kernel" -initrd "$initramfs" -append "$append" \
    -nodefaults -no-user-config -no-reboot -display none "${ports[@]}" </dev/null 2>"$out/qemu" || status=$?
rm -f "$initramfs"

cat "$out/results" 2>/dev/null || true
ended=$(sed -n 's/^@@exit \([0-9]*\).*/\1/p' "$out/results" 2>/dev/null || true)
if [ -z "$ended" ] || [ "$ended" != 0 ]; then
    if [ -z "$ended" ]; then
        if [ "$status" = 124 ]; then
            say "the guest did not finish within $seconds s"
        else
            say "the guest ended before the scenario did (qemu: status $status)"
        fi
        ended=3
    fi
    say "last lines of its console ($out/console):"
    tail -n 30 "$out/qemu" "$out/console" >&2 2>/dev/null || true
fi
exit "$ended"
