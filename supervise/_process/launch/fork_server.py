"""Start of multiprocessing's fork server, requests to the server, its reports, and the handles of its children."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from supervise import _platform as platform
from supervise._process.containment import cgroup
from supervise._process.containment.procfs import look, reading
from supervise._process.exits.leader import Exit, Process, as_signal, exit_notice
from supervise._runtime import fork_hooks
from supervise._runtime.descriptors import close, stdio_taken, write_all
from supervise._runtime.wakeup import OwnedFd, WakeFd

if TYPE_CHECKING:
    from collections.abc import Sequence

_PRELOAD = ("supervise._process.launch.bootstrap", "supervise._process.launch.multiprocessing", "pkgutil")
"""Modules that every worker imports. `runpy` needs the last one to run the main module."""
DIED = (
    "the fork server ended before it started the process; its output on stderr may show the reason,"
    " for example an exception in a module of set_forkserver_preload"
)


def ensure_server() -> None:
    """Start multiprocessing's fork server, unless it runs, while this thread does not block SIGCHLD.

    The server inherits the signal mask of this thread, and needs SIGCHLD to report exits.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        _run_server()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _run_server() -> None:
    """Start the fork server unless it runs.

    A new server imports the modules that the user preloads, and those that every worker imports. It does not import the
    main module: each rank imports that one itself, with its own environment, streams and working directory.
    """
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver  # noqa: SLF001 - there is no public way to add to the list
    users = server._preload_modules  # noqa: SLF001
    server._preload_modules = _Preload([*(name for name in users if name != "__main__"), *_PRELOAD])  # noqa: SLF001
    try:
        with platform.no_process("the fork server"), stdio_taken():
            forkserver.ensure_running()
    finally:
        server._preload_modules = users  # noqa: SLF001


class _Preload(list[str]):
    """List of module names for the fork server.

    The `repr` of the list is an expression. When the server evaluates the expression, `sys.path` becomes that of this
    process, and the result is the names.

    The expression is needed because the server runs by `python -c`, which puts the current directory first in
    `sys.path`. Before Python 3.14, the directory stays there during the preload. The server evaluates the expression
    after its own imports.
    """

    def __repr__(self) -> str:
        """Return an expression that sets `sys.path` and yields the names."""
        path = [entry for entry in sys.path if isinstance(entry, str)]
        return f"(__import__('sys').path.__setitem__(slice(None), {path!r}) or {list(self)!r})"


def request(fds: Sequence[int], data: bytes) -> ServerStatus:
    """Ask the fork server for a process that has copies of `fds` and reads `data`. Do not wait for the server.

    A thread makes the connection, because `connect` may block: while the server's backlog of 128 is full and, from
    Python 3.14 on, until the server has authenticated this process.

    Raises:
        OSError: There are too few descriptors, or no thread is available.
    """
    asking = _Asking(fds, data)
    return ServerStatus(asking.ready, asking)


class _Asking(threading.Thread):
    """Thread that connects to the fork server, and starts at once. `ready` is readable when the thread is done."""

    def __init__(self, fds: Sequence[int], data: bytes) -> None:
        super().__init__(name="supervise-forkserver", daemon=True)
        self._lock = threading.Lock()
        self._wanted = True
        self._data = data
        self._fds: list[int] = []
        self._status: int | None = None
        self._problem: BaseException | None = None
        self._over = WakeFd()
        self.ready: int = -1
        try:
            self.ready = os.dup(self._over.fileno())  # the owner may close `ready` while this thread still runs
            for fd in fds:
                self._fds.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))
            platform.start_thread(self, "a request to the fork server")
        except BaseException:
            self.end()
            if self.ready >= 0:
                os.close(self.ready)
            raise

    def run(self) -> None:
        """Connect, and send the data unless `abandon` was called.

        Without data, the new process reads EOF and exits.
        """
        try:
            self._connect()
        except BaseException as error:
            self._problem = error
        finally:
            self.end()

    def _connect(self) -> None:
        from multiprocessing import AuthenticationError, forkserver

        ensure_server()  # the server may have died; `connect_to_new_process` would start it with this thread's mask
        check_room()  # if the call ran out of descriptors, it would kill the server
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
        """Close the copies of the descriptors and make `ready` readable."""
        self._over.set()
        self._over.close()
        close(*self._fds)

    def take(self) -> int:
        """Return the descriptor of the server's reports on the process. Call this only once `ready` is readable.

        Raises:
            ChildProcessError: The server ended before the request.
            OSError: There are too few descriptors, or no server can be started.
        """
        if self._problem is not None:
            raise self._problem
        assert self._status is not None  # noqa: S101
        return self._status

    def abandon(self) -> None:
        """Cancel the request, and close the descriptor of the reports. A process that got no data exits."""
        with self._lock:
            self._wanted = False
            if self._status is not None:
                os.close(self._status)


def check_room() -> None:
    """Open as many descriptors as a request to the fork server needs, and close them.

    Raises:
        OSError: There are too few descriptors.
    """
    taken: list[int] = []
    try:
        taken += os.pipe()
        taken += os.pipe()
    finally:
        close(*taken)


class ServerStatus(OwnedFd):
    """The fork server's reports on one child: first its pid, then, after its exit, the exit code.

    The descriptor is readable when there is a report. Its number changes once the request is sent.
    """

    def __init__(self, fd: int, asking: _Asking | None = None) -> None:
        """Take over the nonblocking descriptor of the reports.

        With `asking`, take over the `ready` of that thread instead.
        """
        super().__init__(fd)
        self._asking = asking

    def read(self) -> int | None:
        """Return the next report; None if there is none yet.

        Raises:
            EOFError: The server has exited without a report.
            OSError: The request failed.
        """
        if self._asking is not None:
            fd = self._asking.take()
            os.close(self.fd)
            self.fd: int = fd
            self._asking = None
        try:
            data = os.read(self.fd, 8)  # never a part: the server writes eight bytes at once
        except BlockingIOError:
            return None
        if len(data) < 8:
            raise EOFError
        return int.from_bytes(data, sys.byteorder, signed=True)

    @staticmethod
    def is_process(pid: int) -> bool:
        """Return whether the present server has this pid. Children of an earlier server are not its children."""
        from multiprocessing import forkserver

        return bool(pid == forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined]  # noqa: SLF001

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        super().close()
        if self._asking is not None:
            self._asking.abandon()
            self._asking = None


class ForkServerChild(Process):
    """A process that the fork server has forked."""

    _by_members = True

    def __init__(self, pid: int, parent: ServerStatus) -> None:
        """Take over a process.

        Args:
            pid: Its pid.
            parent: The reports of the fork server, which has reported the pid.

        Raises:
            OSError: No descriptor is left, or no thread is available.
        """
        self._parent = parent
        self._stopped = False
        seen = None if platform.GROUP_BY_PIDFD else look(pid)
        self._started = 0.0 if seen is None else seen.started
        super().__init__(pid, exit_notice(pid, parents_word=parent.fileno()), execs=True)

    def _take_exit(self) -> Exit | None:
        try:
            code = self._parent.read()
        except EOFError:  # the server died: this process may now be the parent, or the kernel may have kept the status
            return None if self._is_between_parents() else self._exit_without_server()
        if code is None:
            return None
        self._mark(code)
        return Exit(code=code, oom_kill=code == -signal.SIGKILL and not self._killed and cgroup.killed_for_memory(None))

    def give_up(self) -> Exit | None:
        """Return the exit without waiting for the server's report; None if the server may still report it.

        If there is an exit, its code is the one that the kernel still has, or else None. The host cannot always wait
        for EOF of the pipe: after a kill of the server, another process may still hold the write end.
        """
        try:
            seen = None if self._number_is_anothers() else reading(self.pid)
        except OSError:  # such as EMFILE
            return None
        if seen is not None and self._parent.is_process(seen.parent):
            return None
        if self._ended is None:
            self._ended = self._exit_without_server() or self._reaped_by_other(None)
        return self._ended

    def _exit_without_server(self) -> Exit | None:
        """Return the exit of a child of the dead server, which has become a child of this process or of another one."""
        if self.fileno() >= 0 and self._notice.dead and self._number_is_anothers():  # reaped by its parent
            return self._reaped_by_other(None)
        return super()._take_exit()

    def _is_being_reaped(self) -> bool:
        return False  # `_take_exit` and `give_up` have found out

    def _is_between_parents(self) -> bool:
        """Return whether the child runs, or is a zombie between two parents.

        A zombie's next parent is not known while its parent is exiting. True also if no descriptor is left to find out.
        """
        try:
            seen = reading(self.pid)
        except OSError:  # such as EMFILE
            return True
        if seen is None or self._number_is_anothers():
            return False
        if not seen.dead:
            return not self._notice.dead
        if seen.parent in (0, os.getpid()):
            return False
        above = look(seen.parent)
        return above is None or above.dead or self._parent.is_process(seen.parent)

    def stopped_by(self) -> signal.Signals | None:
        """Return the signal that has suspended the child, once per suspension; None if there is no new suspension.

        The state is read from /proc, because `waitid` reports only on children of the caller.
        """
        seen = look(self.pid) if self.fileno() >= 0 and not self._notice.dead else None
        before, self._stopped = self._stopped, seen is not None and seen.state == "T"
        return as_signal(seen.stop_signal) if seen is not None and self._stopped and not before else None

    def _holds_number(self) -> bool:
        try:
            seen = reading(self.pid)
        except OSError:  # such as EMFILE; the pid is in use until the server reports the reap
            return self._ended is None and not self._notice.dead
        return self._ended is None and seen is not None and seen.started == self._started and not seen.dead

    def _number_is_anothers(self) -> bool:
        seen = look(self.pid)
        return seen is not None and (self._gone_at_once or 0 < self._started != seen.started)


def _forget_in_child() -> None:
    """Replace multiprocessing's locks in a forked child, because a thread of a gang may hold them at the fork.

    The child also starts a fork server of its own, because that of its parent does not report to it. A module that
    another thread was importing at the fork has neither.
    """
    tracker: Any = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    if tracker is not None:
        tracker._lock = threading.RLock()  # noqa: SLF001
    server: Any = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    if server is not None:
        preload, alive = server._preload_modules, server._forkserver_alive_fd  # noqa: SLF001
        server.__init__()
        server._preload_modules = preload  # noqa: SLF001
        close(alive)


fork_hooks.register("fork_server", in_child=_forget_in_child)
