"""Where output goes: consoles that may be slow, stuck or gone, and files."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import select
import stat
import threading
from typing import TYPE_CHECKING, Protocol

from supervise._logs.lines import LineStream
from supervise._process.append import open_to_append
from supervise._runtime.wakeup import WakeFd

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

_POLLED_BYTES = 4096
"""What a pipe takes without blocking once it polls as writable (PIPE_BUF)."""

_RETRY_MS = 10
"""The pause before a destination is tried again that polls as writable and takes nothing."""

_PTMX = os.makedev(5, 2)


class Canceled(Exception):  # noqa: N818 - a fact, not an error
    """A write was given up because its `CancelToken` was set."""

    def __init__(self, written_bytes: int) -> None:
        """Say how much of the data had been written."""
        super().__init__(written_bytes)
        self.written_bytes = written_bytes


class CancelToken:
    """A flag that any thread may set, once, and that wakes whoever polls `fileno`. One for each Tail."""

    def __init__(self) -> None:
        """Make a flag that is not set; it holds a file descriptor until `close`."""
        self._lock = threading.Lock()
        self._set = False
        self._callbacks: list[Callable[[], object]] = []
        self._wake_fd = WakeFd()

    def set(self) -> None:
        """Set the flag, wake the poll and call the callbacks, in this thread; again is harmless."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
            if not self._set:
                self._set = True
                self._wake_fd.set()
        for callback in callbacks:
            callback()

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._set

    def fileno(self) -> int:
        """Return what polls as readable, for ever, once the flag is set; -1 after `close`."""
        return self._wake_fd.fileno()

    def on_set(self, callback: Callable[[], object]) -> None:
        """Call `callback`, which must not block, when the flag is set, or now if it is."""
        with self._lock:
            if not self._set:
                self._callbacks.append(callback)
                return
        callback()

    def close(self) -> None:
        """Give up the file descriptor and the callbacks; setting the flag stays harmless."""
        with self._lock:
            self._callbacks = []
            self._wake_fd.close()


class Sink(Protocol):
    """A destination. Used by one thread at a time, except for `same_destination`."""

    is_console: bool
    """Whether people read along: lines always end, and ``\\r`` has its meaning."""
    interruptible: bool
    """Whether a write that would block ends when `stop` is set. Otherwise only its thread waits on."""

    def write(self, data: bytes | memoryview, stop: CancelToken) -> None:
        """Write all of `data`.

        Raises:
            Abandoned: `stop` is set and the destination takes no more now.
            OSError: The destination failed (EPIPE, ENOSPC, ...).
        """

    def close(self) -> None:
        """Give up what was opened for this sink, never what the caller passed; again is harmless."""


class FdSink:
    """A file descriptor of its own: one that never blocks, or one that takes everything (a file, a device)."""

    def __init__(self, fd: int, *, is_console: bool = True, interruptible: bool = False) -> None:
        """Take over `fd`, which is `interruptible` if it never blocks in a write."""
        self.fd = fd
        self.is_console = is_console
        self.interruptible = interruptible

    def write(self, data: bytes | memoryview, stop: CancelToken) -> None:
        """Write all of `data`, as `Sink.write` says."""
        view = memoryview(data)
        done = 0
        fruitless = 0
        while done < len(view):
            try:
                done += self._some(view[done:])
                fruitless = 0
            except BlockingIOError:
                if not self._wait_writable(stop, retry_ms=_RETRY_MS if fruitless > 1 else 0):
                    raise Canceled(done) from None
                fruitless += 1

    def _some(self, view: memoryview) -> int:
        return os.write(self.fd, view)

    def _wait_writable(self, stop: CancelToken, *, retry_ms: int) -> bool:
        """Wait until the destination takes something; False: `stop` was set."""
        poll = select.poll()
        poll.register(stop, select.POLLIN)
        if retry_ms:  # a terminal may poll as writable with room for less than one character
            poll.poll(retry_ms)
        else:
            poll.register(self.fd, select.POLLOUT)
            poll.poll()
        return not stop.is_set()

    def close(self) -> None:
        """Close the file descriptor."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class PolledSink(FdSink):
    """A descriptor shared with others, so that it must stay blocking: asked before each small write."""

    def __init__(self, fd: int) -> None:
        """Take over `fd`."""
        super().__init__(fd, interruptible=True)

    def _some(self, view: memoryview) -> int:
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        if not poll.poll(0):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return os.write(self.fd, view[:_POLLED_BYTES])


class SocketSink(FdSink):
    """A socket, written without blocking and without touching the flags that others share."""

    def __init__(self, fd: int) -> None:
        """Take over `fd`, a stream or datagram socket."""
        super().__init__(fd, interruptible=True)
        import socket

        self._socket = socket.socket(fileno=fd)
        self._flags = socket.MSG_DONTWAIT

    def _some(self, view: memoryview) -> int:
        return self._socket.send(view, self._flags)

    def close(self) -> None:
        """Close the socket."""
        self.fd = -1
        self._socket.close()


class TextSink:
    """A text stream without a file of its own: a StringIO, a notebook's stream, a test's capture.

    Its `write` runs user code, which cannot be interrupted: only between two writes is `stop` looked at.
    """

    is_console = True
    interruptible = False

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`; bytes that are no UTF-8 become replacement characters."""
        self.stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes | memoryview, stop: CancelToken) -> None:
        """Write and flush all of `data`, as `Sink.write` says."""
        if stop.is_set():
            raise Canceled(0)
        self._put(self._decoder.decode(data))

    def _put(self, text: str) -> None:
        try:
            try:
                self.stream.write(text)
            except UnicodeEncodeError as error:
                self.stream.write(text.encode(error.encoding, "replace").decode(error.encoding))
            self.stream.flush()
        except ValueError as error:  # closed
            raise OSError(errno.EBADF, str(error)) from error

    def close(self) -> None:
        """Pass on a character that was cut short; the stream stays open."""
        rest = self._decoder.decode(b"", final=True)
        if rest:
            self._put(rest)


def console(stream: TextIO | None) -> Sink | None:
    """Return the sink of ``sys.stdout``, ``sys.stderr`` or any text stream; None if there is none.

    A stream that writes straight into a file descriptor is flushed, and then passed by: bytes go into
    the descriptor unchanged, and a reader that does not read never blocks us for good. Any other
    stream, also one that merely answers `fileno`, gets text through its own `write`.
    """
    if stream is None or getattr(stream, "closed", False):
        return None
    fd = _own_fd(stream)
    if fd is None:
        return TextSink(stream)
    with contextlib.suppress(OSError, ValueError):  # the first write will say it again
        stream.flush()
    return _fd_console(fd)


def _own_fd(stream: TextIO) -> int | None:
    """Return the descriptor that everything written to `stream` goes to, unchanged, if there is one."""
    if not isinstance(stream, io.TextIOWrapper) or type(stream).write is not io.TextIOWrapper.write:
        return None
    buffer = stream.buffer
    if not isinstance(getattr(buffer, "raw", buffer), io.FileIO):
        return None  # a compressor, for instance, or a BytesIO
    try:
        fd = stream.fileno()
        os.fstat(fd)
    except (OSError, ValueError):
        return None
    return fd


def _fd_console(fd: int) -> Sink:
    info = os.fstat(fd)
    if stat.S_ISSOCK(info.st_mode):
        import socket

        plain = hasattr(socket, "MSG_DONTWAIT") and socket.getdefaulttimeout() is None
        return SocketSink(os.dup(fd)) if plain else PolledSink(os.dup(fd))
    terminal = stat.S_ISCHR(info.st_mode) and os.isatty(fd)
    if not terminal and not stat.S_ISFIFO(info.st_mode):
        return FdSink(os.dup(fd))  # opened anew it would write from the beginning
    if info.st_rdev == _PTMX:  # opened anew it would be another terminal
        return PolledSink(os.dup(fd))
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # no /proc, another user's terminal, a pipe that nobody reads any more
        return PolledSink(os.dup(fd))
    return FdSink(own, interruptible=True)


def same_destination(a: Sink, b: Sink) -> bool:
    """Whether two consoles end in the same terminal, pipe, file or stream, as after ``2>&1``."""
    if isinstance(a, TextSink) and isinstance(b, TextSink):
        return a.stream is b.stream
    if isinstance(a, FdSink) and isinstance(b, FdSink):
        one, other = os.fstat(a.fd), os.fstat(b.fd)
        return (one.st_dev, one.st_ino, one.st_rdev) == (other.st_dev, other.st_ino, other.st_rdev)
    return False


def file_sink(path: str) -> Sink:
    """Open `path` to append filtered output; made with mode 0600 if it is not there.

    Raises:
        OSError: It cannot be opened, or is a symbolic link to a file; nothing was made.
    """
    return FdSink(open_to_append(path), is_console=False)


def lines_to(sink: Sink, prefix: bytes, line_filter: Callable[[bytes], bool] | None) -> LineStream:
    r"""Return the lines of a source on their way to a sink.

    Without a prefix, what is no terminal gets every byte: another program may read it, to which ``\r`` is data.
    """
    rewrites = sink.is_console and (bool(prefix) or os.isatty(getattr(sink, "fd", -1)))
    return LineStream(prefix, console=sink.is_console, rewrites=rewrites, line_filter=line_filter)
