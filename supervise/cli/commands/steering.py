"""The common parts of the commands that ask a running supervise: RUN, the connection, errors and exit codes."""

from __future__ import annotations

import argparse
import errno
import json
import os
import select
import stat
import sys
import time
from contextlib import suppress
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from supervise._control.client import ControlClient, ControlError
from supervise._printable import ending, one_line
from supervise._story.wording import spans
from supervise._views.recorded_run import SOCKET, RecordedRun, titles_of
from supervise.cli.commands.runs import NoSuchRunError, RunParser, add_ranks, default_run, find_run
from supervise.cli.streams import complaint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


SCHEMA_VERSION = 1
REFUSED = 1
USAGE = 2
ENDED = 3
REPLY_S = 10.0
"""How long a command waits for a reply that comes at once."""
_SOCKET_S = 3.0
"""How long a run may take to make its socket after its directory, or to exit after the removal of the socket."""
_RETRY_S = 0.05
_OF_CALLER = ("invalid", "bad-request")
MALFORMED = (argparse.ArgumentTypeError, AttributeError, KeyError, TypeError, ValueError)
"""The exceptions after a reply that is not as expected."""
_EPILOG = """\
exit code:
  0: done; 1: refused, or no reply; 2: wrong usage, or there is no such run;
  3: the run has ended
"""


class Target:
    """The gang that RUN names."""

    def __init__(self, name: str, path: str, run: RecordedRun | None) -> None:
        """Describe the gang.

        Args:
            name: Its name for messages.
            path: Path of the socket file.
            run: The run; None if RUN is the socket file of a program that embeds a gang.
        """
        self.name = name
        self.path = path
        self.run = run

    @cached_property
    def roles(self) -> Sequence[tuple[str, int]]:
        """Name and number of ranks of each role, in the order of the ranks; empty if the gang does not report them."""
        if self.run is not None:
            return self.run.roles
        try:
            with ControlClient(self.path) as client:
                rows = client.request("status", timeout_s=_SOCKET_S)["ranks"].values()
            return [(role, len(list(each))) for role, each in groupby(str(row["role"]) for row in rows)]
        except (ControlError, OSError, *MALFORMED):
            return []

    @cached_property
    def titles(self) -> Sequence[str]:
        """Role and role rank of each rank, as `titles_of` returns them."""
        return titles_of(self.roles)

    def now(self) -> RecordedRun | None:
        """Return the run as its files are now."""
        return None if self.run is None else RecordedRun(self.run.path)


class SteeringParser(RunParser):
    """The parser of a command that asks a running supervise. RUN is a run, or a control socket."""

    dest = "target"
    names = "directory of a run, the beginning of its name, or a control socket (the only run that is running)"
    appears_s: float = 0.0
    """How long the parser waits for RUN to appear, in seconds."""

    def __init__(
        self,
        command: str,
        description: str,
        *,
        epilog: str = _EPILOG,
        ranks: str = "",
        json_help: str = "print a JSON object",
    ) -> None:
        """Make the parser, with RUN and ``--json``.

        Args:
            command: The command.
            description: What it does, for the help.
            epilog: The end of the help.
            ranks: What the ranks and roles after RUN are; empty if the command takes none.
            json_help: What ``--json`` does.
        """
        super().__init__(command, description, epilog=epilog)
        self.add_argument("--json", action="store_true", help=json_help)
        if ranks:
            add_ranks(self, ranks)

    def find(self, word: str) -> Target:
        """Return the gang that a word names."""
        with suppress(OSError, ValueError):
            if stat.S_ISSOCK(os.stat(word).st_mode):
                return Target(one_line(word), os.path.abspath(word), None)
        return _target(running_run(word, self.appears_s))

    def default(self) -> tuple[Target, str]:
        """Return the gang of the only run that is running, and why it is meant."""
        return _target(running_run(None, self.appears_s)), "the only run that is running"

    def roles(self, meant: Target) -> Sequence[tuple[str, int]]:
        """Return the roles of the gang. If a control socket does not answer, end with the exit code for that."""
        if not meant.roles and (code := steer(self.prog.rpartition(" ")[2], meant, answers)):
            raise SystemExit(code)
        return meant.roles


def _target(run: RecordedRun) -> Target:
    return Target(one_line(run.name), os.path.join(run.path, SOCKET), run)


def running_run(word: str | None, appears_s: float) -> RecordedRun:
    """Return the run that a word names. If no run with this name is running, wait for one to start.

    Args:
        word: The word, as for `find_run`; None: the only run that is running.
        appears_s: The longest wait in seconds.

    Raises:
        NoSuchRunError: There is none, or more than one.
    """
    deadline_s = time.monotonic() + appears_s
    while True:
        over = time.monotonic() >= deadline_s
        try:
            run = default_run(newest=False)[0] if word is None else find_run(word)
            if over or run.state in ("running", "unknown") or word == run.name or os.sep in (word or ""):
                return run
        except NoSuchRunError:
            if over:
                raise
        select.select([], [], [], _RETRY_S)


def steer(command: str, target: Target, act: Callable[[ControlClient], int]) -> int:
    """Connect, call `act`, and return its exit code. After an error, print it and return the exit code of the error."""
    try:
        with _connected(target, partial(_suspended, command, target)) as client:
            return act(client)
    except ControlError as error:
        if error.code in ("ended", "no-reply") and has_ended(target):
            return fail(command, how_it_ended(target), ENDED)
        gang = "" if target.run is None else f"{target.run.info.get('role')}: "  # the name of the run says more
        why = str(error).removeprefix(gang)
        return fail(command, f"{target.name}: {why}", USAGE if error.code in _OF_CALLER else REFUSED)
    except MALFORMED:  # the listener is not supervise, or a newer version of it
        return fail(command, f"{target.name}: the reply is not as expected", REFUSED)
    except OSError as error:
        if hasattr(error, "of_stdout"):
            raise
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED) and has_ended(target):
            return fail(command, how_it_ended(target), ENDED)
        return fail(command, _not_connected(target, error), REFUSED)


def answers(client: ControlClient) -> int:
    """Ask for the process IDs. An error of the connection or of the gang is then shown before anything else is done."""
    client.request("pids", timeout_s=REPLY_S)
    return 0


def _connected(target: Target, on_suspended: Callable[[int], object]) -> ControlClient:
    """Connect; a run that has just started may not have its socket yet."""
    deadline_s = time.monotonic() + _SOCKET_S
    while True:
        try:
            return ControlClient(target.path, on_suspended)
        except FileNotFoundError:
            run = target.now()
            if run is None or not run.is_running() or time.monotonic() >= deadline_s:
                raise
        select.select([], [], [], _RETRY_S)


def _suspended(command: str, target: Target, pid: int) -> None:
    """Print that there is no reply yet because supervise is suspended."""
    fail(
        command,
        f"{target.name}: supervise (pid {pid}) is suspended and does not reply; kill -CONT {pid} continues it",
        0,
    )


def spans_of(target: Target, ranks: Iterable[int]) -> str:
    """Format ranks of a gang, with their roles."""
    return one_line(spans(ranks, target.titles))


def has_ended(target: Target) -> bool:
    """Return whether a run that does not accept a connection has ended."""
    run = target.now()
    return run is None or run.state not in ("running", "unknown")


def ended_run(target: Target) -> RecordedRun | None:
    """Wait until the files of a run show its end, or `_SOCKET_S` seconds have passed; return the run as it is then."""
    deadline_s = time.monotonic() + _SOCKET_S
    while (run := target.now()) is not None and run.state == "running" and not run.result:
        if time.monotonic() >= deadline_s:
            break
        select.select([], [], [], _RETRY_S)
    return run


def how_it_ended(target: Target) -> str:
    """Return a sentence about the end of a run."""
    run = ended_run(target)
    if run is None:
        return f"{target.name}: no process listens; the gang has ended"
    if run.state in ("running", "unknown") and not run.result:
        return f"{target.name}: the connection ended without a reply, and the run has no result yet"
    if run.state == "killed":
        return f"{target.name} has ended: supervise was killed; see: supervise show {target.name}"
    code = run.result.get("exit_code")
    outcome = one_line(str(run.result.get("outcome") or run.state))  # supervise may not have exited yet
    return f"{target.name} has ended: {outcome}, exit code {code}; see: supervise show {target.name}"


def _not_connected(target: Target, error: OSError) -> str:
    run = target.now()
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{target.name} belongs to {_owner(target)}; only that user and root may ask it"
    if run is not None and run.state == "unknown":
        return f"{target.name} may still run on host {one_line(str(run.info.get('host_name')))}; ask it there"
    if error.errno == errno.ENOENT:
        return f"{target.name} runs, but has no control socket"
    if error.errno == errno.EAGAIN:
        return f"{target.name} does not reply: too many clients are waiting"
    return f"{target.name}: {complaint(error)}"


def _owner(target: Target) -> str:
    import pwd

    try:
        uid = os.stat(os.path.dirname(target.path)).st_uid
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"
    except OSError:
        return "another user"


def fail(command: str, text: str, code: int) -> int:
    """Print an error message; return `code`."""
    print(f"supervise {command}: {one_line(text)}", file=sys.stderr)
    return code


def none_runs(command: str, target: Target) -> int:
    """Print that the request reached no rank; return the exit code."""
    return fail(command, f"{target.name}: none of these ranks runs", REFUSED)


def show(found: argparse.Namespace, result: dict[str, Any], lines: Iterable[str], code: int = 0) -> int:
    """Print the result of a request, as these lines, or with ``--json`` as a JSON object; return `code`."""
    target: Target = found.target
    if found.json:
        path = None if target.run is None else target.run.path
        print(json.dumps({"schema_version": SCHEMA_VERSION, "name": target.name, "path": path, **result}))
    else:
        for line in lines:
            print(one_line(line))
    return code


def outcome_of(target: Target, result: dict[str, Any]) -> tuple[str, int]:
    """Return how a gang ended, as text and as an exit code.

    Args:
        target: The run; if it has a ``result.json``, its exit code counts.
        result: The result of ``wait`` or ``stop``.
    """
    run = target.now()
    code = None if run is None else run.result.get("exit_code")
    if run is not None and isinstance(code, int):
        return f"{one_line(str(run.result.get('outcome')))}, exit code {code}", code
    outcome = one_line(str(result.get("outcome") or "failed"))
    root = result.get("root_cause")
    codes = result.get("exit_codes")
    exitcode = codes.get(str(root)) if isinstance(codes, dict) else None
    if not (isinstance(exitcode, int) and isinstance(root, int)):
        return outcome, 0 if outcome == "succeeded" else 1
    return f"{outcome}, {spans_of(target, [root])}: {ending(exitcode)}", (
        128 - exitcode if exitcode < 0 else exitcode
    ) or 1
