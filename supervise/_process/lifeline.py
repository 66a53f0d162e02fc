"""Lifeline: when the host dies for any reason, the kernel kills the process group of every worker.

Each worker holds a read end of a pipe whose only write end is in the host. The open file description of the read end
has three settings: its owner is the worker's group (``F_SETOWN``), its signal is SIGKILL (``F_SETSIG``), and it is
asynchronous (``O_ASYNC``). So the kernel itself sends SIGKILL at the hang-up. No thread or process of the host is
needed, and the signal also ends a worker that ignores SIGTERM or never returns from C.

The host keeps a copy of each read end until the group of the worker is empty. So the lifeline still covers the rest of
the group after the worker has exited, or has closed its own read end.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import threading
from contextlib import suppress

from supervise._platform import F_SETSIG
from supervise._runtime import fork_hooks
from supervise._runtime.descriptors import clear_of_stdio, close, stdio_taken

_lock = threading.RLock()  # a signal handler may fork inside it
_write_ends: set[int] = set()
_kept: set[int] = set()
"""Read ends of running ranks, which the host keeps."""
FAR = 256
"""Distance from the number of a read end to the number of the write end above it.

The distance is large, so that the write end rarely moves.
"""


def private_pipe() -> tuple[int, int]:
    """Return both ends of a new pipe. A forked child closes its copy of the write end.

    Neither is a standard stream, even if the host has closed its own: what is written there, such as the output of
    ranks, would make the lifeline kill the ranks.

    The caller closes the write end by `close_private`.

    Raises:
        OSError: There is no descriptor left, or no /dev/null.
    """
    with _lock, stdio_taken():  # a fork waits for the lock
        read, write = os.pipe()
        _write_ends.add(write)
    return read, write


def close_private(write: int) -> None:
    """Close the write end of a `private_pipe`."""
    with _lock:
        if write in _write_ends:  # otherwise this is a forked child, which has closed this end
            _write_ends.discard(write)
            with suppress(OSError):  # user code has closed it
                os.close(write)


class Lifeline:
    """The pipe of one gang.

    Each rank has an open file description of the read end for itself, so that each description has its own owner.
    """

    def __init__(self) -> None:
        """Make the pipe.

        Raises:
            OSError: There is no descriptor left.
        """
        self.keeps = False
        """Whether `keep` keeps read ends.

        It does if the limit on open files allows one more descriptor for each rank.
        """
        self._read, self._write = private_pipe()

    def read_end(self, least: int = 3) -> int:
        """Return a new descriptor of the read end for one rank. The caller closes it, or passes it to `keep`.

        Args:
            least: The lowest number for it.

        Raises:
            OSError: The lifeline was cut, so no process may be started under it; or no descriptor is left.
        """
        if self._read < 0:
            raise OSError(errno.EBADF, "the gang has ended; its lifeline is cut")
        fd = clear_of_stdio(os.open(f"/proc/self/fd/{self._read}", os.O_RDONLY | os.O_CLOEXEC), least)
        try:
            prepare(fd)
        except OSError:
            os.close(fd)
            raise
        return fd

    def keep(self, read_end: int, *, always: bool = False) -> int:
        """Keep the read end of a started rank until `release`; return the read end.

        Close it and return -1 if this lifeline keeps no read ends (unless `always`), or if the write end cannot get a
        number above it. Since Linux 4.3, the kernel closes the descriptors of an exiting process from the highest
        number down. So at the hang-up, the read ends are still open.
        """
        with _lock:
            if not (self.keeps or always) or (0 <= self._write < read_end and not self._renumber(read_end)):
                os.close(read_end)
                return -1
            _kept.add(read_end)
        return read_end

    def _renumber(self, below: int) -> bool:
        """Move the write end to a number above `below`; return False if the limit on open files allows none."""
        for least in (below + FAR, below):
            try:
                write = fcntl.fcntl(self._write, fcntl.F_DUPFD_CLOEXEC, least)
            except OSError:
                continue
            _write_ends.remove(self._write)
            os.close(self._write)
            self._write = write
            _write_ends.add(write)
            return True
        return False

    def leader_reaped(self, pgid: int, read_end: int) -> int:
        """Keep a read end for the leftovers of a reaped rank, so that the lifeline still covers its group.

        Args:
            pgid: The group.
            read_end: The return value of `keep`.

        Returns:
            A read end that is armed for the group and stays open until `release`; -1 if none is available.
        """
        if read_end >= 0:
            return read_end
        try:
            read_end = self.keep(self.read_end(), always=True)
            if read_end >= 0:
                arm(read_end, pgid)
        except OSError:  # no descriptor left, or the group is empty by now
            return read_end
        return read_end

    def cut(self) -> None:
        """Close the pipe. The kernel then kills every armed group. Idempotent."""
        with _lock:
            read, write, self._read, self._write = self._read, self._write, -1, -1
            if write in _write_ends:  # otherwise this is a forked child, which has closed this end
                close_private(write)
                with suppress(OSError):
                    os.close(read)


def release(read_end: int) -> None:
    """Close a read end that `Lifeline.keep` or `Lifeline.leader_reaped` has returned; ignore -1. Idempotent."""
    with _lock:
        if read_end in _kept:
            _kept.remove(read_end)
            os.close(read_end)


def prepare(read_end: int) -> None:
    """Set the signal and O_ASYNC, the steps of arming that need no group.

    So `arm` is a single system call right after the start of the process.
    """
    fcntl.fcntl(read_end, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(read_end, fcntl.F_SETFL, os.O_ASYNC)  # the descriptor has no other flag that can be changed


def arm(read_end: int, pgid: int) -> None:
    """Make the group `pgid` the owner of the read end. At the hang-up, the kernel kills the owner.

    The group must exist, and `prepare` must have been called.
    """
    fcntl.fcntl(read_end, fcntl.F_SETOWN, -pgid)


def arm_self(read_end: int) -> None:
    """Arm the lifeline for the calling process, which leads its group. Kill the group at once if the host is dead.

    The read end stays open across an exec, so the kernel also kills a function that becomes a program (`os.execv`). No
    process writes to the pipe. If a process of another user inherits the read end, it can disarm the lifeline, but it
    cannot open the write end through the read end.
    """
    os.set_inheritable(read_end, True)
    arm(read_end, os.getpid())
    poll = select.poll()
    poll.register(read_end, select.POLLIN | select.POLLHUP)
    if poll.poll(0):
        os.killpg(0, signal.SIGKILL)


def _forget_in_child() -> None:
    """Close the host's pipes in a forked child. Its copies of the write ends would prevent the hang-up."""
    close(*_write_ends, *_kept)
    _write_ends.clear()
    _kept.clear()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release)  # so that no fork sees an unregistered pipe
fork_hooks.register("lifeline", in_child=_forget_in_child)
