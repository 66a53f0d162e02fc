"""``supervise check FILE``: a description of the gang that `run --file` would run."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from supervise._gang.rank_variables import Master
from supervise._printable import one_line
from supervise._views.wording import seconds
from supervise.cli import gang_settings, program, ranks
from supervise.cli.failure_screen import not_started
from supervise.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise.cli.options import Options
    from supervise.cli.parts import Part

_USAGE = """\
usage: supervise check [OPTIONS] FILE

Check a gang.toml or a Procfile, and print what "supervise run --file FILE" would run.
OPTIONS are those of "supervise run"; they take precedence over those of FILE.
"""


def check(words: Sequence[str]) -> int:
    """Print the roles of a file; return the exit code: 0, or 2 if the file is not valid.

    Raises:
        SystemExit: With code 2 after an error message.
    """
    from supervise.cli.options import parse

    if "-h" in words or "--help" in words:
        print(_USAGE, end="")
        return 0
    if not words or words[-1].startswith("-"):
        print(f"{_USAGE}\nsupervise check: no FILE is given as the last word", file=sys.stderr)
        return program.USAGE
    options = parse([*words[:-1], "--file", words[-1]], command="check")
    complaint = _complaint(options)
    if complaint is not None:
        print(f"supervise check: {one_line(complaint)}", file=sys.stderr)
        return program.USAGE
    print(*lines(options), sep="\n")
    return 0


def _complaint(options: Options) -> str | None:
    """Return why the gang cannot be started; None if nothing is known to be wrong."""
    first = 0
    for part in options.parts:
        try:
            program.command(part)
        except OSError as error:
            return f"roles.{part.role}: {not_started(error, first, part)}"
        first += part.count
    try:
        envs = ranks.environments(options, run_id="check", master=Master("", ""))
        gang_settings.check(options, envs)
    except SpecError as error:
        return f"{options.file}: {error}"
    return None


def lines(options: Options) -> list[str]:
    """Return a description of the gang: a line for it, and two for each role."""
    count = len(options.parts)
    policy = options.restarts
    restarts = "no restarts" if policy is None else f"max-restarts {policy.max_restarts}"
    roles = "1 role" if count == 1 else f"{count} roles"
    found = [f"{one_line(options.file or '')}: {roles}, {_ranks(options.nproc)}, {options.strategy}, {restarts}"]
    for part in options.parts:
        found.append(f"  {part.role}: {', '.join(_facts(part))}")
        found.append(f"    {one_line(shlex.join(program.command(part)))}")
    return found


def _facts(part: Part) -> list[str]:
    facts = [_ranks(part.count)]
    if part.service:
        facts.append("service")
    if part.ready == "notify":
        facts.append(f"ready by notify within {seconds(part.ready_timeout_s)}")
    if part.restart is not None:
        facts.append(part.restart)
    facts.append(f"in {one_line(part.cwd or '.')}")
    return facts


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
