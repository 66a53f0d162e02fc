"""Result channel: a memory file for the return value of a function.

The worker pickles the value into the file, and the host reads it after the exit of the worker.

Unlike a pipe, the file needs no reader during the run and never fills up. The worker writes the header last, so a value
is either complete or absent. Before the write, the worker checks that the descriptor is still that of the channel. User
code may have closed it with ``closerange``, and a later ``open`` may have put another file on its number.

Large buffers that pickle passes out of band (protocol 5: NumPy's arrays, tensors) follow the pickle. Each buffer begins
on a page of its own. The host maps the buffers privately, so the kernel copies a page only at the first write to it.
Layout: header, pickle, buffers, table of the buffers; then perhaps a note.

If an exception leaves the function, the worker writes the time of the exception and a record of it instead. So the host
knows such an exception from one that the function has handled, or that a child of the worker has recorded.

Unpickling runs code, so only trusted processes may write to the file. The file has no path. Three kinds of processes
can write to it: the worker, a process to which the worker passes the descriptor, and a process that may trace the host
or the worker (``/proc/<pid>/fd``). A process that may trace belongs to the same user or to root, and could run code in
the host anyway.
"""

from __future__ import annotations

import copyreg
import errno
import os
import struct
import sys
import time
from functools import partial

from supervise._runtime.descriptors import LEAST_BYTES, anonymous_file, explained

TYPE_CHECKING = False  # every worker imports this module: typing and dataclasses would take most of the time
if TYPE_CHECKING:
    import pickle
    from io import BufferedReader, BufferedWriter
    from typing import Any, Literal

    from supervise._process.launch.hold import Hold

    Kind = Literal["value", "None", "closed", "raised", "absent"]
    Address = tuple[int, int, int, int]
    """Device and inode of the file; pid and descriptor of the host, by which the worker can open the file again."""

_HEADER = struct.Struct("<8scQQ")  # magic, kind, number of buffers (or time of the exception), end of the content
_PLACE = struct.Struct("<QQ")  # start of a buffer, its size in bytes
_MAGIC = b"supervis"
_NOTE_BYTES = 8192
_RECORD_BYTES = 4 << 20
"""As `result.MOST_BYTES`."""
_VALUE, _NONE, _CLOSED, _RAISED = b"v", b"n", b"c", b"r"
_KINDS: dict[bytes, Kind] = {_VALUE: "value", _NONE: "None", _CLOSED: "closed", _RAISED: "raised"}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

CHANNEL_CLOSED = "result channel closed by the worker"


class OutcomeFile:
    """The host's side of the result channel of one rank."""

    def __init__(self, *, holds: bool = False) -> None:
        """Make an empty file.

        Args:
            holds: Whether the rank is held after its function has returned.
        """
        self.hold: Hold | None = None
        self.fd: int = anonymous_file("supervise-outcome")
        if holds:
            from supervise._process.launch.hold import Hold  # lazy: most gangs hold no ranks

            try:
                self.hold = Hold()
            except OSError:
                self.close()
                raise
        stat = os.fstat(self.fd)
        self.address: Address = stat.st_dev, stat.st_ino, os.getpid(), self.fd

    def kind(self) -> Kind:
        """Return the kind of content: a complete value, the value None, a complaint, an exception, or nothing.

        Call it after the worker has exited.
        """
        header = os.pread(self.fd, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return "absent"
        magic, kind, _, end = _HEADER.unpack(header)
        if magic != _MAGIC or os.fstat(self.fd).st_size < end:
            return "absent"
        return _KINDS.get(kind, "absent")

    @property
    def has_value(self) -> bool:
        """Whether the function has returned, and its value is complete."""
        return self.fd >= 0 and self.kind() in ("value", "None")

    def raised(self) -> tuple[int, bytes] | None:
        """Return when an exception has left the function, in monotonic ns, and a record of it; None if none has."""
        if self.fd < 0 or self.kind() != "raised":
            return None
        _, _, at_ns, end = _HEADER.unpack(os.pread(self.fd, _HEADER.size, 0))
        size = min(max(end - _HEADER.size, 0), _RECORD_BYTES)  # the worker may have written anything
        return min(at_ns, time.monotonic_ns()), os.pread(self.fd, size, _HEADER.size)

    def note(self) -> str:
        """Return what the worker does after its function has returned; "" if it has not told. See `add_note`."""
        _, _, _, end = _HEADER.unpack(os.pread(self.fd, _HEADER.size, 0))
        return os.pread(self.fd, _NOTE_BYTES, max(end, _HEADER.size)).decode(errors="replace")

    def load(self) -> Any:
        """Return the value. Call it only if `kind` is ``value``.

        Unpickling runs code of the worker. The large buffers of the value are pages of the file. The kernel keeps these
        pages until the last object that uses them is collected. Before Python 3.13, the mapping also keeps a
        descriptor.

        Raises:
            EOFError: A descendant of the worker has changed the file.
        """
        import pickle

        sealed = self._seal()
        _, _, count, end = _HEADER.unpack(os.pread(self.fd, _HEADER.size, 0))
        table = os.pread(self.fd, count * _PLACE.size, end - count * _PLACE.size)
        places = list(_PLACE.iter_unpack(table))
        # Opened again, because the host's descriptor shares its position with descendants of the worker
        with os.fdopen(os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
            if sealed and places:
                buffers = self._map(end, places)
            else:
                buffers = [_copy(file, start, size) for start, size in places]
            file.seek(_HEADER.size)
            return pickle.load(file, buffers=buffers)

    def _map(self, end: int, places: list[tuple[int, ...]]) -> list[memoryview]:
        """Map the buffers as writable memory. The kernel copies a page at the first write to it."""
        import mmap

        more: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        whole = memoryview(
            mmap.mmap(self.fd, end, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE, **more)
        )
        return [whole[start : start + size] for start, size in places]

    def _seal(self) -> bool:
        """Seal the file; return whether it is immutable.

        Without the seal, a process could shrink the file, and an access to the mapping beyond its end would be a
        SIGBUS.
        """
        import fcntl

        try:
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
        except OSError:  # a descendant maps the file for writing: seal only the size
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            return False
        return True

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self.hold is not None:
            self.hold.close()
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


def send(fd: int, address: Address, value: object) -> None:
    """Write the return value of the function. The worker calls this.

    Raises:
        ConnectionError: User code closed the channel. If the worker can open the file again, it records the close
            there.
        TypeError: The value cannot be pickled; the text names its type.
        OSError: There is not enough memory for the value.
    """
    if not _is_ours(fd, address):
        _complain(address)
        raise ConnectionError(CHANNEL_CLOSED)
    if value is None:  # the common case, in which neither side needs pickle
        os.pwrite(fd, _HEADER.pack(_MAGIC, _NONE, 0, 0), 0)
        return
    apart: list[pickle.PickleBuffer] = []
    try:
        end = _write(fd, value, apart)
    except OSError as error:
        raise explained(error) from None
    os.pwrite(fd, _HEADER.pack(_MAGIC, _VALUE, len(apart), end), 0)


def tell_raised(fd: int, address: Address, at_ns: int, record: str) -> bool:
    """Write that an exception has left the function; return whether that succeeded. The worker calls this.

    Args:
        fd: The descriptor of the channel.
        address: The address of the channel.
        at_ns: Time of the exception, in monotonic ns.
        record: A record of the exception, in the format of error files.
    """
    content = record.encode(errors="backslashreplace")
    end = _HEADER.size + len(content)
    try:
        channel = fd if _is_ours(fd, address) else _opened(address)
        try:
            os.pwrite(channel, content, _HEADER.size)
            os.pwrite(channel, _HEADER.pack(_MAGIC, _RAISED, at_ns, end), 0)
        finally:
            if channel != fd:
                os.close(channel)
    except OSError:
        return False
    return True


def _write(fd: int, value: object, apart: list[pickle.PickleBuffer]) -> int:
    """Write a value behind the header; return the end of the content."""
    with os.fdopen(fd, "wb", closefd=False) as file:  # without a copy: the function may have left no descriptor
        file.seek(_HEADER.size)
        try:
            _dump(value, file, apart, _refusing(_pickler(), copyreg.dispatch_table))
        except (Exception, SystemExit) as error:
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                raise
            if not _dumped_by_value(value, file, apart):
                raise unpicklable(value, error) from error
        table = [_write_apart(file, buffer) for buffer in apart]
        file.write(b"".join(table))
        return file.tell()


def add_note(fd: int, address: Address, text: str) -> None:
    """Write after the value why the worker does not exit. The worker calls this.

    Raises:
        OSError: The channel is closed, or there is not enough memory.
    """
    if _is_ours(fd, address):
        _, _, _, end = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
        os.pwrite(fd, text.encode(errors="backslashreplace")[:_NOTE_BYTES], max(end, _HEADER.size))


def unpicklable(value: object, error: BaseException) -> TypeError:
    """Return the exception for a return value that cannot be pickled because of `error`."""
    from supervise.recording import text_of

    name = f"{type(value).__module__}.{type(value).__qualname__}"
    why = f"{type(error).__name__}: {text_of(error)}"
    return TypeError(f"the return value, of type {name}, cannot be pickled: {why}")


def _dump(value: object, file: BufferedWriter, apart: list[pickle.PickleBuffer], pickler: Any) -> None:
    pickler(file, protocol=5, buffer_callback=partial(_stays, apart)).dump(value)


def _refusing(pickler: Any, known: Any) -> Any:
    """Return a class of picklers that refuse connections. `known` is the dispatch table of the base class."""
    # A thread of the host may have been importing it when the rank was forked: then it has no such class
    connection = getattr(sys.modules.get("multiprocessing.connection"), "Connection", None)
    if connection is None:
        return pickler
    return type("Pickler", (pickler,), {"dispatch_table": {**known, connection: _refuse_connection}})


def _refuse_connection(_connection: object) -> Any:
    """Refuse a connection. Plain pickle would send the number of its descriptor, and the host has another file there.

    Raises:
        TypeError: Always.
    """
    raise TypeError(
        "a connection cannot be returned, because its descriptor ends with the rank; send it through a queue"
    )


def _dumped_by_value(value: object, file: BufferedWriter, apart: list[pickle.PickleBuffer]) -> bool:
    """Pickle by value an object whose class came from the host by cloudpickle; return whether that succeeded."""
    if "cloudpickle" not in sys.modules:
        return False
    import cloudpickle

    apart.clear()
    file.seek(_HEADER.size)
    try:
        _dump(value, file, apart, _refusing(cloudpickle.Pickler, cloudpickle.Pickler.dispatch_table))
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise
        return False
    return True


def _pickler() -> type[pickle.Pickler]:
    """Return the pickler class. With PyTorch loaded, the class does not call torch.save for each storage."""
    try:
        import pickle  # not for a function that returns None
    except (ImportError, OSError):  # the function has changed its user or its root folder, or has left no descriptor
        import _pickle as pickle  # type: ignore[no-redef]

    if "torch" not in sys.modules:
        return pickle.Pickler
    from supervise._process.launch.tensors import StoragePickler

    return StoragePickler


def _stays(apart: list[pickle.PickleBuffer], buffer: pickle.PickleBuffer) -> bool:
    """Return whether a buffer stays within the pickle. Otherwise add the buffer to `apart`."""
    try:
        with buffer.raw() as raw:
            if raw.nbytes < LEAST_BYTES:
                return True
    except BufferError:  # not contiguous
        return True
    apart.append(buffer)
    return False


def _write_apart(file: BufferedWriter, buffer: pickle.PickleBuffer) -> bytes:
    """Write a buffer from the next page on; return the line for the table of buffers."""
    page = os.sysconf("SC_PAGESIZE")
    start = -(-file.tell() // page) * page
    file.seek(start)
    with buffer.raw() as raw:
        file.write(raw)
        return _PLACE.pack(start, raw.nbytes)


def _copy(file: BufferedReader, start: int, size: int) -> memoryview:
    """Return a copy of a buffer.

    With a mapping, a descendant of the worker could change the content of the file later.
    """
    file.seek(start)
    copy = memoryview(bytearray(size))
    if file.readinto(copy) != size:
        raise EOFError("the file with the return value was cut off by a process that the worker left behind")
    return copy


def _is_ours(fd: int, address: Address) -> bool:
    try:
        stat = os.fstat(fd)
    except OSError:
        return False
    return (stat.st_dev, stat.st_ino) == address[:2]


def _complain(address: Address) -> None:
    """Record in the file that the channel was closed."""
    try:
        fd = _opened(address)
    except OSError:  # no /proc, or no permission: the exit code and the error file remain
        return
    try:
        os.pwrite(fd, _HEADER.pack(_MAGIC, _CLOSED, 0, 0), 0)
    finally:
        os.close(fd)


def _opened(address: Address) -> int:
    """Open the file by the host's descriptor, because user code has closed that of the worker.

    Raises:
        OSError: There is no ``/proc``, no permission, or no such file.
    """
    _, _, host_pid, host_fd = address
    fd = os.open(f"/proc/{host_pid}/fd/{host_fd}", os.O_RDWR | os.O_CLOEXEC)
    if not _is_ours(fd, address):
        os.close(fd)
        raise OSError(errno.EBADF, CHANNEL_CLOSED)
    return fd


def complaint(code: int, kind: str) -> str | None:
    """Return why the exit code of a function is a failure although it is 0; None if there is no complaint.

    Args:
        code: The exit code.
        kind: What `OutcomeFile.kind` has found.
    """
    if kind == "closed":
        return CHANNEL_CLOSED
    if code == 0 and kind in ("absent", "raised"):
        return "exited with code 0 without a return value (os._exit, or a crash in a C library)"
    return None
