"""``supervise restart RUN --rank R``: restart ranks of a running gang."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._printable import one_line
from supervise.cli import steering

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._control.client import ControlClient
    from supervise.cli.run_commands import RunParser


def options() -> RunParser:
    """Return the parser."""
    made = steering.parser("restart", "Restart ranks of a run, and wait until they run. No limit counts it.")
    steering.add_rank(made, "these local ranks", required=True)
    return made


def restart(words: Sequence[str]) -> int:
    """Restart the ranks and print their process IDs; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = options().parse_args(words)

    def act(client: ControlClient) -> int:
        result = client.request("restart", timeout_s=None, ranks=sorted(found.rank))
        if found.json:
            steering.show_json(found.target, result)
        else:
            for rank, pid in result["pids"].items():
                print(one_line(f"{found.target.name}: rank {rank} was restarted, pid {pid}"))
        return 0

    return steering.steer("restart", found.target, act)
