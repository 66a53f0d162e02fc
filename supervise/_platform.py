"""Features of this kernel, C library and Python, decided by use.

Python may have a function although the kernel is older, or although a sandbox refuses the system call: a seccomp
profile of a container answers ENOSYS, EPERM or EACCES.

The environment variable ``SUPERVISE_WITHOUT``, a list such as ``pidfd,inotify``, disables features in this process and
its workers: to test a fallback, or because a kernel or sandbox implements one wrongly.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import select
import signal
import sys
from contextlib import contextmanager
from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    T = TypeVar("T")

NAMES = frozenset({"pidfd", "group", "inotify", "glibc"})
"""Names for ``SUPERVISE_WITHOUT``; ``group`` is the signal to a group through the pidfd of its leader."""
_WITHOUT = frozenset(filter(None, map(str.strip, os.environ.get("SUPERVISE_WITHOUT", "").split(","))))
UNKNOWN = sorted(_WITHOUT - NAMES)
"""The words of ``SUPERVISE_WITHOUT`` that are not the name of a feature."""

INOTIFY = "inotify" not in _WITHOUT
"""Whether inotify reports writes to files; otherwise the files are polled every 50 ms."""

GLIBC = "glibc" not in _WITHOUT
"""Whether `posix_spawn` of glibc 2.34 or later starts programs; otherwise `os.posix_spawn` does."""

FILE_SYSTEM = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
"""The arguments with which `str.encode` does what `os.fsencode` does in four calls."""

PIDFD_SIGNAL_PROCESS_GROUP = 4
"""A flag of pidfd_send_signal, which Linux has since 6.9."""

_REFUSALS = frozenset({errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT, errno.EINVAL})
"""The last one is the answer to a command of fcntl that the kernel does not know."""
_CLONE3 = 435
_NO_FD = 2**31 - 1
"""A descriptor that is never open: a system call that works answers EBADF."""
F_SETSIG = 10
"""The value of the constant in Linux. Python's `fcntl` module may have been built without the name."""


def open_pidfd(pid: int) -> int:
    """Return a pidfd of a process.

    Raises:
        ProcessLookupError: There is none with this pid. Linux before 6.15 says EINVAL while it is being reaped.
        OSError: No descriptor is left.
    """
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from error
        raise


def _pidfds() -> tuple[bool, bool]:
    """Return whether pidfds work, and whether a group can be signaled by the pidfd of its leader."""
    if "pidfd" in _WITHOUT or not (hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")):
        return False, False
    try:
        fd = os.pidfd_open(os.getpid())
    except OSError as error:
        return error.errno in {errno.EMFILE, errno.ENFILE}, False
    try:
        signal.pidfd_send_signal(fd, 0)
        if _error_of(os.waitid, os.P_PIDFD, fd, os.WEXITED | os.WNOHANG) != errno.ECHILD:  # EINVAL before Linux 5.4
            return False, False
        group = _error_of(signal.pidfd_send_signal, fd, 0, None, PIDFD_SIGNAL_PROCESS_GROUP)
    except OSError:
        return False, False
    finally:
        os.close(fd)
    return True, "group" not in _WITHOUT and group in {0, errno.ESRCH}  # ESRCH: this process does not lead a group


def _error_of(call: Callable[..., object], *args: object) -> int:
    """Return the errno of a call; 0 if it succeeds."""
    try:
        call(*args)
    except OSError as error:
        return error.errno or 0
    except NotImplementedError:  # the C library lacks a flag of posix_spawn
        pass
    return 0


PIDFD, GROUP_BY_PIDFD = _pidfds()
"""Whether pidfds report exits to the loop; otherwise one thread for each worker waits. Whether a group can be signaled
through the pidfd of its leader, also after the leader was reaped."""


@cache
def refused(*, functions: bool, failed: bool = False) -> str:
    """Return the name and the error of a system call that every start needs and that is refused; "" if there is none.

    Args:
        functions: Whether the start is that of functions, which need more calls than programs.
        failed: Whether the start has failed. Then the calls that some starts do without may be the cause.
    """
    calls: dict[str, Callable[[], object]] = {
        "epoll_create1": lambda: select.epoll().close(),
        "epoll_ctl": lambda: select.epoll().register(_NO_FD),
        "epoll_wait": lambda: select.epoll().poll(0),
        "poll": lambda: select.poll().poll(0),
        "rt_sigprocmask": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "eventfd2": lambda: os.close(os.eventfd(0)),
        "pipe2": lambda: _use(os.pipe(), os.fstat),
        "fcntl(F_SETSIG)": lambda: _use(os.pipe(), lambda fd: fcntl.fcntl(fd, F_SETSIG, signal.SIGKILL)),
        "fcntl(F_SETOWN)": lambda: _use(os.pipe(), lambda fd: fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())),
        "socket(AF_UNIX)": lambda: _unix(_socket.socket.fileno),
        "waitid": lambda: os.waitid(os.P_PID, os.getpid(), os.WEXITED | os.WNOHANG),
        "wait4": lambda: os.waitpid(os.getpid(), os.WNOHANG),
    }
    if functions:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        calls["memfd_create"] = lambda: _use((os.memfd_create("supervise", flags),), os.fstat)
        calls["fcntl(F_ADD_SEALS)"] = lambda: _use(
            (os.memfd_create("supervise", flags),), lambda fd: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        )
    if failed:
        calls |= {
            "bind": lambda: _unix(lambda end: end.bind("")),  # the kernel chooses the address
            "dup2": lambda: _use(os.pipe(), lambda fd: os.dup2(fd, fd)),
            "getcwd": os.getcwd,
            "lseek": lambda: _use(os.pipe(), lambda fd: os.lseek(fd, 0, os.SEEK_CUR)),  # ESPIPE if it works
            "getsockname": lambda: _unix(lambda end: end.getsockname()),
            "getsockopt": lambda: _unix(lambda end: end.getsockopt(_socket.SOL_SOCKET, _socket.SO_TYPE)),
            "setsockopt": lambda: _unix(lambda end: end.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)),
            "uname": os.uname,
            "clone3": lambda: os.posix_spawn("", ["-"], {}),  # ENOENT if it works, and no process remains
            "setsid": lambda: os.posix_spawn("", ["-"], {}, setsid=True),
        }
    found = ((name, _error_of(call)) for name, call in calls.items())
    return next((refusal(name, error) for name, error in found if error in _REFUSALS), "")


def needed(make: Callable[[], T]) -> T:
    """Call a function that makes a descriptor of a loop or a wake-up event; return its result.

    Raises:
        OSError: It failed. If the kernel refuses a system call that every start needs, the text names the call.
    """
    try:
        return make()
    except OSError as error:
        if refusal := refused(functions=False, failed=True):
            raise OSError(error.errno, refusal) from None
        raise


def _use(fds: tuple[int, ...], call: Callable[[int], object]) -> None:
    """Call a function with the first of some descriptors, then close them all."""
    try:
        call(fds[0])
    finally:
        for fd in fds:
            os.close(fd)


def _unix(use: Callable[[_socket.socket], object]) -> None:
    end = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    try:
        use(end)
    finally:
        end.close()


def refused_thread() -> str:
    """Return the same for the call that makes threads, after a thread could not be started."""
    try:
        import ctypes  # lazy: only after an error

        libc = ctypes.CDLL(None, use_errno=True)
    except (ImportError, OSError):
        return ""
    libc.syscall(_CLONE3, None, ctypes.c_size_t(0))  # EINVAL if it works, and with ENOSYS the C library uses clone
    error = ctypes.get_errno()
    return refusal("clone3", error) if error in {errno.EPERM, errno.EACCES} else ""


def refusal(name: str, error: int) -> str:
    """Return the text about a system call that every start needs, and that is refused with this errno."""
    return (
        f"the kernel refuses the system call {name} ({os.strerror(error)}), which every start needs;"
        " the cause is probably a sandbox, such as the seccomp profile of a container"
    )


# Errors that name the purpose of a thread or process that the kernel refused to create


_LIMITS = "a limit on processes and threads may be reached (ulimit -u, or pids.max of the control group)"


def start_thread(thread: threading.Thread, what: str) -> None:
    """Start `thread`.

    Args:
        thread: A thread that is not started yet.
        what: Purpose of the thread, for the error text.

    Raises:
        OSError: The thread cannot be created (EAGAIN, as for a fork).
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise no_thread(what, error) from error


@contextmanager
def no_process(what: str) -> Iterator[None]:
    """Re-raise the error of a refused fork with the purpose of the process.

    Raises:
        OSError: The process cannot be created (EAGAIN).
    """
    try:
        yield
    except BlockingIOError as error:
        raise OSError(
            errno.EAGAIN, f"no process for {what}: {why_refused(errno.EAGAIN, error.strerror or '')}"
        ) from error


def why_refused(number: int, reason: str) -> str:
    """Return why the kernel refused a launch: a system call is refused, or after EAGAIN a limit may be reached."""
    if number == errno.EAGAIN and _LIMITS not in reason:
        return f"{reason}; {_limits()}"
    return (number in _REFUSALS and refused(functions=False, failed=True)) or reason


def no_thread(what: str, error: RuntimeError) -> OSError:
    """Return the `OSError` to raise instead of the bare `RuntimeError` of a failed thread start."""
    return OSError(errno.EAGAIN, f"no thread for {what}: {error}; {refused_thread() or _limits()}")


def _limits() -> str:
    """Return which limits may have refused a process or thread: the C library has one error for all."""
    try:
        import resource  # lazy: most processes never need it
    except ImportError:  # no descriptor is left
        return _LIMITS
    has_memory_limit = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    return f"{_LIMITS}, or the limit on memory (ulimit -v)" if has_memory_limit else _LIMITS
