"""Containment: the treatment of processes that have left the process groups of a gang (``setsid``, a daemon).

- ``group``: supervise finds them at the close and reports them.
- ``sweep``: supervise finds them by an inherited marker and ends them.
- ``cgroup``: each rank runs in a control group, which a daemon does not leave; supervise ends all processes in it.
  A process with the permissions of the host can leave its control group on purpose.
"""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from supervise._process.containment import marker
from supervise._process.containment.groups import Member, held
from supervise._process.containment.procfs import all_pids, layout, started, unless_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from supervise._process.containment.cgroup import GangFolder
    from supervise._settings import Containment

    _Check = Callable[[int], tuple[bool, int | None]]
    """Function from a pid to two values: whether the process belongs to the gang, and its rank."""


# Search for the life of a rank from which a process descends, by the marker that the process has inherited


_EXEC_S = 0.1
"""Limit on the wait for an exec, which takes microseconds unless it reads from a disk."""
_EXEC_LOOK_S = 0.0002
_ENOUGH = 1 << 17
_MOST = 1 << 23
"""Limit on the read.

No real environment is as large, but a process may tell the kernel that any part of its memory is its environment.
"""


def number_of(pid: int, token: str, *, forked: bool) -> int | None:
    """Return the number of the life from which a process descends, in the gang of `token`.

    The number is read from the marker that the process has inherited. Return None if the process descends from no rank
    of this gang, or if the number is not known.

    Args:
        pid: The process.
        token: Token of the gang.
        forked: Whether the ranks of the gang were forked, so that the open files of the process are read, too.

    Raises:
        BlockingIOError: The number is not known now, because the process has not finished an exec.
    """
    number, empty = _number_at(str(pid), token, forked=forked)
    if empty and (thread := _another_thread(pid)) is not None:
        return _number_at(thread, token, forked=forked)[0]
    return number


def _number_at(place: str, token: str, *, forked: bool) -> tuple[int | None, bool]:
    """Return the number in the marker of a process, and whether the environment of the process is empty.

    Args:
        place: Path of the process below /proc.
        token: Token of the gang.
        forked: As for `number_of`.
    """
    # An exec closes the file and sets the variable. A read in this order finds one of the two during an exec.
    if forked and (number := _number_by_file(place, token)) is not None:
        return number, False
    environment = _environment(place)
    return marker.number_in_environment(environment, token), not environment


def _another_thread(pid: int) -> str | None:
    """Return the path below /proc of a live thread of a process whose main thread has exited.

    None if the main thread has not exited.
    """
    if layout(str(pid)) is not None:
        return None
    try:
        threads = {int(name) for name in os.listdir(f"/proc/{pid}/task")}
    except OSError as error:
        unless_gone(error)
        return None
    return next((f"{pid}/task/{thread}" for thread in threads - {pid}), None)


def _environment(place: str) -> bytes:
    """Return the environment of a process. A process has none during an exec: wait for at most `_EXEC_S`."""
    deadline_s = None
    environment = _environment_now(place)
    while not environment and (before := layout(place)) is not None:
        environment = _environment_now(place)
        if environment or (before.complete and layout(place) == before) or not _layouts_are_told():
            break  # it was read; or the process has none, or has unmapped it for good
        now_s = time.monotonic()
        deadline_s = deadline_s or now_s + _EXEC_S
        if now_s >= deadline_s:
            raise BlockingIOError(errno.EAGAIN, f"process {place} has not finished its exec")
        threading.Event().wait(_EXEC_LOOK_S)  # the kernel does not report the end of an exec
    return environment


def _layouts_are_told() -> bool:
    """Whether /proc has the addresses of programs. A kernel that imitates Linux may lack them."""
    own = layout("self")
    return own is not None and own.complete


def _environment_now(place: str) -> bytes:
    """Read the environment in one call, so that the bytes are never those of two programs, also during an exec."""
    try:
        fd = os.open(f"/proc/{place}/environ", os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = _ENOUGH
            while len(read := os.pread(fd, size, 0)) == size and size < _MOST:
                size *= 4
            return read
        finally:
            os.close(fd)
    except OSError as error:  # a process of another user, or one that has exited
        unless_gone(error)
        return b""


def _number_by_file(place: str, token: str) -> int | None:
    try:
        names = os.listdir(f"/proc/{place}/fd")
    except OSError as error:
        unless_gone(error)
        return None
    for name in names:
        try:
            target = os.readlink(f"/proc/{place}/fd/{name}".encode())
        except OSError:  # closed in between
            continue
        if (number := marker.number_of_file(target, token)) is not None:
            return number
    return None


_MOST_RANKS = 1_000_000
"""The number in a marker is the life of a rank multiplied by this constant, plus the rank."""
DYING_S = 0.05
"""Time that a process has to exit after a scan has found it.

A process that exits within this time was already dying, for example by its own lifeline.
"""


class Contained:
    """Containment of one attempt of a gang: the marks of its ranks, and the scan for escaped processes."""

    def __init__(self, kind: Containment, gang_name: str, *, forked: bool = True) -> None:
        """Prepare the containment.

        Args:
            kind: The treatment.
            gang_name: A part of each control group's name.
            forked: Whether the ranks are functions started by fork or forkserver.

        Raises:
            SpecError: `kind` is ``cgroup`` and there is no writable cgroup v2 tree.
        """
        self.kind = kind
        self._lives: dict[int, int] = {}
        """Rank to the number of its present life, if the number is not 0."""
        self.token: str = os.urandom(8).hex()
        self._marker = marker.of_gang(self.token)
        self._forked = forked
        self._folder: GangFolder | None = None
        if kind == "cgroup":
            from supervise._process.containment.cgroup import GangFolder

            self._folder = GangFolder(gang_name)  # not with the token: /proc shows the path to every user

    @property
    def ends(self) -> bool:
        """Whether supervise ends escaped processes; otherwise it only reports them."""
        return self.kind != "group"

    def begin_life(self, rank: int, life: int) -> None:
        """Begin a later life of a rank. Its marker and its control group differ from those of earlier lives.

        Raises:
            SpecError: The control group cannot be made; the present life goes on.
        """
        if self._folder is not None:
            self._folder.enter(rank, life)
            self._folder.leave(rank, self._lives.get(rank, 0))
        self._lives[rank] = life

    def env(self, rank: int) -> dict[str, str]:
        """Return the variables that the environment of a rank's present life must contain."""
        number = self._lives.get(rank, 0) * _MOST_RANKS + rank
        return {marker.VARIABLE: f"{self._marker}:{number}"}

    def enter(self, rank: int) -> str | None:
        """Return the file into which a rank writes ``0`` as its first step; None if the rank needs no control group.

        Raises:
            SpecError: The control group of the rank cannot be made.
        """
        return None if self._folder is None else self._folder.enter(rank, self._lives.get(rank, 0))

    def find(
        self, skip: Collection[int] = (), *, killing: bool = False, ranks: Collection[int] | None = None
    ) -> tuple[list[Member], bool]:
        """Scan all processes for live ones of this gang; return them, and whether there may be more.

        There may be more if a process could not be read, or exited during the scan and may have forked before. The
        caller closes the processes. A scan takes milliseconds and may block.

        Args:
            skip: Pids of ranks that still live; they and their groups have not escaped.
            killing: Whether the caller kills the processes. Then return at once, although some of them may be dying
                already.
            ranks: The ranks whose present lives count; None: the present lives of all ranks; and earlier lives, if
                supervise ends escaped processes.

        Raises:
            OSError: No descriptor is left.
        """
        found: list[Member] = []
        seen, unclear = 0, False
        try:
            for pid, check in self._candidates(ranks):
                if pid == os.getpid() or _skipped(pid, skip):
                    continue
                try:
                    if check(pid)[0]:
                        seen += 1
                        found += held(pid, partial(_passes, check))
                except BlockingIOError:
                    unclear = True
        except BaseException:
            for escaped in found:
                escaped.close()
            raise
        if not killing:
            _await_the_dying(found)
        dead = [] if killing else [escaped for escaped in found if not escaped.alive()]
        for escaped in dead:
            escaped.close()
        live = [escaped for escaped in found if escaped not in dead]
        return live, unclear or len(live) < seen or (not live and self.populated(ranks))

    def populated(self, ranks: Collection[int] | None = None) -> bool:
        """Return whether a process is alive in the gang's control group, or in those of `ranks`.

        False without control groups.
        """
        return self._folder is not None and self._folder.populated(self._lives_of(ranks))

    def _lives_of(self, ranks: Collection[int] | None) -> dict[int, int] | None:
        return None if ranks is None else {rank: self._lives.get(rank, 0) for rank in ranks}

    def _candidates(self, ranks: Collection[int] | None) -> Iterator[tuple[int, _Check]]:
        """Yield the pids that may belong to the gang, each with a function that checks it."""
        if self._folder is None:
            host_started = started(os.getpid())
            for pid in all_pids():
                yield pid, partial(self._marked, ranks, host_started)
            return
        lives = self._lives_of(ranks)
        for pid, rank, life in self._folder.members():
            if self._is_wanted(rank, life, ranks):
                yield pid, partial(self._within, self._folder, lives, rank)

    def _is_wanted(self, rank: int | None, life: int, ranks: Collection[int] | None) -> bool:
        present = rank is not None and life == self._lives.get(rank, 0)
        if ranks is None:  # escaped processes of an earlier life were reported at its end
            return self.ends or rank is None or present
        return present and rank in ranks

    def _marked(self, ranks: Collection[int] | None, host_started: int | None, pid: int) -> tuple[bool, int | None]:
        if host_started is not None and (started(pid) or host_started) < host_started:
            return False, None  # older than the host, as most processes are, hence not its descendant
        number = number_of(pid, self.token, forked=self._forked)
        if number is None:
            return False, None
        life, rank = divmod(number, _MOST_RANKS)
        return self._is_wanted(rank, life, ranks), rank

    @staticmethod
    def _within(
        folder: GangFolder, lives: Mapping[int, int] | None, rank: int | None, pid: int
    ) -> tuple[bool, int | None]:
        return folder.holds(pid, lives), rank

    def kill(self, ranks: Collection[int] | None = None) -> bool:
        """Kill all processes of the gang's control group, or of those of `ranks`; return whether the kernel can."""
        return self._folder is not None and self._folder.kill(self._lives_of(ranks))

    def close(self) -> bool:
        """Remove the control groups; return whether all are removed. Idempotent."""
        return self._folder is None or self._folder.close()


def _passes(check: _Check, member: Member) -> bool:
    """Return whether a process belongs to the gang; set its rank."""
    belongs, member.local_rank = check(member.pid)
    return belongs


def _await_the_dying(found: Collection[Member]) -> None:
    """Block until all of these processes are dead, but at most for `DYING_S`."""
    waiting = {escaped.fileno() for escaped in found if escaped.fileno() >= 0}
    poll, deadline_s = select.poll(), time.monotonic() + DYING_S
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    while waiting and (left_s := deadline_s - time.monotonic()) > 0:
        for fd, _ in poll.poll(left_s * 1000):
            poll.unregister(fd)
            waiting.discard(fd)
    if any(escaped.fileno() < 0 for escaped in found):  # without a pidfd, the kernel reports no exit
        threading.Event().wait(max(0.0, deadline_s - time.monotonic()))


def _skipped(pid: int, skip: Collection[int]) -> bool:
    try:
        return pid in skip or os.getpgid(pid) in skip
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
