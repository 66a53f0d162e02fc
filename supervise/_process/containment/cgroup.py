"""Control groups: those of this process, one for each rank of a gang (cgroup v2), and their counts of OOM kills."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
from functools import cache
from typing import TYPE_CHECKING, Literal

from supervise._process.containment.procfs import unless_gone
from supervise._record import NamedTuple
from supervise._runtime import fork_hooks
from supervise.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PREFIX = "supervise-"
_LONGEST_NAME = 60


class Tree(NamedTuple):
    """A mounted tree of control groups: the unified one of v2, or that of a controller of v1."""

    mount: str
    root: str
    """The control group at the mount point."""
    controller: str
    """As in /proc/<pid>/cgroup: ``""`` for the unified tree, ``memory`` or ``cpu`` for v1."""

    def directory(self, path: str) -> str | None:
        """Return the folder of a control group named as in /proc/<pid>/cgroup; None if it is not below the mount."""
        if ".." in path.split("/"):  # outside of this cgroup namespace
            return None
        root = self.root.rstrip("/")
        if path != root and not path.startswith(root + "/"):
            return None
        return os.path.normpath(self.mount + path[len(root) :])

    def path_of(self, pid: int | str, proc: str = "/proc") -> str | None:
        """Return the control group of a process in this tree, as /proc names it; None if /proc does not show it."""
        for line in _content(f"{proc}/{pid}/cgroup").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if (number == "0") if not self.controller else (self.controller in controllers.split(",")):
                return path.removesuffix(" (deleted)")
        return None

    def own(self, proc: str = "/proc") -> str | None:
        """Return the folder of this process's control group; None if there is none."""
        path = self.path_of("self", proc)
        return None if path is None else self.directory(path)


def tree(kind: Literal["unified", "memory", "cpu"], proc: str = "/proc") -> Tree | None:
    """Return a mounted tree; None if there is none."""
    try:
        with open(f"{proc}/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in lines:
        mounted, _, filesystem = line.partition(" - ")
        kinds = filesystem.split()
        wanted = "cgroup2" if kind == "unified" else "cgroup"
        if kinds[0] == wanted and (kind == "unified" or kind in kinds[-1].split(",")):
            root, mount = map(_unescaped, mounted.split()[3:5])
            return Tree(mount, root, "" if kind == "unified" else kind)
    return None


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def cpu_quota(proc: str = "/proc") -> float:
    """Return how many CPUs this process may use by the quotas of its control group and of those above it.

    Args:
        proc: The mount point of procfs.

    Returns:
        Such as 1.5; infinity if there is no quota.
    """
    least = float("inf")
    for found in (tree("unified", proc), tree("cpu", proc)):
        folder = None if found is None else found.own(proc) or found.mount
        while found is not None and folder is not None:
            least = min(least, _quota_of(folder, found.controller))
            folder = None if folder == found.mount else os.path.dirname(folder)
    return least


def _quota_of(folder: str, controller: str) -> float:
    words: list[str] = []
    try:
        for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controller else ("cpu.max",):
            with open(f"{folder}/{name}", encoding="ascii") as file:
                words += file.read().split()
        quota, period = map(int, words)
    except (OSError, ValueError):  # no quota is "max", and the root has no file
        return float("inf")
    return quota / period if quota > 0 and period > 0 else float("inf")


@cache
def _unified() -> Tree | None:
    return tree("unified")


def own_folder() -> str:
    """Return this process's folder in the unified tree, in which it may make control groups.

    Raises:
        SpecError: There is none, or this process has no permission; the text says which.
    """
    unified = _unified()
    own = None if unified is None else unified.own()
    why = None
    if unified is None:
        why = "no cgroup v2 tree is mounted"
    elif own is None:
        why = f"this process's own cgroup is not below {unified.mount}"
    elif not os.access(own, os.W_OK) or not os.access(f"{own}/cgroup.procs", os.W_OK):
        why = f"{own} cannot be written (a unit of systemd has Delegate=yes for that)"
    if why is not None or own is None:
        raise SpecError(
            f"containment='cgroup' needs a cgroup v2 tree that can be written: {why}; 'sweep' needs nothing"
        )
    return own


class GangFolder:
    """The control group of one gang, which has one for each rank. Each rank enters its own."""

    def __init__(self, gang_name: str) -> None:
        """Remove empty control groups of dead hosts.

        The control group of the gang is made by the first `enter`.

        Raises:
            SpecError: There is no writable cgroup v2 tree.
        """
        own = own_folder()
        _clear_away_stale(own)
        clean = re.sub(r"[^A-Za-z0-9_-]", "_", gang_name)[:_LONGEST_NAME]
        self.path = f"{own}/{_PREFIX}{os.getpid()}-{clean}-{os.urandom(8).hex()}"

    def enter(self, rank: int, life: int = 0) -> str:
        """Make the control group of a rank's life; return the file into which the rank writes ``0`` to enter it.

        Raises:
            SpecError: The control group cannot be made; the text says why.
        """
        path = self._of_life(rank, life)
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise SpecError(f"containment='cgroup': {error.filename} cannot be made: {error.strerror}") from error
        return f"{path}/cgroup.procs"

    def leave(self, rank: int, life: int) -> None:
        """Remove the control group of a rank's past life, unless it has a process that supervise could not end."""
        _remove(self._of_life(rank, life))

    def _of_life(self, rank: int, life: int) -> str:
        return f"{self.path}/rank-{rank}.{life}" if life else f"{self.path}/rank-{rank}"

    def members(self) -> Iterator[tuple[int, int | None, int]]:
        """Yield pid, rank and life of each process that is in the control group of the gang now."""
        for folder, _, _ in os.walk(self.path, onerror=unless_gone):
            rank = re.match(r"/rank-(\d{1,7})(?:\.(\d{1,12}))?(/|$)", folder[len(self.path) :])
            for pid in _content(f"{folder}/cgroup.procs").split():
                if pid != "0":  # a process of another pid namespace
                    yield int(pid), int(rank[1]) if rank else None, int(rank[2] or 0) if rank else 0

    def holds(self, pid: int, lives: Mapping[int, int] | None = None) -> bool:
        """Return whether a process is in the control group of one of these lives (rank to life).

        Without `lives`: whether the process is in the control group of the gang.
        """
        unified = _unified()
        path = unified.path_of(pid) if unified is not None else None
        folder = unified.directory(path) if unified is not None and path is not None else None
        return folder is not None and any(f"{folder}/".startswith(f"{path}/") for path in self._paths(lives))

    def populated(self, lives: Mapping[int, int] | None = None) -> bool:
        """Return whether a live process is in the control group of one of these lives (rank to life).

        Without `lives`: whether one is in the control group of the gang.
        """
        return any("populated 1" in _content(f"{path}/cgroup.events") for path in self._paths(lives))

    def kill(self, lives: Mapping[int, int] | None = None) -> bool:
        """Send SIGKILL at once to all processes in the control groups of these lives (rank to life).

        Without `lives`: to all processes in the control group of the gang.

        Return False if the kernel cannot do that (before Linux 5.14).
        """
        return all([_kill(path) for path in self._paths(lives)])  # noqa: C419 - a list: kill each, also after a failure

    def _paths(self, lives: Mapping[int, int] | None) -> list[str]:
        return [self.path] if lives is None else [self._of_life(rank, life) for rank, life in lives.items()]

    def close(self) -> bool:
        """Remove the control group; return False while a process is in it. Idempotent."""
        return _remove(self.path)


def _kill(path: str) -> bool:
    try:
        with open(f"{path}/cgroup.kill", "w", encoding="utf-8") as file:
            file.write("1")
    except OSError:
        return False
    return True


def _content(path: str) -> str:
    """Return the content of a file of the kernel; "" if its process has exited or its control group was removed."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError as error:
        unless_gone(error)
        return ""


def _remove(path: str) -> bool:
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    return not os.path.isdir(path)


def _clear_away_stale(own: str) -> None:
    """Remove the empty folders of hosts that were killed before they could remove them."""
    for name in os.listdir(own):
        pid = name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            _remove(f"{own}/{name}")


# Detection of kills by the kernel's OOM killer, from the kill counters of the cgroups
#
# The kernel does not report which SIGKILL was its own, so the result is a guess. It has two conditions: the process got
# a SIGKILL that supervise did not send, and the counter of its cgroup shows a kill that no other exit explains.
#
# cgroup v1 does not show which cgroup a dead process was in. So with v1, only kills in the host's cgroup and below are
# seen.


_MOST_FOLDERS = 256
"""Limit on the number of cgroups of v1 to read: the host's, and those below it."""

_LINKS_OF_LEAF = 2
"""Link count of a folder for a cgroup without cgroups below: its name and ``.``.

The link counts of some other file systems do not include folders.
"""


class Counters:
    """The OOM kill counters that concern the workers, and how many kills of each are already attributed (*explained*).

    A kill is attributed to an earlier exit, or to the time before the baseline.
    """

    def __init__(self, proc: str = "/proc") -> None:
        """Begin without a reading. `proc` is the mount point of procfs."""
        self._proc = proc
        self._known: dict[str, int] = {}
        self._based = False
        self._trees: list[Tree] | None = None
        self._lock = threading.Lock()

    def forget_in_child(self) -> None:
        """Begin again in a forked child, because the lock may be held by a thread that only the parent has."""
        self._lock = threading.Lock()
        self._known, self._based, self._trees = {}, False, None

    def baseline(self) -> None:
        """Store the present counters. Later kills may be kills of workers."""
        with self._lock:
            self._begin()

    def _begin(self) -> None:
        self._known.update(self._read_all(self._own_files()))
        self._based = True

    def killed_for_memory(self, pid: int | None) -> bool:
        """Return whether a process that has ended was probably killed by the OOM killer.

        If so, one kill counts as explained from then on.

        Args:
            pid: Its pid while it is unreaped; None if other code has reaped it.
        """
        with self._lock:
            if not self._based:  # without a baseline, all earlier kills are attributed to other processes
                self._begin()
            for path, count in self._read_all(self._files_of(pid)).items():
                known = self._known.get(path, 0)
                if count > known:
                    self._known[path] = known + 1
                    return True
                self._known[path] = count
            return False

    def _files_of(self, pid: int | None) -> Iterator[str]:
        own = list(self._own_files())
        for found in self._memory_trees():
            path = None if pid is None else found.path_of(pid, self._proc)
            folder = None if path is None else found.directory(path)
            # cgroup v1 shows every dead process in the root cgroup, which other programs share
            if folder is not None and not (found.controller and path == "/"):
                file = _counter(found, folder)
                if file not in own:
                    yield file
        yield from own

    def _own_files(self) -> Iterator[str]:
        """Yield the counters of the host's cgroup.

        In v1, yield also those of the cgroups below, because v1 does not add them up.
        """
        any_tree = False
        for found in self._memory_trees():
            folder = found.own(self._proc)
            if folder is None or not os.path.exists(_counter(found, folder)):
                continue
            any_tree = True
            if not found.controller or folder == found.mount:  # below the root are the cgroups of the whole machine
                yield _counter(found, folder)
            else:
                yield from (_counter(found, path) for path in itertools.islice(_folders(folder), _MOST_FOLDERS))
        if not any_tree:  # the root of a v2 tree, or no cgroups: the counter of the whole machine
            yield f"{self._proc}/vmstat"

    def _memory_trees(self) -> list[Tree]:
        if self._trees is None:
            both = (tree("memory", self._proc), tree("unified", self._proc))
            self._trees = [found for found in both if found is not None]
        return self._trees

    @staticmethod
    def _read_all(paths: Iterator[str]) -> dict[str, int]:
        return {path: count for path in paths if (count := _read(path)) is not None}


def _folders(top: str) -> Iterator[str]:
    """Yield `top` and the folders below it. Do not list a folder whose link count shows no subfolder.

    A cgroup has about forty files, and most cgroups have no cgroup below. Without the check, listing such folders took
    most of the time of a reading.
    """
    yield top
    try:
        if os.stat(top).st_nlink == _LINKS_OF_LEAF:
            return
        with os.scandir(top) as entries:
            below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # removed meanwhile, or not readable
        return
    for path in below:
        yield from _folders(path)


def _counter(found: Tree, folder: str) -> str:
    """Return the file that counts the kills in a cgroup. Before Linux 5.2, kills in the cgroups below count, too."""
    if found.controller:
        return f"{folder}/memory.oom_control"
    local = f"{folder}/memory.events.local"
    return local if os.path.exists(local) else f"{folder}/memory.events"


def _read(path: str) -> int | None:
    """Return the number in the line ``oom_kill`` of a file; None if there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            words = (line.split() for line in file)
            return next((int(line[1]) for line in words if len(line) == 2 and line[0] == "oom_kill"), None)
    except (OSError, ValueError):
        return None


_counters = Counters()
fork_hooks.register("oom", in_child=_counters.forget_in_child)
baseline = _counters.baseline
killed_for_memory = _counters.killed_for_memory
