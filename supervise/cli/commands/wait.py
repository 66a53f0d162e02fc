"""``supervise wait RUN``: wait for the end of a run, and exit with its exit code."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from supervise._control.client import ControlClient, ControlError
from supervise.cli.commands import steering
from supervise.cli.options import values
from supervise.cli.run.program import TIMED_OUT

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from supervise.cli.commands.runs import RunParser


_EPILOG = """\
exit code:
  that of the run, also if the run has ended before; 124: --timeout; 1:
  supervise was killed, or does not reply; 2: wrong usage, or there is no such
  run
"""
_MARGIN_S = 5.0


def options() -> RunParser:
    """Return the parser."""
    made = steering.SteeringParser("wait", "Wait for the end of a run, and exit with its exit code.", epilog=_EPILOG)
    made.add_argument("--timeout", metavar="DUR", type=values.seconds, help="wait no longer (no limit)")
    return made


def wait(words: Sequence[str]) -> int:
    """Wait for the end and print it; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = options().read(words)
    run = found.target.run
    if run is not None and run.state not in ("running", "unknown"):
        return _ended(found)
    code = steering.steer("wait", found.target, partial(_wait_for_gang if run is None else _wait_for_run, found))
    if code == steering.ENDED and run is not None:  # it ended after the read of its files, before the connection
        return _ended(found)
    return code


def _wait_for_run(found: argparse.Namespace, client: ControlClient) -> int:
    """Wait until supervise has exited. It closes the connection only after it has written the result."""
    deadline_s = None if found.timeout is None else time.monotonic() + found.timeout
    try:
        result = _request(client, found.timeout)
    except ControlError as error:
        if error.code not in ("failed", "ended", "no-reply"):  # the files also show a failed start
            raise
        result = {"finished": True}
    left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
    return _ended(found) if result["finished"] and client.until_closed(left_s) else _still_runs(found)


def _wait_for_gang(found: argparse.Namespace, client: ControlClient) -> int:
    """Wait for the result of another program's gang. That program continues afterwards."""
    _ = found.target.titles  # read now: a gang that has ended no longer reports its roles
    result = _request(client, found.timeout)
    if not result["finished"]:
        return _still_runs(found)
    text, code = steering.outcome_of(found.target, result)
    return steering.show(found, result | {"exit_code": code}, [f"{found.target.name}: {text}"], code)


def _request(client: ControlClient, timeout_s: float | None) -> dict[str, Any]:
    limit_s = None if timeout_s is None else timeout_s + _MARGIN_S
    return client.request("wait", timeout_s=limit_s, timeout=timeout_s)


def _still_runs(found: argparse.Namespace) -> int:
    steering.show(found, {"finished": False}, ())
    return steering.fail("wait", f"{found.target.name} still runs", TIMED_OUT)


def _ended(found: argparse.Namespace) -> int:
    """Print how a run has ended; return its exit code."""
    run = steering.ended_run(found.target)
    recorded = run.result if run is not None else {}
    code = recorded.get("exit_code")
    if not isinstance(code, int):
        return steering.fail("wait", steering.how_it_ended(found.target), steering.REFUSED)
    ends = recorded.get("ends")
    known = ends.items() if isinstance(ends, dict) else ()
    codes = {rank: end.get("exitcode") for rank, end in known if isinstance(end, dict)}
    result = {"finished": True, "outcome": recorded.get("outcome"), "root_cause": recorded.get("root_cause")}
    text = f"{found.target.name}: {steering.outcome_of(found.target, {})[0]}"
    return steering.show(found, result | {"exit_codes": codes, "exit_code": code}, [text], code)
