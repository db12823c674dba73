#!/usr/bin/env python3
"""What a request costs an agent: requests.py PID URL [COUNT]. Asks COUNT (50) times, ten times a second, and prints one JSON line:
median time, ms; the CPU time of all threads of process PID a request beyond what they use without requests, ms; bytes."""

import glob
import json
import statistics
import sys
import time
import urllib.request

pid, url = sys.argv[1], sys.argv[2]
count = int(sys.argv[3]) if len(sys.argv) > 3 else 50


def ran_ns():
    total = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        try:
            with open(path) as file:
                total += int(file.read().split()[0])
        except OSError:
            pass
    return total


def ask():
    begin = time.perf_counter()
    with urllib.request.urlopen(url, timeout=60) as answer:
        size = len(answer.read())
    return time.perf_counter() - begin, size


ask()
idle = ran_ns()
time.sleep(count / 10)
idle = ran_ns() - idle
busy = ran_ns()
begin = time.monotonic()
answers = []
for number in range(1, count + 1):
    answers.append(ask())
    time.sleep(max(0.0, begin + number / 10 - time.monotonic()))
busy = ran_ns() - busy
took, sizes = zip(*answers)
print(json.dumps({"ms": round(1e3 * statistics.median(took), 2), "cpu_ms": round((busy - idle) / count / 1e6, 2),
                  "bytes": int(statistics.median(sizes))}))
