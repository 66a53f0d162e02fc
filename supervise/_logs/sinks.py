"""Destinations of output: files, and consoles, which may be slow, blocked or closed."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import select
import stat
import threading
from typing import TYPE_CHECKING, Protocol, TextIO, cast

from supervise._files import open_to_append
from supervise._logs.lines import LineStream
from supervise._runtime.wakeup import OwnedFd, WakeFd

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._logs.screen import Screen

_POLLED_BYTES = 4096
"""Number of bytes that a pipe accepts without blocking if it polls as writable (PIPE_BUF)."""

_RETRY_MS = 10
"""Pause before the next write to a destination that polls as writable but accepts nothing."""

_PTMX = os.makedev(5, 2)


class Canceled(Exception):  # noqa: N818 - not an error
    """A write that ended early because its `CancelToken` was set."""

    def __init__(self, written_bytes: int) -> None:
        """Store the number of bytes that had been written."""
        super().__init__(written_bytes)
        self.written_bytes = written_bytes


class CancelToken:
    """A flag that any thread may set once. From then on, `fileno` polls as readable. Each Tail has one."""

    def __init__(self) -> None:
        """Create an unset flag. It has a descriptor until `close`."""
        self._lock = threading.Lock()
        self._set = False
        self._callbacks: list[Callable[[], object]] = []
        self._wake_fd = WakeFd()

    def set(self) -> None:
        """Set the flag, wake the thread that polls, and call the callbacks on the present thread. Idempotent."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
            if not self._set:
                self._set = True
                self._wake_fd.set()
        for callback in callbacks:
            callback()

    def is_set(self) -> bool:
        """Return whether `set` was called."""
        return self._set

    def fileno(self) -> int:
        """Return the descriptor that polls as readable once the flag is set; -1 after `close`."""
        return self._wake_fd.fileno()

    def on_set(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the flag is set, or at once if it is set already. `callback` must not block."""
        with self._lock:
            if not self._set:
                self._callbacks.append(callback)
                return
        callback()

    def close(self) -> None:
        """Close the descriptor and drop the callbacks. `set` may still be called."""
        with self._lock:
            self._callbacks = []
            self._wake_fd.close()


class Sink(Protocol):
    """A destination of output.

    One thread at a time may use it, except for `same_destination`.
    """

    is_console: bool
    """Whether the destination is a console.

    On a console, a last line without a newline gets one, and ``\\r`` rewrites the line.
    """
    interruptible: bool
    """Whether a blocked write ends when `stop` is set. If not, the writing thread stays blocked."""

    def write(self, data: bytes | memoryview, stop: CancelToken) -> None:
        """Write all of `data`.

        Raises:
            Canceled: `stop` is set, and the destination accepts no more bytes now.
            OSError: The destination failed (EPIPE, ENOSPC, ...).
        """

    def close(self) -> None:
        """Close everything that this sink has opened, but never a stream of the caller. Idempotent."""


class FdSink(OwnedFd):
    """A sink over a descriptor that no other code uses. The descriptor is non-blocking, or of a file or device."""

    def __init__(self, fd: int, *, is_console: bool = True, interruptible: bool = False) -> None:
        """Own `fd`. `interruptible` means that `fd` is non-blocking."""
        super().__init__(fd)
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
        """Wait until the destination is writable; return False if `stop` was set."""
        poll = select.poll()
        poll.register(stop, select.POLLIN)
        if retry_ms:  # a terminal may poll as writable although it has room for less than one character
            poll.poll(retry_ms)
        else:
            poll.register(self.fd, select.POLLOUT)
            poll.poll()
        return not stop.is_set()


class PolledSink(FdSink):
    """A sink over a descriptor that other processes share.

    The descriptor stays blocking, so the sink polls before each small write.
    """

    def __init__(self, fd: int) -> None:
        """Own `fd`."""
        super().__init__(fd, interruptible=True)

    def _some(self, view: memoryview) -> int:
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        if not poll.poll(0):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return os.write(self.fd, view[:_POLLED_BYTES])


class SocketSink(FdSink):
    """A sink over a socket.

    MSG_DONTWAIT avoids blocking, and does not change the flags that other processes share.
    """

    def __init__(self, fd: int) -> None:
        """Own `fd`, a stream or datagram socket."""
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
    """A sink over a text stream without a descriptor: a StringIO, a notebook's stream, a test's capture.

    A `write` of the stream runs user code, which cannot be interrupted. So `stop` is checked before each write.
    """

    is_console = True
    interruptible = False

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`. Bytes that are not UTF-8 become replacement characters."""
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
        """Write an incomplete character as a replacement character. The stream stays open."""
        rest = self._decoder.decode(b"", final=True)
        if rest:
            self._put(rest)


def console(stream: TextIO | Sink | None) -> Sink | None:
    """Return a sink for ``sys.stdout``, ``sys.stderr`` or another text stream; None if the stream is None or closed.

    A sink is returned as it is.

    If the stream writes directly to a descriptor, the stream is flushed, and the sink writes bytes to the descriptor.
    Such a sink is not blocked permanently by a reader that has stopped reading. Any other stream, even one that has a
    `fileno`, gets text through its `write`.
    """
    if hasattr(type(stream), "interruptible"):  # of its class, because a mock has all attributes
        return cast("Sink", stream)
    text = cast("TextIO | None", stream)
    if text is None or getattr(text, "closed", False):
        return None
    fd = _own_fd(text)
    if fd is None:
        return TextSink(text)
    with contextlib.suppress(OSError, ValueError):  # the first write reports the error again
        text.flush()
    return _fd_console(fd)


def _own_fd(stream: TextIO) -> int | None:
    """Return the descriptor to which `stream` writes its bytes unchanged; None if there is no such descriptor."""
    if not isinstance(stream, io.TextIOWrapper) or type(stream).write is not io.TextIOWrapper.write:
        return None
    buffer = stream.buffer
    if not isinstance(getattr(buffer, "raw", buffer), io.FileIO):
        return None  # for instance a compressor or a BytesIO
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
        return FdSink(os.dup(fd))  # a second open would write from offset 0
    if info.st_rdev == _PTMX:  # a second open would create another terminal
        return PolledSink(os.dup(fd))
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # no /proc, another user's terminal, or a pipe without a reader
        return PolledSink(os.dup(fd))
    return FdSink(own, interruptible=True)


def same_destination(a: Sink, b: Sink) -> bool:
    """Return whether two consoles are the same terminal, pipe, file or stream, as after ``2>&1``."""
    if isinstance(a, TextSink) and isinstance(b, TextSink):
        return a.stream is b.stream
    if isinstance(a, FdSink) and isinstance(b, FdSink):
        one, other = os.fstat(a.fd), os.fstat(b.fd)
        return (one.st_dev, one.st_ino, one.st_rdev) == (other.st_dev, other.st_ino, other.st_rdev)
    return False


def file_sink(path: str) -> Sink:
    """Open `path` to append filtered output. If the file is missing, create it with mode 0600.

    Raises:
        OSError: The file cannot be opened, or `path` is a symbolic link to a file. No file was created.
    """
    return FdSink(open_to_append(path), is_console=False)


def lines_to(
    sink: Sink,
    prefix: bytes,
    line_filter: Callable[[bytes], bool] | None,
    screen: Screen | None = None,
    *,
    prompts: bool = False,
) -> LineStream:
    r"""Return the line stream from one source to `sink`.

    Without a prefix, a sink that is not a terminal gets every byte, because a program that reads from it may treat
    ``\r`` as data. In all other cases, ``\r`` rewrites a line. Under `supervise run`, which has a screen, such a line
    is then shown once, at its end, except on a terminal that cannot have rows.
    """
    terminal = os.isatty(fd := getattr(sink, "fd", -1))
    return LineStream(
        prefix,
        console=sink.is_console,
        rewrites=sink.is_console and (bool(prefix) or terminal),
        updates=screen is None or (terminal and not screen.is_on(fd)),
        line_filter=line_filter,
        prompts=prompts and sink.is_console and line_filter is None and not (screen is not None and screen.is_on(fd)),
    )
