#!/bin/sh
# smp: 1
# numa: none
# memory: 512
# seconds: 280
# A machine whose CPU is stolen from outside, by a quota on its qemu: what it can see of that.
# shellcheck source=../guest.sh
. /guest.sh

make_group /victim
in_group /victim evenkeel load spin --seconds 2 -o json >/tmp/load
wait $! || fail "the load failed"
result load cat /tmp/load
value limit "$(cat /sys/fs/cgroup/victim/cpu.max)"
value throttled "$(sed -n 's/^nr_throttled //p' /sys/fs/cgroup/victim/cpu.stat)"
