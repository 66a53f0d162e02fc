"""The control protocol: one JSON object per line in each direction. `docs/reference/control-socket.md` describes it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import struct
from typing import Any, NoReturn

from supervise._files import closing, open_folder
from supervise._record import NamedTuple
from supervise._runtime.descriptors import clear_of_stdio

VERSION = 1
MOST_LINE_BYTES = 64 << 10
"""The longest request, with its newline."""
_LONGEST_ID = 200
_LONGEST_SHOWN = 100
_OWN = frozenset({"version", "id", "request"})


class Refusal(Exception):  # noqa: N818 - becomes a reply, not a failure of this process
    """A request that is answered by an error.

    Args:
        code: The kind of error, a word of the protocol.
        message: What is wrong, and what is accepted.
        ident: The ``id`` of the request, if it could be read.
    """

    def __init__(self, code: str, message: str, ident: str | int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.id = ident


class Request(NamedTuple):
    """A request whose frame is valid; its arguments are not checked yet."""

    name: str
    id: str | int | None
    arguments: dict[str, Any]


def parse(line: bytes) -> Request:
    """Return the request of a line.

    Raises:
        Refusal: It is not a request of this version.
    """
    try:
        found = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Refusal("bad-request", "the line is not JSON; send one JSON object a line") from None
    if not isinstance(found, dict):
        raise Refusal("bad-request", "the line is not a JSON object")
    ident = found.get("id")
    if not (ident is None or _is_integer(ident) or (isinstance(ident, str) and len(ident) <= _LONGEST_ID)):
        raise Refusal("bad-request", f"'id' is not a string of at most {_LONGEST_ID} characters, or an integer")
    if found.get("version") != VERSION or not _is_integer(found["version"]):
        raise Refusal("version", f"'version' is {shown(found.get('version'))}; this server speaks {VERSION}", ident)
    name = found.get("request")
    if not isinstance(name, str):
        raise Refusal("bad-request", "'request' is missing, or is not a string", ident)
    return Request(name, ident, {key: value for key, value in found.items() if key not in _OWN})


def answer_line(ident: str | int | None, result: dict[str, Any]) -> bytes:
    """Return the line of an answer. Encodes in parts, so that no call of the encoder blocks other threads for long."""
    return b"".join([*_parts({"version": VERSION, "id": ident, "ok": True, "result": result}, 3), b"\n"])


def error_line(refusal: Refusal) -> bytes:
    """Return the line of an error."""
    error = {"code": refusal.code, "message": str(refusal)}
    return json.dumps({"version": VERSION, "id": refusal.id, "ok": False, "error": error}).encode() + b"\n"


def shown(value: object) -> str:
    """Return a value of a request for an error message, cut to 100 characters."""
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _parts(value: object, depth: int) -> list[bytes]:
    if not depth or not isinstance(value, dict):
        return [json.dumps(value).encode()]
    parts = [b"{"]
    for number, (key, each) in enumerate(value.items()):
        parts += [b", " if number else b"", json.dumps(str(key)).encode(), b": ", *_parts(each, depth - 1)]
    return [*parts, b"}"]


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)


# The listening socket and its file: made private, found stale or in use, removed at the end


LONGEST_NAME = 80
"""The longest file name, in bytes. The kernel limits the address to 107 bytes, and a prefix precedes the name."""
_BACKLOG = 64
_CREDENTIALS = struct.Struct("iII")


def peer(end: socket.socket) -> tuple[int, int]:
    """Return pid and uid, from the kernel, of the process that connected a socket, or that listens on it."""
    pid, uid, _ = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def connected(path: str) -> socket.socket:
    """Return a non-blocking socket that is connected to the socket file at `path`.

    Raises:
        OSError: There is no such file, no process listens (ECONNREFUSED), the permission is missing, or too many
            clients are waiting (EAGAIN).
    """
    with closing(open_folder(os.path.dirname(path))) as folder:
        return _connected(folder, os.path.basename(path), path)


def _connected(folder: int, name: str, path: str) -> socket.socket:
    end = _new_socket()
    try:
        end.connect(_address(folder, name))
    except OSError as error:
        end.close()
        raise OSError(error.errno, error.strerror, path) from None
    return end


def _address(folder: int, name: str) -> str:
    """Return an address that is short even if the path of the folder is long."""
    return f"/proc/self/fd/{folder}/{name}"


def _new_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    return socket.socket(fileno=clear_of_stdio(made.detach()))


class SocketFile:
    """A listening socket at a path. Only `open` may raise."""

    def __init__(self, path: str, *, mode: int = 0o600, backlog: int = _BACKLOG) -> None:
        """Describe the file; nothing is made yet.

        Args:
            path: Path of the file.
            mode: Permissions of the file. Who may write to it may connect.
            backlog: Most connections that wait for their acceptance.
        """
        self.path = os.path.abspath(path)
        self._mode = mode
        self._backlog = backlog
        self.listener: socket.socket | None = None
        self._folder = -1
        self._identity: tuple[int, int] | None = None
        """Device and inode of the file, so that `remove` removes no other file."""

    def open(self) -> None:
        """Make the file, in place of one that a dead process has left.

        The socket is bound to a temporary name, and the file is renamed when the socket listens. Otherwise a client
        could find a socket that does not listen yet, and take it for a stale one.

        Raises:
            FileExistsError: A process listens there already, or the file is not a socket.
            OSError: The file cannot be made. In both cases `filename` is the path.
        """
        name = os.path.basename(self.path)
        try:
            self._folder = clear_of_stdio(open_folder(os.path.dirname(self.path)))
            self._check_unused(name)
            self._listen(name)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError) and error.filename != self.path:
                raise OSError(error.errno, error.strerror or str(error), self.path) from error
            raise

    def _check_unused(self, name: str) -> None:
        try:
            found = os.lstat(name, dir_fd=self._folder)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise FileExistsError(errno.EEXIST, "a file that is not a socket is there already", self.path)
        try:
            _connected(self._folder, name, self.path).close()
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:  # its process has ended
                return
            if error.errno != errno.EAGAIN:  # EAGAIN: its queue of connections is full
                raise
        raise FileExistsError(errno.EADDRINUSE, "another process listens there already", self.path)

    def _listen(self, name: str) -> None:
        self.listener = _new_socket()
        os.fchmod(self.listener.fileno(), 0o600)  # Linux gives the mode to the file that `bind` makes
        new = f".{os.urandom(4).hex()}"
        self.listener.bind(_address(self._folder, new))
        try:
            os.chmod(new, self._mode, dir_fd=self._folder)  # what the umask permits no longer matters
            self.listener.listen(self._backlog)
            found = os.lstat(new, dir_fd=self._folder)
            os.rename(new, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=self._folder)
            raise
        self._identity = found.st_dev, found.st_ino

    def take(self) -> socket.socket:
        """Return the open listener, which the caller closes. The file stays until `remove`."""
        listener, self.listener = self.listener, None
        assert listener is not None  # noqa: S101 - open
        return listener

    def remove(self) -> None:
        """Remove the file unless another has replaced it. Idempotent; callable from any thread."""
        identity, self._identity = self._identity, None
        name = os.path.basename(self.path)
        with contextlib.suppress(OSError):  # the folder may have been removed, or is closed
            found = os.lstat(name, dir_fd=self._folder)
            if (found.st_dev, found.st_ino) == identity:
                os.unlink(name, dir_fd=self._folder)

    def close(self) -> None:
        """Close the descriptors of the socket and the folder. The file stays unless `remove` was called. Idempotent."""
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.close()
        folder, self._folder = self._folder, -1
        if folder >= 0:
            os.close(folder)

    def forget(self) -> None:
        """Close a forked child's copies of the descriptors. The file belongs to the parent."""
        self._identity = None
        self.close()
