# shellcheck shell=bash
# Sourced: a crowd of tasks to watch, in two cgroups of their own, of which BUSY run 200 us every 50 ms and the others
# sleep. `crowd TASKS BUSY BINARY` starts it and sets `group`, the path of their cgroup; `disperse` ends it.

hierarchy='' group=''

crowd() {
    local tasks=$1 busy=$2 binary=$3 there
    hierarchy=$(cpu_hierarchy)
    group=/evenkeel-crowd-$$
    mkdir "$hierarchy$group" "$hierarchy$group/sleeping" "$hierarchy$group/busy"
    (
        echo 0 >"$hierarchy$group/sleeping/cgroup.procs"
        for _ in $(seq $((tasks - busy))); do sleep 900 & done
        echo 0 >"$hierarchy$group/busy/cgroup.procs"
        for n in $(seq "$busy"); do
            "$binary" load duty --percent 0.4 --period 50ms --seed "$n" --seconds 900 >/dev/null &
        done
    ) </dev/null >/dev/null 2>&1
    sleep 3
    there=$(cat "$hierarchy$group"/*/cgroup.procs | wc -l)
    say "$there tasks, $busy of them busy, beside $(($(find /proc -maxdepth 1 -name '[0-9]*' | wc -l) - there)) others"
    [ "$there" = "$tasks" ] || die "only $there of $tasks tasks could be started"
}

# Only what was started here is in these groups.
disperse() {
    [ -n "$group" ] || return 0
    end_group "$hierarchy$group/sleeping"
    end_group "$hierarchy$group/busy"
    rmdir "$hierarchy$group" 2>/dev/null || true
    group=''
}

# Nanoseconds that all threads of a process have run.
ran() { { cat /proc/"$1"/task/*/schedstat 2>/dev/null || true; } | awk '{ sum += $1 } END { printf "%.0f\n", sum }'; }
