"""multiprocessing's fork server: started where that is safe, and what it says of the workers that it forks."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from supervise._process.files import write_all
from supervise._runtime.wakeup import WakeFd

if TYPE_CHECKING:
    from collections.abc import Sequence

from supervise import _threads

_SERVER_S = 60.0
"""A fork server starts in a fraction of a second."""

_PRELOAD = ("supervise._process.launch.bootstrap", "supervise._process.launch.multiprocessing", "pkgutil")
"""What every worker imports; `runpy` takes the last to run the main module."""
DIED = (
    "the fork server ended before it started the process; what it wrote to stderr may say why:"
    " for example, what a module of set_forkserver_preload has raised"
)


def ensure_server() -> None:
    """Have multiprocessing's fork server run. It inherits its starter's mask, and needs SIGCHLD to tell exits."""
    problems: list[BaseException] = []

    def begin() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        try:
            _run_server()
        except BaseException as error:
            problems.append(error)

    if signal.SIGCHLD not in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        _run_server()
        return
    thread = threading.Thread(target=begin, name="supervise-forkserver", daemon=True)
    _threads.start(thread, "the start of the fork server")
    thread.join(_SERVER_S)
    if thread.is_alive():
        msg = f"the fork server did not start within {_SERVER_S:.0f} s"
        raise TimeoutError(msg)
    if problems:
        raise problems[0]


def _run_server() -> None:
    """Have the fork server run. One that is started now imports what every worker would; the user's preload stays.

    It does not import the main module: each rank does, with its own environment, streams and working directory.
    """
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver  # noqa: SLF001 - there is no public way to add to the list
    users = server._preload_modules  # noqa: SLF001
    server._preload_modules = _Preload([*(name for name in users if name != "__main__"), *_PRELOAD])  # noqa: SLF001
    try:
        with _threads.no_process("the fork server"):
            forkserver.ensure_running()
    finally:
        server._preload_modules = users  # noqa: SLF001


class _Preload(list[str]):
    """Modules that the fork server imports from where this process would.

    `python -c`, which the server is, has the current directory first in `sys.path`. Before Python 3.14 it stays there
    while the modules are imported. The server evaluates the text of this list behind its own imports.
    """

    def __repr__(self) -> str:
        """Return an expression that sets `sys.path` and gives the names."""
        path = [entry for entry in sys.path if isinstance(entry, str)]
        return f"(__import__('sys').path.__setitem__(slice(None), {path!r}) or {list(self)!r})"


def request(fds: Sequence[int], data: bytes) -> ServerStatus:
    """Ask the fork server for a process that has copies of `fds` and reads `data`. Does not wait for the server.

    Connecting waits for it where 128 others are connecting, and from Python 3.14 on until it has authenticated this
    process. So a thread connects.

    Raises:
        OSError: There are too few descriptors, or no thread is to be had.
    """
    asking = _Asking(fds, data)
    try:
        _threads.start(asking, "a request to the fork server")
    except BaseException:
        asking.end()
        os.close(asking.told)
        raise
    return ServerStatus(asking.told, asking)


class _Asking(threading.Thread):
    """Connects to the fork server. `told` is readable when that is over."""

    def __init__(self, fds: Sequence[int], data: bytes) -> None:
        super().__init__(name="supervise-forkserver", daemon=True)
        self._lock = threading.Lock()
        self._wanted = True
        self._data = data
        self._fds: list[int] = []
        self._status: int | None = None
        self._problem: BaseException | None = None
        self._over = WakeFd()
        self.told = -1
        try:
            self.told = os.dup(self._over.fileno())  # the asker may close it while this thread still runs
            for fd in fds:
                self._fds.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))
        except BaseException:
            self.end()
            if self.told >= 0:
                os.close(self.told)
            raise

    def run(self) -> None:
        """Connect; if the process is wanted then still, send it its data, without which it ends."""
        try:
            self._connect()
        except BaseException as error:
            self._problem = error
        finally:
            self.end()

    def _connect(self) -> None:
        from multiprocessing import AuthenticationError, forkserver

        ensure_server()  # it may have been killed since; not by `connect_to_new_process`, which keeps the mask
        check_room()  # out of descriptors in the call, it would kill the server
        try:
            status, stub = forkserver.connect_to_new_process(self._fds)
        except (EOFError, ConnectionError, AuthenticationError) as error:
            raise ChildProcessError(DIED) from error
        try:
            os.set_blocking(status, False)
            with self._lock:
                if self._wanted:
                    write_all(stub, self._data)
                    self._status, status = status, -1
        finally:
            os.close(stub)
            if status >= 0:
                os.close(status)

    def end(self) -> None:
        """Close what the process has now, or will never have, and make `told` readable."""
        self._over.set()
        self._over.close()
        for fd in self._fds:
            os.close(fd)

    def take(self) -> int:
        """Once `told` is readable: return what the server tells of the process by.

        Raises:
            ChildProcessError: The server ended before it was asked.
            OSError: There are too few descriptors, or no server can be started.
        """
        if self._problem is not None:
            raise self._problem
        assert self._status is not None  # noqa: S101
        return self._status

    def abandon(self) -> None:
        """Have the process end where it has no data yet, and close what the server tells by."""
        with self._lock:
            self._wanted = False
            if self._status is not None:
                os.close(self._status)


def check_room() -> None:
    """Take as many descriptors as a request to the fork server does, and give them back.

    Raises:
        OSError: There are too few.
    """
    taken: list[int] = []
    try:
        taken += os.pipe()
        taken += os.pipe()
    finally:
        for fd in taken:
            os.close(fd)


class ServerStatus:
    """What the fork server says of one child: its number first, at the end its exit code."""

    def __init__(self, fd: int, asking: _Asking | None = None) -> None:
        """Take over the descriptor to read from, which does not block. With `asking` it only tells of that."""
        self._fd = fd
        self._asking = asking

    def fileno(self) -> int:
        """The descriptor that is readable when there is something new. Another one once the server has been asked."""
        return self._fd

    def read(self) -> int | None:
        """Return the next number, None while there is none.

        Raises:
            EOFError: The server is gone and will not say.
            OSError: It could not be asked.
        """
        if self._asking is not None:
            fd = self._asking.take()
            os.close(self._fd)
            self._fd, self._asking = fd, None
        try:
            data = os.read(self._fd, 8)  # written at once: eight bytes into an empty pipe
        except BlockingIOError:
            return None
        if len(data) < 8:
            raise EOFError
        return int.from_bytes(data, sys.byteorder, signed=True)

    @staticmethod
    def is_process(pid: int) -> bool:
        """Whether the server has this number. A new one is no parent of what its killed forerunner has forked."""
        from multiprocessing import forkserver

        return bool(pid == forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined]  # noqa: SLF001

    def close(self) -> None:
        """Let the descriptor go. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
        if self._asking is not None:
            self._asking.abandon()
            self._asking = None
