#!/bin/bash
# The figures on tenants, each by the command that prints it: scripts/tenants.sh [--part NAME].. [FOLDER]
# As root, on a quiet machine. Each part takes less than five minutes once built; all of them about 25.
#
#   rr        the built-in rr against a minimal C program, and netperf where it is installed
#   net       tenants net twice: do the biases agree within their intervals?
#   rps       receive packet steering off and on, namespaces by veth and by macvlan
#   vms       1, 2 and 4 machines, RPS off and on
#   vms-2     1, 2 and 4 machines of two vCPUs
#   macvtap   1, 2 and 4 machines by macvtap
#   tools     netperf and iperf3 as the traffic, where they are installed
#   weights   weights 1:2 between cgroups, and between machines
#   docker    weights 1:2 between containers (a private Docker Engine unless one answers)
#   shape     24 Mbit/s for a group by the class's own counters, and the payload
#   starved   servers in cgroups of their own next to busy tasks of the root group: seconds without an answer, by a C program,
#             with the kernel's default, with weights, quotas and slices set by hand, and with `evenkeel run`
#   clean     what is left after kill -9 in the midst of it
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

all=(rr net rps vms vms-2 macvtap tools weights docker shape starved clean)
parts=()
out=
while [ $# -gt 0 ]; do
    case "$1" in
        --part)
            [ $# -gt 1 ] || die "--part needs a name: ${all[*]}"
            [[ " ${all[*]} " == *" $2 "* ]] || die "no part $2: ${all[*]}"
            parts+=("$2")
            shift 2
            ;;
        -*) die "usage: scripts/tenants.sh [--part NAME].. [FOLDER]; parts: ${all[*]}" ;;
        *)
            out=$1
            shift
            ;;
    esac
done
[ ${#parts[@]} -gt 0 ] || parts=("${all[@]}")
is_root || die "tenants are namespaces and cgroups: run as root"

out=${out:-$(target_dir)/tenants}
scripts/packages.sh build test
need_cargo
cargo build --release --locked -p evenkeel -p evenkeel-lab --bin evenkeel --example rr_reference --example load
bin=$(target_dir)/release
mkdir -p "$out"
export EVENKEEL_STATE_DIR=$out/state

# Runs an experiment into a folder of its own, which is emptied first.
tenants() {
    local kind=$1 name=$2
    shift 2
    rm -rf "${out:?}/$name"
    "$bin/evenkeel" tenants "$kind" "$@" "$out/$name" || say "$name: status $?"
}

# Median of pairs, each run a second: 15 pairs take half a minute.
reference() { "$bin/examples/rr_reference" --pairs "${PAIRS:-15}" --seconds 1 "$@" | tail -1; }

part_rr() {
    say "rr against a minimal C program in the same namespaces, same CPUs (the aim: 0.95 to 1.05)"
    reference --flows 1 --pin same
    reference --flows 1 --pin apart
    PAIRS=${PAIRS:-11} reference --flows 8 --pin free
    PAIRS=${PAIRS:-11} reference --flows 32 --pin free
    if have netperf && have netserver; then
        say "rr against netperf's TCP_RR"
        reference --flows 1 --pin same --against netperf
        reference --flows 1 --pin apart --against netperf
    else
        say "netperf is not installed (Debian has it in non-free): not compared"
    fi
}

part_net() {
    say "tenants net, twice: do the biases agree within their intervals?"
    for run in 1 2; do
        tenants net "net-$run" --quick --rps off --vms 0 --repetitions 5 --seconds 0.5
    done
    "$bin/evenkeel" tenants compare "$out/net-1" "$out/net-2" || say "status $?"
}

part_rps() {
    say "RPS off and on (verdicts name what changed beyond both intervals)"
    tenants net rps --tenants 1,2,4,16 --flows 16 --nic none,veth,macvlan --vms 0 --repetitions 3 --seconds 1
}

part_vms() {
    say "1, 2 and 4 machines, RPS off and on (emulated without KVM: the report says which)"
    tenants net vms --nic none --tenants 1 --vms 1,2,4 --vm-nic virtio --vcpus 1 --flows 8 \
        --repetitions 2 --seconds 2
}

part_vms-2() {
    say "1, 2 and 4 machines of two vCPUs"
    tenants net vms-2 --nic none --tenants 1 --vms 1,2,4 --vm-nic virtio --vcpus 2 --flows 8 --rps off \
        --repetitions 2 --seconds 2
}

part_macvtap() {
    say "1, 2 and 4 machines by macvtap"
    tenants net macvtap --nic none --tenants 1 --vms 1,2,4 --vm-nic macvtap --vcpus 1 --flows 8 --rps off \
        --repetitions 2 --seconds 2
    say "virtual functions (SR-IOV), where there are any"
    tenants net vf --nic none --tenants 1 --vms 1 --vm-nic vf --vcpus 1 --flows 8 --rps off --repetitions 1 \
        --seconds 1
}

part_tools() {
    for tool in netperf iperf3; do
        if have "$tool"; then
            say "$tool as the traffic"
            tenants net "$tool" --traffic "$tool" --nic none,veth,macvlan --tenants 1,2,4 --flows 8 --rps off \
                --repetitions 3 --seconds 1
        else
            say "$tool is not installed: left out"
        fi
    done
}

part_weights() {
    say "weights 1:2 between cgroups, and between machines (the aim: within 3 %)"
    tenants cpu weights --tenants 2 --vms 2 --containers 0 --vcpus 2 --repetitions 2 --seconds 5
}

part_docker() {
    say "weights 1:2 between containers (the aim: within 3 %)"
    rm -rf "${out:?}/docker"
    scripts/with-docker.sh "$bin/evenkeel" tenants cpu --tenants 0 --vms 0 --containers 2,4 --vcpus 2 \
        --repetitions 3 --seconds 5 "$out/docker" || say "docker: status $?"
}

part_shape() {
    say "24 Mbit/s by the class's own counters (the aim: 23.5 to 24.5), and the payload"
    cargo test --release --locked -p evenkeel-lab --test privileged_shape -- --nocapture each_group | grep Mbit
}

# Two servers of eight flows each, in cgroups of their own, for so many seconds; the last line tells.
lost_turn() { "$out/lost_turn" 8 "$1" "$hierarchy/evenkeel-turn-a" "$hierarchy/evenkeel-turn-b"; }

# Empty groups with the kernel's default weight.
remake_groups() {
    sleep 1
    rmdir "$hierarchy"/evenkeel-turn-?
    mkdir "$hierarchy/evenkeel-turn-a" "$hierarchy/evenkeel-turn-b"
}

part_starved() {
    local seconds=${SECONDS_EACH:-60} hierarchy dir servers busy=()
    cc -O2 -Wall -pthread -o "$out/lost_turn" scripts/tenants/lost_turn.c
    hierarchy=$(cpu_hierarchy)
    mkdir -p "$hierarchy/evenkeel-turn-a" "$hierarchy/evenkeel-turn-b"
    # Two busy loops, each in a session of its own.
    for _ in 1 2; do
        setsid timeout $((6 * seconds + 400)) sh -c 'while :; do :; done' &
        busy+=($!)
    done
    say "the kernel's default"
    lost_turn "$seconds" | tail -1
    say "sixteen times the weight, by hand"
    for dir in "$hierarchy"/evenkeel-turn-?; do
        if [ -e "$dir/cpu.weight" ]; then echo 1600 >"$dir/cpu.weight"; else echo 16384 >"$dir/cpu.shares"; fi
    done
    lost_turn "$seconds" | tail -1
    remake_groups
    say "a quota of 70 % of a CPU each"
    for dir in "$hierarchy"/evenkeel-turn-?; do
        if [ -e "$dir/cpu.max" ]; then echo "70000 100000" >"$dir/cpu.max"; else echo 70000 >"$dir/cpu.cfs_quota_us"; fi
    done
    lost_turn "$seconds" | tail -1
    remake_groups
    say "slices of 0.1 ms, by evenkeel exec"
    "$bin/evenkeel" exec --slice 100us --account "$out/account" -- "$out/lost_turn" 8 "$seconds" \
        "$hierarchy/evenkeel-turn-a" "$hierarchy/evenkeel-turn-b" | tail -1
    remake_groups
    say "evenkeel run, from its fifth second on"
    lost_turn "$((seconds + 16))" >"$out/starved" &
    servers=$!
    sleep 2
    "$bin/evenkeel" run --scope cgroup:/evenkeel-turn-a --scope cgroup:/evenkeel-turn-b --for "$((seconds + 6))s" || say "status $?"
    wait "$servers"
    head -n "$((seconds + 6))" "$out/starved" | tail -n "$seconds" |
        awk '{ for (i = 1; i <= NF; i++) silent += $i == 0 } END { print silent + 0, "seconds without an answer, of", NR, "x 2" }'
    rmdir "$hierarchy"/evenkeel-turn-?
    kill "${busy[@]}"
}

# Everything a run could leave: links, disciplines, namespaces, cgroups, processes, devices, sysctls.
dump() {
    ip -o link
    tc qdisc show
    ip netns list
    find /sys/fs/cgroup -maxdepth 3 -type d -name '*evenkeel*' 2>/dev/null || true
    find /dev /dev/shm /run/netns -maxdepth 1 -name '*evenkeel*' 2>/dev/null || true
    cat /proc/sys/net/core/rps_sock_flow_entries 2>/dev/null || true
    cat /sys/class/net/*/queues/rx-*/rps_cpus 2>/dev/null || true
    pgrep -af 'evenkeel-lab-|evenkeel.* load (rr|spin)|netserver|iperf3 --server' || true
}

part_clean() {
    say "what is left after kill -9 in the midst of it: nothing (compare full dumps)"
    dump >"$out/before"
    for kill_after in 2 5; do
        rm -rf "${out:?}/clean"
        "$bin/evenkeel" tenants net --quick --rps on --tenants 4 --vms 1 --flows 8 "$out/clean" >/dev/null 2>&1 &
        pid=$!
        sleep "$kill_after"
        kill -9 "$pid"
        wait "$pid" 2>/dev/null || true
    done
    # Groups emptied by the kernel are swept by the next start, a sysctl by the journal.
    rm -rf "${out:?}/clean"
    "$bin/evenkeel" restore
    "$bin/evenkeel" tenants net --quick --rps off --nic none,veth --tenants 1 --flows 2 --repetitions 1 \
        --seconds 0.2 "$out/clean" >/dev/null
    dump >"$out/after"
    if diff "$out/before" "$out/after"; then echo "nothing is left"; else echo "something is left"; fi
}

for part in "${parts[@]}"; do
    began=$SECONDS
    "part_$part"
    say "$part took $((SECONDS - began)) s"
done
