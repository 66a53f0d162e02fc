"""Where output goes in a chaos run: consoles that do not take it, disks that are full; and limits that are too low."""

import fcntl
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from supervise import DefaultLogsSpecs, LogsDest, Std

CONSOLES = ("file", "file", "unread pipe", "broken pipe", "raising text")
_MOST_CHILDREN = 50
LOGS = ("none", "files", "tee", "tee", "full disk", "full device")


class Console:
    """What a gang takes for the host's stdout and stderr."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.path = folder / "console"
        self._fds: list[int] = []
        if kind == "raising text":
            self.stream: io.TextIOBase = _Raising()
            return
        if kind == "file":
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        else:
            read, fd = os.pipe2(os.O_CLOEXEC)
            if kind == "broken pipe":
                os.close(read)
            else:
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 4096)
                self._fds.append(read)
        self.stream = os.fdopen(fd, "w")

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Be this process's stdout and stderr for a block."""
        before = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = self.stream  # type: ignore[assignment]
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before

    def close(self) -> None:
        self.stream.close()
        for fd in self._fds:
            os.close(fd)


class _Raising(io.StringIO):
    """A stream of the user's that is broken."""

    def write(self, text: str) -> int:
        raise RuntimeError("this stream is broken")


def logs_specs(kind: str, folder: Path) -> DefaultLogsSpecs:
    """Return the specs of one kind of `LOGS`."""
    if kind == "none":
        return DefaultLogsSpecs(os.devnull)
    if kind == "full disk":
        return DefaultLogsSpecs(_disk[0], tee=Std.ALL)
    if kind == "full device":
        return _FullDevice(str(folder / "logs"), redirects=Std.ALL)
    return DefaultLogsSpecs(str(folder / "logs"), **{"redirects" if kind == "files" else "tee": Std.ALL})


class _FullDevice(DefaultLogsSpecs):
    """Every stdout is a device that says ENOSPC."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        dest = super().reify(envs)
        dest.stdouts = dict.fromkeys(dest.stdouts, "/dev/full")
        return dest


_disk: list[str] = []
"""Where the small disk is, while there is one."""


@contextmanager
def small_disk() -> Iterator[None]:
    """Have, for a block, a disk of its own that takes a few log files and then no byte more.

    It has no name in the file system, but is held by a descriptor, so that it is gone with this process however that
    ends. Where none can be mounted (it takes root) it is an ordinary folder.
    """
    folder = tempfile.mkdtemp(prefix="chaos-disk-")
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "chaos", folder]
    mounted = os.geteuid() == 0 and subprocess.run(mount, check=False, capture_output=True).returncode == 0
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if mounted:
        subprocess.run(["umount", "--lazy", folder], check=True)
    _disk.append(f"/proc/{os.getpid()}/fd/{fd}" if mounted else folder)
    try:
        yield
    finally:
        _disk.clear()
        os.close(fd)
        shutil.rmtree(folder, ignore_errors=True)


def empty_small_disk() -> None:
    """Make the small disk as it was at first, for the next machine."""
    for entry in Path(_disk[0]).iterdir():
        shutil.rmtree(entry, ignore_errors=True)


@contextmanager
def few_descriptors(spare: int) -> Iterator[None]:
    """Let this process open only so many descriptors more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208 - only the names
    free = (number for number in range(3, soft) if number not in used)
    limit = next(number for count, number in enumerate(free, 1) if count > spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def no_threads() -> Iterator[None]:
    """Let this process start no thread: the kernel has no room for such a stack."""
    usual = threading.stack_size(1 << 47)
    try:
        yield
    finally:
        threading.stack_size(usual)


@contextmanager
def forking() -> Iterator[None]:
    """Fork without pause, in a thread; each child holds what it has inherited until the end."""
    ended = threading.Event()
    children: list[int] = []

    def fork() -> None:
        while not ended.is_set() and len(children) < _MOST_CHILDREN:
            pid = os.fork()
            while pid == 0:
                signal.pause()
            children.append(pid)

    thread = threading.Thread(target=fork, name="chaos-forks")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            for pid in children:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
