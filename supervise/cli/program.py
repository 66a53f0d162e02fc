"""The command line of PROGRAM: a Python file or module under this Python, or a program that is executed directly."""

from __future__ import annotations

import errno
import os
import shlex
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervise.cli.options import Options

NOT_EXECUTABLE, NOT_FOUND = 126, 127
USAGE = 2
_FIRST_LINE_BYTES = 256
_REFUSED = {errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.EISDIR, errno.ENOTDIR, errno.E2BIG, errno.ETXTBSY}


def command(options: Options) -> tuple[str, ...]:
    """Return the program to execute and its arguments.

    Raises:
        OSError: It does not exist or is not executable; no file or process was created.
    """
    program = options.program
    if options.module:
        return sys.executable, "-m", program, *options.args
    if options.python and program.endswith(".py"):
        with open(program, "rb") as file:  # otherwise each rank reports the error
            file.fileno()
        return sys.executable, program, *options.args
    import shutil

    if shutil.which(program) is None:
        if os.path.isdir(program) and os.path.dirname(program):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), program)
        if not os.path.exists(program) or not os.path.dirname(program):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), program)
    return program, *options.args


def runs_python(options: Options) -> bool:
    """Return whether PROGRAM runs under this Python."""
    return options.module or (options.python and options.program.endswith(".py"))


def start_code(error: BaseException, logs: str | None = None) -> int:
    """Return the exit code for a failed start, as shells do.

    Args:
        error: The error of the start.
        logs: The run directory. An error on a file in it does not concern PROGRAM.
    """
    if isinstance(error, OSError) and logs and os.fsdecode(error.filename or "").startswith(os.path.join(logs, "")):
        return USAGE
    if isinstance(error, FileNotFoundError):
        return NOT_FOUND
    if isinstance(error, OSError) and error.errno in _REFUSED:
        return NOT_EXECUTABLE
    return 1


def complaint(number: int, options: Options) -> str | None:
    """Return advice for an errno of executing PROGRAM; None if there is none."""
    program = options.program
    if runs_python(options):
        return None
    if number == errno.ENOENT and not os.path.dirname(program):
        here = f"; for the file in this directory, give ./{program}" if os.path.isfile(program) else ""
        return f"{program} is not in PATH{here}"
    if number == errno.ENOENT and os.path.exists(program):
        return f"{program}: {_without_interpreter(program)}"
    if number == errno.EACCES and os.path.isfile(program) and not os.access(program, os.X_OK):
        return f"{program}: {os.strerror(number)}; to make it executable: chmod +x {shlex.quote(program)}"
    if number == errno.ENOEXEC:
        return f"{program}: {os.strerror(number)}; a script needs a first line such as #!/bin/sh"
    return None


def _without_interpreter(program: str) -> str:
    """Return why an existing file cannot be executed: its interpreter or loader is missing."""
    try:
        with open(program, "rb") as file:
            first = file.readline(_FIRST_LINE_BYTES)
    except OSError:
        first = b""
    if not first.startswith(b"#!"):
        return "the file exists, but its loader does not; was it built for another system?"
    name = os.fsdecode(first[2:].rstrip(b"\n").strip(b" \t").split(b" ")[0])
    if name.endswith("\r"):
        return f"its first line names {name!r}, because its lines end in CRLF; convert them to LF"
    return f"its first line names {name!r}, which does not exist"
