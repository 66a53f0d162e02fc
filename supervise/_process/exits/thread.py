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
from supervise._runtime.wakeup import WakeFd

if TYPE_CHECKING:
    from collections.abc import Callable

_AGAIN_MS = 50


class ExitThread:
    """The exit notice of a process, by a thread that waits for it.

    The thread and the handle each have a descriptor of their own for the same event, so neither can
    set or close what is another's by now. The thread ends with the process, and is a daemon: an
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
        self._word = -1
        self._ours = WakeFd()
        try:
            self._threads = WakeFd(self._ours)
        except OSError:
            self._ours.close()
            raise
        try:
            work: Callable[[], None] = self._wait_for_child
            if parents_word is not None:
                self._word = fcntl.fcntl(parents_word, fcntl.F_DUPFD_CLOEXEC, 3)
                seen = look(pid)
                self._started = None if seen is None else seen.started
                work = self._wait_for_word
            threading.Thread(target=self._run, args=(work,), name=f"supervise-wait-{pid}", daemon=True).start()
        except (OSError, RuntimeError) as error:
            self._ours.close()
            self._threads.close()
            if self._word >= 0:
                os.close(self._word)
            if isinstance(error, OSError):
                raise
            raise OSError(errno.EAGAIN, f"no thread to wait for process {pid}: {error}") from error

    def fileno(self) -> int:
        """The descriptor that becomes and stays readable."""
        return self._ours.fileno()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            if self.at_ns is None:
                self.at_ns = time.monotonic_ns()
            self.dead = True
            self._threads.set()
            self._threads.close()

    def look(self) -> None:
        """Ring now if the process is dead although its thread has not run yet. On the thread of the handle."""
        if self.dead or self._ours.fileno() < 0:
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
            self._ours.set()

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
            poll.register(self._threads.fileno(), select.POLLIN)
            poll.poll()
            if not _bytes_in(self._word):
                self._look_again_and_again()
        finally:
            os.close(self._word)

    def _look_again_and_again(self) -> None:
        """The named fallback: the parent is gone, so nobody tells; the start time says whether it is still the one."""
        poll = select.poll()
        poll.register(self._threads.fileno(), select.POLLIN)
        while not poll.poll(0):
            seen = look(self.pid)
            if seen is None or seen.dead or seen.started != self._started:
                return
            poll.poll(_AGAIN_MS)

    def peek(self) -> os.waitid_result | None:
        """Return the status of our child without reaping it; see `ExitNotice.peek`."""
        if not self.dead:
            return None
        if self.found is None and not self._is_anothers:  # the number may be another child's by now
            raise ChildProcessError(errno.ECHILD, "reaped by other code of this program")
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def stop(self) -> os.waitid_result | None:
        """Return how our child was stopped."""
        return None if self.dead else os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)

    def send(self, sig: int, flags: int) -> None:  # noqa: ARG002 - a flag needs a pidfd
        """Signal the process by its number."""
        os.kill(self.pid, sig)

    def lost_status(self) -> tuple[int | None, bool]:
        """Return nothing: the kernel tells it through a pidfd only."""
        return None, False

    def is_being_reaped(self) -> bool:
        """Return False: the thread has seen the status, or the process was reaped."""
        return False

    def close(self) -> None:
        """Let the descriptors go; a thread that waits for a parent's word ends. Idempotent."""
        if not self.dead:
            self._ours.set()
        self._ours.close()


def _bytes_in(fd: int) -> int:
    """Return how many bytes can be read from a pipe."""
    (count,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))
    return int(count)
