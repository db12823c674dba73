"""The ends: what happens to a command in a state. Those that only make its life hard are followed by SIGTERM."""

import fcntl
import os
import resource
import signal
import socket
import struct
import sys
import termios
import time

import host

SIGNALS = {"sigint": signal.SIGINT, "sigterm": signal.SIGTERM, "sighup": signal.SIGHUP}


class End:
    """One way to end. `prepare` may change how the command is started; `act` is what happens in the state."""

    name = ""
    #: Nothing of the program's can run any more: `evenkeel restore` follows.
    lethal = False
    #: Seconds in which it goes on before it gets SIGTERM; None: it ends of this.
    linger = None
    #: Commands it can happen to; None: all.
    commands = None
    #: It acts from the start on: who ends before the state has ended of it.
    early = False
    #: Further exit statuses that are right; `None` as the set: any.
    also = frozenset()

    def fits(self, command, state):
        return self.commands is None or command in self.commands

    def run_arguments(self, run):
        return []

    def environment(self, run):
        return {}

    def prefix(self, run):
        """Words before the command: who starts it."""
        return []

    def streams(self, run):
        """Descriptors of stdin, stdout and stderr, of which None is a file that is read, and what to close in the parent."""
        return None, None, None

    def child(self, run):
        """In the child, before exec."""

    def act(self, run):
        raise NotImplementedError

    def after(self, run):
        """When it has ended."""


class Signal(End):
    def __init__(self, name, number, times=1):
        self.name, self.number, self.times = name, number, times

    def act(self, run):
        for _ in range(self.times):
            run.kill(self.number)


class Group(End):
    """As `timeout` ends a command: the process, and at once its whole group. By coreutils' own."""

    name = "timeout"

    def prefix(self, run):
        return ["timeout", "600"]

    def act(self, run):
        os.kill(run.process.pid, signal.SIGTERM)


class Kill(End):
    name = "sigkill"
    lethal = True

    def act(self, run):
        run.kill(signal.SIGKILL)


class Stop(End):
    """Stopped for a while; half of the time SIGTERM comes while it is."""

    name = "stop-cont"
    linger = 0.3

    def act(self, run):
        run.kill(signal.SIGSTOP)
        time.sleep(run.random.uniform(0.1, 0.8))
        if run.random.random() < 0.5:
            run.kill(signal.SIGTERM)
        run.kill(signal.SIGCONT)


class Pipe(End):
    """The reader of stdout, of stderr or of both goes away."""

    linger = 1.5

    def __init__(self, name, out, err):
        self.name, self.out, self.err = name, out, err

    def streams(self, run):
        run.reader, writer = os.pipe()
        os.set_blocking(run.reader, False)
        run.to_close.append(writer)
        return None, writer if self.out else None, writer if self.err else None

    def act(self, run):
        os.close(run.reader)
        run.reader = None


class Terminal(End):
    """The terminal it runs on goes away; with nohup only SIGTERM ends it then."""

    # Results have nowhere to go.
    also = frozenset({3})

    def __init__(self, name, nohup):
        self.name, self.nohup = name, nohup
        self.linger = 1.0 if nohup else None

    def streams(self, run):
        run.reader, slave = os.openpty()
        os.set_blocking(run.reader, False)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        run.to_close.append(slave)
        return slave, slave, slave

    def child(self, run):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if self.nohup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def act(self, run):
        os.close(run.reader)
        run.reader = None


class FullLog(End):
    """stderr is a file on a full file system."""

    name = "full-log"
    early = True
    linger = 0.8

    def streams(self, run):
        full = os.open("/dev/full", os.O_WRONLY)
        run.to_close.append(full)
        return None, None, full

    def act(self, run):
        pass


class Descriptors(End):
    """Not one more descriptor can be opened: the limit is where the highest one is."""

    name = "descriptors"
    linger = 0.8
    # It cannot go on; of `exec` that is 125.
    also = frozenset({3, 125})

    def act(self, run):
        highest = max((int(name) for name in os.listdir(f"/proc/{run.pid}/fd")), default=0)
        hard = resource.prlimit(run.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(run.pid, resource.RLIMIT_NOFILE, (highest + 1, hard))


class Memory(End):
    """The kernel kills it for want of memory in its cgroup."""

    name = "out-of-memory"
    lethal = True

    def prefix(self, run):
        self.group = run.lane.memory
        self.limit(1 << 40)
        return []

    def limit(self, size):
        self.group.set(("memory.limit_in_bytes", size), ("memory.max", size))

    def child(self, run):
        self.group.join()

    def act(self, run):
        # The score is worth as much as the whole limit. Each of those who take the memory has far less, with what a
        # Python interpreter brings along: otherwise one of them would be killed, and nothing would be short any more.
        host.write(f"/proc/{run.pid}/oom_score_adj", 1000)
        self.limit(self.group.get("memory.usage_in_bytes", "memory.current") + (64 << 20))
        pids = [host.hog(self.group, 20 << 20) for _ in range(4)]
        try:
            host.wait_for(lambda: not run.alive(), 20, 0.002)
        finally:
            self.limit(1 << 40)
            for pid in pids:
                # It may have been the next to go.
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


class Http(End):
    """A client of `--listen` that hangs up before it has its answer, again and again."""

    name = "sigpipe-http"
    commands = {"run"}
    linger = 0.3

    def run_arguments(self, run):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            run.port = probe.getsockname()[1]
        return ["--listen", f"127.0.0.1:{run.port}"]

    def act(self, run):
        for _ in range(60):
            try:
                with socket.create_connection(("127.0.0.1", run.port), timeout=1) as client:
                    if run.random.random() < 0.5:
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
            except OSError:
                pass
            time.sleep(0.002)


class Connections(Http):
    """More idle connections to `--listen` than it may have descriptors."""

    name = "connections"
    linger = 1.0
    also = frozenset({3})

    def child(self, run):
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

    def act(self, run):
        run.sockets = []
        for _ in range(200):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", run.port))
            run.sockets.append(client)

    def after(self, run):
        for client in getattr(run, "sockets", []):
            client.close()


class Cri(End):
    """The container runtime hangs up in the middle of every question."""

    name = "sigpipe-cri"
    early = True
    commands = {"run"}
    linger = 0.8

    def environment(self, run):
        url = f"unix://{run.lane.runtime[0]}"
        return {"CONTAINER_RUNTIME_ENDPOINT": url, "DOCKER_HOST": url}

    def act(self, run):
        pass


class Orphan(End):
    """Its parent is killed; it may go on."""

    name = "parent-death"
    linger = 0.4
    also = None

    def prefix(self, run):
        return [sys.executable, "-Sc", "import subprocess, sys; subprocess.run(sys.argv[1:])"]

    def act(self, run):
        run.process.kill()
        run.process.wait()


class Panic(End):
    """A panic at a point of the program, by its test hook. Which commands pass any point: those that hold changes."""

    name = "panic"
    early = True
    commands = {"run", "demo", "prove", "net"}

    def __init__(self, points=()):
        self.points = points

    def fits(self, command, state):
        return bool(self.points) and command in self.commands

    def environment(self, run):
        # The n-th time the point is passed, more often early than late.
        net = run.command.name == "net"
        points = [point for point in self.points if point == "any" or point.startswith("net.") == net] or self.points
        run.point = f"{run.random.choice(points)}:{min(int(run.random.paretovariate(1)), 40)}"
        return {"EVENKEEL_TEST_PANIC_AT": run.point}

    def act(self, run):
        # It may not have come to its point, or come to it only when it is asked to end.
        if not host.wait_for(lambda: not run.alive(), 1.5, 0.01):
            run.kill(signal.SIGTERM)


def ends(points=()):
    """All of them by name."""
    every = [
        Signal("sigint", signal.SIGINT),
        Signal("sigterm", signal.SIGTERM),
        Signal("sigterm-twice", signal.SIGTERM, 2),
        Group(),
        Signal("sighup", signal.SIGHUP),
        Pipe("sigpipe-stdout", True, False),
        Pipe("sigpipe-stderr", False, True),
        Pipe("head-1", True, True),
        Http(),
        Connections(),
        Cri(),
        Kill(),
        Terminal("terminal", False),
        Terminal("nohup-terminal", True),
        FullLog(),
        Descriptors(),
        Memory(),
        Stop(),
        Orphan(),
        Panic(points),
    ]
    return {end.name: end for end in every}
