#!/usr/bin/env python3
"""What `evenkeel run --service --background` costs others: hackbench or a compile alone on the host, with and without it.

  scripts/services/overhead.py --evenkeel BINARY [--work hackbench] [--pairs 20] [--json FILE]

The work is the background, beside a redis that nobody asks; both halves of a pair come in random order. Printed: seconds, and the
ratio's median with a 90 % interval by bootstrap.
"""
import argparse, json, random, subprocess, time

from parts import Service, Workspace, interval

WORK = {
    "hackbench": "exec hackbench -l 1000 -g 4 >/dev/null",
    "compile": "for n in 1 2; do (for m in 1 2; do cc -O2 -c -o {dir}/$n.o {dir}/source.c; done) & done; wait",
}


def seconds(work, command):
    began = time.monotonic()
    child = work.groups["batch"].start(["sh", "-c", command.format(dir=work.dir)], stdout=subprocess.DEVNULL)
    if child.wait():
        raise SystemExit(f"{command}: status {child.returncode}")
    return time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evenkeel", required=True)
    parser.add_argument("--work", default="hackbench", choices=WORK)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--json")
    args = parser.parse_args()
    pairs = []
    with Workspace("service", "clients", "batch") as work:
        Service("redis", work.groups["service"], work.dir)
        seconds(work, WORK[args.work])
        for _ in range(args.pairs):
            pair = {}
            for name in random.sample(["without", "run"], 2):
                if name == "run":
                    work.start_run(args.evenkeel)
                    time.sleep(4)
                pair[name] = seconds(work, WORK[args.work])
                work.end_run()
                time.sleep(0.5)
            pairs.append(pair)
            print(f"{pair['without']:.3f} s, under run {pair['run']:.3f} s", flush=True)
    value, low, high = interval([pair["run"] / pair["without"] for pair in pairs])
    print(f"{args.work}: under run to without {value:.3f} [{low:.3f}, {high:.3f}], {len(pairs)} pairs")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"args": vars(args), "pairs": pairs}, file, indent=1)


main()
