"""``supervise check FILE``: a description of the gang that `run --file` would run."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from supervise._gang.rank_variables import Master
from supervise._printable import one_line
from supervise._story.wording import counted
from supervise.cli.options.parts import Part, role_settings
from supervise.cli.run import program, ranks, settings
from supervise.cli.run.dry_run import fact, order_of
from supervise.cli.run.failure_screen import not_started
from supervise.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise.cli.options.options import Options


_USAGE = """\
usage: supervise check [OPTIONS] FILE [ROLE[=N]...]

Check FILE, a gang.toml or a Procfile, and print what "supervise run" would run.
OPTIONS are those of "supervise run"; they take precedence over those of FILE.
"""


def check(words: Sequence[str]) -> int:
    """Print the roles of a file; return the exit code: 0, or 2 if the file is not valid.

    Raises:
        SystemExit: With code 2 after an error message.
    """
    from supervise.cli.options.options import parse
    from supervise.cli.options.parser import run_parser

    if "-h" in words or "--help" in words:
        print(_USAGE, end="")
        return 0
    parser = run_parser()
    parser.prog = "supervise check"
    found, _ = parser.parse_known_args(words)
    if found.file is None:
        if not found.command:
            print(f"{_USAGE}\nsupervise check: FILE is missing", file=sys.stderr)
            return program.USAGE
        at = len(words) - len(found.command)
        words = [*words[:at], "--file", *words[at:]]
    options = parse(words, command="check")
    for note in options.notes:
        print(f"supervise check: {one_line(note)}", file=sys.stderr)
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
            return f"roles.{part.role}: {not_started(error, f'rank {first}', part)}"
        first += part.count
    try:
        envs = ranks.environments(options, run_id="check", master=Master("", ""))
        settings.check_settings(options, envs)
    except SpecError as error:
        return f"{options.file}: {error}"
    return None


def lines(options: Options) -> list[str]:
    """Return a description of the gang: a line for it, two for each role, and one for the order of several roles."""
    policy = options.restarts
    restarts = "no restarts" if policy is None else f"max-restarts {policy.max_restarts}"
    counts = f"{counted(len(options.parts), 'role')}, {counted(options.nproc, 'rank')}"
    found = [f"{one_line(options.file or '')}: {counts}, {options.settings['strategy']}, {restarts}"]
    more = (fact(key, value) for key, value in options.told.items() if key not in ("strategy", "max-restarts"))
    found[0] = ", ".join([found[0], *more])
    for part in options.parts:
        found.append(f"  {part.role}: {', '.join(_facts(part))}")
        found.append(f"    {one_line(shlex.join(program.command(part)))}")
    if order := order_of(options):
        found.append(f"  they start {order}")
    return found


def _facts(part: Part) -> list[str]:
    facts = [counted(part.count, "rank")]
    for key, row in role_settings().items():
        value = part.settings.get(row.name)
        if value not in (None, None if row.role == "inherited" else row.default):
            facts.append(fact(key, value))
    facts += [fact("env-file", part.env_files)] if part.env_files else []
    facts.append(f"in {one_line(part.cwd or '.')}")
    return facts
