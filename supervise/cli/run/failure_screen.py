"""The report of `supervise run` on a gang that did not start. `_story.failure_report` reports on a gang that failed."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TYPE_CHECKING

from supervise._files import last_lines
from supervise._platform import why_refused
from supervise._printable import one_line
from supervise._story.failure_report import WHY_LINES, Story, clean_output, recorded
from supervise._story.wording import shortened
from supervise._views.recorded_run import RecordedRun
from supervise.cli.run import program
from supervise.errors import SpawnError

if TYPE_CHECKING:
    from supervise.cli.options.options import Options
    from supervise.cli.options.parts import Part
    from supervise.result import RunProcsResult


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
        why = program.complaint(error.errno, part) if file == part.program else None
        return (
            f"cannot start{who and f' {who}'}: {why or f'{file}: {why_refused(error.errno, os.strerror(error.errno))}'}"
        )
    late = isinstance(error, SpawnError) and part.settings.get("ready") == "notify" and not error.exitcode
    hint = "; call supervise.notify(ready=True) in it, or systemd-notify --ready, or leave out --ready" if late else ""
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
        rows = clean_output(last_lines(log, WHY_LINES))
        if any(rows) and not (story.nproc == 1 and story.stderr_shown):
            stream = os.path.basename(log).partition(".")[0]
            shown = ["", f"  the end of its {stream}:", *(f"    {one_line(row)}".rstrip() for row in rows), ""]
            break
    return [*shown, f"  logs: {one_line(story.directory)}"]


# What to do about a failed Python program whose last exception has a usual cause: the wrong Python, or no package


_MISSING = re.compile(
    r"^(?:\S*python[0-9.]*: (?:Error while .*\()?)?(?:ModuleNotFoundError: )?No module named ", re.MULTILINE
)
_RELATIVE = re.compile(r"^ImportError: attempted relative import with no known parent package", re.MULTILINE)
_PYTHON = re.compile(r"python[0-9.]*")


def about(result: RunProcsResult, options: Options) -> str:
    """Return one sentence for the report of a failure; "" if nothing is known to help."""
    root = result.root_cause
    if root is None or root not in result.failures or options.engine != "local":
        return ""
    end, part = result.ends.get(root), options.part_of(root)
    text = recorded(result.failures[root].message) or (end.stderr_tail if end is not None else "")
    if _MISSING.search(text):
        return _other_python(root, part)
    return _module(options, part) if _RELATIVE.search(text) and part.runs_python else ""


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

        if not _PYTHON.fullmatch(os.path.basename(part.program)):
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
