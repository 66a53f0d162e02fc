"""Steps in a rank's process before its program runs. A shell executes the steps, then becomes the program."""

from __future__ import annotations

import errno
import os
import re
from functools import cache
from typing import TYPE_CHECKING

from supervise._process.launch import posix_spawn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervise._process.launch.launch_spec import LaunchSpec

_SHELL = "/bin/sh"
_ENV = "/usr/bin/env"
_NICE = "/usr/bin/nice"
_FORMATS = "/proc/sys/fs/binfmt_misc"
_ODD = re.compile(
    rb"(?![A-Za-z_][A-Za-z0-9_]*\Z)|BASH|COMP_|EPOCH"
    rb"|(?:E?UID|HISTCMD|IFS|LINENO|OPT(?:ARG|ERR|IND)|POSIXLY_CORRECT|PPID|PS[124]|S?RANDOM|SECONDS|SHELLOPTS|TMOUT"
    rb"|SUPERVISE_GATE)\Z"
)
"""Variables that some shells drop, set or obey.

The command `env` sets them for the program; the shell gets none of them.
"""
_PLACES = ("PWD", "OLDPWD")
"""Variables that a shell changes, so the shell sets them to their old values again.

The command `env` is not used for them, because almost every environment has these variables. SHLVL is treated in the
same way, except with bash: bash decrements it at the exec, so its value is correct if SHLVL was set before. If it was
not set, `env` removes it.
"""
_MAGIC_BYTES = 256


def becoming(
    argv: Sequence[str], how: LaunchSpec, *, gated: bool = False
) -> tuple[list[str], dict[bytes, bytes], str | None]:
    """Return command line, environment and folder of a shell that prepares the process and then becomes `argv`.

    Until the exec, other users see in the list of processes the variables that the command `env` sets.

    Args:
        argv: The program and its arguments.
        how: Its environment and folder, and the control group that the shell enters. If `posix_spawn` cannot change the
            folder, the shell does, and the returned folder is None.
        gated: Whether the shell waits for a line on its stdin. After the line, stdin becomes the null device. At EOF,
            the shell exits.

    Raises:
        OSError: The program does not exist or cannot be executed, or the folder does not exist; ``filename`` names it.
    """
    env, cwd = how.env, how.cwd
    if cwd is not None:
        posix_spawn.check_folder(cwd)
    program = posix_spawn.find(argv[0], env, cwd)
    _check_format(argv[0], os.path.join(cwd or "", program), cwd)
    whole = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
    odd = {name: value for name, value in whole.items() if _is_odd(name)}
    kept = {name: value for name, value in whole.items() if name not in odd}
    steps, given = [], []
    if cwd is not None and not posix_spawn.CHANGES_FOLDER:
        steps.append('cd -P -- "$1" && shift')
        given.append(os.path.join(os.getcwd(), cwd))  # not normalized: ".." after a symbolic link is elsewhere
    if how.enter is not None:
        steps.append('echo 0 > "$1" && shift')
        given.append(how.enter)
    if gated:
        steps.append("read -r SUPERVISE_GATE")
    for name in _PLACES if _is("bash", _SHELL) else (*_PLACES, "SHLVL"):
        if (value := kept.get(name.encode())) is None:
            steps.append(f"unset {name}")
        else:
            steps.append(f'export {name}="$1" && shift')
            given.append(os.fsdecode(value))
    steps.append('exec "$@"' + (" < /dev/null" if gated else ""))
    if program.startswith("-"):  # otherwise the shell takes the name for an option
        program = f"./{program}"
    command = [*_env(program, odd, kept), program, *argv[1:]]
    shell = [_SHELL, *_as_it_is(), "-c", " && ".join(steps), "sh", *given, *command]
    return shell, kept, cwd if posix_spawn.CHANGES_FOLDER else None


def _is_odd(name: bytes) -> bool:
    of_bash = name in {b"_", b"LC_ALL"} and _is("bash", _SHELL)  # bash sets `_`, and warns about an unknown locale
    return of_bash or _ODD.match(name) is not None


def _env(program: str, odd: Mapping[bytes, bytes], kept: Mapping[bytes, bytes]) -> list[str]:
    """Return the `env` command that sets the variables in `odd`.

    The command removes SHLVL if only bash has added it.
    """
    unwanted = ["-u", "SHLVL"] if b"SHLVL" not in kept and _is("bash", _SHELL) else []
    if not odd and not unwanted:
        return []
    pairs = [os.fsdecode(name + b"=" + value) for name, value in odd.items()]
    last = [_NICE, "-n", "0", "--"] if "=" in program else []  # otherwise `env` takes the name for a variable
    return [_ENV, *unwanted, "--", *pairs, *last]


@cache
def _is(name: str, shell: str) -> bool:
    """Return whether the name of the shell is `name` after the resolution of symbolic links."""
    return os.path.basename(os.path.realpath(shell)) == name


def _as_it_is() -> list[str]:
    """Return the option with which a shell keeps an effective user or group that differs from the real one."""
    same = (os.getuid(), os.getgid()) == (os.geteuid(), os.getegid())
    return [] if same or _is("busybox", _SHELL) else ["-p"]


def _check_format(named: str, path: str, cwd: str | None) -> None:
    """Refuse a file that the kernel cannot execute.

    With such a file, the shell would run it as a script, or would exit with a code and no other sign.

    Raises:
        OSError: The file is not a program, or its interpreter does not exist or cannot be executed.
    """
    try:
        with open(path, "rb") as file:
            magic = file.read(_MAGIC_BYTES)
    except PermissionError:  # executable, but not readable
        return
    if magic.startswith(b"#!"):
        words = re.split(rb"[ \t]+", magic[2:].partition(b"\n")[0].strip(b" \t"), maxsplit=1)
        if not words[0]:
            raise OSError(errno.ENOEXEC, os.strerror(errno.ENOEXEC), named)
        interpreter = os.path.join(cwd or "", os.fsdecode(words[0]))
        if not os.path.exists(interpreter):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), named)
        if not (os.path.isfile(interpreter) and posix_spawn.may_execute(interpreter)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), named)
    elif not magic.startswith(b"\x7fELF") and not _other_formats():
        raise OSError(errno.ENOEXEC, os.strerror(errno.ENOEXEC), named)


def _other_formats() -> bool:
    """Return whether further formats of programs are registered with the kernel (binfmt_misc)."""
    try:
        return bool(set(os.listdir(_FORMATS)) - {"register", "status"})
    except OSError:
        return False
