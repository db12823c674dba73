#!/bin/bash
# Boots a qemu guest, runs one scenario in it, prints its results: scripts/guest/run.sh SCENARIO [BINARY] [OUTDIR]
#
# A scenario is a shell script in scripts/guest/scenarios/ (or a path). Comment lines at its top choose the machine:
#   # smp: 4,sockets=2,cores=2        what follows qemu's -smp
#   # numa: 0-1 2-3                   CPUs of each node, memory shared out evenly; "none" for no NUMA
#   # memory: 1024                    MiB
#   # cmdline: isolcpus=3             added to the kernel's command line
#   # cgroup: v2                      v2, v1 or hybrid
#   # seconds: 120                    time allowed, boot included
# The values shown are the defaults, except cmdline (empty).
#
# The guest's processor is emulated (no /dev/kvm needed): several times slower than the host, so scenarios judge what
# was done, never how fast. OUTDIR (default: a directory under the target directory) receives `results` and `console`.
# Status: the scenario's own; 3 when the guest did not finish, with the console's last lines on stderr.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=scripts/lib.sh
. "$here/../lib.sh"
cd "$here/../.."

scenario=${1:?usage: scripts/guest/run.sh SCENARIO [BINARY] [OUTDIR]}
[ -e "$scenario" ] || scenario=$here/scenarios/$scenario.sh
[ -r "$scenario" ] || die "no such scenario: $scenario"
name=$(basename "$scenario" .sh)
binary=${2:-$(target_dir)/debug/evenkeel}
[ -x "$binary" ] || die "$binary is not there: cargo build first"
out=${3:-$(target_dir)/guest/$name}
mkdir -p "$out"
rm -f "$out/results" "$out/console"

setting() { sed -n "1,20s/^# $1: *//p" "$scenario" | head -n 1; }
smp=$(setting smp) numa=$(setting numa) memory=$(setting memory) cgroup=$(setting cgroup) seconds=$(setting seconds)
smp=${smp:-4,sockets=2,cores=2} numa=${numa:-0-1 2-3} memory=${memory:-1024} cgroup=${cgroup:-v2} seconds=${seconds:-120}

case "$(uname -m)" in
    x86_64)
        qemu=(qemu-system-x86_64 -machine q35 -cpu max)
        console=ttyS0 results=ttyS1
        ports=(-serial "file:$out/console" -serial "file:$out/results")
        ;;
    aarch64)
        qemu=(qemu-system-aarch64 -machine virt -cpu max)
        console=ttyAMA0 results=hvc0
        ports=(-serial "file:$out/console" -device virtio-serial-pci
            -chardev "file,id=results,path=$out/results" -device "virtconsole,chardev=results")
        ;;
    *) die "no test guest for $(uname -m)" ;;
esac
have "${qemu[0]}" || die "${qemu[0]} is not installed: scripts/packages.sh test"
kernel=$("$here/kernel.sh")

nodes=()
if [ "$numa" != none ]; then
    read -r -a cpus <<<"$numa"
    for node in "${!cpus[@]}"; do
        nodes+=(-object "memory-backend-ram,id=memory$node,size=$((memory / ${#cpus[@]}))M"
            -numa "node,nodeid=$node,cpus=${cpus[node]},memdev=memory$node")
    done
fi

# The file system: busybox, the binary with the libraries it was linked against, the scenario.
fs=$(mktemp -d)
trap 'rm -rf "$fs"' EXIT
mkdir -p "$fs"/{bin,dev,etc,proc,sys,usr}
ln -s bin "$fs/sbin"
ln -s ../bin "$fs/usr/bin"
cp -L "$(command -v busybox)" "$fs/bin/busybox"
cp -L "$binary" "$fs/bin/evenkeel"
if have strip; then strip --strip-debug "$fs/bin/evenkeel"; fi
for file in "$fs/bin/busybox" "$fs/bin/evenkeel"; do
    # `ldd` fails for a static program, which needs nothing.
    { ldd "$file" 2>/dev/null || true; } | sed -n 's/^[^/]*\(\/[^ ]*\) (.*/\1/p' | while read -r library; do
        mkdir -p "$fs$(dirname "$library")"
        cp -Ln "$library" "$fs$library"
    done
done
cp "$here/init" "$fs/init"
cp "$here/guest.sh" "$fs/guest.sh"
cp "$scenario" "$fs/scenario"
chmod +x "$fs/init"
echo 'root:x:0:0:root:/root:/bin/sh' >"$fs/etc/passwd"
(cd "$fs" && find . -print0 | cpio --quiet --null --create --format=newc --owner=0:0) >"$out/initramfs"

append="console=$console quiet loglevel=3 panic=-1 rdinit=/init results=$results cgroup_layout=$cgroup"
[ "$cgroup" != v2 ] || append="$append cgroup_no_v1=all"
append="$append $(setting cmdline)"

status=0
timeout --kill-after=5 "$seconds" "${qemu[@]}" -accel tcg,thread=multi -smp "$smp" -m "$memory" "${nodes[@]}" \
    -kernel "$kernel" -initrd "$out/initramfs" -append "$append" \
    -nodefaults -no-user-config -no-reboot -display none "${ports[@]}" </dev/null 2>"$out/qemu" || status=$?
rm -f "$out/initramfs"

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
