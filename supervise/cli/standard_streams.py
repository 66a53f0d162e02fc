"""The standard streams of the command: those that are closed, and a stdout that takes no output."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from supervise.cli.complaint import complaint

_FAILED = 1
_NO_READER = 141


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


def show_no_output() -> None:
    """Set a stdout that was closed to None again: a gang discards the output that it would show there."""
    if sys.__stdout__ is None:
        sys.stdout = None


def flushed(command: str, code: int) -> int:
    """Flush stdout and return `code`; if that fails, return the code of `failed`."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        return failed(command, error)
    return code


def failed(command: str, error: OSError) -> int:
    """Print an error of a command that writes to stdout; return the exit code.

    If no process reads stdout any more, the command ends as a shell's command does: with the code of SIGPIPE, and
    without a message. An error that names no file is one of stdout.
    """
    _discard_stdout()
    if isinstance(error, BrokenPipeError):
        return _NO_READER
    text = complaint(error)
    if error.filename is None:
        text = f"cannot write to stdout: {text}"
    with suppress(OSError):
        print(f"supervise{' ' if command else ''}{command}: {text}", file=sys.stderr)
    return _FAILED


def _discard_stdout() -> None:
    """Discard what stdout has in its buffer: Python flushes it at the exit, and would report the error again."""
    try:
        sys.stdout.flush()
    except (AttributeError, OSError):
        with suppress(AttributeError, OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
