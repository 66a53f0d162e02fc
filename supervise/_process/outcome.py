"""How a function's return value comes home: pickled into an anonymous file, read after the exit.

Nothing has to be drained, nothing can fill, and a value is either whole or absent: the header is
written last. The worker checks that the descriptor is still ours before it writes, since a user's
``closerange`` followed by ``open`` may have put a file of theirs on its number.
"""

from __future__ import annotations

import os
import pickle
import struct
from dataclasses import dataclass
from typing import Any, Literal

from supervise._process import capability
from supervise._process.memory import anonymous_file

_HEADER = struct.Struct("<8scQ")  # magic, kind, bytes of the body
_MAGIC = b"supervis"
_VALUE, _CLOSED = b"v", b"c"

CHANNEL_CLOSED = "result channel closed by the worker"


@dataclass(frozen=True, slots=True)
class Address:
    """What the worker needs to find the file again, and to know that it is the right one."""

    device: int
    inode: int
    host_pid: int
    host_fd: int


class OutcomeFile:
    """The host's side of one rank's outcome."""

    def __init__(self) -> None:
        """Make the file, empty."""
        self.fd = anonymous_file("supervise-outcome")
        stat = os.fstat(self.fd)
        self.address = Address(stat.st_dev, stat.st_ino, os.getpid(), self.fd)

    def kind(self) -> Literal["value", "closed", "none"]:
        """Tell what the worker, which has ended, left: a whole value, a complaint, or nothing."""
        header = os.pread(self.fd, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return "none"
        magic, kind, size = _HEADER.unpack(header)
        if magic != _MAGIC or os.fstat(self.fd).st_size < _HEADER.size + size:
            return "none"
        return "closed" if kind == _CLOSED else "value"

    def load(self) -> Any:
        """Return the value. Runs what the worker pickled: only for files of workers that we started."""
        import mmap

        self._seal()
        size = os.fstat(self.fd).st_size
        with mmap.mmap(self.fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as whole:
            body = memoryview(whole)[_HEADER.size :]
            try:
                return pickle.loads(body)
            finally:
                body.release()

    def _seal(self) -> None:
        """A file that shrinks under a mapping is a SIGBUS: make it unchangeable first."""
        if capability.MEMFD:
            import fcntl

            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
            try:
                fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
            except OSError:  # a grandchild maps it for writing: at least it cannot shrink
                fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)

    def close(self) -> None:
        """Let the file go. Idempotent."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


def send(fd: int, address: Address, value: object) -> None:
    """Write a worker's return value. In the worker.

    Raises:
        ConnectionError: The worker closed the channel; the host was told if it could be.
        TypeError: The value cannot be pickled; the message names its type.
    """
    if not _is_ours(fd, address):
        _complain(address)
        raise ConnectionError(CHANNEL_CLOSED)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.seek(_HEADER.size)
        try:
            pickle.dump(value, file, protocol=5)
        except Exception as error:
            msg = f"the return value, of type {_name(value)}, cannot be pickled: {error}"
            raise TypeError(msg) from error
        file.flush()
        size = file.tell() - _HEADER.size
    os.pwrite(fd, _HEADER.pack(_MAGIC, _VALUE, size), 0)


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _is_ours(fd: int, address: Address) -> bool:
    try:
        stat = os.fstat(fd)
    except OSError:
        return False
    return (stat.st_dev, stat.st_ino) == (address.device, address.inode)


def _complain(address: Address) -> None:
    """Say through the host's own descriptor that ours is gone."""
    try:
        fd = os.open(f"/proc/{address.host_pid}/fd/{address.host_fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # no /proc, or not ours to open: the exit code and the error file remain
        return
    try:
        if _is_ours(fd, address):
            os.pwrite(fd, _HEADER.pack(_MAGIC, _CLOSED, 0), 0)
    finally:
        os.close(fd)
