"""What PROGRAM means: a Python file or module under this Python, or a program as it is."""

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
        OSError: It does not exist, or cannot be executed; found before anything is made or started.
    """
    program = options.program
    if options.module:
        return sys.executable, "-m", program, *options.args
    if options.python and program.endswith(".py"):
        with open(program, "rb") as file:  # else each rank would say in turn that it cannot
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
    """Return the exit code for a start that failed, as shells have it.

    Args:
        error: Why.
        logs: The run directory. A file in it that cannot be made says nothing of PROGRAM.
    """
    if isinstance(error, OSError) and logs and os.fsdecode(error.filename or "").startswith(os.path.join(logs, "")):
        return USAGE
    if isinstance(error, FileNotFoundError):
        return NOT_FOUND
    if isinstance(error, OSError) and error.errno in _REFUSED:
        return NOT_EXECUTABLE
    return 1


def complaint(number: int, options: Options) -> str | None:
    """Say more than an error number does of PROGRAM, which could not be executed; None where there is no more."""
    program = options.program
    if runs_python(options):
        return None
    if number == errno.ENOENT and not os.path.dirname(program):
        here = f"; for the one here give ./{program}" if os.path.isfile(program) else ""
        return f"{program} is not in PATH{here}"
    if number == errno.ENOENT and os.path.exists(program):
        return f"{program}: {_without_interpreter(program)}"
    if number == errno.EACCES and os.path.isfile(program) and not os.access(program, os.X_OK):
        return f"{program}: {os.strerror(number)}; to make it a program: chmod +x {shlex.quote(program)}"
    if number == errno.ENOEXEC:
        return f"{program}: {os.strerror(number)}; a script needs a first line such as #!/bin/sh"
    return None


def _without_interpreter(program: str) -> str:
    """Say what is missing for a file that is there."""
    try:
        with open(program, "rb") as file:
            first = file.readline(_FIRST_LINE_BYTES)
    except OSError:
        first = b""
    if not first.startswith(b"#!"):
        return "the file is there, but not the loader that it needs; was it built for another system?"
    name = os.fsdecode(first[2:].rstrip(b"\n").strip(b" \t").split(b" ")[0])
    if name.endswith("\r"):
        return f"its first line asks for {name!r}, since its lines end in CRLF; make them end in LF"
    return f"its first line asks for {name!r}, which does not exist"
