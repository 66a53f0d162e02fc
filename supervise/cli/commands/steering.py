"""The commands that send requests to a running supervise, all but ``top``: RUN, the connection, errors, exit codes."""

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
from functools import cached_property, partial, wraps
from itertools import groupby
from typing import TYPE_CHECKING, Any

from supervise._control.client import ControlClient, ControlError
from supervise._printable import ending, one_line
from supervise._story.wording import columns, fitted, spans, titled
from supervise._views.recorded_run import SOCKET, RecordedRun, titles_of
from supervise.cli.commands.runs import NoSuchRunError, RunParser, default_run, find_run, terminal_columns
from supervise.cli.run.program import TIMED_OUT, USAGE, as_shell
from supervise.cli.streams import complaint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


SCHEMA_VERSION = 1
REFUSED = 1
ENDED = 3
REPLY_S = 10.0
"""How long a command waits for a reply that comes at once."""
_SOCKET_S = 3.0
"""How long a run may take to make its socket after its directory, or to exit after the removal of the socket."""
_RETRY_S = 0.05
_OF_CALLER = ("invalid", "bad-request")
MALFORMED = (argparse.ArgumentTypeError, AttributeError, KeyError, TypeError, ValueError)
"""The exceptions after a reply that is not as expected."""


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
    appears_s: float = 0.0
    """How long the parser waits for RUN to appear, in seconds."""

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
    """Return whether a run that does not accept a connection has ended, or its directory was removed."""
    run = target.now()
    return run is None or run.state not in ("running", "unknown") or not os.path.isdir(run.path)


def ended_run(target: Target) -> RecordedRun | None:
    """Wait until the files of a run show its end, or `_SOCKET_S` seconds have passed; return the run as it is then."""
    deadline_s = time.monotonic() + _SOCKET_S
    while (
        (run := target.now()) is not None
        and run.state == "running"
        and not run.result
        and time.monotonic() < deadline_s
    ):
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
    if error.errno in (errno.EACCES, errno.EPERM) and os.geteuid():  # a sandbox may refuse a call of root's
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
    outcome = one_line(str(result["outcome"] or "failed"))
    root = result.get("root_cause")
    codes = result.get("exit_codes")
    exitcode = codes.get(str(root)) if isinstance(codes, dict) else None
    if not (isinstance(exitcode, int) and isinstance(root, int)):
        return outcome, 0 if outcome == "succeeded" else 1
    return f"{outcome}, {spans_of(target, [root])}: {ending(exitcode)}", as_shell(exitcode) or 1


def _asks(act: Callable[[argparse.Namespace, ControlClient], int]) -> Callable[[Sequence[str]], int]:
    """Make a command of a function that asks supervise: the command reads its words, connects, and calls the function.

    The command returns the exit code of the function, or that of an error, and exits with 2 after a wrong usage.
    """
    name = act.__name__

    @wraps(act)
    def command(words: Sequence[str]) -> int:
        found = SteeringParser(name).read(words)
        return steer(name, found.target, partial(act, found))

    return command


# ``supervise status RUN``: the present state of a running gang and its ranks


_STATUS_COLUMNS = ("RANK", "ROLE", "STATE", "PID", "RESTARTS", "STEP", "BEAT", "STATUS")
_LEFT_OUT = ("PID", "RESTARTS", "BEAT", "STEP")
"""The columns that a narrow terminal lacks, the first to go first."""


@_asks
def status(found: argparse.Namespace, client: ControlClient) -> int:
    """Print the state; return the exit code."""
    from supervise._views.top.reader import Reader  # lazy: the other commands do not need it

    result = client.request("status", timeout_s=REPLY_S)
    if found.target.run is not None:  # the state is `hung` if the watchdog has reported a hang, and it continues
        for rank, row in Reader(found.target.run).read(result, same_pids=False).ranks.items():
            result["ranks"][str(rank)]["state"] = row.state
    return show(found, result, _status_lines(found.target, result))


def _status_lines(target: Target, result: dict[str, Any]) -> list[str]:
    phase = "starting" if result["phase"] == "new" else result["phase"]
    attempt = f", attempt {result['attempt']}" if result["attempt"] else ""
    head = f"{phase}: {target.name} (supervise has pid {result['pid']}{attempt})"
    rows = [
        _STATUS_COLUMNS,
        *(_status_row(rank, row, roles=bool(target.titles)) for rank, row in result["ranks"].items()),
    ]
    always = ("RANK", "STATE", "PID")
    used = [at for at, head in enumerate(_STATUS_COLUMNS) if head in always or any(row[at] != "-" for row in rows[1:])]
    table = columns(fitted([[row[column] for column in used] for row in rows], terminal_columns(), _LEFT_OUT))
    left = result["leftovers"]
    return [head, *table, *([f"processes remain in the groups of {spans(left, target.titles)}"] if left else [])]


def _status_row(rank: str, row: dict[str, Any], *, roles: bool) -> tuple[str, ...]:
    age_s = row["beat_age_s"]
    return (
        rank,
        f"{row['role']}.{row['role_rank']}" if roles else "-",
        str(row["state"]),
        "-" if row["pid"] is None else str(row["pid"]),
        str(row["restarts"] or "-"),
        "-" if row["step"] is None else str(row["step"]),
        "-" if age_s is None else f"{age_s:.1f} s",
        one_line(str(row["status"] or "-")),
    )


# ``supervise stacks RUN``: the places in the code where the ranks of a running gang are now


@_asks
def stacks(found: argparse.Namespace, client: ControlClient) -> int:
    """Print the stacks; return the exit code."""
    result = client.request("stacks", timeout_s=REPLY_S, ranks=found.ranks)
    show(found, result, stack_lines(result, found.target.titles, whole=found.ranks is not None))
    return 0 if result["ranks"] else none_runs("stacks", found.target)


def stack_lines(result: dict[str, Any], titles: Sequence[str] = (), *, whole: bool) -> list[str]:
    """Return the result of the request ``stacks`` as lines.

    Args:
        result: The result.
        titles: Role and role rank of each rank, as for `spans`.
        whole: Whether to show all frames of all threads. Otherwise only the places of the main threads are shown.
    """
    if whole:
        return [line for rank, each in result["ranks"].items() for line in _threads(rank, each, titles)]
    return [*(titled(group, titles) for group in result["groups"]), *_notes(result["ranks"], titles)]


def _notes(ranks: dict[str, dict[str, Any]], titles: Sequence[str]) -> list[str]:
    """Return the reasons why ranks have no Python frames. Each reason is a line."""
    reasons: dict[str, list[int]] = {}
    for rank, each in ranks.items():
        if each["source"] == "kernel":
            reasons.setdefault("; ".join(map(str, each["notes"])), []).append(int(rank))
    return [f"no Python frames of {spans(who, titles)}: {why}" for why, who in reasons.items() if why]


def _threads(rank: str, stacks: dict[str, Any], titles: Sequence[str]) -> Iterator[str]:
    yield f"{spans([int(rank)], titles)}, pid {stacks['pid']}, from {stacks['source']}:"
    for thread in stacks["threads"]:
        kernel = ", ".join(str(thread[key]) for key in ("state", "syscall", "wchan") if thread[key])
        yield f"  {thread['name'] or 'thread'}{f' ({kernel})' if kernel else ''}"
        for frame in thread["frames"]:
            yield f"    {frame['function']} ({frame['file']}:{frame['line']})"
    for note in stacks["notes"]:
        yield f"  {note}"


# ``supervise signal RUN SIG``: send a signal to running ranks


@_asks
def signal(found: argparse.Namespace, client: ControlClient) -> int:
    """Send the signal and print the ranks that were signaled; return the exit code."""
    given = {"signal": found.sig.name, "ranks": found.ranks, "group": found.group or None}
    result = client.request("signal", timeout_s=REPLY_S, **given)
    who = result["ranks"]
    sent = f"{found.target.name}: {found.sig.name} was sent to {spans_of(found.target, who)}"
    show(found, result, [sent] if who else [])
    return 0 if who else none_runs("signal", found.target)


# ``supervise stop RUN``: stop a running gang, and wait for its end; or stop ranks of it


_RESULT_S = 10.0
"""How long supervise may take to write its result when all ranks have ended."""


def stop(words: Sequence[str]) -> int:
    """Stop the run and print how it ended, or stop ranks and print which; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    made = SteeringParser("stop")
    found = made.read(words)
    if found.ranks is not None and (found.signal is not None or found.timeout is not None):
        made.error("--signal and --timeout are for a stop of the whole run; omit them, or the ranks")
    return steer("stop", found.target, partial(_stop, found))


def _stop(found: argparse.Namespace, client: ControlClient) -> int:
    target: Target = found.target
    if found.ranks is not None:
        result = _of_ranks("stop", "terminate", found, client)
        return show(found, result, [f"{target.name}: {spans_of(target, found.ranks)} stopped"])
    _ = target.titles  # read now: a gang that has ended no longer reports its roles
    sig = None if found.signal is None else found.signal.name
    result = client.request("stop", timeout_s=None, signal=sig, timeout=found.timeout)
    if target.run is not None:
        client.until_closed(_RESULT_S)
    return show(found, result, [f"{target.name}: {outcome_of(target, result)[0]}"])


def _of_ranks(command: str, request: str, found: argparse.Namespace, client: ControlClient) -> dict[str, Any]:
    """Request the end or the restart of ranks; return the answer. Say if the request waits for the end of a start."""
    if client.request("status", timeout_s=None)["phase"] in ("new", "starting"):
        fail(command, f"{found.target.name} is starting; the {command} waits until the start is over", 0)
    return client.request(request, timeout_s=None, ranks=found.ranks)


# ``supervise restart RUN ROLE``: restart ranks of a running gang


def restart(words: Sequence[str]) -> int:
    """Restart the ranks and print their process IDs; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    made = SteeringParser("restart")
    found = made.read(words)
    if found.ranks is None:
        if code := steer("restart", found.target, answers):  # such as 3: the run has ended
            return code
        names = ", ".join(role for role, _ in found.target.roles)
        given = f"{found.target.name} to restart, such as 0,2 or a role"
        made.error(f"name the ranks or roles of {given}{names and f' ({names})'}")

    def act(client: ControlClient) -> int:
        result = _of_ranks("restart", "restart", found, client)
        return show(found, result, (_restarted(found.target, rank, pid) for rank, pid in result["pids"].items()))

    return steer("restart", found.target, act)


def _restarted(target: Target, rank: str, pid: int) -> str:
    return f"{target.name}: {spans_of(target, [int(rank)])} was restarted, pid {pid}"


# ``supervise reload RUN``: let ranks read their configuration again, by a signal, or by a restart of one after another


@_asks
def reload(found: argparse.Namespace, client: ControlClient) -> int:
    """Reload the ranks and print how; return the exit code."""
    target: Target = found.target
    each: dict[str, bool] = client.request("reload", timeout_s=None, ranks=found.ranks)["ranks"]
    reloaded, pids = [int(rank) for rank, done in each.items() if done], dict[str, int]()
    if reloaded and not found.json:
        print(f"{target.name}: {spans_of(target, reloaded)} reloaded")
    for rank in (rank for rank, done in each.items() if not done):
        pids |= client.request("restart", timeout_s=None, ranks=[int(rank)])["pids"]
        if not found.json:
            print(_restarted(target, rank, pids[rank]))
    show(found, {"reloaded": reloaded, "restarted": pids}, ())
    left = [rank for rank in found.ranks or () if str(rank) not in each]
    if left or not each:
        why = f"{spans_of(target, left)}: not running, or not ready" if left else "no rank runs and is ready"
        return fail("reload", f"{target.name}: {why}", REFUSED)
    return 0


# ``supervise wait RUN``: wait for the end of a run, and exit with its exit code


_MARGIN_S = 1.0
"""How long the reply to a wait may take after its timeout. A suspended supervise sends none."""


def wait(words: Sequence[str]) -> int:
    """Wait for the end and print it; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = SteeringParser("wait").read(words)
    run = found.target.run
    if run is not None and run.state not in ("running", "unknown"):
        return _show_end(found)
    code = steer("wait", found.target, partial(_wait_for_gang if run is None else _wait_for_run, found))
    if code == ENDED and run is not None:  # it ended after the read of its files, before the connection
        return _show_end(found)
    return code


def _wait_for_run(found: argparse.Namespace, client: ControlClient) -> int:
    """Wait until supervise has exited. It closes the connection only after it has written the result."""
    deadline_s = None if found.timeout is None else time.monotonic() + found.timeout
    try:
        result = _ask_for_end(client, found.timeout)
    except ControlError as error:
        if error.code not in ("failed", "ended", "no-reply"):  # the files also show a failed start
            raise
        result = {"finished": True}
    left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
    return _show_end(found) if result["finished"] and client.until_closed(left_s) else _still_runs(found)


def _wait_for_gang(found: argparse.Namespace, client: ControlClient) -> int:
    """Wait for the result of another program's gang. That program continues afterwards."""
    _ = found.target.titles  # read now: a gang that has ended no longer reports its roles
    result = _ask_for_end(client, found.timeout)
    if not result["finished"]:
        return _still_runs(found)
    text, code = outcome_of(found.target, result)
    return show(found, result | {"exit_code": code}, [f"{found.target.name}: {text}"], code)


def _ask_for_end(client: ControlClient, timeout_s: float | None) -> dict[str, Any]:
    limit_s = None if timeout_s is None else timeout_s + _MARGIN_S
    try:
        return client.request("wait", timeout_s=limit_s, timeout=timeout_s)
    except ControlError as error:
        if error.code != "timeout":
            raise
        return {"finished": False}


def _still_runs(found: argparse.Namespace) -> int:
    show(found, {"finished": False}, ())
    return fail("wait", f"{found.target.name} still runs", TIMED_OUT)


def _show_end(found: argparse.Namespace) -> int:
    """Print how a run has ended; return its exit code."""
    run = ended_run(found.target)
    recorded = run.result if run is not None and isinstance(run.result.get("exit_code"), int) else {}
    ends = recorded.get("ends")
    known = ends.items() if isinstance(ends, dict) else ()
    result = {
        "finished": True,
        "outcome": recorded.get("outcome"),
        "root_cause": recorded.get("root_cause"),
        "exit_codes": {rank: end.get("exitcode") for rank, end in known if isinstance(end, dict)},
        "exit_code": recorded.get("exit_code"),
    }
    if not recorded:
        return fail("wait", how_it_ended(found.target), show(found, result, (), REFUSED))
    text = f"{found.target.name}: {outcome_of(found.target, {})[0]}"
    return show(found, result, [text], recorded["exit_code"])
