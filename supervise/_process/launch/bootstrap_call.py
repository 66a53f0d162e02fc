"""Call of the user's function in the worker, and transfer of its value or its exception to the host."""

from __future__ import annotations

import _pickle as pickle  # the core of `pickle`, which itself imports `re`
import atexit
import os
import sys
import threading
import time

from supervise._process.launch import return_value
from supervise.recording import ErrorHandler, StopLater, first_record_of, record, text_of, traceback_of

TYPE_CHECKING = False  # without an import of typing, as in `bootstrap`
if TYPE_CHECKING:
    from typing import Any, BinaryIO

    from supervise._process.launch.settings import Settings

_INTERRUPTED = 130


def load(file: BinaryIO) -> Any:
    """Unpickle the function and its arguments.

    Raises:
        AttributeError: A name is missing in its module. The main module may lack it, because a rank runs only a part of
            that module.
    """
    try:
        return pickle.load(file)
    except AttributeError as error:
        if "__mp_main__" not in text_of(error):
            raise
        hint = "a rank imports the main module without what is below if __name__ == '__main__'; define it above that"
        raise AttributeError(f"{error}: {hint}") from None


def told(settings: Settings, error: BaseException) -> bool:
    """Record an exception before the call; return whether the host alone shows it, and this process nothing.

    That is so for the error about a gang that the main module starts at its import: all ranks have it, and the frames
    of the import say nothing about it.
    """
    from supervise.errors import is_unguarded

    alone = is_unguarded(text_of(error)) and isinstance(error, RuntimeError)
    error = error.with_traceback(None) if alone else error
    if settings.plain is None:
        _RankErrorHandler(settings).record_exception(error)
        return alone
    return alone and _sent(settings, (time.monotonic_ns(), traceback_of(error)))


def name_of(settings: Settings) -> str:
    """Return the name of the worker's process."""
    return f"Rank-{settings.local_rank}" if settings.plain is None else settings.plain.name(settings.local_rank)


def call(settings: Settings) -> None:
    """Call the user's function; send its value or its exception.

    Raises:
        SystemExit: The exit code is not 0.
    """
    try:
        (_call if settings.plain is None else _call_plainly)(settings)
    finally:
        send = getattr(sys.modules.get("supervise.notifying"), "send_unsent", None)
        if send is not None:  # a fork may call no exit functions
            send()


def _call(settings: Settings) -> None:
    """Call the user's function; record its exception or send its value."""
    fn, args = settings.call
    rank_pid = os.getpid()
    handler = _RankErrorHandler(settings)
    try:
        try:
            value = record(fn, handler)(*args)
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                raise
            value = None
        if os.getpid() == rank_pid:  # a process forked by the user's function may return, too
            return_value.send(settings.channel, settings.address, value)
            _wait_for_release(settings.hold)
            _watch_exit(settings)
    except SystemExit as leaving:
        if _tells_more(leaving.code):
            handler.record_exception(_explained(leaving) if isinstance(leaving.code, int) else leaving)
        raise
    except KeyboardInterrupt as error:
        handler.record_exception(error)
        raise SystemExit(_INTERRUPTED) from None
    except BaseException as error:
        with StopLater():
            if not handler.has_recorded:  # by `record`, which leaves out a `ChildFailedError` without an error file
                handler.record_exception(error)
            if not handler.has_recorded:
                sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1) from None


def _tells_more(code: object) -> bool:
    """Return whether the argument of `sys.exit` says more than the exit code: it is a text, or is truncated to 0."""
    return code is not None and (not isinstance(code, int) or _is_truncated(code))


def exit_code(code: int) -> int:
    """Return the exit code of a program that calls `sys.exit(code)`.

    The kernel keeps the low 8 bits. Python exits with -1 if the number is beyond a C long.
    """
    return code & 0xFF if -sys.maxsize - 1 <= code <= sys.maxsize else 0xFF


def _is_truncated(code: object) -> bool:
    """Return whether a number other than 0 becomes the exit code 0, because the kernel keeps only its low 8 bits."""
    return isinstance(code, int) and code != 0 and exit_code(code) == 0


def _explained(leaving: SystemExit) -> SystemExit:
    """Return an exit whose code is truncated to 0 as an exception with an explanation."""
    code = text_of(leaving.code)
    text = f"sys.exit({code}): exit code 0 without a return value, as the kernel keeps only the low 8 bits of {code}"
    return SystemExit(text).with_traceback(leaving.__traceback__)


def _wait_for_release(hold: int | None) -> None:
    """Tell the host that the function has returned, then wait until the host releases this worker."""
    if hold is None:
        return
    try:
        os.write(hold, b"r")
        while os.read(hold, 1):
            pass
    except OSError:  # the function has closed the descriptor, so this worker cannot wait
        return


def _watch_exit(settings: Settings) -> None:
    """Report if this process does not exit soon, in case threads, children or exit functions may delay its exit."""
    children = getattr(sys.modules.get("multiprocessing.process"), "_children", None)
    calls_exit_functions = settings.method == "spawn" or sys.version_info >= (3, 13)
    functions = atexit._ncallbacks() if calls_exit_functions else 0  # noqa: SLF001 - one is that of multiprocessing
    if children or functions > 1 or threading.active_count() > 1:
        try:
            from supervise._process.launch import lingering
        except (ImportError, OSError):  # as in `return_value`
            return
        lingering.report_later(settings)


class _RankErrorHandler(ErrorHandler):
    """Error handler for the rank's own process. It works also if the function has cleared the environment.

    An exception in a process that the function has forked is not recorded, because it is not a failure of the rank.
    The host learns by the result channel that the exception has left the function: at once, because the text of the
    exception may take long, and again if the error file cannot be written.
    """

    _told_ns: int | None = None

    def __init__(self, settings: Settings) -> None:
        self._rank_pid = os.getpid()
        self._path = super()._get_error_file_path()
        self._settings = settings

    def _tell(self, e: BaseException | None) -> None:
        """Tell the host that an exception has left the function. The first call counts."""
        if self._told_ns is None and os.getpid() == self._rank_pid:
            self._told_ns = time.monotonic_ns()
            self._send("" if e is None else first_record_of(e, time.time_ns()))

    def _send(self, text: str) -> bool:
        channel, address = self._settings.channel, self._settings.address
        return return_value.tell_raised(channel, address, self._told_ns or 0, text)

    def record_exception(self, e: BaseException) -> None:
        self._tell(e)
        super().record_exception(e)

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        self._tell(None)
        super().dump_error_file(rootcause_error_file, error_code)

    def _could_not_write(self, error: Exception, text: str) -> None:
        if self._send(text):
            self._written = True
        else:
            super()._could_not_write(error, text)

    def _get_error_file_path(self) -> str | None:
        return (super()._get_error_file_path() or self._path) if os.getpid() == self._rank_pid else None

    @property
    def has_recorded(self) -> bool:
        """Whether the exception was recorded."""
        return self._written


def _call_plainly(settings: Settings) -> None:
    """Call the user's function. If it raises an `Exception`, send the monotonic time (ns) and the traceback.

    Do the same for an exit whose code would be truncated to 0, that of a success. Of another exit that is not a
    success, send the time and the code: the process may take long to end, or be stopped before.
    """
    fn, args = settings.call
    rank_pid = os.getpid()
    try:
        fn(*args)
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit):
            if not _is_truncated(error.code):
                if error.code not in (None, 0) and os.getpid() == rank_pid:
                    _sent(settings, (time.monotonic_ns(), exit_code(error.code) if isinstance(error.code, int) else 1))
                raise
            error = _explained(error)
        raised_ns = time.monotonic_ns()
        with StopLater():
            trace = traceback_of(error)
            if os.getpid() != rank_pid or not _sent(settings, (raised_ns, trace)):
                sys.stderr.write(trace)  # this process was forked by the function, or the channel is closed
        raise SystemExit(1) from None


def _sent(settings: Settings, value: object) -> bool:
    """Send `value`; return whether that succeeded."""
    try:
        return_value.send(settings.channel, settings.address, value)
    except OSError:
        return False
    return True
