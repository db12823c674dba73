#!/bin/sh
# smp: 2
# numa: none
# seconds: 600
# Unit tests' own programs (/tests), on a kernel that has all of what an emulator of system calls lacks.
# shellcheck source=../guest.sh
. /guest.sh

failed=0
for program in /tests/*; do
    "$program" >/tmp/said 2>/tmp/words
    code=$?
    cat /tmp/words
    [ $code = 0 ] || failed=1
    value "$(basename "$program")" "$code $(grep -E '^test result|FAILED$' /tmp/said)"
done
exit $failed
