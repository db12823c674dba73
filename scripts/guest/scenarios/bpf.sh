#!/bin/sh
# smp: 2
# numa: none
# Sampling by BPF and by /proc on another kernel than the host's: Debian's 6.1, which has no slices, with cgroup v2.
# shellcheck source=../guest.sh
. /guest.sh

make_group /forking
in_group /forking sh -c 'while :; do (:); done' >/dev/null
forking=$!
make_group /spinning
in_group /spinning evenkeel load spin --seconds 600 >/dev/null
spinning=$!
until_true '[ "$(cat /sys/fs/cgroup/spinning/cgroup.procs)" ]'
sleep 1
value spinning "$spinning"
result by_bpf evenkeel --sampling bpf ps --interval 3s -o json
result by_proc evenkeel --sampling proc ps --interval 3s -o json
kill "$forking" "$spinning"
