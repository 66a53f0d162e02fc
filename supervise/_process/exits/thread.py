"""Without pidfds: a descriptor that is readable once a process is dead, rung by one waiting thread a process."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import termios
import threading
import time
from typing import TYPE_CHECKING

from supervise._process.containment.procfs import look
from supervise._process.files import clear_of_stdio

if TYPE_CHECKING:
    from collections.abc import Callable

_RING = (1).to_bytes(8, "little")  # what an eventfd counts; a pipe takes anything
_AGAIN_MS = 50


class ExitThread:
    """Tells of one process that it is dead.

    The thread and the handle each have descriptors of their own for the same bell, so neither can
    ring or close what is another's by now. The thread ends with the process, and is a daemon: an
    interpreter that exits does not wait for it.
    """

    def __init__(self, pid: int, *, parents_word: int | None = None) -> None:
        """Begin to wait.

        Args:
            pid: A child of ours that nobody has reaped. Or, with `parents_word`, another's child.
            parents_word: A descriptor that becomes readable when its parent has reaped it, or is gone.

        Raises:
            OSError: There are no more descriptors or threads.
        """
        self.pid = pid
        self._is_anothers = parents_word is not None
        self.dead = False
        """Whether its end was noticed."""
        self.found: os.waitid_result | None = None
        """How a child ended; None where somebody else has reaped it."""
        self.at_ns: int | None = None
        """When its end was noticed, monotonic."""
        self._ours = _new_bell()
        held = set(self._ours)
        try:
            self._theirs = tuple(_copy(fd, held) for fd in dict.fromkeys(self._ours))
            work: Callable[[], None] = self._wait_for_child
            if parents_word is not None:
                self._word = _copy(parents_word, held)
                seen = look(pid)
                self._started = None if seen is None else seen.started
                work = self._wait_for_word
            threading.Thread(target=self._run, args=(work,), name=f"supervise-wait-{pid}", daemon=True).start()
        except (OSError, RuntimeError) as error:
            for fd in held:
                os.close(fd)
            if isinstance(error, OSError):
                raise
            raise OSError(errno.EAGAIN, f"no thread to wait for process {pid}: {error}") from error

    def fileno(self) -> int:
        """The descriptor that becomes and stays readable."""
        return self._ours[0]

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            if self.at_ns is None:
                self.at_ns = time.monotonic_ns()
            self.dead = True
            os.write(self._theirs[-1], _RING)
            for fd in self._theirs:
                os.close(fd)

    def look(self) -> None:
        """Ring now if the process is dead although its thread has not run yet. On the thread of the handle."""
        if self.dead or self._ours[0] < 0:
            return
        if self._is_anothers:
            seen = look(self.pid)
            gone = seen is None or seen.dead or seen.started != self._started
        else:
            try:
                self.found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            except ChildProcessError:  # the thread will tell
                return
            gone = self.found is not None
        if gone:
            self.at_ns, self.dead = time.monotonic_ns(), True
            os.write(self._ours[1], _RING)

    def _wait_for_child(self) -> None:
        try:
            self.found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT) or self.found
        except ChildProcessError:  # somebody else has reaped it, or the kernel (SIGCHLD is ignored)
            return

    def _wait_for_word(self) -> None:
        """Wait for the parent's word, which is not read here; look by ourselves once nobody will say it."""
        try:
            poll = select.poll()
            poll.register(self._word, select.POLLIN)
            poll.register(self._theirs[0], select.POLLIN)
            poll.poll()
            if not _bytes_in(self._word):
                self._look_again_and_again()
        finally:
            os.close(self._word)

    def _look_again_and_again(self) -> None:
        """The named fallback: the parent is gone, so nobody tells; the start time says whether it is still the one."""
        poll = select.poll()
        poll.register(self._theirs[0], select.POLLIN)
        while not poll.poll(0):
            seen = look(self.pid)
            if seen is None or seen.dead or seen.started != self._started:
                return
            poll.poll(_AGAIN_MS)

    def close(self) -> None:
        """Let the descriptors go; a thread that waits for a parent's word ends. Idempotent."""
        ours, self._ours = self._ours, (-1, -1)
        if ours[0] < 0:
            return
        if not self.dead:
            os.write(ours[1], _RING)
        for fd in set(ours):
            os.close(fd)


def _new_bell() -> tuple[int, int]:
    """Return descriptors to wait for and to ring with.

    Not a pipe whose write end is closed: whatever is forked holds a copy of it.
    """
    if hasattr(os, "eventfd"):
        fd = clear_of_stdio(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        return fd, fd
    read_end, write_end = os.pipe()
    return clear_of_stdio(read_end), clear_of_stdio(write_end)


def _copy(fd: int, held: set[int]) -> int:
    """Return a descriptor of its own for the same thing, noted in `held`."""
    copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    held.add(copy)
    return copy


def _bytes_in(fd: int) -> int:
    """Return how many bytes can be read from a pipe."""
    (count,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))
    return int(count)
