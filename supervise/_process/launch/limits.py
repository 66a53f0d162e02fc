"""Checks before a start: limits of the machine, and properties of this process that every launch needs."""

from __future__ import annotations

import fcntl
import os
import resource
import sys
from typing import TYPE_CHECKING

from supervise import _platform as platform
from supervise._process import lifeline
from supervise.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_SPARE = 32
"""Descriptors for the loop, the lifeline, the current launch, and files that the program opens meanwhile."""
_HELD: dict[str | None, int] = {None: 1, "spawn": 2, "fork": 2, "forkserver": 3}
"""Descriptors for each running rank, by start method: pidfd, result channel, reports of the fork server."""
_BELL = 1
"""Further descriptors for each running rank without pidfds: the waiting thread duplicates that of its event.

With a fork server, the thread also duplicates that of the reports.
"""

_READ = 1 if platform.INOTIFY else 2
"""Descriptors for each log file that the host reads: without inotify, one more watches it."""

_STREAMS = 2
_LATER = 40
"""Descriptors, independent of the number of ranks, that the host opens between the first check and the last."""

_PAGES_OF_ONE = 32
"""The kernel's MAX_ARG_STRLEN, in pages: the size of one argument or variable with its final NUL."""
_LEAST_ROOM, _MOST_ROOM = 128 << 10, 6 << 20
"""Bounds of the room for all arguments and variables, which is a quarter of the soft limit of the stack."""
_POINTER_BYTES = 8
_NEVER_TOO_LARGE = _LEAST_ROOM // 5
"""A number of characters that always fits: a character has at most four bytes in UTF-8."""

_GREEN = (("gevent", "gevent.monkey", "is_module_patched"), ("eventlet", "eventlet.patcher", "is_monkey_patched"))
_PATCHED = ("threading", "thread", "select", "subprocess", "os")
"""The names of these libraries for modules that a gang needs as they are. Otherwise a start would hang, or fail."""

_MANY = 1000
"""Number of ranks for which every kernel has enough pids."""


def check_host(nprocs: int, cwd: str | None, *, functions: bool = False) -> None:
    """Check the system calls, /proc and /dev/null, that the working directory exists, and the number of pids.

    Args:
        nprocs: Number of ranks.
        cwd: Their working directory; None for that of this process.
        functions: Whether a rank is a function.

    Raises:
        SpecError: A check failed; the text names the cause and a remedy. No process was started.
    """
    _check_modules()
    if platform.UNKNOWN:
        known = ", ".join(sorted(platform.NAMES))
        raise SpecError(f"SUPERVISE_WITHOUT has {platform.UNKNOWN[0]!r}; it accepts {known}, separated by commas")
    if refusal := platform.refused(functions=functions):
        raise SpecError(refusal)
    _check_proc()
    if not os.path.exists(os.devnull):
        raise SpecError("/dev/null does not exist, which every start needs; make it with: mknod -m 666 /dev/null c 1 3")
    if cwd is None:
        try:
            platform.needed(os.getcwd)
        except FileNotFoundError:
            raise SpecError("the working directory of this process has been deleted; go to another one first") from None
    check_count(nprocs)


def _check_modules() -> None:
    for library, module, question in _GREEN:
        is_patched = getattr(sys.modules.get(module), question, None)
        if is_patched is not None and (replaced := [name for name in _PATCHED if is_patched(name)]):
            raise SpecError(
                f"{library} has replaced {', '.join(replaced)} in this process, so no gang can run in it;"
                f" start the gang in a process without {library}, for instance with `supervise run`"
            )


def _check_proc() -> None:
    if not os.path.isdir("/proc/self/fd"):
        raise SpecError("/proc is not mounted, which every start needs; mount it with: mount -t proc proc /proc")
    try:
        pid = os.readlink("/proc/self")
    except OSError as error:
        raise SpecError(platform.refusal("readlink", error.errno or 0)) from None
    if pid != str(os.getpid()):  # a search for processes would find, and end, the wrong ones
        raise SpecError(
            "/proc shows the processes of another PID namespace; mount that of this one with: mount -t proc proc /proc"
            " (unshare has --mount-proc)"
        )


def check_count(nprocs: int) -> None:
    """Check that the kernel has enough pids for the ranks.

    Raises:
        SpecError: It does not.
    """
    if nprocs > _MANY and (most := _most_processes()) is not None and nprocs > most:
        raise SpecError(
            f"{nprocs} ranks are more processes than this machine allows: kernel.pid_max is {most}; use fewer ranks"
        )


def _most_processes() -> int | None:
    try:
        with open("/proc/sys/kernel/pid_max", encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):  # not Linux
        return None


def held_by_rank(start_method: str | None) -> int:
    """Return the number of descriptors that the host holds for each running rank.

    Without a start method, the rank is a program.
    """
    more = 0 if platform.PIDFD else _BELL + (start_method == "forkserver")
    return _HELD[start_method] + more


def opened_later(nprocs: int, *, filters: int, more: int = 0) -> int:
    """Return the largest number of descriptors that a start opens between its first check and its last.

    Args:
        nprocs: Number of ranks.
        filters: Number of filtered files, for each of which the host reads a log of each rank again.
        more: Number of further descriptors for each rank.
    """
    return _LATER + nprocs * (_READ * (_STREAMS + filters) + more)


def check_open_files(nprocs: int, *, each: int, shown: int, later: int = 0) -> int:
    """Compare the number of descriptors that a gang needs with the soft limit, and make room for them.

    Args:
        nprocs: Number of ranks.
        each: Number of descriptors for each running rank.
        shown: Number of log files that the host reads.
        later: Number of descriptors that the host may open before it checks again. They are not required yet, but the
            advice includes them, so that the advised limit is enough for all checks.

    Returns:
        The number of further descriptors that the limit allows.

    Raises:
        SpecError: The limit is too low; the text names it. No process was started.
    """
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    except OSError:  # a sandbox refuses prlimit64
        soft = hard = resource.RLIM_INFINITY
    needed = nprocs * each + _READ * shown + len(os.listdir("/proc/self/fd")) + _SPARE
    most = sys.maxsize if soft == resource.RLIM_INFINITY else soft
    if needed > most:
        raised = hard == resource.RLIM_INFINITY or needed <= hard
        top = "unlimited" if hard == resource.RLIM_INFINITY else hard
        advised = needed + later if hard == resource.RLIM_INFINITY else min(needed + later, hard)  # if `raised`
        need = "1 rank needs about" if nprocs == 1 else f"{nprocs} ranks need about"
        msg = (
            f"{need} {advised} open files, and the soft limit RLIMIT_NOFILE is {soft}"
            f" (the hard limit: {top}); raise it with: ulimit -n {advised}"
            if raised
            else f"{need} {needed + later} open files, which is above the hard limit of {hard}"
            " (RLIMIT_NOFILE): use fewer ranks, or have root raise it"
        )
        raise SpecError(msg)
    _make_room(min(needed + later + lifeline.FAR, most))
    return most - needed


def check_arguments(ranks: Iterable[tuple[int, Sequence[str], Mapping[str, str]]], environ: Mapping[str, str]) -> None:
    """Check that the kernel accepts the arguments and the environment of each rank.

    Args:
        ranks: Local ranks, each with its program and arguments, and its own variables: name to value.
        environ: The variables of all ranks, which own ones replace: name to value.

    Raises:
        SpecError: They are too large; the text names the largest of them and its size. No process was started.
    """
    shared = _length(environ)
    for rank, argv, own in ranks:
        if shared + _length(own) + sum(map(len, argv)) >= _NEVER_TOO_LARGE:
            _check_arguments(rank, argv, {**environ, **own})


def _length(env: Mapping[str, str]) -> int:
    return sum(map(len, env)) + sum(map(len, env.values()))


def _check_arguments(rank: int, argv: Sequence[str], env: Mapping[str, str]) -> None:
    sizes = {f"argument {number}": len(os.fsencode(word)) for number, word in enumerate(argv)}
    sizes |= {f"the variable {name}": len(os.fsencode(f"{name}={value}")) for name, value in env.items()}
    largest = max(sizes, key=lambda each: sizes[each])
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    room = _MOST_ROOM if soft == resource.RLIM_INFINITY else max(min(soft // 4, _MOST_ROOM), _LEAST_ROOM)
    taken = sum(sizes.values()) + len(sizes) * (1 + _POINTER_BYTES)
    if sizes[largest] >= (most := _PAGES_OF_ONE * resource.getpagesize()):
        why = f"{largest} has {sizes[largest]:,} bytes, and the kernel accepts {most - 1:,} in one"
    elif taken > room:
        why = f"the arguments and variables have {taken:,} bytes, and the kernel accepts {room:,}; {largest} has"
        why = f"{why} {sizes[largest]:,}"
    else:
        return
    raise SpecError(f"rank {rank}: argument list too long (E2BIG): {why}; put the value into a file")


def _make_room(files: int) -> None:
    """Enlarge the kernel's table of open files.

    In a process with several threads, the kernel waits for an RCU grace period (10 to 20 ms) each time that it enlarges
    the table. The first gang of most processes is started before there is another thread.
    """
    fd = os.open("/proc/self/fd", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.close(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, files - 1))
    except OSError:  # the limit on open files is lower, or a sandbox refuses the call
        return
    finally:
        os.close(fd)
