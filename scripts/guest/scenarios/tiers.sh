#!/bin/sh
# smp: 1
# numa: none
# seconds: 600
# One kernel of the matrix: background work yields to a service by cpu.idle, and nothing is left.
# shellcheck source=../guest.sh
. /guest.sh

value release "$(uname -r)"
make_group /api
make_group /work
echo 300 >/sys/fs/cgroup/work/cpu.weight
in_group /api evenkeel load duty --percent 30 --period 20ms --kind open --seconds 900 >/dev/null
for _ in 1 2 3; do in_group /work evenkeel load spin --seconds 900 >/dev/null; done
until_true '[ "$(wc -l </sys/fs/cgroup/api/cgroup.procs) $(wc -l </sys/fs/cgroup/work/cgroup.procs)" = "1 3" ]'
sleep 2
everything() { snapshot /api && snapshot /work; }
everything >/tmp/found
result found cat /tmp/found

# To the end, by itself; cpu.idle is looked at meanwhile.
evenkeel run --service cgroup:/api --background cgroup:/work --lever 'idle groups' --for 30s -o json >/tmp/run 2>/tmp/words &
agent=$!
idle=no
while [ -e "/proc/$agent/stat" ] && ! grep -q ') Z ' "/proc/$agent/stat"; do
    [ "$(cat /sys/fs/cgroup/work/cpu.idle)" = 0 ] || idle=yes
    sleep 0.1
done
wait "$agent"
value run_status $?
value idle $idle
result run cat /tmp/run
result run_words cat /tmp/words
everything >/tmp/after_run
diff /tmp/found /tmp/after_run >&2 || fail "run left something changed"

# Killed while the work is idle, which in a trial it is for a second at a time: only that is looked at until then.
evenkeel run --service cgroup:/api --background cgroup:/work --lever 'idle groups' >/dev/null &
agent=$!
until_true '[ "$(cat /sys/fs/cgroup/work/cpu.idle)" = 1 ]'
kill_agent everything
restore_all everything
