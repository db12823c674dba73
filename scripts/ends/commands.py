"""The commands that are ended, and how it is seen from outside that one has reached a state.

States: `trial` (something is being tried or set up), `force` (changes are in force), `restoring` (in force, and asked to end an
instant ago). What is seen: the loads' own values, journals on disk, the words on stderr, processes and cgroups."""

import glob
import os
import time

import dump
import host

STATES = ("trial", "force", "restoring")


def text(path, content):
    with open(path, "w", encoding="utf-8") as file:
        file.write(content)
    return path


def journaled(run):
    """Bytes in journals of the run."""
    found = glob.glob(f"{run.dir}/state/**/journal", recursive=True) + glob.glob(f"{run.dir}/tmp/**/journal", recursive=True)
    return sum(os.path.getsize(path) for path in found if os.path.exists(path))


def changed_loads(run):
    """Whether loads that the command itself started have other values than new tasks and cgroups have."""
    plain = dump.sched_attr(os.getpid())
    for task in dump.tasks(lambda tag: tag == run.tag):
        if task.pid != run.pid and dump.sched_attr(task.tid) not in (plain, None):
            return True
    mount, v2 = host.mount_of("cpu")
    file, default = ("cpu.weight", "100") if v2 else ("cpu.shares", "1024")
    return any(dump.read(path) not in (default, None) for path in glob.glob(f"{mount}/evenkeel-lab-{run.pid}*/**/{file}", recursive=True))


class Command:
    """How one command is started and looked at."""

    name = ""
    #: Exit statuses that are right after an end that can be answered.
    statuses = {0, 1}
    #: Seconds until a state is given up.
    patience = 30
    #: Whether what it did stays until `evenkeel restore`, on purpose.
    stays = False

    def arguments(self, run):
        raise NotImplementedError

    def reached(self, run):
        raise NotImplementedError

    def starting(self, run):
        """Whether the state is but a moment of its start, before which the kernel's default for a signal is right, too."""
        return False


class Run(Command):
    name = "run"

    def arguments(self, run):
        a, b = run.lane.victims.scopes()
        if run.state == "trial":
            config = '[run]\ninterval = "100ms"\ndecide_within = "8s"\n'
            words = ["--scope", a, "--scope", b]
            lever = run.random.choice([None, "batch+slice+weights", "short first+nice", "batch+slice by burst+pull"])
            words += ["--lever", lever] if lever else []
        else:
            config = f'[run]\ninterval = "200ms"\n[[guarantee]]\nscope = "{b}"\ncpu = "45%"\n'
            # Nice values, too: those of one load within its cgroup.
            config += f'[[guarantee]]\nscope = "pid:{run.lane.victims.processes[0].pid}"\ncpu = "20%"\n'
            words = ["--scope", a, "--scope", b, "--guarantees-only"]
        return ["--config", text(f"{run.dir}/run.toml", config), "run", *words, *run.end.run_arguments(run)]

    def reached(self, run):
        return journaled(run) > 0 and run.lane.victims.changed()


class Exec(Command):
    name = "exec"
    statuses = {7}

    def arguments(self, run):
        script = 'trap "exit 7" TERM INT HUP; : >"$0"; while :; do sleep 0.02; done'
        bounds = ["--cpu-limit", "50%", "--weight", "200", "--nice", "3", "--cpus", "0"]
        return ["exec", *bounds, "--", "sh", "-c", script, f"{run.dir}/ready"]

    def reached(self, run):
        if run.state == "trial":
            return time.monotonic() - run.began > run.delay
        return os.path.exists(f"{run.dir}/ready")

    def starting(self, run):
        return run.state == "trial"


class Demo(Command):
    name = "demo"
    patience = 60

    def arguments(self, run):
        kind = run.random.choice(["closed", "wall"])
        scene = "one-cgroup-jittered"
        return ["demo", "--anyway", "--scene", scene, "--kind", kind, "--report", f"{run.dir}/demo.html"]

    def reached(self, run):
        # First the published recipe is in force; when it has been taken back, the trial begins, and may show.
        changed = changed_loads(run)
        if run.state != "trial" or run.seen is None:
            run.seen = "recipe" if changed else None
            return changed and run.state != "trial"
        if run.seen == "recipe" and not changed:
            run.seen = time.monotonic()
        return run.seen != "recipe" and (changed or time.monotonic() - run.seen > 3)


class Prove(Command):
    name = "prove"
    patience = 60

    def arguments(self, run):
        if run.state == "trial" and run.readable() and run.random.random() < 0.3:
            return ["prove", "--aa", "2", "--seed", str(run.random.randint(1, 40))]
        if run.state == "trial":
            return ["prove", "--mixes", "1", "--seed", str(run.random.randint(1, 40)), "--at-most", "5s"]
        place = run.random.choice(["one-cgroup", "cgroup-each"])
        return ["prove", "--promises", "fixed", "--place", place, "--seconds", "30"]

    def reached(self, run):
        if run.state == "trial" and run.readable():
            return "trial of" in run.words()
        return changed_loads(run)


class Tune(Command):
    name = "tune"

    FILE = """
[[parameter]]
name = "quota"
kind = "real"
low = 20
high = 80
sets = "quota"
present = 50
[[parameter]]
name = "nice"
kind = "integer"
low = 0
high = 10
sets = "nice"
present = 3
[service]
command = ["sh", "-c", "while :; do sleep 0.02; done"]
[measure]
command = ["sleep", "77"]
timeout_s = 100
[objective]
name = "cpu"
goal = "max"
account = "cpu_pct"
"""

    def arguments(self, run):
        return ["tune", text(f"{run.dir}/tune.toml", self.FILE), "--dir", f"{run.dir}/tune"]

    def reached(self, run):
        lines = run.children()
        if run.state == "trial":
            return any("sleep 0.02" in line for line in lines)
        return any(line == "sleep 77" for line in lines)


class Lab(Command):
    name = "lab"

    FILE = """
name = "ends"
repetitions = 1
time_limit_s = 100
[[tenant]]
name = "web"
weight = 300
nice = 5
load = "primes"
run_s = 77
runs = 1
[[tenant]]
name = "batch"
quota_pct = 25
cpus = "0"
command = ["sleep", "77"]
"""

    def arguments(self, run):
        return ["lab", "run", text(f"{run.dir}/lab.toml", self.FILE), "--out", f"{run.dir}/lab"]

    def reached(self, run):
        lines = run.children()
        if run.state == "trial":
            return bool(lines)
        return any(line == "sleep 77" for line in lines)


class Net(Command):
    name = "net"

    def arguments(self, run):
        if run.state == "trial":
            return ["net", "set", "--link", "ek0", "--rps", "0-1", "--xps", "1"]
        group = run.lane.unified.path
        return ["net", "limit", "--link", "ek0", "--group", f"{group}=10mbit", "--for", "77s"]

    def reached(self, run):
        if run.state == "trial":
            return journaled(run) > 0
        if journaled(run) == 0:
            return False
        qdiscs = [v for k, v in run.lane.network.dump()["values"].items() if k.startswith("link ek0 tc class")]
        return any("htb" in text for text in qdiscs)

    def starting(self, run):
        return run.state == "trial"

    @property
    def stays(self):
        return True


COMMANDS = {command.name: command for command in (Run(), Exec(), Demo(), Prove(), Tune(), Lab(), Net())}
