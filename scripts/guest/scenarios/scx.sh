#!/bin/sh
# smp: 1
# numa: none
# seconds: 1500
# example: scx_fifo
# BPF schedulers: offered or not and why, tried and undone, ejected, killed with the agent, another program's; and that a limit which
# one does not enforce is found. How well anything runs under them, emulation does not tell. On one CPU: with more, qemu 7.2 may run code
# of the kernel that another CPU has just replaced, of which a scheduler's start replaces much.
# shellcheck source=../guest.sh
. /guest.sh

value release "$(uname -r)"
state() { cat /sys/kernel/sched_ext/state; }
running() { cat /proc/[0-9]*/comm 2>/dev/null | grep -cE '^scx_(bpfland|rusty|fifo)$'; }
# A trial begins with the baseline, which takes a while here.
until_in_charge() {
    for _ in $(seq 1000); do
        [ "$(state)" != enabled ] || return 0
        sleep 0.1
    done
    fail "no scheduler was started"
}
# None, and nobody left who could load one (the kernel has a thread of such a name).
nothing_loaded() { [ "$(state) $(running)" = "disabled 0" ]; }
nothing_loaded || fail "a scheduler to begin with: $(state)"

make_group /work
make_group /limited
in_group /work evenkeel load spin --seconds 2000 >/dev/null
in_group /work evenkeel load duty --percent 10 --period 20ms --kind open --seconds 2000 >/dev/null
until_true '[ "$(wc -l </sys/fs/cgroup/work/cgroup.procs)" = 2 ]'
everything() { snapshot /work && state; }
everything >/tmp/found
result found cat /tmp/found

# What is said where none is tried; `plan` starts nothing.
words() {
    words_name=$1
    shift
    evenkeel plan --lever scx_bpfland --lever scx_rusty "$@" >"/tmp/plan.$words_name" 2>&1
    result "$words_name" cat "/tmp/plan.$words_name"
}
words not_installed --scope all --allow scx
ln -s /bin/scx_fifo /bin/scx_bpfland
printf '#!/bin/sh\necho "Error: attaching the scheduler: Operation not permitted" >&2\nexit 1\n' >/bin/scx_rusty
chmod +x /bin/scx_rusty
words not_allowed --scope all
words not_the_host --scope cgroup:/work --allow scx
words allowed --scope all --allow scx
nothing_loaded || fail "plan started a scheduler"

# To the end, by itself: one is tried, one does not load. For a subshell, whose place evenkeel takes, so that $! is it.
both() { exec evenkeel run --scope all --apply --allow scx --lever scx_bpfland --lever scx_rusty "$@"; }
both --for 20s -o json >/tmp/run 2>/tmp/words &
agent=$!
until_in_charge
value ops "$(cat /sys/kernel/sched_ext/root/ops)"
wait "$agent"
value run_status $?
result run cat /tmp/run
result run_words cat /tmp/words
nothing_loaded || fail "run left a scheduler: $(state), $(running)"
everything | diff /tmp/found - >&2 || fail "run left something changed"

# A limit does nothing under it.
echo '2500 50000' >/sys/fs/cgroup/limited/cpu.max
in_group /limited evenkeel load spin --seconds 2000 >/dev/null
limited=$!
(both --for 20s -o json >/tmp/run 2>/tmp/words)
value voiding_status $?
result voiding cat /tmp/run
nothing_loaded || fail "run left a scheduler: $(state), $(running)"
kill "$limited"
wait "$limited" 2>/dev/null

# The kernel ejects it in the middle of a trial.
both --for 20s -o json >/tmp/run 2>/tmp/words &
agent=$!
until_in_charge
echo S >/proc/sysrq-trigger
wait "$agent"
value ejected_status $?
result ejected cat /tmp/run
result ejected_words cat /tmp/words
nothing_loaded || fail "after an ejection: $(state), $(running)"

# Killed while it is in charge: it goes with the agent, and restore finds it gone, however soon it is asked.
both >/dev/null 2>&1 &
agent=$!
until_in_charge
kill -9 "$agent"
wait "$agent" 2>/dev/null
result restore evenkeel restore -o json
nothing_loaded || fail "after a kill and restore: $(state), $(running)"
everything | diff /tmp/found - >&2 || fail "restore left something changed"
both >/dev/null 2>&1 &
agent=$!
until_in_charge
kill -9 "$agent"
wait "$agent" 2>/dev/null
until_true nothing_loaded
result restore_later evenkeel restore -o json

# Another program's stays, and a limit that it does not enforce is found by what is used.
echo '5000 100000' >/sys/fs/cgroup/limited/cpu.max
in_group /limited evenkeel load spin --seconds 2000 >/dev/null
limited=$!
check() { evenkeel check --interval 4s -o json || [ $? = 1 ]; }
result enforced check
scx_fifo another &
another=$!
until_in_charge
words another --scope all --allow scx
result void check
[ "$(state) $(cat /sys/kernel/sched_ext/root/ops)" = "enabled another" ] || fail "another program's scheduler is gone"
kill "$another"
wait "$another" 2>/dev/null
until_true nothing_loaded
kill "$limited"
