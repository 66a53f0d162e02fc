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

_DYING_MS = 50
"""Who dies within this time after it was found was dying already: what its own lifeline has killed, for one."""


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
        """Look at all processes for those of this gang that live. Takes milliseconds; not for the loop.

        Args:
            skip: Pids of ranks that still live; they and their groups have not escaped.
            killing: Whether also to return at once who is about to die.

        Raises:
            OSError: There is no descriptor left to look with.
        """
        found: list[Escaped] = []
        seen, unclear = 0, False
        try:
            for pid, check in self._candidates():
                if pid == os.getpid() or _skipped(pid, skip):
                    continue
                try:
                    if check(pid)[0]:
                        seen += 1
                        found += _held(pid, check)
                except BlockingIOError:
                    unclear = True
        except BaseException:
            for escaped in found:
                escaped.close()
            raise
        live = found if killing else _not_dying(found)
        in_motion = unclear or len(live) < seen or (not live and self._populated())
        return Found(live, in_motion)

    def _populated(self) -> bool:
        return self._folder is not None and self._folder.populated()

    def _candidates(self) -> Iterator[tuple[int, _Check]]:
        if self._folder is None:
            for pid in all_pids():
                yield pid, self._marked
            return
        for pid, rank in self._folder.members():
            yield pid, partial(self._within, self._folder, rank)

    def _marked(self, pid: int) -> tuple[bool, int | None]:
        rank = ancestry.rank_of(pid, self.token, forked=self._forked)
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


def _not_dying(found: list[Escaped]) -> list[Escaped]:
    """Return those that do not die at once, and let go of the others."""
    waiting = {escaped.fileno() for escaped in found if escaped.fileno() >= 0}
    poll, deadline_s = select.poll(), time.monotonic() + _DYING_MS / 1000
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    while waiting and (left_s := deadline_s - time.monotonic()) > 0:
        for fd, _ in poll.poll(left_s * 1000):
            poll.unregister(fd)
            waiting.discard(fd)
    if any(escaped.fileno() < 0 for escaped in found):
        _pause_without_pidfd(deadline_s)
    dead = [escaped for escaped in found if not escaped.alive()]
    for escaped in dead:
        escaped.close()
    return [escaped for escaped in found if escaped not in dead]


def _pause_without_pidfd(until_s: float) -> None:
    """The fallback where nobody tells when a process ends. In the thread that looks, not on the loop."""
    threading.Event().wait(max(0.0, until_s - time.monotonic()))
