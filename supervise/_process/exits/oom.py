"""Whether a process that was killed was killed for want of memory: the kernel counts that for each cgroup.

The kernel does not say which signal was its own. So this is a suspicion: somebody sent SIGKILL, not we,
and meanwhile the counter of the process's cgroup has grown by one that no other of our processes explains.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import TYPE_CHECKING

from supervise._process.containment.cgroup import Tree, tree

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_FOLDERS = 256
"""So many cgroups below our own, and of the first version in all, are looked at, at most."""


class Counters:
    """The counters of memory kills that concern our workers, and how much of each is explained already."""

    def __init__(self, proc: str = "/proc") -> None:
        """Know nothing yet; `proc` is where the kernel tells about processes."""
        self._proc = proc
        self._known: dict[str, int] = {}
        self._based = False
        self._trees: list[Tree] | None = None
        self._lock = threading.Lock()

    def baseline(self) -> None:
        """Remember how many kills there have been; what comes later may be our workers'."""
        with self._lock:
            self._begin()

    def _begin(self) -> None:
        self._known.update(self._read_all(itertools.chain(self._own_files(), self._files_elsewhere())))
        self._based = True

    def killed_for_memory(self, pid: int | None) -> bool:
        """Tell whether a dead process was probably killed for want of memory; counts one kill as its.

        Args:
            pid: Its number, while it is unreaped; None: somebody else has reaped it.
        """
        with self._lock:
            if not self._based:  # what has been counted so far is none of ours, as far as we know
                self._begin()
            return self._takes_one(self._files_of(pid)) or self._takes_one(self._files_elsewhere())

    def _takes_one(self, paths: Iterator[str]) -> bool:
        """Tell whether one of these counters has a kill that nothing explains yet, and count it as explained."""
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
            # The first version shows every dead process in the root, which others use, too
            if folder is not None and not (found.controller and path == "/"):
                file = _counter(found, folder)
                if file not in own:
                    yield file
        yield from own

    def _own_files(self) -> Iterator[str]:
        """Give the counters of our own cgroup: of the first version also those below, which it does not count."""
        any_tree = False
        for found in self._memory_trees():
            folder = found.own(self._proc)
            if folder is None or not os.path.exists(_counter(found, folder)):
                continue
            any_tree = True
            if not found.controller:
                yield _counter(found, folder)
            else:
                below = (path for path, _, _ in os.walk(folder))
                yield from (_counter(found, path) for path in itertools.islice(below, _MOST_FOLDERS))
        if not any_tree:  # the root of a version 2 tree, or no cgroups: the whole machine's
            yield f"{self._proc}/vmstat"

    def _files_elsewhere(self) -> Iterator[str]:
        """Give the counters of the first version that are not ours: it does not tell where a dead process had gone.

        None where there are too many to know them all: an old kill would look like a new one.
        """
        for found in self._memory_trees():
            if not found.controller:
                continue
            own = found.own(self._proc)
            folders = [path for path, _, _ in itertools.islice(os.walk(found.mount), _MOST_FOLDERS + 1)]
            if len(folders) <= _MOST_FOLDERS:
                ours = (path for path in folders if own is None or (path != own and not path.startswith(f"{own}/")))
                yield from (_counter(found, path) for path in ours)

    def _memory_trees(self) -> list[Tree]:
        if self._trees is None:
            both = (tree("memory", self._proc), tree("unified", self._proc))
            self._trees = [found for found in both if found is not None]
        return self._trees

    @staticmethod
    def _read_all(paths: Iterator[str]) -> dict[str, int]:
        return {path: count for path in paths if (count := _read(path)) is not None}


def _counter(found: Tree, folder: str) -> str:
    return f"{folder}/memory.oom_control" if found.controller else f"{folder}/memory.events"


def _read(path: str) -> int | None:
    """Return the number behind ``oom_kill`` in a file of lines, None where there is none."""
    try:
        with open(path, encoding="ascii") as file:
            words = (line.split() for line in file)
            return next((int(line[1]) for line in words if len(line) == 2 and line[0] == "oom_kill"), None)
    except (OSError, ValueError):
        return None


_counters = Counters()
baseline = _counters.baseline
killed_for_memory = _counters.killed_for_memory
