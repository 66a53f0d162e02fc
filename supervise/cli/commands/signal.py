"""The commands ``stop``, ``restart``, ``reload`` and ``signal``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from supervise.cli.commands import steering
from supervise.cli.commands.runs import RunParser, add_ranks
from supervise.cli.options import values

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from supervise._control.client import ControlClient


# ``supervise signal RUN SIG``: send a signal to running ranks


def signal_options() -> RunParser:
    """Return the parser."""
    made = steering.SteeringParser("signal", "Send a signal to running ranks.")
    made.add_argument("sig", metavar="SIG", nargs="?", help="name or number, such as USR1")
    add_ranks(made, "only these")
    made.add_argument("--group", action="store_true", help="also to the processes that a rank has started")
    return made


def signal(words: Sequence[str]) -> int:
    """Send the signal and print the ranks that were signaled; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = signal_options().read(words)

    def act(client: ControlClient) -> int:
        given = {"signal": found.sig.name, "ranks": found.ranks, "group": found.group or None}
        result = client.request("signal", timeout_s=steering.REPLY_S, **given)
        who = result["ranks"]
        sent = f"{found.target.name}: {found.sig.name} was sent to {steering.spans_of(found.target, who)}"
        steering.show(found, result, [sent] if who else [])
        return 0 if who else steering.none_runs("signal", found.target)

    return steering.steer("signal", found.target, act)


# ``supervise stop RUN``: stop a running gang, and wait for its end


_RESULT_S = 10.0
"""How long supervise may take to write its result when all ranks have ended."""


def stop_options() -> RunParser:
    """Return the parser."""
    made = steering.SteeringParser("stop", "Stop a run, or ranks of it, and wait until the processes are gone.")
    made.add_argument(
        "--timeout", metavar="DUR", type=values.seconds, help="time from the first signal to SIGKILL (the run's)"
    )
    made.add_argument("--signal", metavar="SIG", type=values.any_signal, help="the first signal (the run's)")
    add_ranks(made, "stop only these; they stay down until a restart")
    return made


def stop(words: Sequence[str]) -> int:
    """Stop the run and print how it ended, or stop ranks and print which; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    made = stop_options()
    found = made.read(words)
    sig = None if found.signal is None else found.signal.name
    if found.ranks is not None:
        if sig is not None or found.timeout is not None:
            made.error("--signal and --timeout are for a stop of the whole run; omit them, or the ranks")
        return steering.steer("stop", found.target, partial(_terminate, found))

    def act(client: ControlClient) -> int:
        _ = found.target.titles  # read now: a gang that has ended no longer reports its roles
        result = client.request("stop", timeout_s=None, signal=sig, timeout=found.timeout)
        if found.target.run is not None:
            client.until_closed(_RESULT_S)
        return steering.show(found, result, [f"{found.target.name}: {steering.outcome_of(found.target, result)[0]}"])

    return steering.steer("stop", found.target, act)


def _terminate(found: argparse.Namespace, client: ControlClient) -> int:
    result = client.request("terminate", timeout_s=None, ranks=found.ranks)
    return steering.show(
        found, result, [f"{found.target.name}: {steering.spans_of(found.target, found.ranks)} stopped"]
    )


# ``supervise restart RUN ROLE``: restart ranks of a running gang


def restart_options() -> RunParser:
    """Return the parser."""
    text = "Restart ranks of a run, and wait until they run. No limit counts the restart."
    return steering.SteeringParser("restart", text, ranks="what to restart")


def restart(words: Sequence[str]) -> int:
    """Restart the ranks and print their process IDs; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    made = restart_options()
    found = made.read(words)
    if found.ranks is None:
        names = ", ".join(role for role, _ in found.target.roles)
        given = f"{found.target.name} to restart, such as 0,2 or a role"
        made.error(f"name the ranks or roles of {given}{names and f' ({names})'}")

    def act(client: ControlClient) -> int:
        if client.request("status", timeout_s=None)["phase"] in ("new", "starting"):
            text = f"{found.target.name} is starting; the restart waits until the start is over"
            steering.fail("restart", text, 0)
        result = client.request("restart", timeout_s=None, ranks=found.ranks)
        return steering.show(
            found, result, (_restarted(found.target, rank, pid) for rank, pid in result["pids"].items())
        )

    return steering.steer("restart", found.target, act)


def _restarted(target: steering.Target, rank: str, pid: int) -> str:
    return f"{target.name}: {steering.spans_of(target, [int(rank)])} was restarted, pid {pid}"


# ``supervise reload RUN``: let ranks read their configuration again, by a signal, or by a restart of one after another


def reload_options() -> RunParser:
    """Return the parser."""
    return steering.SteeringParser(
        "reload",
        "Send ranks their reload-signal, and wait until they are ready again. Ranks\n"
        "without a reload-signal are restarted one after another, each when the one\n"
        "before it is ready.",
        ranks="only these",
    )


def reload(words: Sequence[str]) -> int:
    """Reload the ranks and print how; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = reload_options().read(words)

    def act(client: ControlClient) -> int:
        each: dict[str, bool] = client.request("reload", timeout_s=None, ranks=found.ranks)["ranks"]
        reloaded, pids = [int(rank) for rank, done in each.items() if done], dict[str, int]()
        if reloaded and not found.json:
            print(f"{found.target.name}: {steering.spans_of(found.target, reloaded)} reloaded")
        for rank in (rank for rank, done in each.items() if not done):
            pids |= client.request("restart", timeout_s=None, ranks=[int(rank)])["pids"]
            if not found.json:
                print(_restarted(found.target, rank, pids[rank]))
        steering.show(found, {"reloaded": reloaded, "restarted": pids}, ())
        left = [rank for rank in found.ranks or () if str(rank) not in each]
        if left or not each:
            these = steering.spans_of(found.target, left)
            why = f"{these}: not running, or not ready" if left else "no rank runs and is ready"
            return steering.fail("reload", f"{found.target.name}: {why}", steering.REFUSED)
        return 0

    return steering.steer("reload", found.target, act)
