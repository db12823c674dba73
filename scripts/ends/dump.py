#!/usr/bin/env python3
"""Dumps all scheduling state of this host, and tells what differs between two dumps.

Independent of evenkeel on purpose: it reads the kernel by itself and shares no code with what it judges.

    dump.py > before.json; ...; dump.py > after.json; dump.py --compare before.json after.json

A dump is a map from a name to a value. Names begin with their kind: `task`, `cgroup`, `link`, `file`. Values are
compared only where both dumps have the name, because tasks come and go; cgroups and links that came or went are told apart.
"""

import ctypes
import glob
import json
import os
import re
import struct
import subprocess
import sys
import time

# sched_getattr(2) by machine: asm/unistd.h.
SYS_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275, "riscv64": 275, "ppc64le": 356, "s390x": 346}[os.uname().machine]
# include/linux/sched.h: user space cannot change this kernel thread's CPUs, the kernel itself does.
PF_NO_SETAFFINITY = 0x04000000
# Processes of the harness carry this variable; its value says which of them.
TAG = "EK_ENDS"
# Files of the cpu, cpuset and cpuacct controllers that can be written but hold no setting: members, and counters.
NO_SETTING = {"cgroup.procs", "cgroup.threads", "tasks", "cgroup.event_control", "cpuacct.usage", "cgroup.kill"}

_libc = ctypes.CDLL(None, use_errno=True)


def read(path):
    """A file's text, or None where there is none to read."""
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return None


def sched_attr(tid):
    """(policy, flags, nice, priority, runtime or slice, deadline, period, util_min, util_max); None when it is gone."""
    buffer = ctypes.create_string_buffer(56)
    if _libc.syscall(SYS_SCHED_GETATTR, tid, buffer, 56, 0) != 0:
        return None
    return struct.unpack("IIQiIQQQII", buffer.raw)[1:]


class Task:
    """What identifies a task, and what it has."""

    def __init__(self, pid, tid, stat, tag):
        fields = stat.rpartition(") ")[2].split()
        self.pid, self.tid, self.tag = pid, tid, tag
        self.comm = stat[stat.index("(") + 1 : stat.rindex(")")]
        self.state, self.group, self.flags, self.start = fields[0], int(fields[2]), int(fields[6]), int(fields[19])
        self.parent = int(fields[1])
        self.values = {}

    def key(self):
        return f"{self.tid}@{self.start}"

    def read_values(self):
        attr = sched_attr(self.tid)
        if attr is None:
            return False
        names = ("policy", "flags", "nice", "priority", "slice", "deadline", "period", "uclamp_min", "uclamp_max")
        self.values = dict(zip(names, attr))
        if not self.flags & PF_NO_SETAFFINITY:
            try:
                self.values["affinity"] = ",".join(map(str, sorted(os.sched_getaffinity(self.tid))))
            except OSError:
                return False
        return True


def tag_of(pid):
    """Value of the harness's variable in a process's environment; empty where there is none."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            found = re.search(rb"(?:^|\0)" + TAG.encode() + rb"=([^\0]*)", file.read())
    except OSError:
        return ""
    return found.group(1).decode() if found else ""


def tasks(wanted=lambda tag: True):
    """Every task whose process's tag is wanted."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        tag = tag_of(pid)
        if not wanted(tag):
            continue
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            stat = read(f"/proc/{pid}/task/{thread}/stat")
            task = Task(pid, int(thread), stat, tag) if stat else None
            # One that has ended and waits for its parent runs no more, and is shown in the root cgroup.
            if task and task.state not in "ZX":
                yield task


def cgroup_mounts():
    """(controllers, mount point) of every cgroup hierarchy; version 2 is `unified`."""
    for line in (read("/proc/self/mountinfo") or "").splitlines():
        front, _, back = line.partition(" - ")
        kind, _, options = back.split(" ", 2)
        if kind == "cgroup2":
            yield "unified", front.split()[4]
        elif kind == "cgroup":
            names = [o for o in options.split(" ")[-1].split(",") if o not in ("rw", "ro", "xattr", "noprefix")]
            yield ",".join(names), front.split()[4]


def cgroups(values, groups):
    """Every cgroup of every hierarchy, and each setting of the cpu, cpuset and cpuacct controllers."""
    seen = set()
    for controllers, mount in cgroup_mounts():
        device = os.stat(mount).st_dev
        if device in seen:
            continue
        seen.add(device)
        settings = controllers == "unified" or any(c in controllers.split(",") for c in ("cpu", "cpuset", "cpuacct"))
        for directory, _, files in os.walk(mount):
            name = f"{controllers}:/{os.path.relpath(directory, mount)}".replace("/.", "/")
            groups.append(name)
            if not settings:
                continue
            for file in files:
                path = os.path.join(directory, file)
                if file in NO_SETTING or file.endswith(".pressure") or not writable(path):
                    continue
                if controllers == "unified" and not file.startswith(("cpu.", "cpuset.", "cgroup.")):
                    continue
                text = read(path)
                if text is not None:
                    values[f"cgroup {name} {file}"] = text


def writable(path):
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return bool(mode & 0o222) and bool(mode & 0o444)


def tool(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout


def network(values, links):
    """Links, what tc made of them, and how packets are spread over CPUs; of the network namespace this runs in."""
    names = os.listdir("/sys/class/net")
    details = tool("ip", "-d", "-o", "link", "show")
    for line in (details or "").splitlines():
        index, name, rest = line.split(": ", 2)
        # What changes by itself: carrier and state.
        rest = re.sub(r"state \w+|<[^>]*>|mode \w+", "", rest)
        values[f"link {name.split('@')[0]} link"] = " ".join(rest.split())
        links.append(f"{index}:{name}")
    for line in (tool("tc", "qdisc", "show") or "").splitlines():
        words = line.split()
        device = words[words.index("dev") + 1] if "dev" in words else "?"
        # One name for one place in the tree: the root, ingress, or below which class.
        place = " ".join(words[words.index("dev") + 2 :][:2])
        values[f"link {device} qdisc {place}"] = line.strip()
    for name in names:
        for what in (["class"], ["filter"], ["filter", "ingress"], ["filter", "egress"]):
            words = [what[0], "show", "dev", name] + what[1:]
            values[f"link {name} tc {' '.join(what)}"] = (tool("tc", *words) or "").strip()
        for pattern in ("rx-*/rps_*", "tx-*/xps_*", "tx-*/tx_maxrate"):
            for path in glob.glob(f"/sys/class/net/{name}/queues/{pattern}"):
                text = read(path)
                if text is not None:
                    values[f"link {name} {path.split('/queues/')[1]}"] = text
        for file in ("threaded", "gro_flush_timeout", "napi_defer_hard_irqs", "tx_queue_len"):
            text = read(f"/sys/class/net/{name}/{file}")
            if text is not None:
                values[f"link {name} {file}"] = text


def host_files(values):
    """Interrupts' CPUs, and the kernel's own settings."""
    patterns = [
        "/proc/irq/*/smp_affinity",
        "/proc/irq/default_smp_affinity",
        "/proc/sys/kernel/sched*",
        "/proc/sys/kernel/sched*/*",
        "/proc/sys/kernel/numa_balancing*",
        "/proc/sys/net/core/rps*",
        "/proc/sys/net/core/flow_limit*",
        "/proc/sys/net/core/default_qdisc",
        "/sys/kernel/debug/sched/*",
        "/sys/devices/system/cpu/online",
        "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor",
    ]
    for pattern in patterns:
        for path in glob.glob(pattern):
            # `debug` tells what runs at present.
            if os.path.isfile(path) and os.path.basename(path) != "debug":
                text = read(path)
                if text is not None:
                    values[f"file {path}"] = text


def network_dump():
    values, links = {}, []
    network(values, links)
    return {"values": values, "links": links}


def take(wanted=lambda tag: True, net=True):
    """The dump. `wanted` chooses tasks by their process's tag; `net`: with this namespace's links."""
    values, groups, links, found = {}, [], [], {}
    autogroup = {}
    for task in tasks(wanted):
        if not task.read_values():
            continue
        found[task.key()] = {
            "pid": task.pid, "tid": task.tid, "comm": task.comm, "tag": task.tag, "group": task.group,
            "state": task.state, "kernel": bool(task.flags & 0x00200000), "values": task.values,
        }  # fmt: skip
        if task.pid == task.tid:
            autogroup[task.key()] = (read(f"/proc/{task.pid}/autogroup"), read(f"/proc/{task.pid}/cgroup"))
    # One that is being forked is shown in the root cgroup, too, until it gets its parent's.
    rooted = [key for key, (_, member) in autogroup.items() if member and set(re.findall(r":([^:\n]*)$", member, re.M)) == {"/"}]
    if rooted:
        time.sleep(0.02)
        for key in rooted:
            autogroup[key] = (autogroup[key][0], read(f"/proc/{found[key]['pid']}/cgroup"))
    for key, (auto, member) in autogroup.items():
        values[f"task {key} autogroup"] = auto
        values[f"task {key} cgroup"] = member
    for key, task in found.items():
        for name, value in task["values"].items():
            values[f"task {key} {name}"] = value
    cgroups(values, groups)
    if net:
        network(values, links)
    host_files(values)
    # The harness has the default slice, as nobody gave it one.
    return {"values": values, "groups": sorted(groups), "links": sorted(links), "tasks": found, "slice": sched_attr(os.getpid())[4]}


def woken(name, now, after):
    """Whether a kernel thread has the kernel's default slice now. One that has slept since fewer CPUs were online still had
    the default of that time: it takes the present one when it runs (`place_entity` in kernel/sched/fair.c)."""
    kind, key, what = [*name.split(), "", ""][:3]
    return (kind, what, now) == ("task", "slice", after.get("slice")) and after["tasks"].get(key, {}).get("kernel", False)


def compare(before, after):
    """Differences in words, each with the name it is about."""
    out = []
    for name, was in before["values"].items():
        now = after["values"].get(name, was)
        if now != was and not woken(name, now, after):
            who = ""
            if name.startswith("task "):
                who = " (" + before["tasks"].get(name.split()[1], {}).get("comm", "?") + ")"
            out.append((name, f"{name}{who}: {now!r}, found {was!r}"))
    for name, now in after["values"].items():
        # A queueing discipline where there was none.
        if " qdisc " in name and name not in before["values"] and name.startswith("link"):
            if any(known.startswith(f"link {name.split()[1]} ") for known in before["values"]):
                out.append((name, f"{name}: {now!r}, there was none"))
    for kind in ("groups", "links"):
        was, now = set(before.get(kind, [])), set(after.get(kind, []))
        out += [(f"{kind} {name}", f"{name} is left over") for name in sorted(now - was)]
        out += [(f"{kind} {name}", f"{name} is gone") for name in sorted(was - now)]
    return out


def born(before, after, tag):
    """Tasks with a tag that were born in between: what they have must be what the leader of their process group had."""
    leaders = {task["tid"]: task for task in before["tasks"].values()}
    out = []
    for key, task in after["tasks"].items():
        leader = leaders.get(task["group"])
        if key in before["tasks"] or task["tag"] != tag or leader is None:
            continue
        for name, was in leader["values"].items():
            now = task["values"].get(name, was)
            if now != was:
                out.append((f"task {key} {name}", f"task {key} ({task['comm']}, born meanwhile) {name}: {now}, parents had {was}"))
    return out


def serve():
    """Answers each line on stdin with a dump of this namespace's network, until stdin ends."""
    for _ in sys.stdin:
        print(json.dumps(network_dump()), flush=True)


def main():
    if sys.argv[1:2] == ["--serve"]:
        return serve()
    if sys.argv[1:2] == ["--compare"]:
        before, after = (json.load(open(path, encoding="utf-8")) for path in sys.argv[2:4])
        differences = compare(before, after)
        for _, words in differences:
            print(words)
        return sys.exit(bool(differences))
    json.dump(take(), sys.stdout, indent=1)
    return None


if __name__ == "__main__":
    main()
