"""Collection of the stacks of several processes within a fixed time. It runs on a thread that may block."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from supervise._printable import one_line
from supervise._process.launch.stack_signal import PREFIX
from supervise._record import NamedTuple
from supervise._runtime.wakeup import OwnedFd
from supervise.events import log
from supervise.stacks import RankStacks, StackFrame, ThreadStack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


# Stacks that the program ``py-spy`` reads from the memory of a process


_REAP_S = 1.0
"""Limit in seconds on the end of a killed run of py-spy."""
_MOST_TEXT = 200


def find_program() -> str | None:
    """Return the path of ``py-spy``: on PATH, or beside this Python; None if there is none."""
    beside = os.path.join(os.path.dirname(sys.executable or ""), "py-spy")
    return shutil.which("py-spy") or (beside if os.access(beside, os.X_OK) else None)


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


# Names of the system calls in which a process may block. The kernel gives only their numbers


_X86_64 = """0 read 1 write 7 poll 16 ioctl 19 readv 20 writev 23 select 34 pause 35 nanosleep 42 connect 43 accept
44 sendto 45 recvfrom 46 sendmsg 47 recvmsg 61 wait4 72 fcntl 73 flock 74 fsync 75 fdatasync 128 rt_sigtimedwait
130 rt_sigsuspend 202 futex 230 clock_nanosleep 232 epoll_wait 247 waitid 257 openat 270 pselect6 271 ppoll
281 epoll_pwait 288 accept4 299 recvmmsg 426 io_uring_enter 441 epoll_pwait2"""
_AARCH64 = """22 epoll_pwait 25 fcntl 29 ioctl 32 flock 56 openat 63 read 64 write 65 readv 66 writev 72 pselect6
73 ppoll 82 fsync 83 fdatasync 95 waitid 98 futex 101 nanosleep 115 clock_nanosleep 133 rt_sigsuspend
137 rt_sigtimedwait 202 accept 203 connect 206 sendto 207 recvfrom 211 sendmsg 212 recvmsg 242 accept4 243 recvmmsg
260 wait4 426 io_uring_enter 441 epoll_pwait2"""


def _table(machine: str) -> dict[str, str]:
    words = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(machine, "").split()
    return dict(zip(words[::2], words[1::2], strict=True))


_NAMES = _table(getattr(sys.implementation, "_multiarch", "").partition("-")[0])  # the machine of this Python


def name_of(line: str) -> str:
    """Return the name or number of the call in a line of ``/proc/PID/syscall``; "" if the thread is in no call."""
    number = line.partition(" ")[0].strip()
    if not number.isdigit():  # "running"; -1 outside of a call; "" without permission
        return ""
    return _NAMES.get(number, f"system call {number}")


# The kernel's view of the threads of a process, from procfs


MOST_THREADS = 64
"""Limit on the number of threads to read of one process."""
_DEAD = frozenset("ZXx")
_SUSPENDED = frozenset("Tt")


class SignalState(NamedTuple):
    """State of one signal in a process. A set of tids has at most `MOST_THREADS` members."""

    pending: bool
    """Whether the signal is sent and not handled yet."""
    blocking: frozenset[int]
    """Tids of threads that block the signal. A thread also blocks it while the thread runs the handler."""
    threads: int
    """Number of threads that were read."""


def kernel_view(pid: int) -> dict[int, ThreadStack] | None:
    """Return tid to each thread of a process, the main thread first; None if it has exited, as a zombie has."""
    threads: dict[int, ThreadStack] = {}
    for tid in _tids(pid):
        status = _status(pid, tid)
        state = status.get("State", "")[:1]
        if tid == pid and (not state or state in _DEAD):
            return None
        if state:
            wchan = _text(f"/proc/{pid}/task/{tid}/wchan").strip("\0\n ")
            threads[tid] = ThreadStack(
                name=status.get("Name", ""),
                tid=tid,
                state=state,
                wchan="" if wchan == "0" else wchan,
                syscall=name_of(_text(f"/proc/{pid}/task/{tid}/syscall")),
            )
    return threads or None


def foreign_program(pid: int) -> str | None:
    """Return the name of the program that a process runs, if the process has mapped no file of Python.

    None if the process may run Python.
    """
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            mapped = file.read().lower()
    except OSError:  # the process has exited, or belongs to another user
        return None
    if not mapped or any(name in mapped for name in (b"python", b"pypy", b"graalpy")):
        return None
    return one_line(_text(f"/proc/{pid}/comm").strip())


def signal_state(pid: int, number: int) -> SignalState | None:
    """Read the state of a signal in a process; None if the process has exited."""
    bit = 1 << (number - 1)
    pending = False
    blocking = set()
    tids = _tids(pid)
    for tid in tids:
        status = _status(pid, tid)
        if tid == pid and status.get("State", "Z")[:1] in _DEAD:
            return None
        pending = pending or _has(status, "SigPnd", bit) or _has(status, "ShdPnd", bit)
        if _has(status, "SigBlk", bit):
            blocking.add(tid)
    return SignalState(pending, frozenset(blocking), len(tids)) if tids else None


def refusal(pid: int, number: int) -> str | None:
    """Return why the process must not get the signal now; None if it has a handler and is not suspended."""
    status = _status(pid, pid)
    if status.get("State", "Z")[:1] in _DEAD:
        return "the process has exited"
    if status["State"][:1] in _SUSPENDED:
        return "the process is suspended"
    if not _has(status, "SigCgt", 1 << (number - 1)):
        return f"the process has no handler for signal {number} any more"
    return None


def _has(status: dict[str, str], name: str, bit: int) -> bool:
    return bool(int(status.get(name, "0"), 16) & bit)


def _tids(pid: int) -> list[int]:
    try:
        found = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []
    return [pid, *(tid for tid in found if tid != pid)][:MOST_THREADS] if pid in found else found[:MOST_THREADS]


def _status(pid: int, tid: int) -> dict[str, str]:
    lines = (line.partition(":") for line in _text(f"/proc/{pid}/task/{tid}/status").splitlines())
    return {name: value.strip() for name, _, value in lines}


def _text(path: str) -> str:
    """Return the content of a file; "" if the thread has exited or this process has no permission."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


# Stacks that a rank writes itself, by `faulthandler`, when it gets the signal of `launch.stack_signal`


_MOST_BYTES = 1 << 20
"""Limit on the bytes to read of one dump. faulthandler itself writes at most 100 threads of 100 frames."""
_MOST_THREADS = 100
_THREAD = re.compile(r"(?:(?:Current thread|Thread) 0x[0-9a-f]+ (?:\[(.*)\] )?|Stack )\(most recent call first\):")
"""The header of a thread. Since Python 3.14 it gives the name of the thread.

Without a GIL, a dump has the stack of only one thread.
"""
_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)')
_LINK = re.compile(rf"/memfd:{PREFIX}(\d+)-(\d+) \(deleted\)")


class Dump(OwnedFd):
    """One dump of one process. The steps are `find`, `prepare`, the signal, and `read` once `is_complete` is true."""

    def __init__(self, pid: int, number: int, fd: int) -> None:
        """Take over an open memory file; see `find`."""
        super().__init__(fd)
        self.pid = pid
        self.number = number
        """The signal at which the process writes its stacks."""
        self._start = 0
        self._before = frozenset[int]()

    @classmethod
    def find(cls, pid: int) -> Dump | str:
        """Open the memory file of a process; return the reason if that is not possible."""
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{name}"
                if (number := _number(path, pid)) is not None:
                    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
                    # The process may have replaced the descriptor, so check that no other file is truncated
                    if stat.S_ISREG(os.fstat(fd).st_mode) and _number(f"/proc/self/fd/{fd}", pid) == number:
                        return cls(pid, number, fd)
                    os.close(fd)
        except OSError as error:
            return f"the descriptors of the process cannot be read: {error.strerror}"
        return "the process has not called supervise.enable_stacks"

    def prepare(self) -> str | None:
        """Empty the file; return the reason if the process must not get the signal."""
        found = signal_state(self.pid, self.number)
        if found is None:
            return "the process has exited"
        if len(found.blocking) == found.threads:
            return f"every thread blocks signal {self.number}"
        self._before = found.blocking
        try:
            os.ftruncate(self.fd, 0)
        except OSError:  # the process has sealed the file
            self._start = os.fstat(self.fd).st_size
        return None

    def is_complete(self) -> bool:
        """Return whether the handler has run or the process has exited."""
        found = signal_state(self.pid, self.number)
        if found is None:
            return True
        is_handled = not found.pending and found.blocking <= self._before  # a thread blocks the signal in its handler
        return is_handled and os.fstat(self.fd).st_size > self._start

    def read(self) -> list[ThreadStack]:
        """Return the threads in the dump, the main thread first; empty if there is none."""
        text = os.pread(self.fd, _MOST_BYTES, self._start).decode("utf-8", "replace")
        return parsed(text, self.pid)


def _number(path: str, pid: int) -> int | None:
    """Return the number of the signal in the name of a memory file; None if the file is not one of `stack_signal`.

    Raises:
        PermissionError: The kernel does not permit the host to read the descriptors of the process.
    """
    try:
        found = _LINK.fullmatch(os.readlink(path))
    except FileNotFoundError:  # closed meanwhile
        return None
    if found is None or int(found[2]) != pid:  # inherited at a fork of another process
        return None
    number = int(found[1])
    return number if signal.SIGRTMIN <= number <= signal.SIGRTMAX else None


def parsed(text: str, pid: int) -> list[ThreadStack]:
    """Return the threads in the output of `faulthandler`, the main thread first.

    faulthandler lists the threads from the newest to the oldest, so the main thread is the last.

    Args:
        text: The output; anything that is not understood is skipped.
        pid: Pid of the process, which is the tid of its main thread.
    """
    threads: list[tuple[str, list[StackFrame]]] = []
    for line in text.splitlines():
        if (found := _THREAD.fullmatch(line)) is not None:
            threads.append((found[1] or "", []))
        elif threads and (found := _FRAME.fullmatch(line)) is not None:
            number = int(found[2]) if found[2].isdigit() else 0
            threads[-1][1].append(StackFrame(function=found[3], file=found[1], line=number))
    if not threads:
        return []
    (_, frames), *others = threads[::-1]
    main = ThreadStack(name="MainThread", tid=pid, frames=tuple(frames))
    rest = [ThreadStack(name=name, frames=tuple(frames)) for name, frames in others[:_MOST_THREADS]]
    return [main, *rest]


def with_states(python: list[ThreadStack], kernel: Mapping[int, ThreadStack]) -> tuple[ThreadStack, ...]:
    """Return the Python threads with their states, then the threads of the process that run no Python code."""
    joined = []
    rest = dict(kernel)
    for thread in python:
        seen = rest.pop(thread.tid, None) if thread.tid is not None else None
        if seen is not None:
            thread = replace(thread, state=seen.state, wchan=seen.wchan, syscall=seen.syscall)  # noqa: PLW2901
        joined.append(thread)
    return (*joined, *rest.values())


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
        self._runs: dict[subprocess.Popen[bytes], None] = {}
        """The present runs of py-spy."""
        self._too_slow = False
        """Whether a run exceeded its deadline. If so, the machine is busy, and no other run begins."""
        self._kernel: dict[int, dict[int, ThreadStack]] = {}
        """Rank to the result of `kernel_view`; empty if there was no time to read it."""
        self._foreign: dict[int, str] = {}
        """The ranks that seem to run no Python, and their programs."""
        self._notes: dict[int, list[str]] = {rank: [] for rank in pids}
        self._found: dict[int, RankStacks] = {}

    def cancel(self, wait_s: float = 0.0) -> None:
        """Make `run` return soon, and kill the runs of py-spy. Wait at most `wait_s` seconds for their ends.

        Callable from any thread.
        """
        self._canceled.set()
        until_s, runs = time.monotonic() + wait_s, list(self._runs)
        for process in runs:
            process.kill()
        for process in runs if wait_s else ():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until_s - time.monotonic()))

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
        for rank, threads in list(self._kernel.items()):
            if rank not in found:
                found[rank] = self._stacks(rank, "kernel", with_states([], threads))
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
            threads = kernel_view(pid) if self._left_s(_KERNEL_S) > 0 else {}
            if threads is not None:
                self._kernel[rank] = threads

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
        ranks: queue.SimpleQueue[int] = queue.SimpleQueue()
        for rank in sorted(self._kernel, key=lambda rank: rank in self._foreign):  # time may be too short for all
            ranks.put(rank)
        threads = []
        for _ in range(min(_MOST_RUNS, os.cpu_count() or 1, len(self._kernel)) - 1):
            work = partial(self._spy, program, ranks)
            thread = threading.Thread(target=work, name="supervise-py-spy", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread is available
                break
            threads.append(thread)
        self._spy(program, ranks)
        for thread in threads:
            thread.join()

    def _spy(self, program: str, ranks: queue.SimpleQueue[int]) -> None:
        while True:
            try:
                rank = ranks.get_nowait()
            except queue.Empty:
                return
            found = self._run_once(program, self._pids[rank])
            if isinstance(found, str):
                self._notes[rank].append(found)
            else:
                self._found[rank] = self._stacks(rank, "py-spy", with_states(found, self._kernel[rank]))

    def _run_once(self, program: str, pid: int) -> list[ThreadStack] | str:
        """Return the Python threads of a process, the main thread first; if there are none, the reason."""
        left_s = min(self._left_s(_PY_SPY_S), _RUN_S)
        if self._too_slow or left_s <= 0:
            return "the request was canceled" if self._canceled.is_set() else "there was no time left for py-spy"
        command = [program, "dump", "--pid", str(pid), "--nonblocking", "--json"]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except (OSError, RuntimeError) as error:  # RuntimeError: the interpreter is exiting
            return f"py-spy cannot be started: {error}"
        self._runs[process] = None
        try:
            if self._canceled.is_set():  # while the process was started
                process.kill()
            out, err = process.communicate(timeout=left_s)
        except subprocess.TimeoutExpired:
            self._too_slow = True
            return "py-spy took too long"
        finally:
            self._end(process)
        return _parsed(out, pid) or f"py-spy: {_reason(err)}"

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill and reap a run. If a tracer or a file system delays its end, the next `Popen` reaps it."""
        process.kill()  # no effect on a process that is reaped
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_S)
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()
        del self._runs[process]

    # faulthandler

    def _request_dumps(self) -> None:
        dumps: dict[int, Dump] = {}
        answers: dict[int, queue.SimpleQueue[str | None]] = {}
        try:
            for rank in self._kernel:
                if rank in self._found:
                    continue
                found = self._prepared(rank) if self._left_s(_DUMPS_S) > 0 else "there was no time left"
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

    def _prepared(self, rank: int) -> Dump | str:
        pid = self._pids[rank]
        main = self._kernel[rank].get(pid)
        if main is not None and main.state in _SUSPENDED:
            return "the process is suspended"
        dump = Dump.find(pid)
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
            joined = with_states(threads, self._kernel[rank])
            self._found[rank] = self._stacks(rank, "faulthandler", joined)
        elif kernel_view(dump.pid) is None:  # it has exited meanwhile
            del self._kernel[rank]
        else:
            self._notes[rank].append("faulthandler: the process wrote no Python frames in time")
