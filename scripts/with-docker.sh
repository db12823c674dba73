#!/bin/bash
# Runs a command with a Docker Engine: scripts/with-docker.sh [--optional] COMMAND..
#
# An engine that answers is used as it is. Where none does, a private one is started for the command and stopped
# after it: own sockets, own state, own mount namespace, no bridge, no firewall rules, no sysctls; it and its
# containers, cgroups and files are gone afterwards, also when the command fails or is interrupted.
#
# The command sees DOCKER_HOST (unix://..), and CONTAINERD_ADDRESS when the engine is private.
# --optional: without an installed engine, or without root to start one, the command is run all the same.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

optional=
if [ "${1:-}" = --optional ]; then
    optional=yes
    shift
fi
[ $# -gt 0 ] || die "usage: scripts/with-docker.sh [--optional] COMMAND.."

# Whether an engine answers on a socket.
answers() {
    [ -S "$1" ] || return 1
    if have curl; then
        [ "$(curl -fsS --max-time 10 --unix-socket "$1" http://docker/_ping 2>/dev/null)" = OK ]
    else
        DOCKER_HOST="unix://$1" timeout 10 docker version >/dev/null 2>&1
    fi
}

for socket in "${DOCKER_HOST:-}" /run/docker.sock /var/run/docker.sock; do
    socket=${socket#unix://}
    if answers "$socket"; then
        DOCKER_HOST=unix://$socket exec "$@"
    fi
done

lacking=
is_root || lacking="not root"
for command in dockerd containerd runc unshare; do
    have "$command" || lacking="$command is not installed"
done
if [ -n "$lacking" ]; then
    [ -n "$optional" ] || die "no Docker Engine answers and none can be started: $lacking"
    exec "$@"
fi

dir=$(mktemp -d /run/evenkeel-docker.XXXXXX)
name=$(basename "$dir" | tr . -)
fixed=
for place in /run/docker /run/containerd; do [ -e "$place" ] || fixed="$fixed $place"; done
containerd=
dockerd=
command=

# Ends a process we started, by its id: asks, waits up to 15 s, then insists.
end() {
    [ -n "$1" ] || return 0
    kill -TERM "$1" 2>/dev/null || return 0
    for _ in $(seq 150); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL "$1" 2>/dev/null || true
}

clean_up() {
    status=$?
    trap '' INT TERM HUP
    end "$command"
    # Whatever is left in the engine's cgroups is a container of ours; one that ignores signals would make dockerd
    # wait for 10 s.
    find /sys/fs/cgroup -path "*/$name/*" -name cgroup.procs -exec cat {} + 2>/dev/null |
        while read -r pid; do kill -KILL "$pid" 2>/dev/null || true; done
    end "$dockerd"
    # Shims outlive containerd and are in no cgroup of ours; they have our directory on their command line.
    for cmdline in /proc/[0-9]*/cmdline; do
        if tr '\0' '\n' <"$cmdline" 2>/dev/null | grep -qxF "$dir/containerd.sock"; then
            pid=${cmdline%/cmdline} pid=${pid#/proc/}
            [ "$pid" = "$containerd" ] || kill -KILL "$pid" 2>/dev/null || true
        fi
    done
    end "$containerd"
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        find /sys/fs/cgroup -depth -type d \( -name "$name" -o -path "*/$name/*" \) \
            -exec rmdir {} + 2>/dev/null || true
        [ -n "$(find /sys/fs/cgroup -type d -name "$name" 2>/dev/null)" ] || break
        sleep 0.2
    done
    # The mounts lived in the daemons' own namespace and went with it.
    rm -rf --one-file-system "$dir" || true
    # Both daemons make a directory at a fixed place, too.
    for made in $fixed; do find "$made" -depth -type d -empty -delete 2>/dev/null || true; done
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

cat >"$dir/containerd.toml" <<TOML
version = 2
root = "$dir/containerd"
state = "$dir/containerd-state"
[grpc]
  address = "$dir/containerd.sock"
[ttrpc]
  address = "$dir/containerd.ttrpc"
TOML

# dockerd and containerd share one mount namespace, in which the containers' file systems are mounted.
unshare --mount --propagation slave -- sh -c "
    containerd --config '$dir/containerd.toml' --log-level warn >'$dir/containerd.log' 2>&1 &
    echo \$! >'$dir/containerd.pid'
    echo '{}' >'$dir/daemon.json'
    exec dockerd --config-file '$dir/daemon.json' --containerd '$dir/containerd.sock' \
        --host 'unix://$dir/docker.sock' --data-root '$dir/data' --exec-root '$dir/exec' --pidfile '$dir/dockerd.pid' \
        --cgroup-parent '/$name' --exec-opt native.cgroupdriver=cgroupfs \
        --bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --userland-proxy=false \
        --log-level warn >'$dir/dockerd.log' 2>&1
" &
dockerd=$!
for _ in $(seq 300); do
    [ -s "$dir/containerd.pid" ] && containerd=$(cat "$dir/containerd.pid")
    answers "$dir/docker.sock" && break
    kill -0 "$dockerd" 2>/dev/null || break
    sleep 0.1
done
if ! answers "$dir/docker.sock"; then
    tail -n 20 "$dir/containerd.log" "$dir/dockerd.log" >&2 || true
    [ -n "$optional" ] || die "the private Docker Engine did not start within 30 s; its last words are above"
    say "the private Docker Engine did not start; going on without"
    "$@"
    exit
fi
say "private Docker Engine at $dir/docker.sock, stopped when done"
DOCKER_HOST=unix://$dir/docker.sock CONTAINERD_ADDRESS=$dir/containerd.sock "$@" &
command=$!
status=0
wait "$command" || status=$?
command=
exit "$status"
