#!/bin/sh
# smp: 8,sockets=2,cores=2,threads=2
# numa: 0-3 4-7
# cmdline: isolcpus=6-7 nohz_full=6-7
# memory: 1536
# seconds: 600
# One kernel of the matrix on two sockets, two NUMA nodes, SMT and isolated CPUs, one of which leaves and comes back: what
# evenkeel sees of it, a promise kept meanwhile, and that nothing is left.
# shellcheck source=../guest.sh
. /guest.sh

online() { echo "$2" >"/sys/devices/system/cpu/cpu$1/online" || fail "CPU $1 cannot be set to $2"; }
check() { evenkeel check --interval 1s -o json || [ $? = 1 ]; }

value release "$(uname -r)"
result topology evenkeel topology -o json

# Two groups that share CPU 4. The promise is for one of them.
for group in /promised /other; do
    make_group "$group"
    echo 4 >"/sys/fs/cgroup$group/cpuset.cpus"
    in_group "$group" evenkeel load spin --seconds 900 >/dev/null
done
# A group that may use CPU 5, too: offline, it is missing there.
make_group /wide
echo 4-5 >/sys/fs/cgroup/wide/cpuset.cpus
in_group /wide sleep 900
until_true '[ "$(cat /sys/fs/cgroup/promised/cgroup.procs)" ] && [ "$(cat /sys/fs/cgroup/other/cgroup.procs)" ]'
sleep 2
everything() { snapshot /promised && snapshot /other && snapshot /wide; }
everything >/tmp/found
result found cat /tmp/found
result ps evenkeel --sampling proc ps --interval 1s -o json

online 5 0
result offline_topology evenkeel topology -o json
result offline_check check
online 5 1
result online_topology evenkeel topology -o json
result online_check check
everything >/tmp/after_online
diff /tmp/found /tmp/after_online >&2 || fail "the kernel itself changed something with its CPU"

# A promise while a CPU leaves and comes back.
cat >/tmp/promise.toml <<'END'
[[guarantee]]
scope = "cgroup:/promised"
cpu = "70%"
END
promise() { evenkeel run --config /tmp/promise.toml --guarantees-only "$@"; }
promise --for 25s -o json >/tmp/run 2>/tmp/words &
agent=$!
until_true '! everything | cmp -s - /tmp/found'
everything >/tmp/kept
online 5 0
sleep 3
online 5 1
wait "$agent"
value run_status $?
result kept cat /tmp/kept
result run cat /tmp/run
result run_words cat /tmp/words
everything >/tmp/after_run
diff /tmp/found /tmp/after_run >&2 || fail "run left something changed"

# Killed while the promise is kept and a CPU is away; restored after it came back.
start_changing everything evenkeel run --config /tmp/promise.toml --guarantees-only
online 5 0
kill_agent everything
online 5 1
restore_all everything
