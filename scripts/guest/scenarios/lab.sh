#!/bin/sh
# smp: 2
# numa: none
# `exec` and the laboratory where cgroup v2 has the controllers: what is in force inside, and what is left: nothing.
# shellcheck source=../guest.sh
. /guest.sh

groups() { find /sys/fs/cgroup -mindepth 1 -type d | sort; }
handed_out() { cat /sys/fs/cgroup/cgroup.subtree_control; }
# A group with members and a limit: it can have no children with controllers.
make_group /svc
echo "90000 100000" >/sys/fs/cgroup/svc/cpu.max
groups >/tmp/found
value handed_out "$(handed_out)"

cat >/tmp/look <<'END'
own=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
echo "$own"
cat "$own/cpu.max" "$own/cpu.weight" "$own/cpuset.cpus.effective"
timeout 2 sh -c 'while :; do :; done'
exit 7
END
sh -c 'echo $$ >/sys/fs/cgroup/svc/cgroup.procs && exec "$@"' sh \
    evenkeel exec --cpu-limit 50% --weight 300 --cpus 1 --account /tmp/account -- sh /tmp/look >/tmp/seen
value exec_status $?
result exec_seen cat /tmp/seen
result exec_account cat /tmp/account
groups | cmp -s - /tmp/found || fail "exec left a group: $(groups)"

# Killed, it leaves the command within its bounds; the next start removes the group once that is empty.
evenkeel exec --cpu-limit 20% -- sleep 987 &
killed=$!
until_true 'pidof sleep >/dev/null && groups | grep -q evenkeel-exec'
kill -9 "$killed"
wait "$killed" 2>/dev/null
value outlives "$(cat "/sys/fs/cgroup/evenkeel-exec-$killed-"*/cpu.max)"
kill "$(pidof sleep)"
until_true '! pidof sleep >/dev/null'
status next evenkeel exec -- true
groups | cmp -s - /tmp/found || fail "the next exec left a group: $(groups)"

cat >/tmp/weights.toml <<'END'
name = "weights"
cpus = "0"
[[tenant]]
name = "a"
weight = 300
load = "spin"
run_s = 3
[[tenant]]
name = "b"
weight = 100
load = "spin"
run_s = 3
END
result weights evenkeel lab run /tmp/weights.toml --out /tmp/weights -o json
result weights_record cat /tmp/weights/record.json
cat >/tmp/enforced.toml <<'END'
name = "enforced"
cpus = "1"
enforcer = { rule = { rule = "constant", stolen = 0.5 } }
[[tenant]]
name = "v"
load = "spin"
run_s = 3
END
result enforced evenkeel lab run /tmp/enforced.toml --out /tmp/enforced -o json
result enforced_record cat /tmp/enforced/record.json
groups | cmp -s - /tmp/found || fail "the laboratory left a group: $(groups)"
value handed_out_after "$(handed_out)"
