#!/bin/sh
# smp: 4,sockets=2,cores=2
# numa: 0-1 2-3
# cmdline: isolcpus=3 nohz_full=3
# The test guest itself (if this fails, distrust the other scenarios' failures), and what a machine of two sockets, two memory
# nodes and an isolated CPU looks like.
# shellcheck source=../guest.sh
. /guest.sh

result online cat /sys/devices/system/cpu/online
result nodes cat /sys/devices/system/node/online
result isolated cat /sys/devices/system/cpu/isolated
result controllers cat /sys/fs/cgroup/cgroup.controllers
make_group /one
in_group /one sleep 100
sleeper=$!
until_true "grep -q one /proc/$sleeper/cgroup"
result own_group cat "/proc/$sleeper/cgroup"
kill "$sleeper"
result version evenkeel --version
status wrong_usage evenkeel no-such-command
result load evenkeel load duty --percent 10 --seconds 1 -o json

result json evenkeel topology -o json
result text evenkeel topology
result svg evenkeel topology -o svg
