"""The common parts of the commands that read run directories: parsers, errors and times."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from supervise._printable import below_itself, one_line
from supervise.cli.find_run import NoSuchRunError, find_run

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import NoReturn

    from _typeshed import SupportsWrite

    from supervise._views.recorded_run import RecordedRun


class RunParser(argparse.ArgumentParser):
    """A parser with error messages of two lines."""

    def error(self, message: str) -> NoReturn:
        """Print an error message and exit with code 2."""
        """Print an error message and exit with code 2."""
        print(f"{self.prog}: {below_itself(message)}\nTry '{self.prog} --help'.", file=sys.stderr)
        raise SystemExit(2)

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Print the help; argparse ignores the error of a stdout that takes no output."""
        print(self.format_help(), end="", file=file)


def parser(command: str, description: str, *, run: bool) -> RunParser:
    """Return the parser of a command. With `run`, the command has an argument for the name of a run."""
    made = RunParser(prog=f"supervise {command}", description=description, allow_abbrev=False)
    if run:
        made.add_argument("run", metavar="RUN", type=_run, help="directory of a run, or the beginning of its name")
    return made


def _run(word: str) -> RecordedRun:
    try:
        return find_run(word)
    except NoSuchRunError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def shown_duration(duration: timedelta | None) -> str:
    """Format a duration; ``-`` if it is not known."""
    from supervise._views.wording import seconds

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
        "program": run.info["program"],
    }
