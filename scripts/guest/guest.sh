# shellcheck shell=sh
# What a scenario may call; sourced by its first line, `. /guest.sh`.
set -u

# Hands a named result to the test: `result NAME COMMAND..` sends the command's stdout and ends the scenario if the
# command fails. A command whose failure is expected goes through `status`.
result() {
    result_name=$1
    shift
    "$@" >"/tmp/result.$result_name" || fail "$result_name: '$*' ended with status $?"
    send "$result_name" "/tmp/result.$result_name"
}

# Hands the exit status of a command to the test, as a result of its own; its stdout is dropped.
status() {
    status_name=$1
    shift
    "$@" >/dev/null
    echo $? >"/tmp/result.$status_name"
    send "$status_name" "/tmp/result.$status_name"
}

# Hands the value of an expression to the test: `value NAME TEXT`.
value() {
    printf '%s\n' "$2" >"/tmp/result.$1"
    send "$1" "/tmp/result.$1"
}

send() {
    {
        echo "@@begin $1"
        cat "$2"
        echo
        echo "@@end $1"
    } >&3
}

# Ends the scenario; the reason is what the test shows.
fail() {
    echo "@@fail $*" >&3
    exit 1
}

# Waits until a condition holds, at most 30 s: `until_true 'test -e /x'`.
until_true() {
    for _ in $(seq 300); do
        eval "$1" && return 0
        sleep 0.1
    done
    fail "never became true: $1"
}

# Makes a cgroup (v2) with the cpu and cpuset controllers on for its children: `make_group /PATH`.
make_group() {
    mkdir -p "/sys/fs/cgroup$1"
    parent=$(dirname "/sys/fs/cgroup$1")
    echo "+cpu +cpuset" >"$parent/cgroup.subtree_control"
}

# Runs a command in a cgroup (v2), in the background; its pid is in $!: `in_group /PATH COMMAND..`.
in_group() {
    group=$1
    shift
    sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "/sys/fs/cgroup$group" "$@" &
}

# Starts a command that changes something, in the background: its pid is in $agent. Waits until what STATE prints differs
# from /tmp/found: `start_changing STATE COMMAND..`.
start_changing() {
    changing_state=$1
    shift
    "$@" >/dev/null &
    agent=$!
    until_true "! $changing_state | cmp -s - /tmp/found"
}

# Kills $agent, and hands over what it has left, as STATE prints it: `kill_agent STATE`.
kill_agent() {
    kill -9 "$agent"
    wait "$agent" 2>/dev/null
    result killed "$@"
}

# Restores, and hands over what was done; fails where STATE does not print what is in /tmp/found: `restore_all STATE`.
restore_all() {
    result restore evenkeel restore -o json
    "$@" >/tmp/after_restore
    diff /tmp/found /tmp/after_restore >&2 || fail "restore left something changed"
}

# Prints the scheduling state of everything in a cgroup (v2) and below, one line each, to be compared with another
# time's: threads (nice, real-time priority, policy, allowed CPUs) and the cgroups' own files: `snapshot /PATH`.
snapshot() {
    find "/sys/fs/cgroup$1" -name cgroup.procs | sort | while read -r procs; do
        dir=$(dirname "$procs")
        for file in cpu.weight cpu.idle cpu.max cpuset.cpus; do
            [ ! -e "$dir/$file" ] || echo "$dir/$file: $(cat "$dir/$file")"
        done
        sort -n "$procs" | while read -r pid; do
            for task in "/proc/$pid/task/"*; do
                # After the name, which ends with the last ")": field 1 is the state, nice the 17th.
                echo "$task: $(sed 's/.*) //' "$task/stat" | cut -d ' ' -f 17,38,39)" \
                    "$(sed -n 's/^Cpus_allowed_list:[[:space:]]*/cpus /p' "$task/status")"
            done
        done
    done
}
