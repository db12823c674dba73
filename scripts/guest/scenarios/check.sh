#!/bin/sh
# cmdline: isolcpus=3
# A host set up wrongly in two ways that its check has to name, and how it looks once they are mended.
# shellcheck source=../guest.sh
. /guest.sh

# A task on the isolated CPU that nobody put there on purpose; a group throttled by its quota.
make_group /rogue
in_group /rogue taskset -c 3 evenkeel load spin --seconds 600 >/dev/null
rogue=$!
make_group /tight
echo "20000 100000" >/sys/fs/cgroup/tight/cpu.max
in_group /tight evenkeel load spin --threads 2 --seconds 600 >/dev/null
tight=$!
until_true '[ "$(cat /sys/fs/cgroup/tight/cgroup.procs)" ]'
sleep 2
# It stays where it is, on CPU 3, but looks like one that was never meant to be there: nothing moves it away.
taskset -p c "$rogue" >/dev/null

check() { evenkeel check --interval 3s -o json "$@" || [ $? = 1 ]; }
status wrong_status evenkeel check
result wrong check
value rogue "$rogue"
echo 'isolated = "2-3"' >/tmp/policy.toml
result expected check --policy /tmp/policy.toml
echo 'isolatde = "2-3"' >/tmp/policy.toml
status bad_policy evenkeel check --policy /tmp/policy.toml

kill "$rogue" "$tight"
wait "$rogue" "$tight"
result mended check
