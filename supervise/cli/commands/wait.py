"""``supervise wait RUN``: wait for the end of a run, and exit with its exit code."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from supervise._control.client import ControlError
from supervise.cli.commands import steering
from supervise.cli.options import values
from supervise.cli.run.program import TIMED_OUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._control.client import ControlClient
    from supervise.cli.commands.runs import RunParser


_EPILOG = """\
exit code:
  that of the run, also if the run has ended before; 124: --timeout; 1: supervise
  was killed, or does not reply; 2: wrong usage, or there is no such run
"""
_MARGIN_S = 5.0


def options() -> RunParser:
    """Return the parser."""
    made = steering.parser("wait", "Wait for the end of a run, and exit with its exit code.", epilog=_EPILOG)
    made.add_argument("--timeout", metavar="DUR", type=values.seconds, help="wait no longer (no limit)")
    return made


def wait(words: Sequence[str]) -> int:
    """Wait for the end and print it; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = options().read(words)
    target: steering.Target = found.target
    if target.run is not None and target.run.state not in ("running", "unknown"):
        return _ended(target, as_json=found.json)

    def act(client: ControlClient) -> int:
        if target.run is None:
            return _wait_for_gang(client, target, found.timeout, as_json=found.json)
        return _wait_for_run(client, target, found.timeout, as_json=found.json)

    code = steering.steer("wait", target, act)
    if code == steering.ENDED and target.run is not None:  # it ended after the read of its files, before the connection
        return _ended(target, as_json=found.json)
    return code


def _wait_for_run(client: ControlClient, target: steering.Target, timeout_s: float | None, *, as_json: bool) -> int:
    """Wait until supervise has exited. It closes the connection only after it has written the result."""
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        result = _request(client, timeout_s)
    except ControlError as error:
        if error.code not in ("failed", "ended", "no-reply"):  # the files also show a failed start
            raise
        result = {"finished": True}
    left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
    if result["finished"] and client.until_closed(left_s):
        return _ended(target, as_json=as_json)
    return _still_runs(target, as_json=as_json)


def _wait_for_gang(client: ControlClient, target: steering.Target, timeout_s: float | None, *, as_json: bool) -> int:
    """Wait for the result of another program's gang. That program continues afterwards."""
    result = _request(client, timeout_s)
    if not result["finished"]:
        return _still_runs(target, as_json=as_json)
    text, code = steering.outcome_of(target, result)
    if as_json:
        steering.show_json(target, result | {"exit_code": code})
    else:
        print(f"{target.name}: {text}")
    return code


def _request(client: ControlClient, timeout_s: float | None) -> dict[str, Any]:
    limit_s = None if timeout_s is None else timeout_s + _MARGIN_S
    return client.request("wait", timeout_s=limit_s, timeout=timeout_s)


def _still_runs(target: steering.Target, *, as_json: bool) -> int:
    if as_json:
        steering.show_json(target, {"finished": False})
    return steering.fail("wait", f"{target.name} still runs", TIMED_OUT)


def _ended(target: steering.Target, *, as_json: bool) -> int:
    """Print how a run has ended; return its exit code."""
    run = steering.ended_run(target)
    recorded = run.result if run is not None else {}
    code = recorded.get("exit_code")
    if not isinstance(code, int):
        return steering.fail("wait", steering.how_it_ended(target), steering.REFUSED)
    if as_json:
        ends = recorded.get("ends")
        codes = {rank: end.get("exitcode") for rank, end in ends.items()} if isinstance(ends, dict) else {}
        result = {"finished": True, "outcome": recorded.get("outcome"), "root_cause": recorded.get("root_cause")}
        steering.show_json(target, result | {"exit_codes": codes, "exit_code": code})
    else:
        print(f"{target.name}: {steering.outcome_of(target, {})[0]}")
    return code
