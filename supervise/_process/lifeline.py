"""When the host dies, however it dies, the kernel kills every worker's process group.

Each worker holds the read end of a pipe whose only write end lives in the host. The read end's open
file description belongs to the worker's group (``F_SETOWN``), its signal is SIGKILL (``F_SETSIG``)
and it is asynchronous (``O_ASYNC``): a hang-up is delivered by the kernel, without a thread or a
process of ours, also to a worker that ignores SIGTERM or never returns from C.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import threading

from supervise._process import capability
from supervise._process.memory import clear_of_stdio

_lock = threading.RLock()  # a signal handler may fork inside it
_write_ends: set[int] = set()


class Lifeline:
    """One pipe a gang. Its ranks have a read end each, opened anew so that each has its own owner."""

    def __init__(self) -> None:
        """Make the pipe, under the lock that also keeps a fork away."""
        self.empty = clear_of_stdio(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        """What programs have for stdin: opened once, since opening it anew is a tenth of a launch."""
        try:
            with _lock:
                self._read, self._write = os.pipe()
                _write_ends.add(self._write)
        except BaseException:
            os.close(self.empty)
            raise

    def read_end(self) -> int:
        """Return a new descriptor of the read end for one rank; the caller closes it.

        Raises:
            OSError: The lifeline was cut: nothing may be started under it any more.
        """
        if self._read < 0:
            raise OSError(errno.EBADF, "the gang has ended; its lifeline is cut")
        if capability.LINUX:
            return clear_of_stdio(os.open(f"/proc/self/fd/{self._read}", os.O_RDONLY | os.O_CLOEXEC))
        return clear_of_stdio(os.dup(self._read))

    def cut(self) -> None:
        """Let go: kills what still holds a read end. Idempotent."""
        with _lock:
            read, write, self._read, self._write = self._read, self._write, -1, -1
            if write in _write_ends:  # otherwise this is a forked child, which has closed it
                _write_ends.discard(write)
                os.close(write)
                os.close(read)
                os.close(self.empty)


def arm(read_end: int, pgid: int) -> None:
    """Have the group `pgid` killed at the pipe's hang-up. The group must exist."""
    if capability.F_SETSIG is None:
        return
    fcntl.fcntl(read_end, fcntl.F_SETOWN, -pgid)
    fcntl.fcntl(read_end, capability.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(read_end, fcntl.F_GETFL)
    fcntl.fcntl(read_end, fcntl.F_SETFL, flags | os.O_ASYNC)


def arm_self(read_end: int) -> None:
    """Arm the calling process, which leads its group; end it at once if the host is gone already."""
    arm(read_end, os.getpid())
    poll = select.poll()
    poll.register(read_end, select.POLLIN | select.POLLHUP)
    if poll.poll(0):
        os.killpg(0, signal.SIGKILL)
    if capability.F_SETSIG is None:
        threading.Thread(target=_watch, args=(read_end,), name="supervise-lifeline", daemon=True).start()


def _watch(read_end: int) -> None:
    """Where the kernel cannot signal a hang-up: wait for it in a thread."""
    os.read(read_end, 1)
    os.killpg(0, signal.SIGKILL)


def _forget_in_child() -> None:
    """A forked child must not keep the host's pipes open, or they would never hang up."""
    for fd in _write_ends:
        os.close(fd)
    _write_ends.clear()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget_in_child)
