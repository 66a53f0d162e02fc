"""The worker's side of a function: from the first instruction to the call, which is `bootstrap_call`.

A spawned worker goes on in `bootstrap_spawn`.

Imported by every spawned worker before the user's code, so it imports little.
"""

from __future__ import annotations

import os
import sys

from supervise._process.containment import marker
from supervise._process.files import clear_of_stdio
from supervise._process.launch import dispositions
from supervise._process.lifeline import lifeline

try:
    import _pickle as pickle  # what `pickle` wraps, which imports `re`
except ImportError:  # another Python than CPython
    import pickle  # type: ignore[no-redef]

TYPE_CHECKING = False  # typing and dataclasses take longer to import than all of this
if TYPE_CHECKING:
    from typing import Any, BinaryIO, NoReturn

    from supervise._process.launch.multiprocessing import Worker
    from supervise._process.launch.settings import Settings


class Arrival:
    """Travels through multiprocessing, where unpickling it sets the worker up and gives the process object."""

    def __init__(self, payload: int, *, execs: bool) -> None:
        """Make it.

        Args:
            payload: The descriptor with all the rest; its index where a fork server passes it.
            execs: Whether a frozen program was executed, which has its session, streams and environment.
        """
        self.payload = payload
        self.execs = execs

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        """Arrive instead of being rebuilt."""
        return _arrive_frozen if self.execs else _arrive, (self.payload,)


def spawned(file: BinaryIO) -> int:
    """Run what `file` describes, in a new interpreter; return the exit code."""
    settings: Settings = pickle.load(file)
    lifeline.arm_self(settings.line)
    keep_private(file.fileno(), settings.channel, settings.tracker, *settings.fds)
    from supervise._process.launch import bootstrap_spawn

    return bootstrap_spawn.live(settings, file)


def keep_private(*fds: int | None) -> None:
    """Set close-on-exec, which neither an exec nor a socket hands on. Before any code of the user's runs.

    The host unpickles what comes through the result channel and through queues, the resource tracker unlinks what
    it is told to: a program that the worker executes, perhaps as another user, must not write to them.
    """
    for fd in fds:
        if fd is not None:
            os.set_inheritable(fd, False)


def _arrive(payload: int) -> Any:
    """Set up the fork server's child before anything of the user's is imported."""
    import marshal
    from multiprocessing import forkserver, resource_tracker

    inherited = forkserver.get_inherited_fds()
    if inherited is None:
        msg = "not in a child of the fork server"
        raise RuntimeError(msg)
    inherited[:] = fds = [clear_of_stdio(fd) for fd in inherited]
    server: Any = forkserver._forkserver  # noqa: SLF001 - there is no public way
    tracker: Any = resource_tracker._resource_tracker  # noqa: SLF001
    keep_private(*fds, server._forkserver_alive_fd, tracker._fd)  # noqa: SLF001
    file = os.fdopen(fds[payload], "rb")
    marshal.load(file)  # noqa: S302 - the path, already in place
    settings: Settings = pickle.load(file)
    settings.arrive(fds)
    if settings.env is not None:
        settings.env = changes({name: value for name, value in settings.env.items() if value is not None})
    _settle_in(settings)
    return _worker(settings, file)


def _arrive_frozen(payload: int) -> Any:
    """Set up a frozen program, in `multiprocessing.freeze_support`. Its main module is imported so far."""
    import marshal

    file = os.fdopen(payload, "rb")
    marshal.load(file)  # noqa: S302 - the path, already in place
    settings: Settings = pickle.load(file)
    lifeline.arm_self(settings.line)
    keep_private(payload, settings.channel, settings.tracker, *settings.fds)
    return _worker(settings, file)


def forked(settings: Settings) -> NoReturn:
    """Call the function in a process that was just forked off the host's loop."""
    code = 1
    try:
        _become_main_thread()
        _settle_in(settings)
        _forget_exit_functions()
        code = _process(settings).live()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        _leave(code)


def _forget_exit_functions() -> None:
    """The host's exit functions are not the worker's; multiprocessing's is, which `_bootstrap` calls before 3.13."""
    if sys.version_info >= (3, 13):
        import atexit
        from multiprocessing import util

        atexit._clear()  # noqa: SLF001 - as multiprocessing's own launcher does
        atexit.register(util._exit_function)  # type: ignore[attr-defined]  # noqa: SLF001


def _leave(code: int) -> NoReturn:
    """End as multiprocessing's own forked children do: from 3.13 on, after the exit functions."""
    try:
        if sys.version_info >= (3, 13):
            import atexit

            atexit._run_exitfuncs()  # noqa: SLF001
    finally:
        os._exit(code)


def _become_main_thread() -> None:
    """The fork was made by the loop, a daemon thread; here it is the only one."""
    import threading

    thread: Any = threading.current_thread()
    thread._daemonic = False  # noqa: SLF001 - no public way once it runs
    thread.name = "MainThread"


def _settle_in(settings: Settings) -> None:
    """Give a forked process what an exec gives: session, lifeline, signals, streams, environment."""
    os.setsid()
    lifeline.arm_self(settings.line)
    dispositions.be_default()
    if settings.stdio is not None:
        _redirect(settings.stdio)
    if settings.enter is not None:
        with open(settings.enter, "w", encoding="ascii") as procs:
            procs.write("0")
    if settings.env is not None:
        for name, value in settings.env.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        marker.carry()
    if settings.cwd is not None:
        os.chdir(settings.cwd)


def changes(env: dict[str, str]) -> dict[str, str | None]:
    """Return what makes this process's environment `env`: a worker touches no more, and copies fewer pages."""
    gone: dict[str, str | None] = dict.fromkeys(os.environ.keys() - env.keys())
    return gone | {name: value for name, value in env.items() if os.environ.get(name) != value}


def _redirect(stdio: tuple[int | None, ...]) -> None:
    """Put the streams in place, below Python and in it; what the host had buffered stays the host's."""
    stdin, stdout, stderr = stdio
    if stdin is None:
        stdin = clear_of_stdio(os.open(os.devnull, os.O_RDONLY))
    for fd, number in ((stdin, 0), (stdout, 1), (stderr, 2)):
        if fd is not None:
            os.dup2(fd, number)
            os.close(fd)
    for name, number in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        encoding = getattr(old, "encoding", None) or "utf-8"
        errors = getattr(old, "errors", None) or "backslashreplace"
        try:
            new = open(number, "w", encoding=encoding, errors=errors, closefd=False, buffering=1)  # noqa: SIM115
        except OSError:  # closed in the host, and not redirected
            continue
        _host_streams.append((old, getattr(sys, f"__{name}__")))
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


_host_streams: list[object] = []
"""Kept from being collected, which would write what the host had buffered once more."""


def _worker(settings: Settings, file: BinaryIO) -> Worker:
    """Prepare a fork server's child as the host was, import the user's main module, unpickle the function.

    What goes wrong in that is recorded as if the function had raised it: the failure is to say why.
    """
    from multiprocessing import spawn

    try:
        with file:
            spawn.prepare(pickle.loads(pickle.load(file)))
            spawn.prepare(pickle.load(file))
            settings.call = pickle.load(file)
    except BaseException as error:  # also a main module that exits when it is imported
        if settings.plain is None:
            from supervise.recording import get_error_handler

            get_error_handler().record_exception(error)
        raise
    return _process(settings)


def _process(settings: Settings) -> Worker:
    """Return multiprocessing's process object for this worker."""
    from supervise._process.launch.multiprocessing import Worker

    return Worker(settings)
