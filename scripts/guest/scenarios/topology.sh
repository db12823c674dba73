#!/bin/sh
# smp: 4,sockets=2,cores=2
# numa: 0-1 2-3
# cmdline: isolcpus=3 nohz_full=3
# What a machine of two sockets, two memory nodes and an isolated CPU looks like.
# shellcheck source=../guest.sh
. /guest.sh

result json evenkeel topology -o json
result text evenkeel topology
result svg evenkeel topology -o svg
