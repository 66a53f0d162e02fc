"""Which run a command means."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NoReturn

from supervise._files import accessible, closing
from supervise._printable import one_line
from supervise._views.recorded_run import RecordedRun, runs_in
from supervise.cli.options import values
from supervise.cli.runs_folder import open_runs_dir, runs_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timedelta


# The search for the run that a word on the command line names


_MOST_LISTED = 10
_SEE = "; see: supervise ls"


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
    """Return a run by the path of its directory, or by the beginning of its name in the default folder.

    If runs with such a name are running, those that have ended do not count. Of several runs that have ended and whose
    run ID is the word, the newest counts. A folder that does not hold a run counts only if the word has a slash.

    Args:
        word: The path or the beginning of the name.

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
    found = [run for run in runs if run.name.startswith(word)]  # the newest first
    exact = [run for run in found if run.name == word]
    if len(found) > 1:
        running = [run for run in found if run.state in ("running", "unknown")]
        found = running or [run for run in found if run.info.get("run_id") == word][:1] or found
    if len(found) == 1 or exact:
        return (exact or found)[0]
    if not found:
        if is_folder:
            return _checked(run, word, UnknownRunError)
        raise UnknownRunError(f"no run in {one_line(folder)} is named {one_line(word)!r}{_SEE}")
    raise NoSuchRunError(f"{len(found)} runs are named {one_line(word)!r}...: {_listed(found)}; give more of the name")


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


_COLUMNS = 80


def terminal_columns() -> int | None:
    """Return the columns of the terminal of stdout; None if there is no terminal. One that reports 0 has 80."""
    return (os.get_terminal_size(sys.stdout.fileno()).columns or _COLUMNS) if sys.stdout.isatty() else None


class RunParser(values.CommandParser):
    """The parser of a command. It also finds RUN, and the ranks and roles after it."""

    dest = "run"
    """The name of the value of RUN."""
    names = "directory of a run, or the beginning of its name (the only run that is running, or else the newest)"
    """What RUN may be, for the help."""

    def __init__(self, command: str, description: str, *, run: bool = True, epilog: str | None = None) -> None:
        """Make the parser; with `run`, it has the argument RUN.

        Args:
            command: The command.
            description: What it does, for the help.
            run: Whether it has the argument RUN.
            epilog: The end of the help. With it, lines of the description are not wrapped.
        """
        form = argparse.RawDescriptionHelpFormatter if epilog else argparse.HelpFormatter
        about: Any = {"prog": f"supervise {command}", "description": description, "epilog": epilog}
        super().__init__(**about, formatter_class=form, allow_abbrev=False)
        if run:
            self.add_argument(self.dest, metavar="RUN", nargs="?", help=self.names)

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
            found.sig = self._checked(values.any_signal, given.pop(0) if given else "", before or "argument SIG: ")
        if hasattr(found, "ranks"):
            given += found.rank
            if hasattr(found, "sig") and unknown and name.startswith(tuple(given)):
                before = f"RUN is before SIG, as in {self.prog} {' '.join(given)} {first[0]}: "
            parse = partial(values.ranks_of, roles=self.roles(meant) if given else ())
            found.ranks = sorted(self._checked(parse, ",".join(given), before)) if given else None
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
                del given[0]
                return meant, "", ""
        except UnknownRunError as error:
            unknown, word = str(error), one_line(given[0])
            role = f"; if {word!r} is a role or a rank, RUN is missing, and "
            if not takes_ranks:
                names = (one_line(run.name) for run in recorded_runs()[1] if given[0] in dict(run.roles))
                self._refuse(
                    unknown + next((f"; it is a role of {name}, so: {self.prog} {name}" for name in names), "")
                )
        except NoSuchRunError as error:
            self._refuse(error)
        try:
            return *self.default(), unknown
        except NoSuchRunError as error:
            self._refuse(f"{unknown.removesuffix(_SEE)}{role or 'it is missing, and '}{error}")

    def _refuse(self, why: object) -> NoReturn:
        self.error(f"argument RUN: {why}")

    def _checked(self, parse: Callable[[str], Any], text: str, before: str) -> Any:
        try:
            return parse(text)
        except argparse.ArgumentTypeError as error:
            self.error(f"{before}{error}")

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
            if name.startswith("-") and name not in known and name.strip("-0123456789"):
                from supervise.cli.options import suggestions

                spellings = ["/".join(action.option_strings) for action in self._actions[1:] if action.option_strings]
                meant = suggestions.option(word, known)
                hint = f"did you mean {meant}?" if meant else f"it has {', '.join(spellings)}"
                self.error(f"{name} is not an option of {self.prog.rpartition(' ')[2]}; {hint}")
        return self.parse_intermixed_args(words)


def add_ranks(made: RunParser, what: str) -> None:
    """Add the ranks and roles after RUN, and ``--rank``."""
    made.add_argument("ranks", metavar="ROLE", nargs="*", help=f"{what}: roles or ranks, such as web, web.2, 0-3")
    made.add_argument("--rank", metavar="R", action="append", default=[], help="the same as an option")


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
