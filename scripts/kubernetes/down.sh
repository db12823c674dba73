#!/bin/bash
# Ends the cluster of up.sh and takes away what it left on the host: scripts/kubernetes/down.sh FOLDER
#
# What is ended is what lives in the cluster's mount namespace or in a pod's cgroup, by pid. The logs stay in FOLDER/logs.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"

out=$(realpath "${1:?usage: scripts/kubernetes/down.sh FOLDER}")
run=$out/run
[ -e "$run" ] || exit 0
holder=$(cat "$run/pids/holder" 2>/dev/null || echo none)
home=$(readlink "/proc/$holder/ns/mnt" 2>/dev/null || echo none)
# After a reboot, or where its number went to another process, there are no namespaces left.
[ "$home" != "$(readlink /proc/self/ns/mnt)" ] || home=none

pods() { find /sys/fs/cgroup -path '/sys/fs/cgroup/*/kubepods*' -name cgroup.procs -exec cat {} + 2>/dev/null | sort -un; }
members() {
    for process in /proc/[0-9]*; do
        if [ "$(readlink "$process/ns/mnt" 2>/dev/null)" = "$home" ]; then echo "${process#/proc/}"; fi
    done
}
finish() { # signal, which
    for pid in $($2); do [ "$pid" = "$holder" ] || kill "-$1" "$pid" 2>/dev/null; done
}
of() { cat "$run/pids/$1" 2>/dev/null; }
if [ "$home" != none ]; then
    # The kubelet first: it would start again what ends.
    for name in kubelet controllers scheduler; do kill -9 "$(of $name)" 2>/dev/null; done
    for _ in $(seq 100); do
        [ -n "$(pods)" ] || break
        finish 9 pods
        sleep 0.1
    done
    finish TERM members
    for _ in $(seq 50); do
        [ "$(members)" != "$holder" ] || break
        sleep 0.1
    done
    finish 9 members
    # Its mounts and interfaces go with the namespaces.
    kill "$holder"
    for _ in $(seq 50); do
        [ -d "/proc/$holder" ] || break
        sleep 0.1
    done
fi
for _ in $(seq 50); do
    find /sys/fs/cgroup -depth -type d -path '/sys/fs/cgroup/*/kubepods*' -exec rmdir {} + 2>/dev/null
    left=$(find /sys/fs/cgroup -maxdepth 2 -name 'kubepods*')
    [ -n "$left" ] || break
    sleep 0.1
done
status=0
if [ -n "$left" ]; then say "cgroups remain: $left" && status=1; fi
while read -r name value; do
    if [ "$(cat "/proc/sys/$name")" != "$value" ]; then echo "$value" >"/proc/sys/$name"; fi
done <"$run/sysctls"
rm -rf "$out/logs"
mv "$run/logs" "$out/logs"
rm -rf --one-file-system "$run" || status=1
exit $status
