#!/usr/bin/env python3
"""Ends evenkeel's commands in every way, in every state, and compares all scheduling state of the host before and after.

    ends.py --evenkeel target/debug/evenkeel --runs 1000          # as root; `make test-ends`
    ends.py --evenkeel .. --only run:timeout:force --runs 20 -v   # some cells only, a line for each run

Exit status 1 when anything is left: a value, a cgroup, a link, a process, a file; when an exit status is wrong, or a command
does not end. A run that did not come to its state is counted apart, and made up for.
"""

import argparse
import faulthandler
import itertools
import json
import os
import random
import select
import signal
import subprocess
import sys
import time

# The tree stays as it is.
sys.dont_write_bytecode = True

import commands
import dump
import endings
import host
from run import Run, places

# Points of evenkeel's own hook (crates/linux/src/fault.rs), in builds with debug assertions.
POINTS = ("any", "agent.set", "agent.pause", "agent.close", "actuate.written", "actuate.restored", "net.limited")


def cells(args):
    """Every end in every state of every command, as asked."""
    ends = endings.ends(args.panic_points)
    every = itertools.product(commands.COMMANDS.values(), ends.values(), commands.STATES)
    chosen = [cell for cell in every if cell[1].fits(cell[0].name, cell[2])]
    if args.only:
        def asked(cell):
            names = (cell[0].name, cell[1].name, cell[2])
            return any(all(part in ("", name) for part, name in zip(only.split(":") + ["", ""], names)) for only in args.only)

        chosen = [cell for cell in chosen if asked(cell)]
    return chosen


def lane(args):
    """Takes cells from stdin, one a line, and writes results to stdout."""
    known = {(c.name, e.name, s): (c, e, s) for c, e, s in cells(args)}
    ours = host.Lane(os.path.realpath(args.evenkeel), args.lane)
    # The master says when to end, also at Ctrl-C; what was started is cleared away first, undisturbed. No signal is ignored
    # outright: what is ignored, the commands would inherit.
    signal.signal(signal.SIGINT, lambda *_: None)

    def end(*_):
        signal.signal(signal.SIGTERM, lambda *_: None)
        sys.exit(1)

    signal.signal(signal.SIGTERM, end)
    # Where it is, should it ever hang: kill -USR1.
    faulthandler.register(signal.SIGUSR1)
    try:
        for line in sys.stdin:
            number, seed, name = json.loads(line)
            run = Run(ours, number, known[tuple(name)], seed, args.mine)
            try:
                run.go()
            except OSError as error:
                run.problems.append(f"the harness: {error}")
                run.reached = False
                if run.process:
                    run.pid = run.pid or run.process.pid
                    run.clear()
            except BaseException:
                if run.process:
                    run.clear()
                raise
            print(json.dumps(run.result()), flush=True)
    finally:
        ours.close()


class Table:
    """Counts by end and command."""

    def __init__(self):
        self.counts = {}

    def add(self, result):
        count = self.counts.setdefault((result["end"], result["command"]), [0, 0, 0, 0, 0])
        if not result["reached"]:
            count[4] += 1
            return
        count[0] += 1
        count[1] += bool(result["left"])
        count[2] += bool(result["problems"]) and not result["hung"]
        count[3] += result["hung"]

    def total(self):
        return [sum(column) for column in zip(*self.counts.values())] if self.counts else [0] * 5

    def text(self, order):
        names = list(commands.COMMANDS)
        lines = ["runs, of these with something left (L), a wrong ending (W), hung (H); not reached (n)", ""]
        lines.append(f"{'':16}" + "".join(f"{name:>15}" for name in names))
        for end in order:
            row = ""
            for name in names:
                count = self.counts.get((end, name))
                row += f"{self.cell(count) if count else '-':>15}"
            lines.append(f"{end:16}{row}")
        return "\n".join(lines)

    @staticmethod
    def cell(count):
        marks = "".join(f" {number}{mark}" for number, mark in zip(count[1:], "LWHn") if number)
        return f"{count[0]}{marks}"


def line_of(result):
    """A run in a line, and what was not right about it below."""
    outcome = "not reached" if not result["reached"] else "ok"
    if result["reached"] and (result["left"] or result["problems"]):
        outcome = f"{len(result['left'])} left" if result["left"] else "wrong"
        if result["mended"]:
            outcome += " (`restore` mends it)"
    head = f"{result['command']:6} {result['end']:15} {result['state']:10} {result['seconds']:5.1f} s  status {result['status']}: {outcome}{' at ' + result['point'] if result['point'] else ''}"
    return "\n".join([head] + [f"    {words}" for words in result["left"][:24] + result["problems"]])


def standing():
    """Every cgroup of the host, and every directory where the program may leave one."""
    return set(dump.take(lambda tag: False, net=False)["groups"]) | places()


def master(args):
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 32)
    every = cells(args)
    if not every:
        sys.exit("no such cell")
    draw = random.Random(seed)
    draw.shuffle(every)
    print(f"seed {seed}: {args.runs} runs of {len(every)} cells, {args.lanes} at a time", flush=True)
    words = [sys.executable, os.path.abspath(__file__), "--evenkeel", args.evenkeel]
    words += ["--mine"] if args.mine else []
    words += [f"--panic-point={point}" for point in args.panic_points]
    lanes = [
        subprocess.Popen(
            [*words, "--lane", str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=lambda: host.with_parent(signal.SIGTERM),
        )  # fmt: skip
        for number in range(args.lanes)
    ]
    table, failures, began = Table(), [], time.monotonic()
    lasting = standing()
    started = counted = 0
    queue = {}

    def next_run(process):
        nonlocal started
        command, end, state = every[started % len(every)]
        process.stdin.write(json.dumps([started, draw.randrange(1 << 48), [command.name, end.name, state]]) + "\n")
        process.stdin.flush()
        queue[process.stdout.fileno()] = process
        started += 1

    def interrupted(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupted)
    try:
        for process in lanes:
            next_run(process)
        while queue:
            for descriptor in select.select(list(queue), [], [])[0]:
                process = queue.pop(descriptor)
                line = process.stdout.readline()
                if not line:
                    sys.exit(f"a lane ended with status {process.wait()}")
                result = json.loads(line)
                table.add(result)
                counted += result["reached"]
                wrong = result["left"] or result["problems"]
                if wrong:
                    failures.append(result)
                if args.verbose or wrong:
                    print(line_of(result), flush=True)
                elif counted % 50 == 0:
                    print(f"{counted} runs, {time.monotonic() - began:.0f} s", flush=True)
                # What is not reached is made up for, within reason.
                if counted + len(queue) < args.runs and started < 2 * args.runs + 20:
                    next_run(process)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        for process in lanes:
            process.terminate()
    finally:
        for process in lanes:
            process.stdin.close()
        for process in lanes:
            process.wait()
    # What no lane took for its own. A cgroup's removal may wait for the kernel.
    host.wait_for(lambda: args.mine or standing() <= lasting, 5, 0.1)
    nobodys = [] if args.mine else sorted(standing() - lasting)
    runs, left, wrong, hung, missed = table.total()
    print(f"\n{table.text(endings.ends(args.panic_points))}\n")
    for name in nobodys:
        print(f"{name} is left over at the end")
    print(
        f"{runs} runs in {time.monotonic() - began:.0f} s (seed {seed}): something left in {left}, a wrong ending in {wrong}, "
        f"{hung} hung; {missed} not reached"
    )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"seed": seed, "failures": failures, "runs": runs, "not_reached": missed}, file, indent=1)
    enough = counted >= args.runs
    if not enough:
        print(f"only {counted} of {args.runs} runs came to their state")
    return 0 if enough and not failures and not nobodys else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evenkeel", required=True, help="the binary")
    parser.add_argument("--runs", type=int, default=1000, help="that come to their state")
    parser.add_argument("--seed", type=int, help="order of the cells and all chance")
    parser.add_argument("--lanes", type=int, default=1, help="runs at a time, each on loads of its own")
    parser.add_argument("--only", action="append", default=[], help="COMMAND[:END[:STATE]], any part may be empty; repeat")
    parser.add_argument("--mine", action="store_true", help="on a host where others change things: compare only what is the harness's own")
    parser.add_argument("--panic-point", dest="panic_points", action="append", help="a point of EVENKEEL_TEST_PANIC_AT; repeat")
    parser.add_argument("--json", help="failures go to this file, too")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for every run")
    parser.add_argument("--lane", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.panic_points = args.panic_points or list(POINTS)
    if os.geteuid() != 0:
        print("ends.py: root is needed: it makes cgroups, and so do the commands", file=sys.stderr)
        return 3
    # Under nohup the commands would inherit an ignored SIGHUP, and rightly go on when it comes.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if args.lane is not None:
        return lane(args)
    return master(args)


if __name__ == "__main__":
    sys.exit(main())
