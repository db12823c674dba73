"""What a lane of the harness has of its own: cgroups with loads that are tuned, a network namespace, a memory cgroup,
a container runtime that hangs up. All of it ends with the lane."""

import ctypes
import functools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

import dump

HERE = os.path.dirname(os.path.abspath(__file__))
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

# Forks children and orphans that live for a while and inherit what their parent has.
FORKING = (
    "while :; do i=0; while [ $i -lt 1500 ]; do i=$((i+1)); done; "
    "sleep 0.4 & (sleep 0.4 & sleep 0.1) & sleep 0.05; done"
)


def with_parent(number=signal.SIGKILL):
    """For a child, before exec: it ends with this process."""
    _libc.prctl(PR_SET_PDEATHSIG, number)


def wait_for(holds, seconds, step=0.005):
    """Whether something holds within a time."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(step)
    return True


def mount_of(controller):
    """(mount point, whether it is version 2) of a controller's hierarchy."""
    unified = None
    for controllers, mount in dump.cgroup_mounts():
        if controller in controllers.split(","):
            return mount, False
        if controllers == "unified" and controller in (dump.read(f"{mount}/cgroup.controllers") or "").split():
            unified = mount
    return unified, unified is not None


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(str(text))


class Group:
    """A cgroup of one controller (`unified`: of version 2, whatever its controllers), removed by `remove`."""

    def __init__(self, name, controller="cpu"):
        mount, self.v2 = mount_of(controller)
        if mount is None:
            raise OSError(f"there is no {controller} controller on this host")
        if self.v2 and controller != "unified":
            write(f"{mount}/cgroup.subtree_control", f"+{controller}")
        self.path = "/" + name
        self.dir = mount + self.path
        os.mkdir(self.dir)

    def set(self, v1, v2):
        file, value = v2 if self.v2 else v1
        write(f"{self.dir}/{file}", value)

    def get(self, v1, v2):
        return int(dump.read(f"{self.dir}/{v2 if self.v2 else v1}"))

    def join(self):
        write(f"{self.dir}/cgroup.procs", 0)

    def kill(self):
        for pid in (dump.read(f"{self.dir}/cgroup.procs") or "").split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass

    def remove(self):
        def gone():
            self.kill()
            try:
                os.rmdir(self.dir)
            except FileNotFoundError:
                pass
            except OSError:
                return False
            return True

        if not wait_for(gone, 5, 0.02):
            print(f"{self.dir} is left behind by the harness itself", file=sys.stderr)


class Victims:
    """Two cgroups of unequal weights with loads in them, some of which somebody tuned before: what is to be found unchanged."""

    def __init__(self, lane):
        self.lane, self.tag = lane, f"{lane.name}/victim"
        self.groups, self.processes = [], []
        try:
            self.start()
        except BaseException:
            self.remove()
            raise

    def start(self):
        for name, v1, v2 in (("a", 512, 50), ("b", 2048, 200)):
            group = Group(f"{self.lane.name}-{name}")
            self.groups.append(group)
            group.set(("cpu.shares", v1), ("cpu.weight", v2))
        duty = [self.lane.binary, "load", "duty", "--seconds", "36000", "--period", "40ms"]
        one, two = self.groups
        self.add(one, duty + ["--percent", "35", "--kind", "closed"])
        self.add(one, duty + ["--percent", "25", "--kind", "wall"])
        self.add(one, duty + ["--percent", "30", "--kind", "closed"])
        self.add(two, duty + ["--percent", "40", "--kind", "closed"])
        self.add(two, duty + ["--percent", "20", "--kind", "wall"])
        # Before it has children: they inherit it.
        self.add(two, ["nice", "-n", "1", "sh", "-c", FORKING])
        time.sleep(0.3)
        # As if an administrator had been here.
        os.setpriority(os.PRIO_PROCESS, self.processes[1].pid, 2)
        os.sched_setaffinity(self.processes[2].pid, {min(os.sched_getaffinity(0))})
        self.found = self.state()

    def add(self, group, command):
        def child():
            with_parent()
            group.join()

        environment = {**os.environ, dump.TAG: self.tag}
        null = subprocess.DEVNULL
        process = subprocess.Popen(
            command, stdin=null, stdout=null, stderr=null, env=environment, preexec_fn=child, process_group=0
        )
        self.processes.append(process)

    def state(self):
        """A quick look: attributes of the loads, and weights of their cgroups."""
        attributes = [dump.sched_attr(process.pid) for process in self.processes]
        weights = [group.get("cpu.shares", "cpu.weight") for group in self.groups]
        return attributes, weights

    def changed(self):
        return self.state() != self.found

    def scopes(self):
        return [f"cgroup:{group.path}" for group in self.groups]

    def remove(self):
        for group in self.groups:
            group.remove()
        for process in self.processes:
            process.kill()
            process.wait()
        self.groups, self.processes = [], []


class Network:
    """A network namespace with a pair of links. It has its own /sys, since that shows one namespace only."""

    def __init__(self, lane):
        dir_ = f"{lane.dir}/sysfs"
        os.makedirs(dir_, exist_ok=True)
        script = (
            f"mount --rbind /sys/fs/cgroup {dir_} && mount -t sysfs sysfs /sys && mount --rbind {dir_} /sys/fs/cgroup && "
            f"umount -l {dir_} && ip link set lo up && "
            "ip link add ek0 numtxqueues 16 numrxqueues 16 type veth peer name ek1 numtxqueues 16 numrxqueues 16 && "
            f"ip link set ek0 up && ip link set ek1 up && exec {sys.executable} {HERE}/dump.py --serve"
        )
        self.process = subprocess.Popen(
            ["unshare", "-n", "-m", "--propagation", "private", "sh", "-ec", script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=with_parent,
        )  # fmt: skip
        self.dump()

    def dump(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise OSError("the network namespace could not be made (unshare, ip and nsenter are needed)")
        return json.loads(line)

    def enter(self):
        """Words before a command that is to run in it."""
        return ["nsenter", "-t", str(self.process.pid), "-n", "-m", f"--wd={os.getcwd()}", "--"]

    def remove(self):
        # It and its children hold the namespace; there are none.
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def hang_up(path):
    """A container runtime's socket that takes what is said and closes, again and again; ends with its parent."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(path)
    server.listen(16)
    pid = os.fork()
    if pid:
        server.close()
        return pid
    with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        peer, _ = server.accept()
        # The first bytes of the connection are taken, so that the next write meets a closed socket.
        select.select([peer], [], [], 0.2)
        try:
            peer.recv(16)
        except OSError:
            pass
        peer.close()
        with open(f"{path}.count", "a", encoding="utf-8") as file:
            file.write(".")


def hog(group, size):
    """Takes so much memory in a cgroup and keeps it until it is killed."""
    pid = os.fork()
    if pid:
        return pid
    try:
        with_parent()
        group.join()
        taken = []
        while len(taken) * (256 << 10) < size:
            taken.append(bytearray(os.urandom(4096) * 64))
            time.sleep(0.0002)
        while True:
            signal.pause()
    finally:
        os._exit(1)


class Lane:
    """Runs one after the other, and what they share."""

    def __init__(self, binary, number):
        self.binary, self.number = binary, number
        self.name = f"ek-mx-{os.getpid()}"
        self.dir = f"/tmp/{self.name}"
        os.mkdir(self.dir, 0o700)

    @functools.cached_property
    def victims(self):
        return Victims(self)

    @functools.cached_property
    def network(self):
        return Network(self)

    @functools.cached_property
    def memory(self):
        return Group(f"{self.name}-memory", "memory")

    @functools.cached_property
    def unified(self):
        return Group(f"{self.name}-net", "unified")

    @functools.cached_property
    def runtime(self):
        """Socket of a container runtime that hangs up, and the process that does."""
        path = f"{self.dir}/cri.sock"
        return path, hang_up(path)

    def new(self, *names):
        """What was made of these is removed; who needs it next makes it anew."""
        for name in names:
            if name in self.__dict__:
                self.__dict__.pop(name).remove()

    def close(self):
        self.new("victims", "network", "memory", "unified")
        if "runtime" in self.__dict__:
            os.kill(self.runtime[1], signal.SIGKILL)
            os.waitpid(self.runtime[1], 0)
        shutil.rmtree(self.dir, ignore_errors=True)
