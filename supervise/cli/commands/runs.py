"""Which run a command means."""

from __future__ import annotations

import argparse
import os
import re
import sys
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NoReturn

from supervise._files import accessible, closing
from supervise._logs.screen import terminal_size
from supervise._printable import one_line
from supervise._views.recorded_run import RecordedRun, runs_in
from supervise.cli.options import values
from supervise.cli.options.values import argument
from supervise.cli.runs_folder import open_runs_dir, runs_dir

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta


# The search for the run that a word on the command line names


_MOST_LISTED = 10
_GOING_ON = ("running", "unknown")
_SEE = "; see: supervise ls"
_RANDOM = re.compile("(-[0-9a-f]{8})?_[0-9a-f]{8}$")
"""The end of the name of a run: that of a default run ID, and that of its directory."""


def recorded_runs() -> tuple[str, list[RecordedRun]]:
    """Return the path of the folder, and its runs, the newest first; no runs if there is no folder.

    Raises:
        OSError: As for `open_runs_dir`, or the folder cannot be read.
    """
    try:
        path, at = open_runs_dir()
    except FileNotFoundError:
        return runs_dir(), []
    with closing(at):
        return path, runs_in(path, at)


class NoSuchRunError(Exception):
    """No run, or more than one, is meant. The text is a message for the user."""


class UnknownRunError(NoSuchRunError):
    """No run has this name."""


def find_run(word: str) -> RecordedRun:
    """Return a run by the path of its directory, or in the default folder by its run ID or the beginning of its name.

    Runs whose run ID is the word come first, and of these the newest if none is running. Otherwise, those that have
    ended do not count beside one that is running. A folder without a run counts only if the word has a slash.

    Args:
        word: The path, the run ID, or the beginning of the name.

    Raises:
        UnknownRunError: There is none.
        NoSuchRunError: There is more than one, or the path is not that of a run.
        OSError: The default folder cannot be read, or belongs to another user.
    """
    try:
        run = RecordedRun(os.path.abspath(word))
    except FileNotFoundError:
        if os.sep in word:
            raise NoSuchRunError(f"{one_line(word)}: the working directory has been deleted") from None
        run = RecordedRun("")
    is_folder = os.path.isdir(run.path)
    if (is_folder and run.is_run()) or os.sep in word:
        return _checked(run, word)
    folder, runs = recorded_runs()
    named = [run for run in runs if run.name.startswith(word)]  # the newest first
    of_id = [run for run in named if word in (run.name, run.info.get("run_id"))]
    found = of_id or [run for run in named if not _is_cut_number(word, run.name)]
    found = [run for run in found if run.state in _GOING_ON] or of_id[:1] or found
    if len(found) == 1:
        return found[0]
    if not found:
        if is_folder:
            return _checked(run, word, UnknownRunError)
        raise UnknownRunError(f"no run in {one_line(folder)} is named {one_line(word)!r}{_SEE}")
    raise NoSuchRunError(f"{len(found)} runs are named {one_line(word)!r}...: {_listed(found)}; give more of the name")


def _is_cut_number(word: str, name: str) -> bool:
    """Return whether a word ends within a number of the name that it begins: ``job-1`` does not mean ``job-12``.

    The random parts at the end of a name may be cut anywhere.
    """
    return bool(re.match(r"\d", name[len(word) :])) and word[-1:].isdigit() and len(word) < len(_RANDOM.sub("", name))


def _listed(runs: Sequence[RecordedRun]) -> str:
    more = f" and {len(runs) - _MOST_LISTED} more" if len(runs) > _MOST_LISTED else ""
    return f"{', '.join(one_line(run.name) for run in runs[:_MOST_LISTED])}{more}"


def default_run(*, newest: bool) -> tuple[RecordedRun, str]:
    """Return the run that a command without RUN means, and why: the only one that is running.

    Args:
        newest: Whether the newest run is meant if none, or more than one, is running.

    Raises:
        NoSuchRunError: None is meant.
        OSError: The default folder cannot be read, or belongs to another user.
    """
    folder, runs = recorded_runs()
    running = [run for run in runs if run.state == "running"]
    if len(running) == 1:
        return running[0], "the only run that is running"
    if newest and runs:
        return runs[0], "the newest run"
    if running:
        raise NoSuchRunError(f"{len(running)} runs are running: {_listed(running)}; give one of these names")
    what = "no run is running" if runs else f"there are no runs in {one_line(folder)}"
    raise NoSuchRunError(f"{what}{_SEE}")


def _checked(run: RecordedRun, word: str, kind: type[NoSuchRunError] = NoSuchRunError) -> RecordedRun:
    if run.is_run():
        return run
    if _is_closed(run.path):
        raise kind(f"{one_line(word)} belongs to another user, and you may not read it")
    raise kind(f"{one_line(word)} is not the directory of a run: it has no readable run.json")


def _is_closed(path: str) -> bool:
    """Return whether a folder belongs to another user, and this user may not read it."""
    try:
        return os.stat(path).st_uid != os.geteuid() and not accessible(path, os.R_OK | os.X_OK)
    except PermissionError:
        return True
    except OSError:
        return False


# The common parts of the commands that read run directories: parsers, errors, times and the width of tables


def terminal_columns() -> int | None:
    """Return the columns of the terminal of stdout; None if there is no terminal."""
    return terminal_size(sys.stdout.fileno())[0] if sys.stdout.isatty() else None


_FILES_RUN = argument(
    "run",
    metavar="RUN",
    nargs="?",
    help="directory of a run, or the beginning of its name (the only run that is running, or else the newest)",
)
_TARGET = argument(
    "target",
    metavar="RUN",
    nargs="?",
    help="directory of a run, the beginning of its name, or a control socket (the only run that is running)",
)
_JSON = argument("--json", action="store_true", help="print a JSON object")


def _ranks(what: str) -> tuple[values.Argument, values.Argument]:
    """Return the ranks and roles after RUN, and ``--rank``."""
    return (
        argument("ranks", metavar="ROLE", nargs="*", help=f"{what}: roles or ranks, such as web, web.2, 0-3"),
        argument("--rank", metavar="R", action="append", default=[], help="the same as an option"),
    )


_COMMANDS: dict[str, tuple[str, tuple[values.Argument | list[values.Argument], ...]]] = {
    "ls": (
        "List the runs, the newest first.",
        (
            argument("--running", action="store_true", help="only the runs that are running"),
            argument("--json", action="store_true", help="print one JSON object a line"),
        ),
    ),
    "show": ("Tell what a run did, from its files.", (_FILES_RUN, _JSON)),
    "logs": (
        (
            "Show the output of the ranks of a run, all lives of a rank one after the other, in the order of time: to "
            "about a second in a young run, and to the interval of samples.jsonl in an old one."
        ),
        (
            _FILES_RUN,
            argument("-f", "--follow", action="store_true", help="go on while the run does"),
            *_ranks("only these; a single rank has no prefix"),
            argument("--stderr", action="store_true", help="only stderr"),
            [
                argument(
                    "--life",
                    metavar="N",
                    type=partial(values.number, "a life; give a number; the first life is 0", 0),
                    help="only this life of each rank; the first is 0",
                ),
                argument("--previous", action="store_true", help="only the life before the newest, of each rank"),
            ],
            argument(
                "--since",
                metavar="DUR",
                type=values.seconds,
                help="only lines that were written in the last DUR; some that are older may come first",
            ),
            [
                argument("--json", action="store_true", help="print each line as a JSON object, with its time"),
                argument(
                    "-t",
                    "--timestamps",
                    action="store_true",
                    help="the time before each line; a log has no times: ~ precedes one between two known times that"
                    " are apart",
                ),
            ],
        ),
    ),
    "report": (
        "Write a page about a run: one HTML file that needs nothing else.",
        (
            _FILES_RUN,
            argument(
                "-o",
                "--output",
                metavar="FILE",
                help="the page; -: stdout; default: report.html in the directory of the run",
            ),
            argument(
                "--trace", metavar="FILE", help="write a trace for Perfetto or chrome://tracing as well; -: stdout"
            ),
            argument("--json", action="store_true", help="write no page; print the history as a JSON object"),
        ),
    ),
    "clean": (
        "Remove the directories of runs that are over.",
        (
            argument("runs", metavar="RUN", nargs="*", help="directory of a run, or the beginning of its name"),
            argument("--older-than", metavar="DUR", type=values.seconds, help="the runs that began so long ago"),
            argument("--all", action="store_true", help="all runs of the default folder"),
            argument("--keep-failed", action="store_true", help="keep the runs that did not succeed"),
            argument("--dry-run", action="store_true", help="list what would be removed, and remove nothing"),
        ),
    ),
    "status": ("Show the state of a running gang and of each rank.", (_TARGET, _JSON)),
    "stop": (
        "Stop a run, or ranks of it, and wait until the processes are gone.",
        (
            _TARGET,
            _JSON,
            argument(
                "--timeout",
                metavar="DUR",
                type=values.seconds,
                help="time from the first signal to SIGKILL (the run's)",
            ),
            argument("--signal", metavar="SIG", type=values.any_signal, help="the first signal (the run's)"),
            *_ranks("stop only these; they stay down until a restart"),
        ),
    ),
    "restart": (
        "Restart ranks of a run, and wait until they run. No limit counts the restart.",
        (_TARGET, _JSON, *_ranks("what to restart")),
    ),
    "reload": (
        (
            "Send ranks their reload-signal, and wait until they are ready again. Ranks\n"
            "without a reload-signal are restarted one after another, each when the one\n"
            "before it is ready."
        ),
        (_TARGET, _JSON, *_ranks("only these")),
    ),
    "signal": (
        "Send a signal to running ranks.",
        (
            _TARGET,
            _JSON,
            argument("sig", metavar="SIG", nargs="?", help="name or number, such as USR1"),
            *_ranks("only these"),
            argument("--group", action="store_true", help="also to the processes that a rank has started"),
        ),
    ),
    "wait": (
        "Wait for the end of a run, and exit with its exit code.",
        (
            _TARGET,
            _JSON,
            argument("--timeout", metavar="DUR", type=values.seconds, help="wait no longer (no limit)"),
        ),
    ),
    "stacks": (
        (
            "Show where the main threads of the ranks are: a line for equal stacks, the stack\n"
            "with the fewest ranks first."
        ),
        (_TARGET, _JSON, *_ranks("only these, with all frames of all threads")),
    ),
    "top": (
        "Show a live table of the ranks of a run, and steer it by keys.",
        (
            _TARGET,
            argument("--json", action="store_true", help="print each reading as a JSON object on a line"),
        ),
    ),
}
"""Command to its description, and its arguments in the order of the help. Options in a list exclude each other."""
_EPILOG = """\
exit code:
  0: done; 1: refused, or no reply; 2: wrong usage, or there is no such run;
  3: the run has ended
"""
_EPILOGS = {
    **dict.fromkeys(("status", "stop", "restart", "reload", "signal", "stacks"), _EPILOG),
    "wait": """\
exit code:
  that of the run, also if the run has ended before; 124: --timeout; 1:
  supervise was killed, or does not reply; 2: wrong usage, or there is no such
  run
""",
    "top": """\
exit code:
  0: the run has ended, or a key has ended the table; 1: no terminal, no reply,
  or the extra "rich" is missing; 2: wrong usage, or there is no such run; 3:
  the run had ended before; 128+N: signal N

keys:
  ? shows them all; q leaves the table, and the run goes on
""",
}
"""Command to the end of its help. With it, lines of the description are not wrapped."""


def _is_beginning(word: str, run: RecordedRun | None) -> bool:
    """Return whether a word is no more than the beginning of the name of a run."""
    return run is not None and os.sep not in word and word not in (run.name, run.info.get("run_id"))


def _is_of_ranks(word: str) -> bool:
    """Return whether a word names ranks or a role of the only run that is running."""
    try:
        running, _ = default_run(newest=False)
        values.ranks_of(word, running.roles)
    except NoSuchRunError:
        return False
    except argparse.ArgumentTypeError:  # a role rank that does not exist is of the role nevertheless
        return word.partition(".")[0] in dict(running.roles)
    return True


class RunParser(values.CommandParser):
    """The parser of a command. It also finds RUN, and the ranks and roles after it."""

    dest = "run"
    """The name of the value of RUN."""

    def __init__(self, command: str) -> None:
        """Make the parser of a command."""
        about, arguments = _COMMANDS[command]
        epilog = _EPILOGS.get(command)
        form = argparse.RawDescriptionHelpFormatter if epilog else argparse.HelpFormatter
        texts: Any = {"prog": f"supervise {command}", "description": about, "epilog": epilog}
        super().__init__(**texts, formatter_class=form, allow_abbrev=False)
        for each in arguments:
            group = self.add_mutually_exclusive_group() if isinstance(each, list) else self
            for names, how in each if isinstance(each, list) else [each]:
                group.add_argument(*names, **how)

    def find(self, word: str) -> Any:
        """Return what a word in the place of RUN names.

        Raises:
            NoSuchRunError: It names nothing, or more than one run.
        """
        return find_run(word)

    def default(self) -> tuple[Any, str]:
        """Return what is meant without RUN, and why.

        Raises:
            NoSuchRunError: None is meant.
        """
        return default_run(newest=True)

    def roles(self, meant: Any) -> Sequence[tuple[str, int]]:
        """Return name and number of ranks of each role of a return value of `find`."""
        found: RecordedRun = meant
        return found.roles

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse arguments. Replace RUN by what it names, and `ranks` by sorted local ranks, or None if none are given.

        If no run has the name in the place of RUN, the word is a rank or a role of the run that is meant without RUN.
        So is a rank or a role of the only running run, if the word is no more than the beginning of the names of runs.
        An argument `sig` is between RUN and the ranks.

        Args:
            words: The arguments after the command.

        Raises:
            SystemExit: With code 2 after an error message, or 0 after the help.
            OSError: The default folder cannot be read, or belongs to another user.
        """
        found = self.parsed(words)
        first = getattr(found, self.dest), getattr(found, "sig", None)
        given: list[str] = [word for word in (*first, *getattr(found, "ranks", ())) if word is not None]
        meant, why, unknown = self._meant(given, takes_ranks=hasattr(found, "ranks"))
        setattr(found, self.dest, meant)
        name = one_line(meant.name)
        before = f"argument RUN: {unknown}; and in {name}, {why}: " if unknown else ""
        if hasattr(found, "sig"):
            before_sig = before or "argument SIG: "
            if not given:
                self.error(f"{before_sig}it is missing; give a name or number, such as USR1")
            found.sig = self.checked(values.any_signal, given.pop(0), before=before_sig)
        if hasattr(found, "ranks"):
            given += found.rank
            if hasattr(found, "sig") and unknown and name.startswith(tuple(given)):
                before = f"RUN is before SIG, as in {self.prog} {' '.join(given)} {first[0]}: "
            parse = partial(values.ranks_of, roles=self.roles(meant) if given else ())
            found.ranks = sorted(self.checked(parse, ",".join(given), before=before)) if given else None
        if why:
            print(f"{self.prog}: {name}, {why}", file=sys.stderr)
        return found

    def _meant(self, given: list[str], *, takes_ranks: bool) -> tuple[Any, str, str]:
        """Return what RUN means, why if it is left out, and why the first word is not RUN.

        Args:
            given: The words after the command; the first is removed if it is RUN.
            takes_ranks: Whether the command takes ranks and roles, which may be in the place of RUN.
        """
        unknown, role = "", ""
        try:
            if given:
                meant = self.find(given[0])
                run = getattr(meant, "run", meant)
                if not (takes_ranks and _is_beginning(given[0], run) and _is_of_ranks(given[0])):
                    del given[0]
                    return meant, "", ""
                unknown = f"{one_line(given[0])!r} is no more than the beginning of {one_line(run.name)}"
        except UnknownRunError as error:
            unknown, word = str(error), one_line(given[0])
            role = f"; if {word!r} is a role or a rank, RUN is missing, and "
            if not takes_ranks:
                runs = (run for run in recorded_runs()[1] if given[0] in dict(run.roles))
                names = (one_line(run.name) for run in runs if self.dest == "run" or run.state in _GOING_ON)
                self._refuse(
                    unknown + next((f"; it is a role of {name}, so: {self.prog} {name}" for name in names), "")
                )
        except NoSuchRunError as error:
            unknown = str(error)
            if not (takes_ranks and _is_of_ranks(given[0])):
                self._refuse(error)
        try:
            return *self.default(), unknown
        except NoSuchRunError as error:
            self._refuse(f"{unknown.removesuffix(_SEE)}{role or 'it is missing, and '}{error}")

    def _refuse(self, why: object) -> NoReturn:
        self.error(f"argument RUN: {why}")

    def _signal(self, word: str) -> str:
        """Return the signal in ``-HUP`` or ``-9``, if the command takes one; otherwise ""."""
        try:
            return values.any_signal(word[1:]).name.removeprefix("SIG") if self.prog.endswith(" signal") else ""
        except argparse.ArgumentTypeError:
            return ""

    def parsed(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse arguments. Refuse an unknown option first: argparse would take its value for RUN, and name that.

        Args:
            words: The arguments after the command.

        Raises:
            SystemExit: With code 2 after an error message, or 0 after the help.
        """
        known = self._option_string_actions
        for word in takewhile("--".__ne__, words):
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            if name.startswith("-") and name not in known and (sig := self._signal(word)):
                self.error(f"{word} is not an option of signal; give {sig}")
            if name.startswith("-") and name not in known and name.strip("-0123456789"):
                from supervise.cli.options import suggestions

                spellings = ["/".join(action.option_strings) for action in self._actions[1:] if action.option_strings]
                meant = suggestions.option(word, known)
                hint = f"did you mean {meant}?" if meant else f"it has {', '.join(spellings)}"
                self.error(f"{name} is not an option of {self.prog.rpartition(' ')[2]}; {hint}")
        return self.parse_intermixed_args(words)


def shown_time(at: datetime | None) -> str:
    """Format a time in the zone of this machine; ``-`` if it is not known."""
    return "-" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def shown_duration(duration: timedelta | None) -> str:
    """Format a duration; ``-`` if it is not known."""
    from supervise._story.wording import seconds

    return "-" if duration is None else seconds(duration.total_seconds())


def program_of(run: RecordedRun) -> str:
    """Return the program of a run and its arguments on one line."""
    import shlex

    return one_line(shlex.join(map(str, run.info["program"])))


def as_object(run: RecordedRun) -> dict[str, object]:
    """Return a run as an object of ``--json``."""
    return {
        "schema_version": 1,
        "name": run.name,
        "path": run.path,
        "state": run.state,
        "exit_code": run.result.get("exit_code"),
        "started": None if run.started is None else run.started.isoformat(),
        "duration_s": None if run.duration is None else run.duration.total_seconds(),
        "world_size": run.info.get("world_size"),
        "roles": [{"name": name, "count": count} for name, count in run.roles],
        "program": run.info["program"],
    }
