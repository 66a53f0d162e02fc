"""The commands ``stop``, ``restart``, ``reload`` and ``signal``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._printable import one_line
from supervise._story.wording import spans
from supervise.cli.commands import steering
from supervise.cli.options import values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._control.client import ControlClient
    from supervise.cli.commands.runs import RunParser


# ``supervise signal RUN SIG``: send a signal to running ranks


def signal_options() -> RunParser:
    """Return the parser."""
    made = steering.parser("signal", "Send a signal to running ranks.")
    made.add_argument("signal", metavar="SIG", type=values.any_signal, help="name or number, such as USR1")
    steering.add_rank(made, "only these local ranks")
    made.add_argument("--group", action="store_true", help="also to the processes that a rank has started")
    return made


def signal(words: Sequence[str]) -> int:
    """Send the signal and print the ranks that were signaled; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = signal_options().parse_args(words)
    ranks = None if found.rank is None else sorted(found.rank)

    def act(client: ControlClient) -> int:
        given = {"signal": found.signal.name, "ranks": ranks, "group": found.group or None}
        result = client.request("signal", timeout_s=steering.REPLY_S, **given)
        if found.json:
            steering.show_json(found.target, result)
        elif result["ranks"]:
            print(f"{found.target.name}: {found.signal.name} was sent to {spans(result['ranks'])}")
        if not result["ranks"]:
            return steering.fail("signal", f"{found.target.name}: none of these ranks runs", steering.REFUSED)
        return 0

    return steering.steer("signal", found.target, act)


# ``supervise stop RUN``: stop a running gang, and wait for its end


_RESULT_S = 10.0
"""How long supervise may take to write its result when all ranks have ended."""


def stop_options() -> RunParser:
    """Return the parser."""
    made = steering.parser("stop", "Stop a run, and wait until all its processes are gone.")
    made.add_argument(
        "--timeout", metavar="DUR", type=values.seconds, help="time from the first signal to SIGKILL (the run's)"
    )
    made.add_argument("--signal", metavar="SIG", type=values.any_signal, help="the first signal (the run's)")
    return made


def stop(words: Sequence[str]) -> int:
    """Stop the run and print how it ended; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = stop_options().parse_args(words)
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


# ``supervise restart RUN --rank R``: restart ranks of a running gang


def restart_options() -> RunParser:
    """Return the parser."""
    made = steering.parser("restart", "Restart ranks of a run, and wait until they run. No limit counts it.")
    steering.add_rank(made, "these local ranks", required=True)
    return made


def restart(words: Sequence[str]) -> int:
    """Restart the ranks and print their process IDs; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = restart_options().parse_args(words)

    def act(client: ControlClient) -> int:
        result = client.request("restart", timeout_s=None, ranks=sorted(found.rank))
        if found.json:
            steering.show_json(found.target, result)
        else:
            for rank, pid in result["pids"].items():
                print(one_line(f"{found.target.name}: rank {rank} was restarted, pid {pid}"))
        return 0

    return steering.steer("restart", found.target, act)


# ``supervise reload RUN``: let ranks read their configuration again, by a signal, or by a restart of one after another


def reload_options() -> RunParser:
    """Return the parser."""
    made = steering.parser(
        "reload",
        "Send ranks their reload-signal, and wait until they are ready again. Ranks that have no reload-signal are"
        " restarted one after another, each when the one before it is ready.",
    )
    steering.add_rank(made, "only these local ranks")
    return made


def reload(words: Sequence[str]) -> int:
    """Reload the ranks and print how; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = reload_options().parse_args(words)
    wanted = None if found.rank is None else sorted(found.rank)

    def act(client: ControlClient) -> int:
        each: dict[str, bool] = client.request("reload", timeout_s=None, ranks=wanted)["ranks"]
        reloaded, pids = [int(rank) for rank, done in each.items() if done], dict[str, int]()
        if reloaded and not found.json:
            print(f"{found.target.name}: {spans(reloaded)} reloaded", flush=True)
        for rank in (rank for rank, done in each.items() if not done):
            pids |= client.request("restart", timeout_s=None, ranks=[int(rank)])["pids"]
            if not found.json:
                print(one_line(f"{found.target.name}: rank {rank} was restarted, pid {pids[rank]}"), flush=True)
        if found.json:
            steering.show_json(found.target, {"reloaded": reloaded, "restarted": pids})
        left = [rank for rank in wanted or () if str(rank) not in each]
        if left or not each:
            why = f"{spans(left)}: not running, or not ready" if left else "no rank runs and is ready"
            return steering.fail("reload", f"{found.target.name}: {why}", steering.REFUSED)
        return 0

    return steering.steer("reload", found.target, act)
