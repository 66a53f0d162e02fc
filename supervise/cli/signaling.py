"""``supervise signal RUN SIG``: send a signal to running ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise.cli import option_values, steering

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._control.client import ControlClient
    from supervise.cli.run_commands import RunParser


def options() -> RunParser:
    """Return the parser."""
    made = steering.parser("signal", "Send a signal to the process groups of running ranks.")
    made.add_argument("signal", metavar="SIG", type=option_values.any_signal, help="name or number, such as USR1")
    steering.add_rank(made, "only these local ranks")
    return made


def signal(words: Sequence[str]) -> int:
    """Send the signal and print the ranks that were signaled; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = options().parse_args(words)
    ranks = None if found.rank is None else sorted(found.rank)

    def act(client: ControlClient) -> int:
        result = client.request("signal", timeout_s=steering.REPLY_S, signal=found.signal.name, ranks=ranks)
        if found.json:
            steering.show_json(found.target, result)
        elif result["ranks"]:
            print(f"{found.target.name}: {found.signal.name} was sent to {steering.named(result['ranks'])}")
        if not result["ranks"]:
            return steering.fail("signal", f"{found.target.name}: none of these ranks runs", steering.REFUSED)
        return 0

    return steering.steer("signal", found.target, act)
