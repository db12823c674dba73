"""One command, brought to a state and ended, and what it left behind."""

import glob
import os
import random
import re
import shutil
import signal
import subprocess
import time

import dump
import host

# Until a command that was asked to end is taken for hung, seconds.
PATIENCE = 30
# Where the program may leave directories.
PLACES = ("/tmp/evenkeel*", "/run/evenkeel*", "/dev/shm/evenkeel*", "/var/lib/evenkeel*")


def places():
    """Directories of the program."""
    return {path for place in PLACES for path in glob.glob(place)}


class Run:
    """One command, brought to a state and ended."""

    def __init__(self, lane, number, cell, seed, mine):
        self.lane, self.mine = lane, mine
        self.command, self.end, self.state = cell
        self.random = random.Random(seed)
        self.tag = f"{lane.name}/{number}"
        self.dir = f"{lane.dir}/{number}"
        self.delay = self.random.uniform(0, 0.06)
        self.process = self.pid = self.reader = self.port = None
        self.to_close, self.pids, self.heard = [], set(), b""
        # What the command's own look at its state remembers.
        self.start_time = self.seen = None
        self.problems, self.left, self.mended, self.status = [], [], None, None
        self.began = time.monotonic()
        self.ended_early = self.reached = self.hung = False

    # What is seen of it.

    def wanted(self, tag):
        """Whose tasks are compared."""
        return tag.startswith(self.lane.name + "/") or (not self.mine and not tag)

    def dump(self):
        taken = dump.take(self.wanted, net=not self.mine)
        if self.command.name == "net":
            inside = self.lane.network.dump()
            taken["values"].update({f"inside {key}": value for key, value in inside["values"].items()})
            taken["links"] += [f"inside {link}" for link in inside["links"]]
        taken["groups"] = [group for group in taken["groups"] if self.attributed(group)]
        taken["places"] = sorted(places())
        return taken

    def attributed(self, group):
        """Whether a cgroup is this run's to answer for: not another lane's, nor one of a program that others run."""
        if self.lane.name in group:
            return True
        if re.search(r"\bek-mx-", group):
            return False
        ours = self.pids & {int(number) for number in re.findall(r"\d+", group.partition(":")[2])}
        return bool(ours) or (not self.mine and "/evenkeel-" not in group)

    def children(self):
        """Command lines of its processes but the first."""
        lines = []
        for name in os.listdir("/proc"):
            if name.isdigit() and dump.tag_of(int(name)) == self.tag:
                self.pids.add(int(name))
                line = (dump.read(f"/proc/{name}/cmdline") or "").replace("\0", " ").strip()
                if int(name) not in (self.pid, self.process.pid) and line:
                    lines.append(line)
        return lines

    def living(self):
        """Process numbers of what it started that still is there."""
        return {task.pid for task in dump.tasks(lambda tag: tag == self.tag)}

    def readable(self):
        return self.end.name != "full-log"

    def words(self):
        """What it said on stderr so far."""
        try:
            while self.reader is not None and (piece := os.read(self.reader, 65536)):
                self.heard += piece
        except OSError:
            pass
        with open(f"{self.dir}/stderr", "rb") as file:
            return (self.heard + file.read()).decode("utf-8", "replace")

    def alive(self):
        if self.start_time is None:
            return False
        stat = dump.read(f"/proc/{self.pid}/stat")
        fields = stat.rpartition(") ")[2].split() if stat else []
        return bool(fields) and fields[0] not in "ZX" and fields[19] == self.start_time

    # What is done to it.

    def kill(self, number):
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def start(self):
        for name in ("tmp", "state"):
            os.makedirs(f"{self.dir}/{name}", mode=0o700)
        # What lasts is made first.
        _ = self.lane.victims, self.lane.unified, self.lane.network
        prefix = self.end.prefix(self)
        self.before = self.dump()
        stdin, stdout, stderr = self.end.streams(self)
        files = [open(f"{self.dir}/{name}", "wb") for name in ("stdout", "stderr")]
        binary = self.lane.binary
        words = prefix + (self.lane.network.enter() if self.command.name == "net" else [])
        words += [binary, "--state-dir", f"{self.dir}/state", *self.command.arguments(self)]
        environment = {**os.environ, "TMPDIR": f"{self.dir}/tmp", dump.TAG: self.tag, **self.end.environment(self)}
        environment.pop("EVENKEEL_STATE_DIR", None)
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=files[0] if stdout is None else stdout,
            stderr=files[1] if stderr is None else stderr,
            env=environment, cwd=self.dir, start_new_session=True, preexec_fn=lambda: self.end.child(self),
        )  # fmt: skip
        for file in files:
            file.close()
        for descriptor in self.to_close:
            os.close(descriptor)
        host.wait_for(lambda: self.find(bool(prefix), binary), 10)

    def find(self, wrapped, binary):
        """Finds the program itself, which a wrapper may have started."""
        pids = [self.process.pid]
        if wrapped:
            pids = [int(p) for p in (dump.read(f"/proc/{pids[0]}/task/{pids[0]}/children") or "").split()]
        for pid in pids:
            stat = dump.read(f"/proc/{pid}/stat")
            try:
                program = os.readlink(f"/proc/{pid}/exe")
            except OSError:
                continue
            if stat and os.path.realpath(binary) == program:
                self.pid, self.start_time = pid, stat.rpartition(") ")[2].split()[19]
                self.pids.add(pid)
                return True
        return self.process.poll() is not None

    def wait_for_state(self):
        def there():
            if not self.alive():
                return True
            if self.reader is not None:
                self.words()
            return self.command.reached(self)

        step = 0.003 if self.command.starting(self) else 0.03
        in_time = host.wait_for(there, self.command.patience, step)
        if not self.command.starting(self):
            self.children()
        if not self.alive() and self.end.early and not self.command.starting(self):
            return True
        if not in_time or not self.alive():
            return False
        if self.state == "trial" and not self.command.starting(self):
            time.sleep(self.random.uniform(0, 0.4))
        elif self.state == "restoring":
            self.kill(signal.SIGTERM)
            time.sleep(self.random.uniform(0, 0.004))
        return self.state == "restoring" or self.alive()

    def finish(self):
        """Waits for its end; what is needed for it is done."""
        if self.end.linger is not None:
            if host.wait_for(lambda: not self.alive(), self.end.linger if self.state != "restoring" else 0, 0.02):
                self.ended_early = True
            self.kill(signal.SIGTERM)
        self.hung = not host.wait_for(self.has_ended, PATIENCE, 0.005)
        if self.hung:
            self.kill(signal.SIGKILL)
            host.wait_for(self.has_ended, 5)
        self.status = self.process.poll()

    def has_ended(self):
        if self.reader is not None:
            self.words()
        return not self.alive() and (self.end.name == "parent-death" or self.process.poll() is not None)

    def go(self):
        self.start()
        self.reached = self.wait_for_state()
        if self.reached:
            try:
                self.end.act(self)
            except (ProcessLookupError, FileNotFoundError):
                # Asked to end before, it already has.
                if self.alive():
                    raise
        else:
            self.kill(signal.SIGTERM)
        self.finish()
        self.end.after(self)
        words = self.words()
        if self.end.name == "panic" and "injected" not in words:
            # It did not come to its point, in whatever state.
            self.reached = False
        self.look()
        if self.reached:
            self.judge(words)
        self.clear()

    def restore(self):
        enter = self.lane.network.enter() if self.command.name == "net" else []
        command = [*enter, self.lane.binary, "--state-dir", f"{self.dir}/state", "restore"]
        environment = {**os.environ, "TMPDIR": f"{self.dir}/tmp"}
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            return None, "it had not ended after a minute"
        return done.returncode, (done.stdout + done.stderr).strip()

    def look(self):
        """What is left."""
        lethal = self.end.lethal or self.hung
        stays = lethal and self.command.name == "exec"
        # Helpers of a killed command end of themselves, also those that the shortage of memory held up in the kernel.
        host.wait_for(lambda: not self.living(), 1 if stays else 5, 0.05)
        if stays:
            # It goes on within its bounds, as is documented; its user ends it.
            for pid in self.living():
                os.kill(pid, signal.SIGKILL)
            host.wait_for(lambda: not self.living(), 3, 0.02)
        if lethal or self.command.stays or not self.reached:
            status, words = self.restore()
            if status != 0:
                self.problems.append(f"restore ended with {status}: {words[:300]}")
        self.left = self.differences()
        if self.left:
            # Would `restore` have mended it?
            status, words = self.restore()
            still = self.differences()
            self.mended = not still
            if still:
                self.left += [f"also after restore, which ended with {status}: {words[-300:]!r}", *still[:6]]

    def differences(self):
        after = self.dump()
        left = [words for _, words in filter(self.counts, dump.compare(self.before, after))]
        left += [words for _, words in dump.born(self.before, after, f"{self.lane.name}/victim")]
        left += [f"process {pid} is left over: {dump.read(f'/proc/{pid}/comm')}" for pid in self.living()]
        state = [f"{self.dir}/state/{rest}" for rest in ("journal", "host/journal", "lab/journal", "exec/*")]
        files = [path for pattern in (f"{self.dir}/tmp/*", *state) for path in glob.glob(pattern)]
        files += [path for path in after["places"] if path not in self.before["places"] and self.owns(path)]
        return left + [f"{path.replace(self.dir, '')} is left over" for path in files]

    def owns(self, path):
        """Whether a directory's name carries one of its process numbers: others are another lane's, judged there."""
        return bool(self.pids & {int(number) for number in re.findall(r"(?<![0-9a-zA-Z])\d+(?![0-9a-zA-Z])", path)})

    def counts(self, difference):
        name = difference[0]
        return not name.startswith("cgroup ") or self.attributed(name.split()[1])

    def judge(self, words):
        """Whether it ended as it should."""
        if self.hung:
            self.problems.append(f"had not ended {PATIENCE} s later")
        allowed = None if self.end.also is None else self.command.statuses | self.end.also
        if self.end.name == "panic":
            allowed = {101}
        elif self.end.lethal:
            # Asked to end before, or done within an instant, it may have been faster.
            faster = self.state == "restoring" or self.command.stays
            allowed = {-signal.SIGKILL, 137} | (self.command.statuses if faster else set())
        elif allowed and self.command.starting(self):
            # A signal before it is listened to, or before the child listens.
            allowed = allowed | {-number for number in (1, 2, 15)} | {128 + number for number in (1, 2, 15)} | {0, 1}
            if self.end.name == "descriptors":
                # The dynamic loader's, where it cannot open a library.
                allowed = allowed | {127}
        if not self.hung and allowed is not None and self.status not in allowed:
            self.problems.append(f"exit status {self.status}, not one of {sorted(allowed)}")
        # Restoring, it had been asked to end before.
        asked = self.state == "restoring" or self.command.starting(self)
        if self.ended_early and self.end.name == "nohup-terminal" and not asked:
            self.problems.append("ended of itself when the terminal went away under nohup")
        if "panicked" in words and self.end.name != "panic":
            self.problems.append("panicked: " + words[words.index("panicked") :][:160])

    def clear(self):
        """Everything of this run goes, whatever it left; what is not as found is made anew for the next."""
        for pid in self.living():
            os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.reader is not None:
            os.close(self.reader)
        host.wait_for(lambda: not self.living(), 3)
        for controllers, mount in dump.cgroup_mounts():
            for pid in self.pids:
                for directory in glob.glob(f"{mount}/evenkeel-*-{pid}*"):
                    for inner, _, _ in os.walk(directory, topdown=False):
                        host.wait_for(lambda d=inner: remove(d), 1, 0.02)
        if self.left:
            self.lane.new("victims")
        if self.left or self.command.name == "net":
            self.lane.new("network")
        if not self.left:
            shutil.rmtree(self.dir, ignore_errors=True)
        for path in glob.glob("/tmp/evenkeel*"):
            if path not in self.before["places"] and self.owns(path) and self.mine:
                shutil.rmtree(path, ignore_errors=True)

    def result(self):
        return {
            "command": self.command.name, "end": self.end.name, "state": self.state, "reached": self.reached,
            "left": self.left, "mended": self.mended, "problems": self.problems, "hung": self.hung,
            "status": self.status, "point": getattr(self, "point", None), "seconds": round(time.monotonic() - self.began, 1), "tag": self.tag,
        }  # fmt: skip


def remove(directory):
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
