"""Pending requests for the stacks of ranks. A thread collects the stacks; the loop signals the ranks and replies."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from supervise import _platform as platform
from supervise._process.stacks import gather as gathering
from supervise._runtime.future import Reply
from supervise._runtime.loop import NO_TIMER, Loop
from supervise.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervise._gang.health import Host
    from supervise.stacks import RankStacks

_END_S = 2.0
"""Seconds for which the end of a gang waits for py-spy. py-spy exits at once, unless a file system blocks it."""


class StackRequests:
    """The requests of one gang. Used on the gang's loop.

    Only one collection runs at a time, because a process has only one memory file. If the current collection covers the
    ranks of a request, the request shares its result. Other requests wait for the next collection. A timer ends the
    wait for a thread that a file system blocks. The requests then receive the stacks that the thread has found so far.
    """

    def __init__(self, host: Host, loop: Loop) -> None:
        """Begin without requests."""
        self._host = host
        self._loop = loop
        self._gather: gathering.Gather | None = None
        self._thread: threading.Thread | None = None
        """The thread of the present collection, or of the last one."""
        self._timer = NO_TIMER
        self._blocked: threading.Thread | None = None
        """The last thread that did not end in time."""
        self._pending: dict[Reply[dict[int, RankStacks]], frozenset[int]] = {}
        """Each pending reply to the ranks of its request."""
        self._covered: frozenset[int] = frozenset()
        """The ranks of the present collection."""
        self._ended = False

    def add(self, ranks: frozenset[int]) -> Reply[dict[int, RankStacks]]:
        """Return the reply to a request for the stacks of those ranks in `ranks` that run.

        The reply is an `OSError` if no thread is available.
        """
        reply: Reply[dict[int, RankStacks]] = Reply()
        self._pending[reply] = ranks
        if self._gather is None:
            self._begin()
        return reply

    def end(self, error: BaseException | None) -> None:
        """Answer every request with `error`, or with the error that the Supervisor has stopped. Idempotent."""
        self._ended = True
        if self._gather is not None:
            self._gather.cancel(_END_S)
            self._timer.cancel()
        name = self._host.attempt.spec.name
        self._fail(error or SuperviseError(f"{name}: the supervisor stopped while it collected stacks"))

    def _fail(self, error: BaseException) -> None:
        pending, self._pending = self._pending, {}
        for reply in pending:
            reply.fail(error)

    def _begin(self) -> None:
        gang, processes = self._host.gang, self._host.ranks.slots.processes
        self._covered = ranks = frozenset[int]().union(*self._pending.values())
        pids = {rank: processes[rank].pid for rank in sorted(ranks & gang.running) if rank in processes}
        if not pids:
            self._answer({})
            return
        blocked = self._blocked is not None and self._blocked.is_alive()
        reason = "py-spy is not run: an earlier collection of stacks is still blocked" if blocked else None
        gather = gathering.Gather(pids, partial(self._request_signal, pids), without_py_spy=reason)

        def collect() -> None:
            self._loop.post(self._collected, gather, gather.run())

        thread = threading.Thread(target=collect, name="supervise-stacks", daemon=True)
        try:
            platform.start_thread(thread, "the collection of stacks")
        except OSError as error:
            self._fail(error)
            return
        self._gather, self._thread = gather, thread
        self._timer = self._loop.call_later(gathering.LONGEST_S, partial(self._give_up, gather))

    def _give_up(self, gather: gathering.Gather) -> None:
        """Reply with the stacks that were found, and leave the thread alone.

        The thread ends when nothing blocks it any more.
        """
        gather.cancel()
        self._blocked = self._thread
        self._collected(gather, gather.found())

    def _collected(self, gather: gathering.Gather, found: dict[int, RankStacks]) -> None:
        if gather is not self._gather or self._ended:
            return
        self._gather = None
        self._timer.cancel()
        gang = self._host.gang
        self._answer(
            {rank: each for rank, each in found.items() if rank in gang.running and gang.pids[rank] == each.pid}
        )
        if self._pending:
            self._begin()

    def _answer(self, found: Mapping[int, RankStacks]) -> None:
        """Answer the requests that the collection covers."""
        for reply, ranks in list(self._pending.items()):
            if ranks <= self._covered:
                del self._pending[reply]
                reply.set({rank: stacks for rank, stacks in found.items() if rank in ranks})

    # Signals

    def _request_signal(self, pids: Mapping[int, int], rank: int, number: int) -> SimpleQueue[str | None]:
        """Post a signal from the collecting thread to the loop. Only the loop knows whether a stop has begun."""
        answer: SimpleQueue[str | None] = SimpleQueue()
        self._loop.post(self._signal, rank, pids[rank], number, answer)
        return answer

    def _signal(self, rank: int, pid: int, number: int, answer: SimpleQueue[str | None]) -> None:
        """Signal the process, but never its group, because the signal would end members without a handler."""
        gang = self._host.gang
        process = self._host.ranks.slots.processes.get(rank)
        if self._ended or not self._loop.in_loop or gang.phase not in ("starting", "running"):
            answer.put("the gang is being stopped")
        elif process is None or process.pid != pid or rank not in gang.running:
            answer.put("the process has exited")
        elif (reason := gathering.refusal(pid, number)) is not None:
            answer.put(reason)
        else:
            try:
                if platform.PIDFD:
                    signal.pidfd_send_signal(process.fileno(), number)
                else:
                    os.kill(pid, number)
            except OSError as error:
                answer.put(f"the process cannot be signaled: {error.strerror}")
            else:
                answer.put(None)
