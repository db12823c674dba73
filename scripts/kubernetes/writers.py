"""Who writes the settings of cgroups: fanotify tells the process of each write."""

import ctypes
import os
import struct
import time

from cluster import Beside

SETTINGS = ("cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.idle")
FAN_NONBLOCK, FAN_UNLIMITED_QUEUE = 0x2, 0x10
FAN_MARK_ADD, FAN_MARK_FILESYSTEM, FAN_MODIFY, FAN_Q_OVERFLOW = 0x1, 0x100, 0x2, 0x4000
AT_FDCWD = -100
# struct fanotify_event_metadata: length, version, reserved, length of this part, mask, descriptor, process.
EVENT = struct.Struct("=IBBHQii")


class Writers(Beside):
    """While it is entered: `found` has (seconds since the beginning, pid, path below the hierarchy's root, value)."""

    def __init__(self, root):
        super().__init__()
        self.root, self.found, self.lost = root, [], 0
        libc = ctypes.CDLL(None, use_errno=True)
        self.queue = libc.fanotify_init(FAN_NONBLOCK | FAN_UNLIMITED_QUEUE, os.O_RDONLY | os.O_LARGEFILE)
        mask = ctypes.c_uint64(FAN_MODIFY)
        if self.queue < 0 or libc.fanotify_mark(self.queue, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, mask, AT_FDCWD, root.encode()):
            raise OSError(ctypes.get_errno(), "fanotify", root)
        self.began = time.monotonic()

    def __exit__(self, *how):
        super().__exit__(*how)
        os.close(self.queue)

    def run(self):
        while not self.over.wait(0.005):
            self.drain()
        self.drain()

    def drain(self):
        while True:
            try:
                events = os.read(self.queue, 65536)
            except BlockingIOError:
                return
            except OSError:
                continue  # Its cgroup is gone before its file could be opened.
            at = 0
            while at < len(events):
                length, _, _, _, mask, file, pid = EVENT.unpack_from(events, at)
                at += length
                self.lost += bool(mask & FAN_Q_OVERFLOW)
                if file >= 0:
                    self.take(file, pid)

    def take(self, file, pid):
        try:
            path = os.readlink(f"/proc/self/fd/{file}")
            if path.endswith(SETTINGS):
                value = os.pread(file, 64, 0).decode().strip()
                self.found.append((time.monotonic() - self.began, pid, path.removeprefix(self.root), value))
        except OSError:
            pass  # The cgroup is gone.
        finally:
            os.close(file)
