"""Control groups: those of this process, and one for each rank of a gang (cgroup v2)."""

from __future__ import annotations

import contextlib
import os
import re
from functools import cache
from typing import TYPE_CHECKING, Literal

from supervise._process.containment.procfs import unless_gone
from supervise._record import NamedTuple
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
        try:
            with open(f"{proc}/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
                lines = file.read().splitlines()
        except OSError as error:
            unless_gone(error)
            return None
        for line in lines:
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
        fields, kinds = mounted.split(), filesystem.split()
        root, mount = (_unescaped(field) for field in fields[3:5])
        if kind == "unified" and kinds[0] == "cgroup2":
            return Tree(mount, root, "")
        if kind != "unified" and kinds[0] == "cgroup" and kind in kinds[-1].split(","):
            return Tree(mount, root, kind)
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
            try:
                with open(f"{folder}/cgroup.procs", encoding="utf-8") as file:
                    pids = file.read().split()
            except OSError as error:  # removed in between
                unless_gone(error)
                continue
            for pid in pids:
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
        return any(map(_populated, self._paths(lives)))

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


def _populated(path: str) -> bool:
    try:
        with open(f"{path}/cgroup.events", "rb") as file:
            return b"populated 1" in file.read()
    except OSError as error:
        unless_gone(error)
        return False


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
