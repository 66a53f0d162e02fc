"""What PROGRAM means: a Python file or module under this Python, or a program as it is."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervise.cli.arguments import Options

NOT_EXECUTABLE, NOT_FOUND = 126, 127
_REFUSED = {errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.EISDIR, errno.ENOTDIR, errno.E2BIG}


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
        if not os.path.exists(program) or not os.path.dirname(program):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), program)
    return program, *options.args


def start_code(error: BaseException) -> int:
    """Return the exit code for a start that failed, as shells have it."""
    if isinstance(error, FileNotFoundError):
        return NOT_FOUND
    if isinstance(error, OSError) and error.errno in _REFUSED:
        return NOT_EXECUTABLE
    return 1
