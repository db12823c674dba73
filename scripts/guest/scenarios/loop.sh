#!/bin/sh
# smp: 2
# numa: 0 1
# The closed loop on a kernel without slices of one's own, cgroup v2 and NUMA; and what is left after it: nothing.
# shellcheck source=../guest.sh
. /guest.sh

make_group /pod
for percent in 20 30 40 50 60 70 80 90; do
    in_group /pod evenkeel load duty --percent "$percent" --kind wall --seconds 600 >/dev/null
done
until_true '[ $(wc -l </sys/fs/cgroup/pod/cgroup.procs) = 8 ]'
sleep 2
snapshot /pod >/tmp/found
result found cat /tmp/found

# To the end, by itself.
result run evenkeel run --scope cgroup:/pod --for 20s -o json
snapshot /pod >/tmp/after_run
diff /tmp/found /tmp/after_run >&2 || fail "run left something changed"

# Killed while something is changed.
start_changing 'snapshot /pod' evenkeel run --scope cgroup:/pod
kill_agent snapshot /pod
restore_all snapshot /pod
