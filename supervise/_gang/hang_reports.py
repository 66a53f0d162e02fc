"""The reports of hangs: the event, the message, the stacks of all ranks, and the failure of the rank."""

from __future__ import annotations

import itertools
import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from supervise import _threads
from supervise._core import steps
from supervise._folders import open_folder
from supervise._gang.describe import StacksTaken
from supervise._printable import one_line
from supervise.stacks import group_stacks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervise._gang.health_host import Host
    from supervise._gang.hung import Hung
    from supervise._gang.subscribers import Subscribers
    from supervise._runtime.future import Reply
    from supervise._runtime.loop import Loop
    from supervise.stacks import RankStacks
    from supervise.watchdog import Watchdog


_LONGEST_S = 2.5
"""Time after which a rank fails without its stacks.

Their collection takes 2 s, unless a file system blocks it.
"""
_WRITE_S = 0.5
"""Time after which the stacks are reported without their file, which a file system may block."""


class HangReports:
    """Reporter of the hangs of one gang. It also fails the rank if the watchdog says so. Used on the gang's loop."""

    def __init__(
        self,
        watchdog: Watchdog,
        host: Host,
        loop: Loop,
        subscribers: Subscribers,
        stacks: Callable[[], Reply[dict[int, RankStacks]]],
    ) -> None:
        """Begin without reports.

        Args:
            watchdog: The settings, with the consequence of a hang.
            host: The gang's runner.
            loop: The gang's loop.
            subscribers: The actors that receive `WorkerHung`.
            stacks: Requests the stacks of all ranks.
        """
        self._watchdog = watchdog
        self._host: Host | None = host
        self._loop = loop
        self._subscribers = subscribers
        self._stacks = stacks
        self._unsaved: set[Hung] = set()
        """Hangs whose stacks are not written to a file yet."""
        self._pending: dict[Hung, int] = {}
        """Hangs whose ranks fail once their stacks are collected.

        The value is the monotonic time of the report.
        """

    def report(self, hung: Hung) -> None:
        """Report a hang.

        With ``fail``, the rank fails only after the stacks are collected, which takes up to 2 s.
        """
        if self._host is None:
            return
        if self._watchdog.action == "fail":
            self._pending[hung] = time.monotonic_ns()
        self._host.events.emit(hung)
        self._subscribers.tell(hung.message)
        reply = self._request() if self._watchdog.stacks else None
        if reply is None:
            self._fail(hung)
        else:
            if hung in self._pending:
                self._loop.call_later(_LONGEST_S, partial(self._fail, hung))
            reply.add_done_callback(partial(self._loop.post, self._take, hung, reply))

    def settle(self) -> None:
        """Fail the ranks whose stacks are still being collected.

        Otherwise a later exit might be blamed for their failure.
        """
        for hung in list(self._pending):
            self._fail(hung)

    def _request(self) -> Reply[dict[int, RankStacks]] | None:
        try:
            return self._stacks()
        except OSError:  # no thread is available
            return None

    def _take(self, hung: Hung, reply: Reply[dict[int, RankStacks]]) -> None:
        if self._host is None:
            return
        try:
            found = reply.get(timeout=0)
        except Exception:  # no thread was available for a request that had to wait
            self._fail(hung)
            return
        ranks = self._host.events.global_ranks(range(self._host.gang.nprocs))
        rank = ranks[hung.message.local_rank]
        found = {ranks[local]: stacks for local, stacks in found.items()}
        folder = getattr(self._host.attempt.spec.logs_specs, "_run_log_dir", None)
        without_file = partial(self._tell, hung, tuple(group_stacks(found)), "")
        self._unsaved.add(hung)
        if folder is None or not self._save(folder, hung, rank, found):
            without_file()
        else:
            self._loop.call_later(_WRITE_S, without_file)

    def _save(self, folder: str, hung: Hung, rank: int, found: Mapping[int, RankStacks]) -> bool:
        """Write the stacks on a thread, because a file system may block; return whether a thread is available."""

        def save() -> None:
            path = _write(folder, f"rank {rank} {why(hung)}", found)
            self._loop.post(self._tell, hung, tuple(group_stacks(found)), path)

        try:
            _threads.start(threading.Thread(target=save, name="supervise-stacks", daemon=True), "the file with stacks")
        except OSError:
            return False
        return True

    def _tell(self, hung: Hung, places: tuple[str, ...], path: str) -> None:
        """Report the stacks of a hang, only once. Then fail the rank, because the gang may end with that failure."""
        if self._host is not None and hung in self._unsaved:
            self._unsaved.discard(hung)
            self._host.events.emit(StacksTaken(path, places))
            self._fail(hung)

    def _fail(self, hung: Hung) -> None:
        at_ns = self._pending.pop(hung, None)
        if at_ns is not None and self._host is not None:
            told = hung.message
            self._host.step(steps.RankFaulted(told.local_rank, told.attempt, why(hung), at_ns))

    def end(self) -> None:
        """Drop the references to the host."""
        self._host = None
        self._pending.clear()
        self._unsaved.clear()
        self._stacks = _no_stacks


def why(hung: Hung) -> str:
    """Return the message of the failure: ``hung: no heartbeat for 30.0 s (step 1841, "all_reduce")``."""
    told = hung.message
    seen = [f"step {told.step}"] if told.step is not None else []
    seen += [f'"{told.status}"'] if told.status else []
    details = f" ({', '.join(seen)})" if seen else ""
    return f"hung: no {told.tier} for {told.age_s:.1f} s{details}"


def _write(folder: str, head: str, found: Mapping[int, RankStacks]) -> str:
    """Write the stacks of all ranks below a head, as text.

    Return the path; "" if the file cannot be written. An earlier gang with the same `LogsSpecs` has written to the same
    folder, so the file gets the first free number.
    """
    lines = [head, "", *group_stacks(found)]
    for rank, stacks in sorted(found.items()):
        lines += ["", f"rank {rank}, pid {stacks.pid}, source {stacks.source}", *stacks.notes]
        for thread in stacks.threads:
            kernel = " ".join(part for part in (thread.state, thread.wchan, thread.syscall) if part)
            lines.append(f"  thread {thread.name or thread.tid}: {kernel}")
            lines += [f"    {frame.function} ({frame.file}:{frame.line})" for frame in thread.frames]
    try:
        at = open_folder(folder)
    except OSError:
        return ""

    def private(name: str, flags: int) -> int:
        return os.open(name, flags, 0o600, dir_fd=at)

    try:
        for number in itertools.count(1):
            name = f"stacks-{number}.txt"
            try:
                with open(name, "x", encoding="utf-8", errors="backslashreplace", opener=private) as file:
                    file.writelines(f"{one_line(line)}\n" for line in lines)
            except FileExistsError:
                continue
            except OSError:
                break
            return os.path.join(folder, name)
    finally:
        os.close(at)
    return ""


def _no_stacks() -> Reply[dict[int, RankStacks]]:
    """Replace a callback that must not be called any more.

    Raises:
        OSError: Always.
    """
    raise OSError("the gang has ended")
