"""Bootstrap of a function in a worker, from the first instruction to the call in `bootstrap_call`.

A spawned worker continues in `bootstrap_spawn`. Every spawned worker imports this module before the user's code, so
this module imports little.
"""

from __future__ import annotations

import _pickle as pickle  # the core of `pickle`, which itself imports `re`
import os
import sys

from supervise._process import lifeline
from supervise._process.containment import marker
from supervise._process.launch import dispositions, stack_signal
from supervise._runtime.descriptors import clear_of_stdio

TYPE_CHECKING = False  # typing and dataclasses take longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, BinaryIO, NoReturn

    from supervise._process.launch.multiprocessing import Worker
    from supervise._process.launch.settings import Settings


class Arrival:
    """Object that sets up a worker when multiprocessing unpickles it there.

    The result of the unpickling is the process object.
    """

    def __init__(self, payload: int, *, execs: bool) -> None:
        """Make the object.

        Args:
            payload: The descriptor of the payload; with a fork server, its index among the descriptors that the server
                passes.
            execs: Whether the worker is a frozen program. Such a worker already has its session, streams and
                environment.
        """
        self.payload = payload
        self.execs = execs

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        """Set up the worker when the object is unpickled."""
        return _arrive_frozen if self.execs else _arrive, (self.payload,)


def spawned(file: BinaryIO) -> int:
    """Run the function that `file` describes, in a new interpreter; return the exit code."""
    settings: Settings = pickle.load(file)
    lifeline.arm_self(settings.line)
    keep_private(file.fileno(), settings.channel, settings.hold, settings.tracker, *settings.fds)
    stack_signal.enable_if_possible()
    from supervise._process.launch import bootstrap_spawn

    return bootstrap_spawn.live(settings, file)


def keep_private(*fds: int | None) -> None:
    """Set close-on-exec for descriptors, before any user code runs.

    A program that the worker executes, perhaps as another user, must not write to these descriptors. The host unpickles
    data from the result channel and from queues, and the resource tracker unlinks each name that it receives.
    """
    for fd in fds:
        if fd is not None:
            os.set_inheritable(fd, False)


def _arrive(payload: int) -> Any:
    """Set up a child of the fork server before it imports user code."""
    import marshal
    from multiprocessing import forkserver, resource_tracker

    inherited = forkserver.get_inherited_fds()
    if inherited is None:
        raise RuntimeError("this process is not a child of the fork server")
    inherited[:] = fds = [clear_of_stdio(fd) for fd in inherited]
    server: Any = forkserver._forkserver  # noqa: SLF001 - there is no public way
    tracker: Any = resource_tracker._resource_tracker  # noqa: SLF001
    keep_private(*fds, server._forkserver_alive_fd, tracker._fd)  # noqa: SLF001
    file = os.fdopen(fds[payload], "rb")
    marshal.load(file)  # noqa: S302 - skips `sys.path`, which is already set
    settings: Settings = pickle.load(file)
    settings.arrive(fds)
    if settings.env is not None:
        settings.env = changes({name: value for name, value in settings.env.items() if value is not None})
    _settle_in(settings)
    return _worker(settings, file)


def _arrive_frozen(payload: int) -> Any:
    """Set up a frozen program, in `multiprocessing.freeze_support`.

    The main module of the program has run up to the call of that function.
    """
    import marshal

    file = os.fdopen(payload, "rb")
    marshal.load(file)  # noqa: S302 - skips `sys.path`, which is already set
    settings: Settings = pickle.load(file)
    lifeline.arm_self(settings.line)
    keep_private(payload, settings.channel, settings.hold, settings.tracker, *settings.fds)
    stack_signal.enable_if_possible()
    return _worker(settings, file)


def forked(settings: Settings) -> NoReturn:
    """Call the function in a process that the host's loop has just forked."""
    code = 1
    try:
        _become_main_thread()
        _settle_in(settings)
        _forget_exit_functions()
        from supervise._process.launch.multiprocessing import Worker

        code = Worker(settings).live()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        _leave(code)


def _forget_exit_functions() -> None:
    """Remove the host's exit functions.

    Those of multiprocessing remain. Before Python 3.13, `_bootstrap` calls them.
    """
    if sys.version_info >= (3, 13):
        import atexit
        from multiprocessing import util

        atexit._clear()  # noqa: SLF001 - as multiprocessing's own launcher does
        atexit.register(util._exit_function)  # type: ignore[attr-defined]  # noqa: SLF001


def _leave(code: int) -> NoReturn:
    """Exit with `code`. From Python 3.13 on, call the exit functions first, as a child of multiprocessing does."""
    try:
        if sys.version_info >= (3, 13):
            import atexit

            atexit._run_exitfuncs()  # noqa: SLF001
    finally:
        os._exit(code)


def _become_main_thread() -> None:
    """Make this thread the main thread.

    The thread is a copy of the host's loop, and the only thread after the fork.
    """
    import threading

    thread: Any = threading.current_thread()
    thread._daemonic = False  # noqa: SLF001 - no public way once it runs
    thread.name = "MainThread"


def _settle_in(settings: Settings) -> None:
    """Set session, lifeline, signals, streams, environment and folder of a forked process."""
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
    stack_signal.enable_if_possible()


def changes(env: Mapping[str, str]) -> dict[str, str | None]:
    """Return the difference between `env` and this process's environment.

    A worker that changes fewer variables copies fewer pages.
    """
    gone: dict[str, str | None] = dict.fromkeys(os.environ.keys() - env.keys())
    return gone | {name: value for name, value in env.items() if os.environ.get(name) != value}


def _redirect(stdio: tuple[int | None, ...]) -> None:
    """Replace descriptors 0 to 2 and the streams of `sys`. Never flush text that the host had buffered."""
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
"""References to the host's streams, so that they are not collected.

A collected stream would write the text that the host had buffered, a second time.
"""


def _worker(settings: Settings, file: BinaryIO) -> Worker:
    """Apply the host's preparation data, import the main module, and unpickle the function, in a fork server's child.

    An exception in one of these steps is recorded like an exception of the function, so that the failure shows the
    cause.
    """
    from multiprocessing import spawn

    from supervise._process.launch import bootstrap_call
    from supervise._process.launch.multiprocessing import Worker

    try:
        with file:
            spawn.prepare(pickle.loads(pickle.load(file)))
            spawn.prepare(pickle.load(file))
            settings.call = bootstrap_call.load(file)
    except BaseException as error:  # also a main module that exits when it is imported
        if bootstrap_call.told(settings, error):
            raise SystemExit(1) from None
        raise
    return Worker(settings)
