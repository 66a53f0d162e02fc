"""What would run: ``supervise check FILE`` describes the gang of a file; ``run --dry-run`` prints shell commands."""

from __future__ import annotations

import os
import re
import shlex
import sys
from signal import Signals
from typing import TYPE_CHECKING, Any

from supervise._gang.rank_variables import Master
from supervise._printable import one_line
from supervise._settings import conditions
from supervise._story.wording import counted, seconds, spans
from supervise.cli.options.parts import Part, lacks, role_settings
from supervise.cli.run import program, settings
from supervise.cli.streams import failed, refusal
from supervise.errors import SpecError, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from supervise.cli.options.options import Options
    from supervise.cli.run.console import Console


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
    from supervise.cli.options.groups import run_parser
    from supervise.cli.options.options import parse

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
    print(*_lines(options), sep="\n")
    return 0


def _complaint(options: Options) -> str | None:
    """Return why the gang cannot be started; None if nothing is known to be wrong."""
    first = 0
    for part in options.parts:
        try:
            program.command(part)
        except OSError as error:
            return f"{options.file}: roles.{part.role}: {program.not_started(error, f'rank {first}', part)}"
        first += part.count
    try:
        envs = settings.environments(options, run_id="check", master=Master("", ""))
        settings.check_settings(options, envs)
    except SpecError as error:
        return f"{options.file}: {error}"
    return None


def _lines(options: Options) -> Iterator[str]:
    """Yield a description of the gang: a line for it, two for each role, and one for the order of several roles."""
    policy = options.restarts
    restarts = "no restarts" if policy is None else f"max-restarts {policy.max_restarts}"
    counts = f"{counted(len(options.parts), 'role')}, {counted(options.nproc, 'rank')}"
    head = f"{one_line(options.file or '')}: {counts}, {options.settings['strategy']}, {restarts}"
    more = (_fact(key, value) for key, value in options.told.items() if key not in ("strategy", "max-restarts"))
    yield ", ".join([head, *more])
    for part in options.parts:
        yield f"  {part.role}: {', '.join(_facts(part))}"
        yield f"    {one_line(shlex.join(program.command(part)))}"
    if order := _order_of(options):
        yield f"  they start {order}"


def _facts(part: Part) -> list[str]:
    facts = [counted(part.count, "rank")]
    for key, row in role_settings().items():
        value = part.settings.get(row.name)
        if value not in (None, None if row.role == "inherited" else row.default) and not lacks(key, part.settings):
            facts.append(_fact(key, value))
    facts += [_fact("env-file", part.env_files)] if part.env_files else []
    facts.append(f"in {one_line(part.cwd or '.')}")
    return facts


# ``supervise run --dry-run``: the commands that would run


_ELSEWHERE = ("needs", "listen", "ready", "alive")
"""Settings of ranks for which the order, the sockets and the probes have lines of their own."""

_OF_SUPERVISE = ("SUPERVISE_RECORD", "PYTHONPATH")
"""Variables that record exceptions of Python programs. They are valid only below the supervise that sets them."""


_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
"""The names of variables that a shell can set. Only ``env`` sets others."""


def dry_run(options: Options, run_id: str, console: Console) -> int:
    """Print what would run, or refuse what a run would refuse; return the exit code."""
    try:
        master = settings.choose_master(options.hosts)
        try:
            envs = settings.environments(options, run_id=run_id, master=master)
        finally:
            master.release()
        if options.engine == "local":
            settings.check_logs(options)
            settings.check_settings(options, envs)
    except (OSError, SuperviseError) as error:
        console.error(refusal(error, options.log_dir))
        return program.USAGE
    try:
        print(*_shell_lines(options, envs), sep="\n", flush=True)
    except OSError as error:
        return failed("run", error, of_stdout=True)
    return 0


def _shell_lines(options: Options, envs: Mapping[int, Mapping[str, str]]) -> Iterator[str]:
    """Yield the shell lines that run each rank as supervise would, without supervision.

    Args:
        options: The validated options.
        envs: Local rank to the variables that supervise adds to its environment.

    Raises:
        OSError: A program does not exist or is not executable.
    """
    shown = {rank: _shown(env, options.part_of(rank), options) for rank, env in envs.items()}
    first = shown[min(shown)]
    common = {
        key: value
        for key, value in first.items()
        if _NAME.fullmatch(key) and all(env.get(key) == value for env in shown.values())
    }
    order = _order_of(options) or ("at the same time" if len(shown) > 1 else "")
    yield f"# {counted(len(shown), 'rank')}{order and f'; this run would start them {order}'}"
    listening = [(part.role, each) for part in options.parts for each in part.settings.get("listen", ())]
    yield from (f"# {role} listens on {one_line(each)}" for role, each in listening)
    yield from _settings(options)
    probes = ((rank, name, options.part_of(rank).settings[name]) for rank in shown for name in ("ready", "alive"))
    yield from (
        f"# rank {rank}: {name} {one_line(text)}"
        for rank, name, given in probes
        for text in conditions(given or "exec")
    )
    yield from (f"export {key}={_word(value)}" for key, value in common.items())
    for rank, env in shown.items():
        part = options.part_of(rank)
        own = [f"{key}={_word(value)}" for key, value in env.items() if key not in common and _NAME.fullmatch(key)]
        others = [_word(f"{key}={value}") for key, value in env.items() if not _NAME.fullmatch(key)]
        line = " ".join([*own, *(["env", *others] if others else []), *map(_word, program.command(part))])
        yield line if part.cwd is None else f"(cd {_word(part.cwd)} && {line})"


def _settings(options: Options) -> Iterator[str]:
    """Yield a line for each setting of ranks that is not its default and not shown in another way."""
    for key, row in role_settings().items():
        if row.name in _ELSEWHERE:
            continue
        ranks_of: dict[str, list[int]] = {}
        for rank in range(options.nproc):
            given = {**options.settings, **options.part_of(rank).settings}
            if (value := given.get(row.name)) not in (None, row.default) and not lacks(key, given):
                ranks_of.setdefault(_fact(key, value), []).append(rank)
        yield from (f"# {told}: {spans(some)}" for told, some in sorted(ranks_of.items()))


def _fact(key: str, value: Any) -> str:
    """Return a setting, such as ``kill-mode mixed``."""
    if value is True:
        return key
    if value == ():
        return f"{key} nothing"
    if key == "ready" and not isinstance(value, str):
        return f"{key} {' and '.join(map(one_line, value))}"
    if isinstance(value, (frozenset, tuple, list)):
        given = sorted(value) if isinstance(value, frozenset) else value
        return f"{key} {','.join(map(one_line, map(str, given)))}"
    if isinstance(value, Signals):
        return f"{key} {value.name}"
    return f"{key} {seconds(value) if isinstance(value, float) else value}"


def _order_of(options: Options) -> str:
    """Return the order in which roles start, by levels; "" for one role."""
    if len(options.parts) == 1:
        return ""
    from supervise._core.role_order import levels, needs_of

    each = levels(needs_of({part.role: part.settings.get("needs") for part in options.parts}))
    steps = (f"{number}. {', '.join(map(one_line, level))}" for number, level in enumerate(each, 1))
    return f"in this order: {'; '.join(steps)}"


def _shown(env: Mapping[str, str], part: Part, options: Options) -> dict[str, str]:
    hidden = _OF_SUPERVISE if options.record and part.runs_python else ()
    return {key: value for key, value in env.items() if key not in hidden}


def _word(text: str) -> str:
    """Quote a word for a shell. No control character reaches the terminal, and each byte reaches the program."""
    if text.translate({ord("\n"): "", ord("\t"): ""}).isprintable():
        return shlex.quote(text)
    escaped = "".join(
        char if char.isprintable() and char not in "\\'" else "".join(f"\\x{byte:02x}" for byte in os.fsencode(char))
        for char in text
    )
    return f"$'{escaped}'"
