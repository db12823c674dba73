#!/bin/bash
# Installs, upgrades, removes and purges the packages in a clean Debian root: scripts/test-packages.sh BINARY [ROOT]
#
# The root is made by debootstrap (or ROOT, which is used as it is, and kept). It is a chroot: no systemd runs there, so what
# is judged is files, what is enabled, what is kept and what is restored. The program inside is the real one; a value that it
# changed in a process of ours must be restored by the removal. The root gets a state directory and a /proc, /sys and /dev of
# its own in a mount namespace, which goes with this script. As root.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

if [ -z "${EVENKEEL_IN_NAMESPACE:-}" ]; then
    is_root || die "root is needed to make a root file system"
    exec env EVENKEEL_IN_NAMESPACE=1 unshare --mount --propagation private -- "$0" "$@"
fi

binary=${1:?usage: scripts/test-packages.sh BINARY [ROOT]}
work=$(mktemp -d)
background=
cleanup() {
    # shellcheck disable=SC2086 # pids
    [ -z "$background" ] || kill $background 2>/dev/null || true
    for at in dev sys proc; do umount -R "$root/$at" 2>/dev/null || true; done
    rm -rf --one-file-system "$work"
}
root=${2:-$work/root}
trap cleanup EXIT

checks=0
# `check WHAT COMMAND..`: the command must succeed.
check() {
    local what=$1
    shift
    if ! "$@"; then
        echo "FAILED: $what" >&2
        exit 1
    fi
    checks=$((checks + 1))
    say "ok: $what"
}
inside() { chroot "$root" /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
has() { [ -e "$root$1" ]; }
lacks() { [ ! -e "$root$1" ] && [ ! -L "$root$1" ]; }
all_files() { (cd "$root" && find etc usr opt -xdev ! -name '*.cache' | sort); }
enabled() { [ -L "$root/etc/systemd/system/multi-user.target.wants/$1" ]; }
not_enabled() { ! enabled "$1"; }

if [ ! -e "$root/bin/sh" ]; then
    say "making a clean Debian root"
    debootstrap --variant=minbase bookworm "$root" >"$work/debootstrap.log" || die "debootstrap failed: $(tail -n 3 "$work/debootstrap.log")"
fi
say "making packages of versions 0.1.0 and 0.2.0"
for version in 0.1.0 0.2.0; do
    scripts/make-packages.sh --binary "$binary" --version $version --out "$work/packages" --fast deb rpm >/dev/null
done
mkdir -p "$root/packages"
cp "$work"/packages/* "$root/packages/"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount --make-rslave "$root/sys"
mount --make-rslave "$root/dev"
deb() { echo "/packages/evenkeel_$1_$(dpkg --print-architecture).deb"; }

all_files >"$work/before"
check "it installs without a question" inside dpkg -i "$(deb 0.1.0)"
for file in /usr/bin/evenkeel /usr/lib/systemd/system/evenkeel.service /etc/evenkeel/config.toml /etc/default/evenkeel \
    /usr/share/man/man1/evenkeel-run.1.gz /usr/share/bash-completion/completions/evenkeel; do
    check "$file is there" has "$file"
done
check "the program runs" inside evenkeel --version
check "the configuration installed is right" inside evenkeel topology -o json >/dev/null
check "the agent that watches is enabled" enabled evenkeel-serve.service
check "the agent that acts is not" not_enabled evenkeel.service

say "two processes that want the same CPU; one is promised most of it"
taskset -c 0 sh -c 'while :; do :; done' &
background=$!
taskset -c 0 sh -c 'while :; do :; done' &
promised=$!
background="$background $promised"
printf '[[guarantee]]\nscope = "pid:%s"\ncpu = "80%%"\n' "$promised" >"$root/etc/evenkeel/config.toml"
echo '# ours' >>"$root/etc/default/evenkeel"
mkdir -p "$root/var/lib/evenkeel"
chmod 700 "$root/var/lib/evenkeel"
echo history >"$root/var/lib/evenkeel/kept"

check "it upgrades without a question" inside dpkg -i --force-confdef "$(deb 0.2.0)"
check "the state is kept" grep -q history "$root/var/lib/evenkeel/kept"
check "the configuration is kept" grep -q guarantee "$root/etc/evenkeel/config.toml"
check "the options are kept" grep -q '# ours' "$root/etc/default/evenkeel"
check "what is enabled stays" enabled evenkeel-serve.service
rm "$root/etc/systemd/system/multi-user.target.wants/evenkeel-serve.service"
check "it upgrades again" inside dpkg -i "$(deb 0.2.0)"
check "what was disabled stays disabled" not_enabled evenkeel-serve.service

# Nice values of both, after the name, which ends with the last ")".
state() { for pid in $background; do sed 's/.*) //' "/proc/$pid/stat" | cut -d ' ' -f 17; done | tr '\n' ' '; }
before=$(state)
inside evenkeel run --guarantees-only --scope "pid:$promised" >"$work/run.log" 2>&1 &
agent=$!
for _ in $(seq 300); do
    [ "$(state)" = "$before" ] || break
    sleep 0.1
done
# `chroot` becomes the program.
kill -9 "$agent"
wait "$agent" 2>/dev/null || true
say "nice values before: $before; as the killed run left them: $(state)"
check "the run had changed something" [ "$(state)" != "$before" ]

check "it is removed" inside dpkg -r evenkeel
check "what the killed run left is restored" [ "$(state)" = "$before" ]
check "the program is gone" lacks /usr/bin/evenkeel
check "the state is kept" has /var/lib/evenkeel/kept
check "the configuration is kept" has /etc/evenkeel/config.toml
check "it is purged" inside dpkg -P evenkeel
check "the state is gone" lacks /var/lib/evenkeel
check "nothing is left enabled" lacks /etc/systemd/system/multi-user.target.wants/evenkeel-serve.service
all_files >"$work/after"
check "all files are as before" diff "$work/before" "$work/after"

say "a removal that cannot restore keeps the program"
inside dpkg -i "$(deb 0.1.0)" >/dev/null
mkdir -p "$root/var/lib/evenkeel"
printf '#!/bin/sh\nexit 1\n' >"$root/usr/bin/evenkeel"
if inside dpkg -r evenkeel >/dev/null 2>&1; then check "the removal is refused" false; fi
check "the program is still there" has /usr/bin/evenkeel
check "it is removed when told to" inside env EVENKEEL_REMOVE_ANYWAY=1 dpkg -P evenkeel

say "the rpm, by Debian's rpm"
rpm_in() { rpm --root "$root" --dbpath /var/lib/rpm "$@"; }
rpm_in --initdb
check "the rpm installs" rpm_in -i --nodeps "$root"/packages/evenkeel-0.1.0-1.*.rpm
check "the program runs" inside evenkeel --version
echo '# ours' >>"$root/etc/default/evenkeel"
mkdir -p "$root/var/lib/evenkeel"
echo history >"$root/var/lib/evenkeel/kept"
check "the rpm upgrades" rpm_in -U --nodeps "$root"/packages/evenkeel-0.2.0-1.*.rpm
check "the options are kept" grep -q '# ours' "$root/etc/default/evenkeel"
check "the state is kept" has /var/lib/evenkeel/kept
check "the rpm is removed" rpm_in -e evenkeel
check "the program is gone" lacks /usr/bin/evenkeel
# A ROOT that is kept is as clean as it was: rpm leaves directories that belong to nobody.
rm -rf "${root:?}/var/lib/evenkeel" "$root/etc/default/evenkeel.rpmsave" "$root/packages"
(cd "$root" && rmdir -p usr/share/zsh/site-functions usr/share/fish/vendor_completions.d usr/share/bash-completion/completions \
    usr/lib/systemd/system usr/share/man/man1 2>/dev/null) || true
echo "$checks passed, 0 failed"
