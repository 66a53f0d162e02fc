"""Call of the user's function in the worker, and transfer of its value or its exception to the host."""

from __future__ import annotations

import os
import sys

try:
    import _pickle as pickle  # the core of `pickle`, which itself imports `re`
except ImportError:
    import pickle  # type: ignore[no-redef]

from supervise._process.launch import return_value
from supervise.recording import ErrorHandler, record, text_of, traceback_of

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


def name_of(settings: Settings) -> str:
    """Return the name of the worker's process."""
    return f"Rank-{settings.local_rank}" if settings.plain is None else settings.plain.name(settings.local_rank)


def call(settings: Settings) -> None:
    """Call the user's function; send its value or its exception.

    Raises:
        SystemExit: The exit code is not 0.
    """
    (_call if settings.plain is None else _call_plainly)(settings)


def _call(settings: Settings) -> None:
    """Call the user's function; record its exception or send its value."""
    fn, args = settings.call
    rank_pid = os.getpid()
    handler = _RankErrorHandler(rank_pid)
    returned = False
    try:
        try:
            value = record(fn, handler)(*args)
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                raise
            value = None
        returned = True
        if os.getpid() == rank_pid:  # a process forked by the user's function may return, too
            return_value.send(settings.channel, settings.address, value)
    except SystemExit as leaving:
        if leaving.code is not None and not isinstance(leaving.code, int) and os.getpid() == rank_pid:
            handler.record_exception(leaving)  # a text is the error; a number reaches the host as the exit code
        raise
    except KeyboardInterrupt as error:
        handler.record_exception(error)
        raise SystemExit(_INTERRUPTED) from None
    except BaseException as error:
        if returned or not isinstance(error, Exception):  # otherwise `record` has recorded the error
            handler.record_exception(error)
        if not handler.records:
            sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1) from None


class _RankErrorHandler(ErrorHandler):
    """Error handler for the rank's own process. It works also if the function has cleared the environment.

    An exception in a process that the function has forked is not recorded, because it is not a failure of the rank.
    """

    def __init__(self, rank_pid: int) -> None:
        self._rank_pid = rank_pid
        self._path = super()._get_error_file_path()

    def _get_error_file_path(self) -> str | None:
        return (super()._get_error_file_path() or self._path) if os.getpid() == self._rank_pid else None

    @property
    def records(self) -> bool:
        """Whether there is an error file."""
        return bool(self._get_error_file_path())


def _call_plainly(settings: Settings) -> None:
    """Call the user's function. If it raises an `Exception`, send the monotonic time (ns) and the traceback."""
    fn, args = settings.call
    rank_pid = os.getpid()
    try:
        fn(*args)
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    except Exception as error:
        import time

        raised_ns, trace = time.monotonic_ns(), traceback_of(error)
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
