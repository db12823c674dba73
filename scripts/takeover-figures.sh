#!/bin/bash
# What a restart costs: the agent is killed and started again while a change is in force, next to a redis that is asked all the while.
#
#   scripts/takeover-figures.sh [--kills 30] [--seconds 10] [--binary target/release/evenkeel]
#
# Two short loads behind two busy loops share CPU 0 with the redis; the loop gives the short ones short slices. For each kill the
# 99th percentile of redis' answers in SECONDS around it (a fifth of them before) is held against as many seconds undisturbed. Printed:
# each kill, and the ratio of both with the upper end of its one-sided 95 % interval. Status 1: a restart did not take over, or the
# interval's end is above 1.10.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

kills=30 seconds=10 binary=
while [ $# -gt 0 ]; do
    case $1 in
    --kills) kills=${2:?} ;;
    --seconds) seconds=${2:?} ;;
    --binary) binary=${2:?} ;;
    *) echo "error: $1: only --kills, --seconds and --binary are known" >&2 && exit 2 ;;
    esac
    shift 2
done
is_root || die "root is needed: run as root"
for tool in redis-server perl taskset; do
    have $tool || die "$tool is needed (scripts/packages.sh build test)"
done
[ -n "$binary" ] || binary=$(release_binary)
hierarchy=$(cpu_hierarchy)
loads=/evenkeel-takeover-$$ beside=/evenkeel-beside-$$
work=$(mktemp -d)
agent=
clean() {
    if [ -n "$agent" ]; then kill -INT "$agent" 2>/dev/null && wait "$agent" 2>/dev/null || true; fi
    "$binary" --state-dir "$work/state" restore >/dev/null 2>&1 || true
    # Only what was started here is in these groups.
    for group in $loads $beside; do end_group "$hierarchy$group"; done
    rm -rf "$work"
}
trap clean EXIT
mkdir "$hierarchy$loads" "$hierarchy$beside"
# Whatever else runs on this host hardly counts then.
for group in $loads $beside; do
    if [ -e "$hierarchy$group/cpu.shares" ]; then
        echo 65536 >"$hierarchy$group/cpu.shares"
    else
        echo 10000 >"$hierarchy$group/cpu.weight"
    fi
done

(
    echo 0 >"$hierarchy$loads/cgroup.procs"
    for _ in 1 2; do
        taskset -c 0 "$binary" load duty --percent 25 --period 10ms --kind closed --seconds 86400 &
        taskset -c 0 sh -c 'while :; do :; done' &
    done
) </dev/null >/dev/null 2>&1
cat >"$work/client.pl" <<'PERL'
# Asks redis every 10 ms +-50 % and prints the instant and the time of the answer in microseconds.
use strict; use warnings; use IO::Socket::UNIX; use Time::HiRes qw(time sleep);
$| = 1; srand(1);
my $s = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die "cannot connect: $!";
while (1) {
    sleep(0.005 + rand(0.01));
    my $t = time; print $s "GET key\r\n"; my $length = <$s>; <$s> if $length !~ /^\$-1/;
    printf "%.6f %d\n", $t, 1e6 * (time - $t);
}
PERL
(
    echo 0 >"$hierarchy$beside/cgroup.procs"
    taskset -c 0 redis-server --port 0 --unixsocket "$work/redis.sock" --save '' --appendonly no --dir "$work" &
    for _ in $(seq 100); do [ -S "$work/redis.sock" ] && break; sleep 0.1; done
    perl "$work/client.pl" "$work/redis.sock" >"$work/redis.log" &
) </dev/null >/dev/null 2>&1

# Wide limits: what is measured is a restart, whatever the change. Never held out: blocks would be in some of the windows only.
cat >"$work/takeover.toml" <<'TOML'
[run]
interval = "500ms"
closer_look = "150s"
levers = ["short first"]
holdout = 0.0
[guard]
cpu_loss = 0.9
outside_cpu_loss = 0.9
wait_factor = 50
tail_share = 0.9
TOML
start() {
    "$binary" --state-dir "$work/state" --config "$work/takeover.toml" run --scope "cgroup:$loads" 2>"$work/run.err" >/dev/null &
    agent=$!
}
says() {
    for _ in $(seq 3000); do
        if grep -q "$1" "$work/run.err"; then return 0; fi
        kill -0 "$agent" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}
now() { date +%s.%N; }
# The 99th percentile of the answers to what was asked between two instants, microseconds.
p99() {
    awk -v a="$1" -v b="$2" '$1 >= a && $1 < b { print $2 }' "$work/redis.log" | sort -n |
        awk '{ v[NR] = $1 } END { if (NR) print v[int(0.99 * (NR - 1)) + 1]; else print "nan" }'
}
part() { awk -v s="$seconds" -v p="$1" 'BEGIN { print s * p }'; }

start
says '^\* short first' || die "no change is in force: $(tail -2 "$work/run.err")"
lost=0
printf '%-6s %18s %18s  %s\n' kill 'undisturbed us' 'around it us' restart
for kill in $(seq "$kills"); do
    sleep 3
    from=$(now)
    sleep "$seconds"
    until=$(now)
    quiet=$(p99 "$from" "$until")
    from=$(now)
    sleep "$(part 0.2)"
    kill -9 "$agent"
    wait "$agent" 2>/dev/null || true
    start
    sleep "$(part 0.8)"
    until=$(now)
    around=$(p99 "$from" "$until")
    took='took over'
    says 'took over' || took=$(grep -m1 'not taken over' "$work/run.err" || echo 'did not take over')
    case $took in 'took over') ;; *) lost=$((lost + 1)) ;; esac
    printf '%-6s %18s %18s  %s\n' "$kill" "$quiet" "$around" "$took"
    echo "$quiet $around" >>"$work/pairs"
done
echo
awk -v lost="$lost" '
    { r = log($2 / $1); s += r; q += r * r; n++ }
    END {
        m = s / n; sd = n > 1 ? sqrt((q - n * m * m) / (n - 1)) : 0
        # One-sided 95 % of Student t, after Cornish and Fisher.
        z = 1.6449; f = n - 1; t = f > 0 ? z + (z^3 + z) / (4 * f) + (5 * z^5 + 16 * z^3 + 3 * z) / (96 * f * f) : 0
        upper = exp(m + t * sd / sqrt(n))
        printf "p99 around a kill to undisturbed, %d kills: %.3f, at most %.3f (95 %%; goal: 1.10); %d restarts did not take over\n", n, exp(m), upper, lost
        exit !(upper <= 1.1 && lost == 0) }' "$work/pairs"
