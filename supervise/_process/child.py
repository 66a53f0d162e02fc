"""The worker's side of a function: from the first instruction to the exit code.

Imported by every spawned worker before the user's code, so it imports little.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from supervise._process import lifeline, outcome
from supervise._process.memory import clear_of_stdio

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """Marks a gang whose functions give nothing back: only the trace of what one raises goes home.

    Nothing is recorded in a file, and an exit with code 0 is enough. Beside that, how multiprocessing in
    the workers is to call them.
    """

    prefix: str
    """Of the processes' names."""
    first: int
    """The number behind the prefix in the name of rank 0."""
    daemon: bool

    def name(self, local_rank: int) -> str:
        """Return the name of a rank's process."""
        return f"{self.prefix}{self.first + local_rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the host says about one worker. Descriptors are numbers, or indices where a fork server passes them."""

    local_rank: int
    method: str
    host_pid: int
    address: outcome.Address
    line: int
    channel: int
    """For the outcome."""
    tracker: int | None = None
    """Of multiprocessing's resource tracker, for spawn."""
    stdio: tuple[int | None, int | None, int | None] | None = None
    """For stdin (None: empty), stdout, stderr (None: stays); None where the exec has set them."""
    env: dict[str, str] | None = field(default=None, repr=False)
    """The whole environment; None where the exec has set it."""
    cwd: str | None = None
    plain: Plain | None = None
    """None where the function's return value is wanted."""


class Arrival:
    """Travels to the fork server's child, where unpickling it sets everything up and gives the process object."""

    def __init__(self, payload: int) -> None:
        """Make it.

        Args:
            payload: Index of the descriptor with all the rest.
        """
        self.payload = payload

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        """Arrive instead of being rebuilt."""
        return _arrive, (self.payload,)


def spawned(file: BinaryIO) -> int:
    """Run what `file` describes, in a new interpreter; return the exit code."""
    settings: Settings = pickle.load(file)
    lifeline.arm_self(settings.line)
    if settings.tracker is not None:
        from multiprocessing import resource_tracker

        resource_tracker._resource_tracker._fd = settings.tracker  # type: ignore[attr-defined]  # noqa: SLF001 - as spawn_main does
    from multiprocessing import process

    current: Any = process.current_process()
    current._inheriting = True  # noqa: SLF001 - as in multiprocessing's own children while they unpickle
    try:
        worker = _worker(settings, file)
    finally:
        del current._inheriting  # noqa: SLF001
    return run(worker)


def run(worker: Any) -> int:
    """Run a worker's process object to its end; return the exit code."""
    code: int = worker._bootstrap()  # noqa: SLF001 - what multiprocessing's launchers call
    return code


def _arrive(payload: int) -> Any:
    """Set up the fork server's child before anything of the user's is imported."""
    import dataclasses
    import marshal
    from multiprocessing import forkserver

    inherited = forkserver.get_inherited_fds()
    if inherited is None:
        msg = "not in a child of the fork server"
        raise RuntimeError(msg)
    inherited[:] = fds = [clear_of_stdio(fd) for fd in inherited]
    file = os.fdopen(fds[payload], "rb")
    marshal.load(file)  # noqa: S302 - the path, already in place
    found: Settings = pickle.load(file)
    stdin, out, err = (None if index is None else fds[index] for index in found.stdio or (None, None, None))
    settings = dataclasses.replace(found, line=fds[found.line], channel=fds[found.channel], stdio=(stdin, out, err))
    _settle_in(settings)
    return _worker(settings, file)


def forked(settings: Settings, fn: Callable[..., Any], args: tuple[Any, ...]) -> NoReturn:
    """Run `fn` in a process that was just forked off the host's loop."""
    code = 1
    try:
        _become_main_thread()
        _settle_in(settings)
        _forget_exit_functions()
        code = run(_make(settings, fn, args))
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
    _default_signals()
    if settings.stdio is not None:
        _redirect(settings.stdio)
    if settings.env is not None:
        os.environ.clear()
        os.environ.update(settings.env)
    if settings.cwd is not None:
        os.chdir(settings.cwd)


def _default_signals() -> None:
    signal.set_wakeup_fd(-1)
    for sig in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        ignored = signal.getsignal(sig) == signal.SIG_IGN
        if sig == signal.SIGINT:
            signal.signal(sig, signal.default_int_handler)
        elif signal.getsignal(sig) != signal.SIG_DFL and not (ignored and sig == signal.SIGHUP):
            signal.signal(sig, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


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


def _worker(settings: Settings, file: BinaryIO) -> Any:
    """Prepare this interpreter as the host's was, import the user's main module, unpickle the function."""
    from multiprocessing import spawn

    with file:
        spawn.prepare(pickle.load(file))
        fn, args = pickle.load(file)
    return _make(settings, fn, args)


def _make(settings: Settings, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return multiprocessing's process object for this worker, so that its functions work as in any child of it."""
    from multiprocessing import process

    plain = settings.plain
    call = _call if plain is None else _call_plainly

    class Worker(process.BaseProcess):
        _start_method: Any = settings.method

        def run(self) -> None:
            call(settings, fn, args)

        def _bootstrap(self, parent_sentinel: Any = None) -> int:  # noqa: ARG002 - the lifeline is the sentinel
            code: int = super()._bootstrap(settings.line)  # type: ignore[misc]
            return code & 0xFF  # what an exit keeps of it; os._exit refuses a larger number

    rank = settings.local_rank
    worker: Any = Worker(name=f"Rank-{rank}") if plain is None else Worker(name=plain.name(rank), daemon=plain.daemon)
    worker._parent_pid = settings.host_pid  # noqa: SLF001
    worker._parent_name = "MainProcess"  # noqa: SLF001
    return worker


def _call(settings: Settings, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Call the user's function, record what it raises, send what it returns."""
    from supervise.recording import get_error_handler, record

    handler = get_error_handler()
    rank_pid = os.getpid()
    returned = False
    try:
        try:
            value = record(fn, handler)(*args)
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                raise
            value = None
        returned = True
        if os.getpid() == rank_pid:  # a process that the user's function forked may return, too
            outcome.send(settings.channel, settings.address, value)
    except SystemExit:
        raise
    except KeyboardInterrupt as error:
        handler.record_exception(error)
        raise SystemExit(_INTERRUPTED) from None
    except BaseException as error:
        if returned or not isinstance(error, Exception):  # `record` has not seen it
            handler.record_exception(error)
        if not os.environ.get("TORCHELASTIC_ERROR_FILE"):
            sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1) from None


def _call_plainly(settings: Settings, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Call the user's function; send the trace of an `Exception`, after the monotonic ns when it was caught."""
    rank_pid = os.getpid()
    try:
        fn(*args)
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    except Exception:
        import time
        import traceback

        raised_ns, trace = time.monotonic_ns(), traceback.format_exc()
        if os.getpid() != rank_pid or not _sent(settings, (raised_ns, trace)):
            sys.stderr.write(trace)  # a process that the function forked, or the channel is closed
        raise SystemExit(1) from None


def _sent(settings: Settings, value: object) -> bool:
    """Send `value`; tell whether that could be done."""
    try:
        outcome.send(settings.channel, settings.address, value)
    except OSError:
        return False
    return True
