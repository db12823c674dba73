#!/bin/bash
# What outsiders feel: a redis under light load and a compile, next to the demo's mix that the loop evens out.
#
#   scripts/outsiders.sh [--rounds 5] [--seconds 15] [--kind closed|wall] [--binary target/release/evenkeel]
#
# The mix (five loads per CPU, 75 % of the host, periods of 100 ms +-50 %) is the loop's scope, in a cgroup of its own; redis,
# its client and the compiler are in another and are never touched. Each round measures the outsiders under the kernel's
# default, lets the loop decide, measures them under its choice, and puts everything back. Printed: each round, the verdicts where
# nothing was kept, and the median ratio. Status 1: the slowest answers take 1.1 times as long, or a compile 1.05 times.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

rounds=5 seconds=15 kind=closed binary=
while [ $# -gt 0 ]; do
    case $1 in
    --rounds) rounds=${2:?} ;;
    --seconds) seconds=${2:?} ;;
    --kind) kind=${2:?} ;;
    --binary) binary=${2:?} ;;
    *) echo "error: $1: only --rounds, --seconds, --kind and --binary are known" >&2 && exit 2 ;;
    esac
    shift 2
done
is_root || die "root is needed: run as root"
for tool in redis-server perl cc; do
    have $tool || die "$tool is needed (scripts/packages.sh build test)"
done
[ -n "$binary" ] || binary=$(release_binary)

hierarchy=$(cpu_hierarchy)
mix=/evenkeel-mix-$$ others=/evenkeel-outsiders-$$
work=$(mktemp -d)
clean() {
    # Only what was started here is in these groups.
    for group in $mix $others; do end_group "$hierarchy$group"; done
    rm -rf "$work"
}
trap clean EXIT
mkdir "$hierarchy$mix" "$hierarchy$others"

(
    echo 0 >"$hierarchy$mix/cgroup.procs"
    seed=0
    for _ in $(seq "$(nproc)"); do
        for percent in 5 10 15 20 25; do
            seed=$((seed + 1))
            "$binary" load duty --percent $percent --kind "$kind" --seed $seed --seconds 3600 &
        done
    done
) </dev/null >/dev/null 2>&1
# What a compiler does on a busy build host, a second or so at a time.
{
    echo '#include <math.h>'
    for n in $(seq 400); do
        echo "double f$n(double x) { double s = $n; for (int i = 0; i < 9; i++) s += sin(x * i) / (i + $n); return s * s; }"
    done
} >"$work/source.c"
cat >"$work/client.pl" <<'PERL'
# Asks redis every 10 ms +-50 % and prints the time of the answer in microseconds, a line each with its instant.
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
    echo 0 >"$hierarchy$others/cgroup.procs"
    redis-server --port 0 --unixsocket "$work/redis.sock" --save '' --appendonly no --dir "$work" &
    for _ in $(seq 100); do [ -S "$work/redis.sock" ] && break; sleep 0.1; done
    redis-cli -s "$work/redis.sock" set key "$(head -c 500 /dev/zero | tr '\0' x)"
    perl "$work/client.pl" "$work/redis.sock" >"$work/redis.log" &
    # One compile after the other, with the time each took.
    (
        while :; do
            from=$(date +%s%N)
            cc -O2 -c -o "$work/out.o" "$work/source.c"
            until=$(date +%s%N)
            echo "$from $((until - from))" >>"$work/compile.log"
        done
    ) &
) </dev/null >/dev/null 2>&1

now() { date +%s.%N; }
# Values of a log between two instants; its first column is the instant in units of UNIT seconds.
between() { awk -v a="$2" -v b="$3" -v unit="$4" '$1 * unit >= a && $1 * unit < b { print $2 }' "$1"; }
quantile() { sort -n | awk -v q="$1" '{ v[NR] = $1 } END { if (NR) print v[int(q * (NR - 1)) + 1]; else print "nan" }'; }
# Prints "p50 p99 compile" in microseconds, microseconds, milliseconds of the last SECONDS.
measure() {
    local from until
    from=$(now)
    sleep "$seconds"
    until=$(now)
    local p50 p99 compile
    p50=$(between "$work/redis.log" "$from" "$until" 1 | quantile 0.5)
    p99=$(between "$work/redis.log" "$from" "$until" 1 | quantile 0.99)
    compile=$(between "$work/compile.log" "$from" "$until" 1e-9 | awk '{ s += $1; n++ } END { print n ? s / n / 1e6 : "nan" }')
    echo "$p50 $p99 $compile"
}

sleep 3
printf '%-6s %-22s %10s %10s %12s\n' round settings 'p50 us' 'p99 us' 'compile ms'
for round in $(seq "$rounds"); do
    before=$(measure)
    echo "$before" >>"$work/before"
    # shellcheck disable=SC2086 # three figures
    printf '%-6s %-22s %10s %10s %12.0f\n' "$round" 'kernel default' $before
    "$binary" --state-dir "$work/state" run --scope "cgroup:$mix" 2>"$work/run.err" >/dev/null &
    agent=$!
    for _ in $(seq 900); do
        if grep -q '^\* ' "$work/run.err" || ! kill -0 $agent 2>/dev/null; then break; fi
        sleep 0.1
    done
    choice=$(sed -n 's/^\* \(.\{24\}\).*/\1/p' "$work/run.err" | tail -1 | sed 's/ *$//')
    after=$(measure)
    kill -INT $agent
    wait $agent || true
    # shellcheck disable=SC2086
    printf '%-6s %-22s %10s %10s %12.0f\n' "$round" "${choice:-nothing decided}" $after
    case "$choice" in
    '') tail -2 "$work/run.err" | cut -c1-120 | sed 's/^/       /' ;;
    'kernel default') # nothing was changed, so there is nothing to compare
        sed -n 's/^  \(.*taken back: .*\)/       \1/p' "$work/run.err" | cut -c1-200
        ;;
    *) paste -d' ' <(echo "$before") <(echo "$after") >>"$work/pairs" ;;
    esac
done
[ -s "$work/pairs" ] || { echo "nothing was changed in any round: nothing to compare" && exit 0; }
ratio() { awk -v a="$1" -v b="$2" '{ print $b / $a }' "$work/pairs" | quantile 0.5; }
echo
awk -v n="$(wc -l <"$work/pairs")" -v p50="$(ratio 1 4)" -v p99="$(ratio 2 5)" -v compile="$(ratio 3 6)" 'BEGIN {
    printf "median ratio, choice to default, of %d rounds: redis p50 %.2f, p99 %.2f (goal: 1.10), compile time %.2f (goal: 1.05)\n", n, p50, p99, compile
    exit !(p99 <= 1.1 && compile <= 1.05) }'
