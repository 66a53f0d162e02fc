"""What must happen in a rank's process before its program runs: a shell does it, then becomes the program."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

from supervise._process import native

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHELL = "/bin/sh"
_ENV = "/usr/bin/env"
_ADDED = ("PWD", "OLDPWD")
"""What some shells put into the environment by themselves."""
_KEPT = re.compile(rb"(?!(?:IFS|LINENO|OPTARG|OPTIND|PPID|PS[124]|RANDOM|SECONDS|E?UID)\Z)[A-Za-z_][A-Za-z0-9_]*")
"""The names of variables that every shell passes on; some drop the others, or have a value of their own for them."""


def becoming(
    argv: Sequence[str],
    env: Mapping[str, str] | Mapping[bytes, bytes],
    cwd: str | None,
    *,
    go_there: bool = False,
    enter: str | None = None,
    gated: bool = False,
) -> list[str]:
    """Return the command line of a shell that does what is asked, and then becomes `argv` with all of `env`.

    What the kernel refuses to execute is an exit with 126, and not an error of the start, as it is without a shell.

    Args:
        argv: The program and its arguments.
        env: Its whole environment, which the shell is started with.
        cwd: Its working directory; None is this process's.
        go_there: Whether it is for the shell to go there.
        enter: The ``cgroup.procs`` into which it writes itself.
        gated: Whether it waits for a line on its stdin, which is empty afterwards. Without the line, it ends.

    Raises:
        OSError: The program is not there or cannot be executed, or the folder is not there; names it.
    """
    program = native.find(argv[0], env, cwd)
    steps, given = [], []
    if go_there and cwd is not None:
        os.stat(os.path.join(cwd, "."))
        steps.append('cd -- "$1" && shift')
        given.append(os.path.abspath(cwd))
    if enter is not None:
        steps.append('echo 0 > "$1" && shift')
        given.append(enter)
    if gated:
        steps.append("read -r SUPERVISE_GATE")
    names = {os.fsencode(name) for name in env}
    if added := [name for name in _ADDED if name.encode() not in names]:
        steps.append(f"unset {' '.join(added)}")
    steps.append('exec "$@"' + (" < /dev/null" if gated else ""))
    return [_SHELL, "-c", " && ".join(steps), "sh", *given, *_dropped(program, env), program, *argv[1:]]


def _dropped(program: str, env: Mapping[str, str] | Mapping[bytes, bytes]) -> list[str]:
    """Return what gives the program those variables that the shell may have dropped: exported functions, for one.

    While it does, they can be read in the list of processes, which other users see.

    Raises:
        OSError: There are such, and a program whose name looks like one more.
    """
    pairs = [(os.fsencode(name), os.fsencode(value)) for name, value in env.items()]
    odd = [os.fsdecode(name + b"=" + value) for name, value in pairs if not _KEPT.fullmatch(name)]
    if odd and "=" in program:
        why = f"a program with = in its name cannot be given the variable {odd[0].partition('=')[0]} by a shell"
        raise OSError(errno.EINVAL, why, program)
    return [_ENV, *odd] if odd else []
