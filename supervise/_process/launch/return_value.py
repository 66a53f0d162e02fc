"""How a function's return value comes home: pickled into an anonymous file, read after the exit.

Nothing has to be drained, nothing can fill, and a value is either whole or absent: the header is
written last. The worker checks that the descriptor is still ours before it writes, since a user's
``closerange`` followed by ``open`` may have put a file of theirs on its number.

Large buffers of what pickles them apart (protocol 5: NumPy's arrays, tensors) follow the pickle, each
on a page of its own. The host maps them where they are, privately: nothing is copied before somebody
writes to it. Layout: header, pickle, buffers, table of the buffers.

Unpickling runs code, so it matters who can write into the file. It has no path and is opened by the
host alone: the worker that was handed it can, and what the worker hands it on to. So can whoever may
trace the host or the worker (``/proc/<pid>/fd``), which is the same user and root; they could run code
in the host anyway. Nobody else can.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from functools import partial

from supervise._process.files import LEAST_BYTES, anonymous_file

TYPE_CHECKING = False  # every worker imports this module: typing and dataclasses would take most of the time
if TYPE_CHECKING:
    import pickle
    from io import BufferedReader, BufferedWriter
    from typing import Any, Literal

    Kind = Literal["value", "None", "closed", "absent"]

_HEADER = struct.Struct("<8scQQ")  # magic, kind, number of buffers, where all of it ends
_PLACE = struct.Struct("<QQ")  # where a buffer begins, its bytes
_MAGIC = b"supervis"
_VALUE, _NONE, _CLOSED = b"v", b"n", b"c"
_KINDS: dict[bytes, Kind] = {_VALUE: "value", _NONE: "None", _CLOSED: "closed"}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

CHANNEL_CLOSED = "result channel closed by the worker"


class Address:
    """What the worker needs to find the file again, and to know that it is the right one."""

    def __init__(self, device: int, inode: int, host_pid: int, host_fd: int) -> None:
        """Make it."""
        self.device = device
        self.inode = inode
        self.host_pid = host_pid
        self.host_fd = host_fd


class OutcomeFile:
    """The host's side of one rank's outcome."""

    def __init__(self) -> None:
        """Make the file, empty."""
        self.fd = anonymous_file("supervise-outcome")
        stat = os.fstat(self.fd)
        self.address = Address(stat.st_dev, stat.st_ino, os.getpid(), self.fd)

    def kind(self) -> Kind:
        """Tell what the worker, which has ended, left: a whole value, None as its value, a complaint, or nothing."""
        header = os.pread(self.fd, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return "absent"
        magic, kind, _, end = _HEADER.unpack(header)
        if magic != _MAGIC or os.fstat(self.fd).st_size < end:
            return "absent"
        return _KINDS.get(kind, "absent")

    def load(self) -> Any:
        """Return the value, where there is one; see `kind`.

        Runs what the worker pickled: only for files of workers that we started. Its large buffers are the
        file's own pages, which live as long as anything that uses them; with Python before 3.13 so does
        one descriptor.

        Raises:
            EOFError: A process that the worker left behind has changed the file.
        """
        import pickle

        sealed = self._seal()
        _, _, count, end = _HEADER.unpack(os.pread(self.fd, _HEADER.size, 0))
        table = os.pread(self.fd, count * _PLACE.size, end - count * _PLACE.size)
        places = list(_PLACE.iter_unpack(table))
        with self._reader() as file:
            if sealed and places:
                buffers = self._map(end, places)
            else:
                buffers = [_copy(file, start, size) for start, size in places]
            file.seek(_HEADER.size)
            return pickle.load(file, buffers=buffers)

    def _reader(self) -> BufferedReader:
        """Open the file once more: the position of our descriptor is shared with whom the worker left behind."""
        return os.fdopen(os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC), "rb")

    def _map(self, end: int, places: list[tuple[int, ...]]) -> list[memoryview]:
        """Return the buffers where they are, writable: a page is copied when it is first written to."""
        import mmap

        more: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        whole = memoryview(
            mmap.mmap(self.fd, end, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE, **more)
        )
        return [whole[start : start + size] for start, size in places]

    def _seal(self) -> bool:
        """Make the file unchangeable, and tell whether it is: one that shrinks under a mapping is a SIGBUS."""
        import fcntl

        try:
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
        except OSError:  # a grandchild maps it for writing: at least it cannot shrink
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            return False
        return True

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
        OSError: There is no room for it.
    """
    if not _is_ours(fd, address):
        _complain(address)
        raise ConnectionError(CHANNEL_CLOSED)
    if value is None:  # most functions; neither side needs to pickle
        os.pwrite(fd, _HEADER.pack(_MAGIC, _NONE, 0, 0), 0)
        return
    apart: list[pickle.PickleBuffer] = []
    with os.fdopen(os.dup(fd), "wb") as file:
        file.seek(_HEADER.size)
        try:
            _pickler()(file, protocol=5, buffer_callback=partial(_stays, apart)).dump(value)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                raise
            msg = f"the return value, of type {_name(value)}, cannot be pickled: {error}"
            raise TypeError(msg) from error
        table = [_write_apart(file, buffer) for buffer in apart]
        file.write(b"".join(table))
        end = file.tell()
    os.pwrite(fd, _HEADER.pack(_MAGIC, _VALUE, len(apart), end), 0)


def _pickler() -> type[pickle.Pickler]:
    """Return what pickles values in this process: PyTorch's storages would go through torch.save otherwise."""
    import pickle  # not for a function that returns None

    if "torch" not in sys.modules:
        return pickle.Pickler
    from supervise._process.launch.tensors import StoragePickler

    return StoragePickler


def _stays(apart: list[pickle.PickleBuffer], buffer: pickle.PickleBuffer) -> bool:
    """Tell whether a buffer stays within the pickle; otherwise note it in `apart`."""
    try:
        with buffer.raw() as raw:
            if raw.nbytes < LEAST_BYTES:
                return True
    except BufferError:  # not in one piece
        return True
    apart.append(buffer)
    return False


def _write_apart(file: BufferedWriter, buffer: pickle.PickleBuffer) -> bytes:
    """Write a buffer from the next page on; return its line of the table."""
    page = os.sysconf("SC_PAGESIZE")
    start = -(-file.tell() // page) * page
    file.seek(start)
    with buffer.raw() as raw:
        file.write(raw)
        return _PLACE.pack(start, raw.nbytes)


def _copy(file: BufferedReader, start: int, size: int) -> memoryview:
    """Return a buffer's copy: somebody could change the file under a mapping."""
    file.seek(start)
    copy = memoryview(bytearray(size))
    if file.readinto(copy) != size:
        raise EOFError("the file with the return value was cut off by a process that the worker left behind")
    return copy


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
            os.pwrite(fd, _HEADER.pack(_MAGIC, _CLOSED, 0, 0), 0)
    finally:
        os.close(fd)
