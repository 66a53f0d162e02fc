"""Exit notice without pidfds: one thread for each process waits for its exit, then makes a descriptor readable."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import struct
import termios
import threading
import time
from typing import TYPE_CHECKING

from supervise._process.containment.procfs import reading
from supervise._runtime.wakeup import WakeFd

if TYPE_CHECKING:
    from collections.abc import Callable

_AGAIN_MS = 50


class ExitThread:
    """The exit notice of a process, by a thread that waits for it.

    The thread and the handle have two descriptors for the same event. So neither sets or closes a descriptor whose
    number was reused. The thread ends with the process. It is a daemon thread, so an exiting interpreter does not wait
    for it.
    """

    def __init__(self, pid: int, *, parents_word: int | None = None) -> None:
        """Start the thread.

        Args:
            pid: A child of this process that is not reaped. With `parents_word`: a child of another process.
            parents_word: A descriptor that becomes readable when the parent has reaped the process or has exited.

        Raises:
            OSError: No descriptor is left, or no thread is available.
        """
        self.pid = pid
        self._is_anothers = parents_word is not None
        self.dead: bool = False
        """Whether the exit was noticed."""
        self.found: os.waitid_result | None = None
        """Status of a child; None if other code has reaped the child."""
        self.at_ns: int | None = None
        """Monotonic time at which the exit was noticed."""
        with contextlib.ExitStack() as opened:
            self._ours = opened.enter_context(contextlib.closing(WakeFd()))
            self._threads = opened.enter_context(contextlib.closing(WakeFd(self._ours)))
            work: Callable[[], None] = self._wait_for_child
            if parents_word is not None:
                self._word = fcntl.fcntl(parents_word, fcntl.F_DUPFD_CLOEXEC, 3)
                opened.callback(os.close, self._word)
                seen = reading(pid)
                self._started = None if seen is None else seen.started
                work = self._wait_for_word
            try:
                threading.Thread(target=self._run, args=(work,), name=f"supervise-wait-{pid}", daemon=True).start()
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, f"no thread to wait for process {pid}: {error}") from error
            opened.pop_all()

    @property
    def fd(self) -> int:
        """The descriptor that is readable from the exit on."""
        return self._ours.fd

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
        """Make the descriptor readable now if the process is dead but the thread has not run yet.

        The loop's thread calls this method.
        """
        if self.dead or self._ours.fd < 0:
            return
        if self._is_anothers:
            gone = self._is_gone()
        else:
            try:
                found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            except ChildProcessError:  # reaped by other code, which the thread will notice
                return
            gone = found is not None
            if gone:  # otherwise the process may have died since, and the thread may have stored its status
                self.found = found
        if gone:
            self.at_ns, self.dead = time.monotonic_ns(), True
            self._ours.set()

    def _wait_for_child(self) -> None:
        with contextlib.suppress(ChildProcessError):  # other code has reaped it, or the kernel (SIGCHLD is ignored)
            self.found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT) or self.found

    def _wait_for_word(self) -> None:
        """Wait until the parent reports, without reading the report.

        If the parent has exited without a report, poll /proc.
        """
        try:
            poll = select.poll()
            poll.register(self._word, select.POLLIN)
            poll.register(self._threads.fileno(), select.POLLIN)
            poll.poll()
            if not bytes_in(self._word):
                self._poll_procfs()
        finally:
            os.close(self._word)

    def _poll_procfs(self) -> None:
        """Poll until the process is dead. Its start time distinguishes it from a new process with the same pid."""
        poll = select.poll()
        poll.register(self._threads.fileno(), select.POLLIN)
        while not poll.poll(0):
            if self._is_gone():
                return
            poll.poll(_AGAIN_MS)

    def _is_gone(self) -> bool:
        """Return whether the child of another process is dead; False if no descriptor is left to find out."""
        try:
            seen = reading(self.pid)
        except OSError:  # such as EMFILE
            return False
        return seen is None or seen.dead or seen.started != self._started

    def peek(self) -> os.waitid_result | None:
        """Return the status of a child without reaping it; see `Pidfd.peek`."""
        if not self.dead:
            return None
        if self.found is None and not self._is_anothers:  # another child may have the pid now
            raise ChildProcessError(errno.ECHILD, "reaped by other code of this program")
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def stop(self) -> os.waitid_result | None:
        """Return how a child was suspended; see `Pidfd.stop`."""
        return None if self.dead else os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)

    def send(self, sig: int, flags: int) -> bool:  # noqa: ARG002 - flags exist only for pidfds
        """Signal the process by its pid; return whether the process received the signal."""
        try:
            os.kill(self.pid, sig)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def is_being_reaped(self) -> bool:
        """Return False: the thread has seen the status, or the process is already reaped."""
        return False

    def close(self) -> None:
        """Close the descriptors. A thread that waits for a report of the parent ends. Idempotent."""
        if not self.dead:
            self._ours.set()
        self._ours.close()


def bytes_in(fd: int) -> int:
    """Return how many bytes can be read from a pipe."""
    (count,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))
    return int(count)
