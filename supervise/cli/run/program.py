"""PROGRAM: a Python file or module under this Python, or another program; why it did not start; the exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from signal import SIGPIPE, SIGTERM
from typing import TYPE_CHECKING

from supervise._files import last_lines
from supervise._platform import why_refused
from supervise._printable import one_line
from supervise._story.failure_report import WHY_LINES, Story, end_of_output, recorded, stopped_by_us
from supervise._story.wording import shortened
from supervise._views.recorded_run import RecordedRun
from supervise.cli.options.values import open_without_wait
from supervise.errors import SpawnError, SpecError

if TYPE_CHECKING:
    from supervise.cli.options.options import Options
    from supervise.cli.options.parts import Part
    from supervise.result import RunProcsResult


NOT_EXECUTABLE, NOT_FOUND = 126, 127
USAGE = 2
_FIRST_LINE_BYTES = 256
_REFUSED = {
    *(errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.EISDIR, errno.ENOTDIR, errno.E2BIG, errno.ETXTBSY),
    *(errno.ELOOP, errno.ENAMETOOLONG),
}
_OF_SHELLS = frozenset({"alias", "cd", "eval", "exec", "export", "set", "source", "ulimit", "umask", "unset", "."})
"""Commands that exist only in a shell, which people write as a program."""


def command(part: Part) -> tuple[str, ...]:
    """Return the program to execute and its arguments.

    Raises:
        OSError: The program does not exist or is not executable; no file or process was created.
    """
    program = part.program
    if part.module:
        return sys.executable, "-m", program, *part.args
    path = _from_cwd(program, part)
    if part.runs_python:
        with open(path, "rb", opener=open_without_wait) as file:  # otherwise each rank reports the error
            file.fileno()
        return sys.executable, program, *part.args
    if not _is_found(path, part):
        if os.path.isdir(path) and os.path.dirname(program):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), program)
        if not os.path.dirname(program):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
        try:
            os.stat(path)
        except OSError as error:  # it is missing, or its folder may not be searched
            raise OSError(error.errno, error.strerror, program) from None
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), program)
    return program, *part.args


def _is_found(program: str, part: Part) -> bool:
    """Return whether `shutil.which` would find a program. The import of `shutil` would load all archive formats.

    Args:
        program: A path, or the name of a program without a folder, which is looked up in PATH.
        part: The ranks that run it; their PATH counts.
    """
    search = part.env.get("PATH", os.environ.get("PATH", os.defpath))
    folders = search.split(os.pathsep) if search else []
    paths = [program] if os.path.dirname(program) else [os.path.join(folder, program) for folder in folders]
    return any(os.access(path, os.X_OK) and not os.path.isdir(path) for path in paths)


def _from_cwd(program: str, part: Part) -> str:
    """Return the path of PROGRAM from this process's folder; the name of a program without a folder is unchanged."""
    if part.cwd is None or not (os.path.dirname(program) or part.runs_python):
        return program
    return os.path.join(part.cwd, program)


def start_code(error: BaseException, logs: str | None = None) -> int:
    """Return the exit code of a failed start. The codes are those of shells.

    Args:
        error: The error of the start.
        logs: The run directory. An error on a file in it does not concern PROGRAM.
    """
    if isinstance(error, OSError) and logs and os.fsdecode(error.filename or "").startswith(os.path.join(logs, "")):
        return USAGE
    if isinstance(error, OSError):
        return 1 if why_refused(error.errno or 0, "") else launch_code(error.errno)  # a sandbox, not the program
    if isinstance(error, SpecError):
        return USAGE
    return (as_shell(error.exitcode or 0) or 1) if isinstance(error, SpawnError) else 1


def launch_code(number: int | None) -> int:
    """Return the exit code for the errno of a failed launch. The codes are those of shells."""
    if number == errno.ENOENT:
        return NOT_FOUND
    return NOT_EXECUTABLE if number in _REFUSED else 1


def as_shell(code: int) -> int:
    """Return an exit code in the form of shells: 128 + N for signal N."""
    return 128 - code if code < 0 else code


def complaint(number: int, part: Part) -> str | None:
    """Return advice about the errno of an execution of PROGRAM; None if there is no advice."""
    program = part.program
    if part.runs_python:
        in_path = number == errno.ENOENT and not os.path.dirname(program) and _is_found(program, part)
        how = "that in PATH needs --no-python ('python = false' in a gang file), or its path"
        return f"{program}: {os.strerror(number)}; {how}" if in_path else None
    import shlex

    path = _from_cwd(program, part)
    if number == errno.ENOENT and not os.path.dirname(program):
        return f"{program} is not in PATH{_probably_meant(part)}"
    if number == errno.ENOENT and os.path.exists(path):
        return f"{program}: {_without_interpreter(path)}"
    if number == errno.EACCES and os.path.isfile(path) and not os.access(path, os.X_OK):
        noexec = os.statvfs(path).f_flag & os.ST_NOEXEC
        remedy = (
            "its file system is mounted with noexec"
            if noexec
            else f"to make it executable: chmod +x {shlex.quote(path)}"
        )
        return f"{program}: {os.strerror(number)}; {remedy}"
    if number == errno.ENOEXEC:
        return f"{program}: {os.strerror(number)}; a script needs a first line such as #!/bin/sh"
    return None


def _probably_meant(part: Part) -> str:
    """Return a hint about a program that is not in PATH, or ``""``."""
    import shlex

    from supervise.cli.options import suggestions  # lazy: it imports difflib

    program, whole = part.program, [part.program, *part.args]
    with_shell = f"for a shell: sh -c {shlex.quote(' '.join(whole))}"
    if "--file" in part.args:
        return "; options are before PROGRAM, and roles after the file, such as: --file gang.toml web"
    is_gang_file = suggestions.is_gang_file(program)
    if is_gang_file or os.path.isfile(program):
        how = "a file of roles is given by --file " if is_gang_file else "for the file in this directory, give ./"
        return f"; {how}{program}"
    if len(program.split()) > 1:
        return f"; its words are separate arguments; {with_shell}"
    if program in _OF_SHELLS:
        return f"; it is a command of the shell; {with_shell}"
    if program.partition("=")[0].isidentifier() and "=" in program:
        return f"; to set a variable for a program: env {shlex.join(whole)}"
    return ""


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


# The report on a gang that did not start. `_story.failure_report` reports on a gang that failed


def not_started(error: BaseException, who: str, part: Part) -> str:
    """Format the error of a start: ``cannot start rank 0: nope.py: No such file or directory``.

    Args:
        error: The error.
        who: The rank, such as ``rank 0``; empty if it is not known.
        part: Its program.
    """
    if isinstance(error, OSError) and not who and error.filename is None and error.strerror:
        return f"cannot start: {error.strerror}"
    if isinstance(error, OSError) and error.errno is not None:
        file = part.program if error.filename is None else os.fsdecode(error.filename)
        why = complaint(error.errno, part) if file in (part.program, _from_cwd(part.program, part)) else None
        return (
            f"cannot start{who and f' {who}'}: {why or f'{file}: {why_refused(error.errno, os.strerror(error.errno))}'}"
        )
    hint = ""
    if isinstance(error, SpawnError) and part.settings.get("ready") == "notify" and not error.exitcode:
        hint = "; call supervise.notify(ready=True) in it, or systemd-notify --ready, or leave out --ready"
    elif isinstance(error, SpawnError) and error.exitcode == 0:
        hint = "; a program that goes into the background has ended for supervise: keep it in the foreground"
    if isinstance(error, SpawnError) and error.what == "did not start":
        return f"cannot start {str(error).replace(f' {error.what}', '', 1)}{hint}"
    return f"cannot start: {error}{hint}"


def unready(error: BaseException, story: Story) -> list[str]:
    """Return the last output of a rank that ended, or was not ready in time, before the gang had started."""
    rank = error.local_rank if isinstance(error, SpawnError) else None
    if rank is None or story.directory is None:
        return []
    shown: list[str] = []
    for log in reversed(RecordedRun(story.directory).logs().get(rank, [])):
        rows = end_of_output(last_lines(log, WHY_LINES))
        if any(rows) and not (story.nproc == 1 and story.stderr_shown):
            stream = os.path.basename(log).partition(".")[0]
            shown = ["", f"  the end of its {stream}:", *(f"    {one_line(row)}".rstrip() for row in rows), ""]
            break
    return [*shown, f"  logs: {one_line(story.directory)}"]


# What to do about a failed Python program whose last exception has a usual cause: the wrong Python, or no package


_MISSING = r"^(?:\S*python[0-9.]*: (?:Error while .*\()?)?(?:ModuleNotFoundError: )?No module named "
_RELATIVE = r"^ImportError: attempted relative import with no known parent package"
_PYTHON = r"python[0-9.]*"


def about(result: RunProcsResult, options: Options) -> str:
    """Return one sentence for the report of a failure; "" if nothing is known to help."""
    root = result.root_cause
    if root is None or root not in result.failures or options.engine != "local":
        return ""
    end, part = result.ends.get(root), options.part_of(root)
    text = recorded(result.failures[root].message) or (end.stderr_tail if end is not None else "")
    if re.search(_MISSING, text, re.MULTILINE):
        return _other_python(root, part)
    return _module(options, part) if re.search(_RELATIVE, text, re.MULTILINE) and part.runs_python else ""


def _module(options: Options, part: Part) -> str:
    path, above = os.path.normpath(part.program), ""
    if os.sep not in path and options.file is None and part.cwd is None:  # the working directory is the package
        with contextlib.suppress(FileNotFoundError):  # it was deleted
            path, above = f"{os.path.basename(os.getcwd())}{os.sep}{path}", "--cwd .. "
    module = re.sub(r"\.py$", "", path).replace(os.sep, ".")
    if "." not in module or not all(word.isidentifier() for word in module.split(".")):
        return ""
    how = f"{above}-m {module}" if options.file is None else f'command = "{module}" with module = true'
    return f"a file that is run by its path is in no package; run it as a module: {how}"


def _other_python(rank: int, part: Part) -> str:
    """Return which Python a rank ran, if the environment that is active is another one; otherwise ""."""
    given = {**os.environ, **part.env}
    active, python = given.get("VIRTUAL_ENV"), sys.executable
    if not part.runs_python:
        import shutil

        if not re.fullmatch(_PYTHON, os.path.basename(part.program)):
            return ""
        python = shutil.which(part.program, path=given.get("PATH")) or part.program
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    if not active or os.path.realpath(prefix) == os.path.realpath(active):
        return ""
    if not os.path.exists(f"{active}/bin/python"):
        return f"rank {rank} ran {python}, and VIRTUAL_ENV is {active}, which has no bin/python"
    import shlex

    words = part.words if part.runs_python else part.args
    command = shortened(shlex.join([f"{active}/bin/python", *words]), 200)
    return f"rank {rank} ran {python}, and VIRTUAL_ENV is {active}; for that one: {command}"


# The exit code of ``supervise run``


TIMED_OUT = 124


def exit_code(result: RunProcsResult, story: Story, rank: int | None) -> int:
    """Return the exit code for a result.

    Args:
        result: The result of the gang.
        story: Further facts: the signals of the user, and a pending restart.
        rank: The local rank whose exit code is returned; None: the root cause. It does not count if the user or a
            timeout ended the run.
    """
    sig = SIGPIPE if story.halted else story.user_signal
    by_user = 1 if sig is None else 128 + sig
    if sig is None and result.outcome == "stopped":  # by commands that stopped each of its ranks
        by_user = 128 + SIGTERM
    cut_short = story.waiting is not None or story.cut_short
    if result.outcome == "timed_out" or (cut_short and sig is None):
        return TIMED_OUT
    if sig is not None and (cut_short or result.outcome == "stopped" or (story.halted and result.outcome != "failed")):
        return by_user  # also if a pending restart was canceled
    if rank is not None and rank in result.ends:
        code = result.ends[rank].exitcode
        return _unlaunched(rank, story) if code is None else as_shell(code)
    if result.outcome == "succeeded":
        return 0
    root = result.root_cause if result.outcome == "failed" else None
    if root is not None and root in result.ends and result.ends[root].pid is None:
        return _unlaunched(root, story)
    return by_user if root is None else _of_root_cause(root, result.failures[root].exitcode, story)


def _unlaunched(rank: int, story: Story) -> int:
    """Return the exit code for a rank without one: that of shells if its program could not be launched; otherwise 1."""
    failed = story.unlaunched.get(rank)
    if failed is None:
        return 1
    number, why = failed
    if story.directory is not None and story.directory in why:  # the error is about a log file
        return USAGE
    return launch_code(number)


def _of_root_cause(root: int, code: int, story: Story) -> int:
    if stopped_by_us(root, code, story):  # the rank had raised an exception and was exiting
        return 1
    return as_shell(code) or 1
