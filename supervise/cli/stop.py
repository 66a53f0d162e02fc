"""``supervise stop RUN``: stop a running gang, and wait for its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise.cli import option_values, steering

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._control.client import ControlClient
    from supervise.cli.run_commands import RunParser

_RESULT_S = 10.0
"""How long supervise may take to write its result when all ranks have ended."""


def options() -> RunParser:
    """Return the parser."""
    made = steering.parser("stop", "Stop a run, and wait until all its processes are gone.")
    made.add_argument(
        "--timeout", metavar="DUR", type=option_values.seconds, help="time from the first signal to SIGKILL (the run's)"
    )
    made.add_argument("--signal", metavar="SIG", type=option_values.any_signal, help="the first signal (the run's)")
    return made


def stop(words: Sequence[str]) -> int:
    """Stop the run and print how it ended; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = options().parse_args(words)
    sig = None if found.signal is None else found.signal.name

    def act(client: ControlClient) -> int:
        result = client.request("stop", timeout_s=None, signal=sig, timeout=found.timeout)
        if found.target.run is not None:
            client.until_closed(_RESULT_S)
        if found.json:
            steering.show_json(found.target, result)
        else:
            print(f"{found.target.name}: {steering.outcome_of(found.target, result)[0]}")
        return 0

    return steering.steer("stop", found.target, act)
