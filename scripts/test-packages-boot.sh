#!/bin/bash
# Installs, upgrades and removes the package on a clean Debian with a real systemd: scripts/test-packages-boot.sh BINARY
#
# An emulated machine (no /dev/kvm needed) boots what debootstrap made and runs the first half of this script, which ends the machine.
# What it found is printed; its console is in target/tmp/packages/console. As root.
set -euo pipefail

# In the machine.
checks=0
check() {
    local what=$1
    shift
    if ! "$@"; then
        echo "FAILED: $what"
        systemctl --no-pager status evenkeel evenkeel-serve evenkeel-restore || true
        journalctl --no-pager -u 'evenkeel*' | tail -n 40 || true
        exit 1
    fi
    checks=$((checks + 1))
    echo "ok: $what"
}
# Waits for what comes: `soon SECONDS COMMAND..`.
soon() {
    local until=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $until ] || return 1
        sleep 0.1
    done
}
show() { systemctl show --value --property "$1" "$2"; }
is() { [ "$(show "$2" "$1")" = "$3" ]; }
enabled() { [ "$(systemctl is-enabled "$1" 2>/dev/null)" = "$2" ]; }
page() { (
    exec 3<>/dev/tcp/127.0.0.1/9190 && printf 'GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n' "$1" >&3 && cat <&3
) 2>/dev/null; }
shows() { page "$1" | grep -q "$2"; }
nice_of() { sed 's/.*) //' "/proc/$1/stat" | cut -d ' ' -f 17; }
favoured() { [ "$(nice_of "$promised")" -lt 0 ]; }
as_before() { [ "$(nice_of "$promised") $(nice_of "$rival")" = "0 0" ]; }
all_files() { find /etc /usr /opt -xdev ! -name '*.cache' | sort; }
other_pid() { is evenkeel ActiveState active && [ "$(show MainPID evenkeel)" != "$1" ]; }
same_pid() { [ "$(show MainPID evenkeel)" = "$1" ]; }
said() { journalctl --no-pager -o cat -u "$1" | grep -q "$2"; }
silent() { ! said "$1" "$2"; }
no_failed_unit() { [ -z "$(systemctl list-units --failed --plain --no-legend --no-pager 'evenkeel*')" ]; }

inside() {
    export DEBIAN_FRONTEND=noninteractive
    local deb first=/packages/first.deb second=/packages/second.deb began pid
    all_files >/run/before
    began=$(date +%s%N)
    check "it installs without a question" dpkg -i $first
    check "the dashboard answers" soon 30 shows / '<title>'
    echo "from dpkg to the dashboard: $((($(date +%s%N) - began) / 1000000)) ms"
    check "who watches is enabled" enabled evenkeel-serve enabled
    check "who acts is not" enabled evenkeel disabled
    check "who acts does not run" is evenkeel ActiveState inactive
    taskset -c 0 sh -c 'while :; do :; done' &
    rival=$!
    taskset -c 0 sh -c 'while :; do :; done' &
    promised=$!
    check "it shows who runs" soon 30 shows /metrics 'evenkeel_cpu_seconds_total{'
    check "it counts waits in the kernel" soon 60 shows /metrics evenkeel_runqueue_wait_seconds_bucket
    check "nothing was refused to it" silent evenkeel-serve 'ermission denied\|not permitted\|ead-only file system'

    printf '[run]\nscope = ["pid:%s"]\n[[guarantee]]\nscope = "pid:%s"\ncpu = "80%%"\n' $promised $promised >/etc/evenkeel/config.toml
    echo 'EVENKEEL_RUN_OPTIONS=--guarantees-only' >>/etc/default/evenkeel
    check "who acts starts" systemctl enable --now evenkeel
    check "the promise is kept" soon 30 favoured
    check "nothing was refused to it either" silent evenkeel 'ermission denied\|not permitted\|ead-only file system'
    pid=$(show MainPID evenkeel)
    systemctl kill --signal=KILL evenkeel
    check "after a kill it starts again" soon 30 other_pid "$pid"
    check "what was in force stays" favoured
    pid=$(show MainPID evenkeel)

    check "it upgrades without a question" dpkg -i --force-confdef $second
    check "the new program acts" soon 30 other_pid "$pid"
    check "from the new file" [ "$(readlink "/proc/$(show MainPID evenkeel)/exe")" = /usr/bin/evenkeel ]
    check "the promise is kept through it" favoured
    check "the new program watches" soon 30 shows / '<title>'
    check "from the new file, too" [ "$(readlink "/proc/$(show MainPID evenkeel-serve)/exe")" = /usr/bin/evenkeel ]
    check "the history is kept" [ -s /var/lib/evenkeel/history.db ]
    check "the configuration is kept" grep -q guarantee /etc/evenkeel/config.toml

    check "it stops" systemctl stop evenkeel
    check "and restores" as_before
    systemctl start evenkeel
    check "it keeps the promise again" soon 30 favoured
    pid=$(show MainPID evenkeel)
    systemctl kill --signal=KILL evenkeel
    systemctl stop evenkeel
    check "killed, and stopped before it starts again: restored" soon 30 as_before
    systemctl start evenkeel
    check "once more" soon 30 favoured

    check "it is removed while it acts" dpkg -r evenkeel
    check "everything is restored" as_before
    check "nothing of it runs" [ -z "$(pidof evenkeel)" ]
    check "no unit failed" no_failed_unit
    check "it is purged" dpkg -P evenkeel
    all_files >/run/after
    check "all files are as before" diff /run/before /run/after
    check "the state is gone" [ ! -e /var/lib/evenkeel ]
    check "it installs once more" dpkg -i $first
    check "who acts is disabled again" enabled evenkeel disabled
    check "and does not run" is evenkeel ActiveState inactive
    kill $promised $rival
    echo "$checks passed, 0 failed"
}

if [ "${1:-}" = --inside ]; then
    inside
    exit 0
fi

# On the host.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."
is_root || die "root is needed to make a root file system"
[ "$(uname -m)" = x86_64 ] || die "this machine is made for x86-64 only"
if [ -z "${EVENKEEL_IN_NAMESPACE:-}" ]; then
    # What debootstrap mounts goes with this script.
    exec env EVENKEEL_IN_NAMESPACE=1 unshare --mount --propagation private -- "$0" "$@"
fi
binary=${1:?usage: scripts/test-packages-boot.sh BINARY}
have qemu-system-x86_64 || die "qemu-system-x86_64 is not installed: scripts/packages.sh test"
work=$(realpath -m "$(target_dir)/tmp/packages")
root=$work/root
mkdir -p "$work"
if [ ! -e "$root.done" ]; then
    say "making a clean Debian root with a kernel and systemd"
    rm -rf --one-file-system "$root"
    debootstrap --variant=minbase --include=systemd-sysv,procps,util-linux,linux-image-cloud-amd64,initramfs-tools bookworm "$root" \
        >"$work/debootstrap.log" || die "debootstrap failed: $(tail -n 3 "$work/debootstrap.log")"
    : >"$root.done"
fi
say "making packages of versions 0.1.0 and 0.2.0"
mkdir -p "$root/packages"
for version in 0.1.0 0.2.0; do
    scripts/make-packages.sh --binary "$binary" --version $version --out "$work/packages" --fast deb >/dev/null
done
cp "$work"/packages/evenkeel_0.1.0_*.deb "$root/packages/first.deb"
cp "$work"/packages/evenkeel_0.2.0_*.deb "$root/packages/second.deb"
cp "$0" "$root/packages/drive.sh"
cat >"$root/etc/systemd/system/drive.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
ExecStart=/bin/bash /packages/drive.sh --inside
ExecStopPost=/bin/sh -c 'echo "@@exit $EXIT_STATUS" >/dev/ttyS1; sync; systemctl poweroff --force --force'
StandardOutput=file:/dev/ttyS1
StandardError=file:/dev/ttyS1
[Install]
WantedBy=graphical.target
UNIT
mkdir -p "$root/etc/systemd/system/graphical.target.wants"
ln -sf ../drive.service "$root/etc/systemd/system/graphical.target.wants/drive.service"
# An image of its own each time: the root stays clean.
rm -f "$work/image" "$work/results" "$work/console"
mke2fs -q -t ext4 -d "$root" "$work/image" 2G
status=0
timeout --kill-after=5 900 qemu-system-x86_64 -machine q35 -cpu max,-cx16,vendor=GenuineIntel \
    -accel tcg,thread=multi -smp 2 -m 1024 -nodefaults -no-user-config -no-reboot -display none \
    -kernel "$root/vmlinuz" -initrd "$root/initrd.img" \
    -append "root=/dev/vda rw console=ttyS0 quiet panic=-1 systemd.show_status=0" \
    -drive "file=$work/image,if=virtio,format=raw" -serial "file:$work/console" -serial "file:$work/results" \
    </dev/null 2>"$work/qemu" || status=$?
cat "$work/results" 2>/dev/null || true
if ! grep -q '^@@exit 0' "$work/results" 2>/dev/null; then
    say "the machine ended without success (qemu: status $status); last lines of its console ($work/console):"
    tail -n 30 "$work/qemu" "$work/console" >&2 2>/dev/null || true
    exit 1
fi
rm -f "$work/image"
