"""Detection of kills by the kernel's OOM killer, from the kill counters of the cgroups.

The kernel does not report which SIGKILL was its own, so the result is a guess. It has two conditions: the process got a
SIGKILL that supervise did not send, and the counter of its cgroup shows a kill that no other exit explains.

cgroup v1 does not show which cgroup a dead process was in. So with v1, only kills in the host's cgroup and below are
seen.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import TYPE_CHECKING

from supervise._process.containment.cgroup import Tree, tree
from supervise._runtime import fork_hooks

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_FOLDERS = 256
"""Limit on the number of cgroups of v1 to read below the host's."""

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
            return self._takes_one(self._files_of(pid))

    def _takes_one(self, paths: Iterator[str]) -> bool:
        """Return whether one of these counters has an unexplained kill.

        If so, that kill counts as explained from then on.
        """
        for path, count in self._read_all(paths).items():
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
