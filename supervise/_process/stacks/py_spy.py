"""Stacks that the program ``py-spy`` reads from the memory of a process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from typing import Any

from supervise._printable import one_line
from supervise.stacks import StackFrame, ThreadStack

_REAP_S = 1.0
"""Limit in seconds on the end of a killed run."""
_MOST_TEXT = 200
_MOST_THREADS = 100


def find_program() -> str | None:
    """Return the path of ``py-spy``: on PATH, or beside this Python; None if there is none."""
    beside = os.path.join(os.path.dirname(sys.executable or ""), "py-spy")
    return shutil.which("py-spy") or (beside if os.access(beside, os.X_OK) else None)


class PySpy:
    """Runs of py-spy that can be ended from another thread."""

    def __init__(self, program: str) -> None:
        """Prepare runs of `program`."""
        self._program = program
        self._changed = threading.Condition()
        """Condition for the attributes below.

        No thread holds its lock during a call that may block, because the gang's loop calls `cancel`.
        """
        self._unfinished = 0
        """Number of runs that are being started or are not reaped yet."""
        self._running: set[subprocess.Popen[bytes]] = set()
        self._canceled = False
        self._too_slow = False
        """Whether a run exceeded its deadline. If so, the machine is busy, and no other run begins."""

    def threads_of(self, pid: int, deadline_s: float) -> list[ThreadStack] | str:
        """Return the Python threads of a process, the main thread first.

        If there are none, return the reason.

        Args:
            pid: The process.
            deadline_s: `time.monotonic` at which py-spy is killed.
        """
        if self._too_slow or time.monotonic() >= deadline_s:
            return "there was no time left for py-spy"
        with self._changed:
            if self._canceled:
                return "the request was canceled"
            self._unfinished += 1
        try:
            return self._run(pid, deadline_s)
        finally:
            with self._changed:
                self._unfinished -= 1
                self._changed.notify_all()

    def _run(self, pid: int, deadline_s: float) -> list[ThreadStack] | str:
        command = [self._program, "dump", "--pid", str(pid), "--nonblocking", "--json"]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except (OSError, RuntimeError) as error:  # RuntimeError: the interpreter is exiting
            return f"py-spy cannot be started: {error}"
        try:
            with self._changed:
                self._running.add(process)
                if self._canceled:  # while the process was started
                    process.kill()
            out, err = process.communicate(timeout=max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._too_slow = True
            return "py-spy took too long"
        finally:
            self._end(process)
        return _parsed(out, pid) or f"py-spy: {_reason(err)}"

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill and reap a run.

        If the run has not ended by then, because the machine is busy or a file system blocks it, a thread reaps it.
        """
        process.kill()  # no effect on a process that is reaped
        try:
            process.wait(timeout=_REAP_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(RuntimeError):  # no thread is available: the next `Popen` reaps it
                threading.Thread(target=process.wait, name="supervise-py-spy", daemon=True).start()
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()
        with self._changed:
            self._running.discard(process)

    def cancel(self, wait_s: float = 0.0) -> None:
        """Kill the runs, and start no others; wait at most `wait_s` seconds until their threads have reaped them."""
        with self._changed:
            self._canceled = True
            for process in self._running:
                process.kill()
            self._changed.wait_for(lambda: not self._unfinished, timeout=wait_s)


def _reason(err: bytes) -> str:
    lines = filter(str.strip, err.decode("utf-8", "replace").splitlines())
    return one_line(next(lines, "no output").removeprefix("Error: "))[:_MOST_TEXT]


def _parsed(out: bytes, pid: int) -> list[ThreadStack]:
    """Return the threads in the output of py-spy; empty if there is none with a frame."""
    try:
        threads = sorted(
            map(_thread, json.loads(out)[:_MOST_THREADS]), key=lambda thread: (thread.tid != pid, thread.tid or 0)
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
    return threads if any(thread.frames for thread in threads) else []


def _thread(each: dict[str, Any]) -> ThreadStack:
    frames = tuple(
        StackFrame(function=str(frame["name"]), file=str(frame["filename"]), line=int(frame["line"]))
        for frame in each["frames"]
    )
    return ThreadStack(name=str(each["thread_name"] or ""), tid=each["os_thread_id"], frames=frames)
