"""What keeps a gang's processes together, beyond their process groups.

- ``group``: nothing more. What left its group (``setsid``, a daemon) is found at the close, and told.
- ``sweep``: it is found by a marker that it has inherited, and ended.
- ``cgroup``: each rank lives in a control group, which a daemon does not leave; who is still in it is ended.
  A process with the rights of the host can move itself out of it on purpose.
"""

from __future__ import annotations

import os
import select
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from supervise._process.containment import ancestry, marker
from supervise._process.containment.cgroup import GangFolder
from supervise._process.containment.groups import Member
from supervise._process.containment.procfs import all_pids
from supervise.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    _Check = Callable[[int], tuple[bool, int | None]]
    """Tells of a pid whether it is the gang's, and which rank's."""

Containment = Literal["group", "cgroup", "sweep"]

DYING_S = 0.05
"""A process that dies within this time was dying when it was found: its own lifeline has killed it, for example."""


class Escaped(Member):
    """A live process that a gang has left behind outside of its groups."""

    __slots__ = ("local_rank",)

    def __init__(self, pid: int, local_rank: int | None) -> None:
        """Take hold of a process.

        Raises:
            ProcessLookupError: It is gone.
            OSError: There is no descriptor left to hold it.
        """
        super().__init__(pid)
        self.local_rank = local_rank
        """None where it cannot be told."""


class Found(NamedTuple):
    """What one look has found."""

    live: list[Escaped]
    """The caller closes them."""
    in_motion: bool
    """Whether somebody died during the look, who may have forked meanwhile, or could not be looked at."""


class Contained:
    """One attempt of a gang: how its ranks are marked, and how what they left behind is found."""

    def __init__(self, kind: Containment, gang_name: str, *, forked: bool = True) -> None:
        """Prepare; see `make`."""
        self.kind = kind
        self.token = marker.new_token()
        self._forked = forked
        self._folder = GangFolder(gang_name, self.token) if kind == "cgroup" else None

    @property
    def ends(self) -> bool:
        """Whether what is found is to be ended, not only reported."""
        return self.kind != "group"

    def env(self, rank: int) -> dict[str, str]:
        """Return what a rank must have in its environment."""
        return {marker.VARIABLE: marker.value(self.token, rank)}

    def enter(self, rank: int) -> str | None:
        """Return the file into which a rank writes ``0`` before it does anything else; None: there is none.

        Raises:
            SpecError: Its control group cannot be made.
        """
        return None if self._folder is None else self._folder.enter(rank)

    def find(self, skip: Collection[int] = (), *, killing: bool = False) -> Found:
        """Scan all processes for those of this gang that live. Takes milliseconds and may wait; not for the loop.

        Args:
            skip: Pids of ranks that still live; they and their groups have not escaped.
            killing: Whether also to return at once who is about to die.

        Raises:
            OSError: There is no descriptor left to look with.
        """
        scan = Scan(self, skip, waits=True)
        for _ in scan.steps():
            pass
        if not killing:
            scan.await_the_dying()
        return scan.finding(killing=killing)

    def populated(self) -> bool:
        """Whether a process lives in the control group; False where there is none."""
        return self._folder is not None and self._folder.populated()

    def candidates(self, *, waits: bool) -> Iterator[tuple[int, _Check]]:
        """Give the processes that may be the gang's, and how to know; `waits` as for `Scan`."""
        if self._folder is None:
            for pid in all_pids():
                yield pid, partial(self._marked, waits)
            return
        for pid, rank in self._folder.members():
            yield pid, partial(self._within, self._folder, rank)

    def _marked(self, waits: bool, pid: int) -> tuple[bool, int | None]:
        rank = ancestry.rank_of(pid, self.token, forked=self._forked, waits=waits)
        return rank is not None, rank

    @staticmethod
    def _within(folder: GangFolder, rank: int | None, pid: int) -> tuple[bool, int | None]:
        return folder.holds(pid), rank

    def kill(self) -> bool:
        """Kill all that is contained at one stroke; tell whether that is possible: in a control group."""
        return self._folder is not None and self._folder.kill()

    def close(self) -> bool:
        """Give back the control groups; tell whether nothing is left of them. Idempotent."""
        return self._folder is None or self._folder.close()


def make(kind: str, gang_name: str, *, forked: bool = True) -> Contained:
    """Return the containment of one attempt of a gang.

    Args:
        kind: One of `Containment`.
        gang_name: For people who look at the control groups.
        forked: Whether the ranks are functions started by fork or forkserver.

    Raises:
        SpecError: `kind` is none, or ``cgroup`` where there is no cgroup v2 tree that can be written.
    """
    if kind not in get_args(Containment):
        msg = f"containment is {kind!r}; it is one of {', '.join(get_args(Containment))}"
        raise SpecError(msg)
    return Contained(kind, gang_name, forked=forked)  # type: ignore[arg-type]


class Scan:
    """One scan of all processes for those of a gang, in steps, so that the loop can do other work between two."""

    def __init__(self, contained: Contained, skip: Collection[int], *, waits: bool) -> None:
        """Prepare.

        Args:
            contained: The gang's.
            skip: Pids of ranks that still live; they and their groups have not escaped.
            waits: Whether to wait for a process that is in the middle of an exec; otherwise the scan is unclear.
        """
        self._contained = contained
        self._skip = skip
        self._waits = waits
        self._found: list[Escaped] = []
        self._seen = 0
        self._unclear = False

    def steps(self) -> Iterator[None]:
        """Look at one process a step. Close the scan if no result is wanted.

        Raises:
            OSError: There is no descriptor left to look with; the scan is closed.
        """
        try:
            for pid, check in self._contained.candidates(waits=self._waits):
                yield
                if pid == os.getpid() or _skipped(pid, self._skip):
                    continue
                try:
                    if check(pid)[0]:
                        self._seen += 1
                        self._found += _held(pid, check)
                except BlockingIOError:
                    self._unclear = True
        except BaseException:
            self.close()
            raise

    def await_the_dying(self) -> None:
        """Wait `DYING_S`, or until all that were found are dead. Blocks."""
        waiting = {escaped.fileno() for escaped in self._found if escaped.fileno() >= 0}
        poll, deadline_s = select.poll(), time.monotonic() + DYING_S
        for fd in waiting:
            poll.register(fd, select.POLLIN)
        while waiting and (left_s := deadline_s - time.monotonic()) > 0:
            for fd, _ in poll.poll(left_s * 1000):
                poll.unregister(fd)
                waiting.discard(fd)
        if any(escaped.fileno() < 0 for escaped in self._found):
            _pause_without_pidfd(deadline_s)

    def finding(self, *, killing: bool) -> Found:
        """Return what was found, and let go of what has died unless it is to be killed."""
        found, self._found = self._found, []
        dead = [] if killing else [escaped for escaped in found if not escaped.alive()]
        for escaped in dead:
            escaped.close()
        live = [escaped for escaped in found if escaped not in dead]
        in_motion = self._unclear or len(live) < self._seen or (not live and self._contained.populated())
        return Found(live, in_motion)

    def close(self) -> None:
        """Let go of what was found. Idempotent."""
        while self._found:
            self._found.pop().close()


def _pause_without_pidfd(until_s: float) -> None:
    """Wait without pidfds: the kernel does not tell when a process ends. In the thread that scans."""
    threading.Event().wait(max(0.0, until_s - time.monotonic()))


def _skipped(pid: int, skip: Collection[int]) -> bool:
    try:
        return pid in skip or os.getpgid(pid) in skip
    except ProcessLookupError:
        return True
    except PermissionError:
        return False


def _held(pid: int, check: _Check) -> list[Escaped]:
    """Take hold of a process, then look again: only who lives after that is surely the one we saw."""
    try:
        escaped = Escaped(pid, None)
    except ProcessLookupError:
        return []
    ours = False
    try:
        ours, escaped.local_rank = check(pid)
        ours = ours and escaped.alive()
    finally:
        if not ours:
            escaped.close()
    return [escaped] if ours else []
