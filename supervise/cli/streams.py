"""The standard streams of the command, and its complaints."""

from __future__ import annotations

import io
import os
import select
import sys
from contextlib import suppress
from typing import Any

from supervise._platform import why_refused

# The text of an error for a person


def complaint(error: BaseException) -> str:
    """Return the text of an error, with its file."""
    if isinstance(error, OSError) and error.strerror:
        why = why_refused(error.errno or 0, error.strerror) if error.filename is None else error.strerror
        return why if error.filename is None else f"{error.filename}: {why}"
    return str(error) or repr(error)


def is_of_a_file(error: BaseException) -> bool:
    """Return whether the error is about a file or a folder that cannot be used."""
    return isinstance(error, NotADirectoryError) or getattr(error, "filename", None) is not None


def refusal(error: BaseException, log_dir: str | None) -> str:
    """Return the text for a run that is refused before it starts.

    Args:
        error: Why the run is refused.
        log_dir: The log directory that the user gave; None if there is none.
    """
    advice = "; give --log-dir a writable directory" if log_dir and is_of_a_file(error) else ""
    return f"{complaint(error)}{advice}"


# The standard streams of the command: those that are closed, and a stdout that takes no output


_FAILED, _WRONG_USAGE = 1, 2
_NO_READER = 141


class _Stdout(io.FileIO):
    """The stdout of a command, which marks its errors."""

    def write(self, data: Any) -> Any:
        """Write, as in the base class. Wait for the reader even if another program has left the file non-blocking."""
        try:
            while (written := super().write(data)) is None:
                room = select.poll()
                room.register(self, select.POLLOUT)
                room.poll()
        except OSError as error:
            error.of_stdout = True  # type: ignore[attr-defined]
            raise
        return written


def print_any_text() -> None:
    """Let stdout print characters that its encoding lacks, and lone surrogates, as escape sequences of Python.

    Stdout then has a buffer even with PYTHONUNBUFFERED. Without one, Python drops the rest of an incomplete write.
    """
    out = sys.stdout
    if type(out) is io.TextIOWrapper:
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Stdout(out.fileno(), "wb", closefd=False)),
            out.encoding,
            "backslashreplace",
            line_buffering=out.line_buffering,
            write_through=out.write_through,
        )


def open_closed() -> None:
    """Open the null device for each standard stream that is closed, as the programs of coreutils do.

    Python sets a closed stream to None, and `print` then writes the messages for stderr to stdout. The next file that
    is opened would also get the free number. Every write to a closed stdout fails; what is written to a closed stderr
    is lost.
    """
    with suppress(OSError):  # no descriptor is left; then streams that are None remain
        if sys.__stdin__ is None:
            os.open(os.devnull, os.O_RDONLY)
        if sys.stdout is None:
            sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w", closefd=False)  # noqa: SIM115 - for the process
        if sys.stderr is None:
            sys.stderr = open(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)  # noqa: SIM115 - for the process


def flushed(command: str, code: int) -> int:
    """Flush stdout and return `code`; if that fails, return the code of `failed`."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        return failed(command, error, of_stdout=True)
    return code


def failed(command: str, error: OSError, *, of_stdout: bool = False) -> int:
    """Print an error of a command that writes to stdout; return the exit code.

    If no process reads stdout any more, the command ends as a shell's command does: with the code of SIGPIPE, and
    without a message. `of_stdout` says that only a write to stdout can have failed.
    """
    of_stdout = _discard_stdout() or of_stdout or hasattr(error, "of_stdout")
    if isinstance(error, BrokenPipeError):
        return _NO_READER
    text, code = complaint(error), _FAILED
    if of_stdout:
        text = f"cannot write to stdout: {text}"
    elif isinstance(error, FileNotFoundError) and error.filename is None and cwd() is None:
        text, code = "the working directory of this process has been deleted; go to another one first", _WRONG_USAGE
    with suppress(OSError):
        print(f"supervise{' ' if command else ''}{command}: {text}", file=sys.stderr)
    return code


def cwd() -> str | None:
    """Return the working directory of this process; None if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _discard_stdout() -> bool:
    """Discard what stdout has in its buffer, if it takes no output; return whether that is so.

    Python flushes stdout at exit, and would report the error again.
    """
    try:
        sys.stdout.flush()
    except (AttributeError, OSError):
        with suppress(AttributeError, OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
        return True
    return False
