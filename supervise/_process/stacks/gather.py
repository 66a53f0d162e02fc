"""Collection of the stacks of several processes within a fixed time. It runs on a thread that may block."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Literal

from supervise._process.stacks.dump import Dump, with_states
from supervise._process.stacks.py_spy import PySpy, find_program
from supervise._process.stacks.threads import KernelView, foreign_program, kernel_view
from supervise.stacks import RankStacks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervise.stacks import ThreadStack

log = logging.getLogger("supervise")

_KERNEL_S, _PY_SPY_S, _DUMPS_S = 0.3, 0.6, 1.3
"""Seconds from the beginning of the collection to the end of each step.

The rest of 2 s is a reserve for a busy machine.
"""
LONGEST_S = 2.5
"""Seconds after which the gang abandons a collection whose thread a file system blocks."""
_RUN_S = 0.25
"""Seconds for one run of py-spy, which usually takes hundredths of a second.

After a run that exceeds this limit, no other run begins.
"""
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.002, 0.032
_MOST_RUNS = 4
"""Simultaneous runs of py-spy."""


class Gather:
    """One collection; `run` blocks for at most 2 s, unless a file system blocks the start of py-spy."""

    def __init__(
        self,
        pids: Mapping[int, int],
        signal: Callable[[int, int], queue.SimpleQueue[str | None]],
        *,
        without_py_spy: str | None = None,
    ) -> None:
        """Prepare a collection.

        Args:
            pids: Local rank to pid. None of these processes is reaped when the collection is prepared.
            signal: Function that gets a rank and the number of a signal, and returns a queue. The queue gets None once
                the process is signaled; otherwise the reason why the process is not signaled.
            without_py_spy: The reason why py-spy must not be used; None if it may be.
        """
        self._pids = dict(pids)
        self._signal = signal
        self._without_py_spy = without_py_spy
        self._begin_s = time.monotonic()
        self._canceled = threading.Event()
        self._py_spy: PySpy | None = None
        self._kernel: dict[int, KernelView] = {}
        self._foreign: dict[int, str] = {}
        """The ranks that seem to run no Python, and their programs."""
        self._notes: dict[int, list[str]] = {rank: [] for rank in pids}
        self._found: dict[int, RankStacks] = {}

    def cancel(self, wait_s: float = 0.0) -> None:
        """Make `run` return soon. Wait at most `wait_s` seconds for the end of py-spy. Callable from any thread."""
        self._canceled.set()
        if self._py_spy is not None:
            self._py_spy.cancel(wait_s)

    def run(self) -> dict[int, RankStacks]:
        """Return the stacks by local rank. The result lacks processes that have exited."""
        for step in (self._read_kernel, self._find_foreign, self._run_py_spy, self._request_dumps):
            try:
                step()
            except Exception:  # such as too few descriptors: the other sources may still work
                log.exception("a source of stacks failed")
        return self.found()

    def found(self) -> dict[int, RankStacks]:
        """Return the stacks that have been read so far, by local rank. Callable from any thread."""
        found = dict(self._found)
        for rank, view in list(self._kernel.items()):
            if rank not in found:
                found[rank] = self._stacks(rank, "kernel", with_states([], view.threads))
        return dict(sorted(found.items()))

    def _stacks(
        self, rank: int, source: Literal["py-spy", "faulthandler", "kernel"], threads: tuple[ThreadStack, ...]
    ) -> RankStacks:
        notes = tuple(self._notes[rank])
        if source == "kernel" and rank in self._foreign:
            notes = (f"not a Python program: {self._foreign[rank]}",)
        return RankStacks(pid=self._pids[rank], source=source, threads=threads, notes=notes)

    def _left_s(self, until_s: float) -> float:
        return 0.0 if self._canceled.is_set() else self._begin_s + until_s - time.monotonic()

    def _read_kernel(self) -> None:
        for rank, pid in self._pids.items():
            view = kernel_view(pid) if self._left_s(_KERNEL_S) > 0 else KernelView({}, suspended=False)
            if view is not None:
                self._kernel[rank] = view

    def _find_foreign(self) -> None:
        for rank in self._kernel:
            if self._left_s(_PY_SPY_S) > 0 and (name := foreign_program(self._pids[rank])) is not None:
                self._foreign[rank] = name

    # py-spy

    def _run_py_spy(self) -> None:
        program = None if self._without_py_spy else find_program()
        if program is None:
            for notes in self._notes.values():
                notes.append(self._without_py_spy or "py-spy is not installed (pip install 'supervise-gang[stacks]')")
            return
        self._py_spy = PySpy(program)
        if self._canceled.is_set():
            self._py_spy.cancel()
        ranks: queue.SimpleQueue[int] = queue.SimpleQueue()
        for rank in sorted(self._kernel, key=lambda rank: rank in self._foreign):  # time may be too short for all
            ranks.put(rank)
        threads = []
        for _ in range(min(_MOST_RUNS, os.cpu_count() or 1, len(self._kernel)) - 1):
            work = partial(self._spy, self._py_spy, ranks)
            thread = threading.Thread(target=work, name="supervise-py-spy", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread is available
                break
            threads.append(thread)
        self._spy(self._py_spy, ranks)
        for thread in threads:
            thread.join()

    def _spy(self, py_spy: PySpy, ranks: queue.SimpleQueue[int]) -> None:
        while True:
            try:
                rank = ranks.get_nowait()
            except queue.Empty:
                return
            deadline_s = min(self._begin_s + _PY_SPY_S, time.monotonic() + _RUN_S)
            found = py_spy.threads_of(self._pids[rank], deadline_s)
            if isinstance(found, str):
                self._notes[rank].append(found)
            else:
                self._found[rank] = self._stacks(rank, "py-spy", with_states(found, self._kernel[rank].threads))

    # faulthandler

    def _request_dumps(self) -> None:
        dumps: dict[int, Dump] = {}
        answers: dict[int, queue.SimpleQueue[str | None]] = {}
        try:
            for rank, view in self._kernel.items():
                if rank in self._found:
                    continue
                found = self._prepared(rank, view) if self._left_s(_DUMPS_S) > 0 else "there was no time left"
                if isinstance(found, str):
                    self._notes[rank].append(f"faulthandler: {found}")
                else:
                    dumps[rank] = found
                    answers[rank] = self._signal(rank, found.number)
            self._await_signals(dumps, answers)
            self._collect(dumps)
        finally:
            for dump in dumps.values():
                dump.close()

    def _prepared(self, rank: int, view: KernelView) -> Dump | str:
        if view.suspended:
            return "the process is suspended"
        dump = Dump.find(self._pids[rank])
        if isinstance(dump, str):
            return dump
        reason = dump.prepare()
        if reason is None:
            return dump
        dump.close()
        return reason

    def _await_signals(self, dumps: dict[int, Dump], answers: Mapping[int, queue.SimpleQueue[str | None]]) -> None:
        """Wait until the processes are signaled, and drop the dumps of those processes that are not signaled."""
        for rank, answer in answers.items():
            try:
                reason = answer.get(timeout=max(0.0, self._left_s(_DUMPS_S)))
            except queue.Empty:
                reason = "the supervisor did not signal the process in time"
            if reason is not None:
                self._notes[rank].append(f"faulthandler: {reason}")
                dumps.pop(rank).close()

    def _collect(self, dumps: Mapping[int, Dump]) -> None:
        """Read each dump once it is complete. The kernel does not report the completion, so procfs is polled."""
        waiting, look_s = dict(dumps), _FIRST_LOOK_S
        while waiting and (left_s := self._left_s(_DUMPS_S)) > 0:
            for rank, dump in list(waiting.items()):
                if dump.is_complete():
                    self._take(rank, waiting.pop(rank))
            if waiting:
                self._canceled.wait(min(look_s, left_s))
                look_s = min(2 * look_s, _LONGEST_LOOK_S)
        for rank, dump in waiting.items():
            self._take(rank, dump)

    def _take(self, rank: int, dump: Dump) -> None:
        threads = dump.read()
        if any(thread.frames for thread in threads):
            joined = with_states(threads, self._kernel[rank].threads)
            self._found[rank] = self._stacks(rank, "faulthandler", joined)
        elif kernel_view(dump.pid) is None:  # it has exited meanwhile
            del self._kernel[rank]
        else:
            self._notes[rank].append("faulthandler: the process wrote no Python frames in time")
