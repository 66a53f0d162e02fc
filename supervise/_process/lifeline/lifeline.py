"""When the host dies, however it dies, every worker's process group is killed.

Each worker holds the read end of a pipe whose only write end lives in the host. The read end's open
file description belongs to the worker's group (``F_SETOWN``), its signal is SIGKILL (``F_SETSIG``)
and it is asynchronous (``O_ASYNC``): a hang-up is delivered by the kernel, without a thread or a
process of ours, also to a worker that ignores SIGTERM or never returns from C.

The host keeps a copy of each read end until the worker's group is empty. A worker that ends, or closes
what it does not know, leaves the others in its group under the lifeline.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import threading

from supervise._process.files import clear_of_stdio
from supervise._runtime import fork_hooks

_lock = threading.RLock()  # a signal handler may fork inside it
_write_ends: set[int] = set()
_kept: set[int] = set()
"""Read ends of running ranks."""
_F_SETSIG = 10
"""Since Python's `fcntl` may have been built without it."""
_FAR = 256
"""How far above a read end the write end is numbered, so that it is seldom done again."""


def private_pipe() -> tuple[int, int]:
    """Return both ends of a new pipe, whose write end no child of this process keeps; `close_private` closes that.

    Raises:
        OSError: There is no descriptor left.
    """
    with _lock:  # keeps a fork away
        read, write = os.pipe()
        _write_ends.add(write)
    return read, write


def close_private(write: int) -> None:
    """Close the write end of a `private_pipe`."""
    with _lock:
        if write in _write_ends:  # otherwise this is a forked child, which has closed it
            _write_ends.discard(write)
            os.close(write)


class Lifeline:
    """One pipe a gang. Its ranks have a read end each, opened anew so that each has its own owner."""

    def __init__(self) -> None:
        """Make the pipe, under the lock that also keeps a fork away.

        Raises:
            OSError: There is no descriptor left.
        """
        self.keeps = False
        """Whether `keep` keeps: the limit of open files allows another descriptor for each rank."""
        self.empty = clear_of_stdio(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        """What programs have for stdin: opened once, since opening it anew is a tenth of a launch."""
        try:
            self._read, self._write = private_pipe()
        except BaseException:
            os.close(self.empty)
            raise

    def read_end(self) -> int:
        """Return a new descriptor of the read end for one rank; the caller closes it, or gives it to `keep`.

        Raises:
            OSError: The lifeline was cut: nothing may be started under it any more. Or no descriptor is left.
        """
        if self._read < 0:
            raise OSError(errno.EBADF, "the gang has ended; its lifeline is cut")
        fd = clear_of_stdio(os.open(f"/proc/self/fd/{self._read}", os.O_RDONLY | os.O_CLOEXEC))
        try:
            prepare(fd)
        except OSError:
            os.close(fd)
            raise
        return fd

    def keep(self, read_end: int) -> int:
        """Keep the read end of a rank that was started, until `release`; return it, or -1 where it was closed."""
        if self.keeps:
            return self._keep(read_end)
        os.close(read_end)
        return -1

    def _keep(self, read_end: int) -> int:
        """Keep a read end below the write end.

        A dying process lets its descriptors go in the order of their numbers, the highest first (since Linux 4.3).
        At the hang-up, the read ends must still be there.
        """
        with _lock:
            if 0 <= self._write < read_end and not self._renumber(read_end):
                os.close(read_end)
                return -1
            _kept.add(read_end)
        return read_end

    def _renumber(self, below: int) -> bool:
        """Number the write end above `below`; return False if the limit of open files allows no such number."""
        for least in (below + _FAR, below):
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
        """Others are left in the group of a rank, whose number may become a stranger's from now on.

        Args:
            pgid: The group.
            read_end: What `keep` gave.

        Returns:
            A read end that is armed for the group, until `release`; -1 where there can be none.
        """
        if read_end >= 0:
            return read_end
        try:
            read_end = self._keep(self.read_end())
            if read_end >= 0:
                arm(read_end, pgid)
        except OSError:  # no descriptor left, or the group is empty by now
            return read_end
        return read_end

    def cut(self) -> None:
        """Let go: kills what still holds a read end. Idempotent."""
        with _lock:
            read, write, self._read, self._write = self._read, self._write, -1, -1
            if write in _write_ends:  # otherwise this is a forked child, which has closed it
                _write_ends.discard(write)
                os.close(write)
                os.close(read)
                os.close(self.empty)


def release(read_end: int) -> None:
    """Close a read end that `Lifeline.keep` or `Lifeline.leader_reaped` gave; -1 is none. Idempotent."""
    with _lock:
        if read_end in _kept:
            _kept.remove(read_end)
            os.close(read_end)


def prepare(read_end: int) -> None:
    """Do all that can be done before there is a group, so that `arm` is a single system call behind its start."""
    fcntl.fcntl(read_end, _F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(read_end, fcntl.F_GETFL)
    fcntl.fcntl(read_end, fcntl.F_SETFL, flags | os.O_ASYNC)


def arm(read_end: int, pgid: int) -> None:
    """Have the group `pgid` killed at the pipe's hang-up. The group must exist, and the descriptor be prepared."""
    fcntl.fcntl(read_end, fcntl.F_SETOWN, -pgid)


def arm_self(read_end: int) -> None:
    """Arm the calling process, which leads its group; end it at once if the host is gone already.

    The read end stays open across an exec: a function that becomes a program (`os.execv`) is killed with the host,
    too. Nothing is ever written to the pipe. Another user who inherits the read end cannot open the write end
    through it, but can disarm it.
    """
    os.set_inheritable(read_end, True)
    arm(read_end, os.getpid())
    poll = select.poll()
    poll.register(read_end, select.POLLIN | select.POLLHUP)
    if poll.poll(0):
        os.killpg(0, signal.SIGKILL)


def _forget_in_child() -> None:
    """A forked child must not keep the host's pipes open, or they would never hang up."""
    for fd in _write_ends:
        os.close(fd)
    _write_ends.clear()
    for fd in _kept:
        os.close(fd)
    _kept.clear()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release)  # a fork keeps no pipe that is half made
fork_hooks.register("lifeline", in_child=_forget_in_child)
