#!/bin/sh
# smp: 1
# numa: none
# seconds: 600
# One kernel of the matrix on one CPU: what evenkeel sees of it, what it changes there, and that nothing is left.
# shellcheck source=../guest.sh
. /guest.sh

value release "$(uname -r)"
result version evenkeel --version
result topology evenkeel topology -o json
# Its status is 1 when it finds something.
check() { evenkeel check --interval 1s -o json || [ $? = 1 ]; }
result check check

# What a kernel may refuse: its status and what it says; its document only where there is one.
attempt() {
    attempt_name=$1
    shift
    "$@" >/tmp/attempt 2>/tmp/words
    value "${attempt_name}_status" $?
    result "$attempt_name" cat /tmp/attempt
    result "${attempt_name}_words" cat /tmp/words
}
attempt bpf evenkeel --sampling bpf ps --interval 1s -o json
# What changes the host, told apart by its status where it may (there is no such experiment, file or link); what bounds nothing,
# and what restores, are never refused.
attempt exec evenkeel exec --nice 5 -- true
attempt lab evenkeel lab run nothing
attempt tune evenkeel tune /nothing.toml
attempt net evenkeel net set --link nothing --rps 0
attempt account evenkeel exec -- true
attempt nothing_left evenkeel restore

# From here on there is little CPU for anything but the loads. What only looks comes before them.
first() { sh -c 'renice -n -10 $$ >/dev/null && exec "$@"' sh "$@"; }
make_group /pod
for percent in 30 50 70 90; do
    in_group /pod evenkeel load duty --percent "$percent" --kind wall --seconds 900 >/dev/null
done
until_true '[ "$(pidof evenkeel | wc -w)" = 4 ] && [ "$(wc -l </sys/fs/cgroup/pod/cgroup.procs)" = 4 ]'
sleep 2
snapshot /pod >/tmp/found
result found cat /tmp/found
result ps first evenkeel --sampling proc ps --interval 1s -o json
attempt why first evenkeel why cgroup:/pod --for 1s -o json
result plan first evenkeel plan --scope cgroup:/pod -o json
for file in cpu.idle cpu.max.burst cpu.pressure cpuset.cpus.partition; do
    value "$file" "$([ -e "/sys/fs/cgroup/pod/$file" ] && echo yes || echo no)"
done
value sched_ext "$([ -e /sys/kernel/sched_ext/state ] && echo yes || echo no)"

# To the end, by itself; something is changed meanwhile.
evenkeel run --scope cgroup:/pod --for 20s -o json >/tmp/run 2>/tmp/words &
agent=$!
changed=no
while [ -e "/proc/$agent/stat" ] && ! grep -q ') Z ' "/proc/$agent/stat"; do
    [ $changed = yes ] || snapshot /pod | cmp -s - /tmp/found || changed=yes
    sleep 0.2
done
wait "$agent"
value run_status $?
value changed $changed
result run cat /tmp/run
result run_words cat /tmp/words
snapshot /pod >/tmp/after_run
diff /tmp/found /tmp/after_run >&2 || fail "run left something changed"
# What cannot be changed need not be restored; whether it should have been, the test knows.
[ $changed = yes ] || exit 0

# Killed while something is changed.
start_changing 'snapshot /pod' evenkeel run --scope cgroup:/pod
kill_agent snapshot /pod
restore_all snapshot /pod
