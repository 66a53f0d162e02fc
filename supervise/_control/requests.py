"""The requests of the control protocol: their arguments become messages to a gang, and its replies become JSON."""

from __future__ import annotations

import os
from signal import Signals
from typing import TYPE_CHECKING, Any

import pykka

from supervise import messages as say
from supervise._control.protocol import Refusal, shown
from supervise._printable import printable
from supervise._seconds import check_seconds
from supervise.errors import SpecError
from supervise.recording import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervise._control.protocol import Request
    from supervise.result import RunProcsResult
    from supervise.stacks import RankStacks

_ARGUMENTS = {
    "status": frozenset[str](),
    "pids": frozenset[str](),
    "stop": frozenset({"signal", "timeout"}),
    "restart": frozenset({"ranks"}),
    "signal": frozenset({"signal", "ranks"}),
    "stacks": frozenset({"ranks"}),
    "wait": frozenset({"timeout"}),
}
"""Request to its arguments."""


def message_of(request: Request) -> object:  # noqa: PLR0911 - one case per request
    """Return the message that a request sends to the gang.

    Raises:
        Refusal: The request does not exist, or an argument is not valid.
    """
    if request.name not in _ARGUMENTS:
        known = ", ".join(_ARGUMENTS)
        raise Refusal("bad-request", f"{shown(request.name)} is not a request; this server accepts {known}")
    given = request.arguments
    if unknown := sorted(given.keys() - _ARGUMENTS[request.name]):
        raise Refusal("bad-request", f"{request.name} has no argument {shown(unknown[0])}")
    match request.name:
        case "status":
            return say.Status()
        case "pids":
            return say.Pids()
        case "stop":
            return say.Close(death_sig=_signal(given.get("signal")), timeout=_timeout(given))
        case "restart":
            return say.RestartRanks(_some_ranks(given))
        case "signal":
            if (sig := _signal(given.get("signal"))) is None:
                raise Refusal("invalid", "'signal' is missing; give a name, such as \"SIGUSR1\", or a number")
            return say.Signal(sig=sig, ranks=_ranks(given))
        case "stacks":
            return say.Stacks(ranks=_ranks(given))
        case _:
            return say.Wait(timeout=_timeout(given))


def _timeout(given: Mapping[str, Any]) -> float | None:
    value = given.get("timeout")
    if value is None:
        return None
    try:
        check_seconds("timeout", value)
    except SpecError as error:
        raise Refusal("invalid", str(error)) from None
    return float(value)


def _signal(value: object) -> Signals | None:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return Signals[f"SIG{value.upper().removeprefix('SIG')}"]
        if isinstance(value, int) and not isinstance(value, bool):
            return Signals(value)
    except (KeyError, ValueError):
        pass
    raise Refusal("invalid", f"'signal' is {shown(value)}; give a name, such as \"SIGTERM\", or a number")


def _ranks(given: Mapping[str, Any]) -> frozenset[int] | None:
    value = given.get("ranks")
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, int) and not isinstance(each, bool) for each in value):
        raise Refusal("invalid", f"'ranks' is {shown(value)}; give a list of local ranks, such as [0, 2]")
    return frozenset(value)


def _some_ranks(given: Mapping[str, Any]) -> frozenset[int]:
    ranks = _ranks(given)
    if not ranks:
        raise Refusal("invalid", "'ranks' is missing or empty; give a list of local ranks, such as [0, 2]")
    return ranks


# Answers


def result_of(name: str, value: Any) -> dict[str, Any]:
    """Return the JSON result of a request.

    Args:
        name: The request.
        value: The gang's reply to its message.
    """
    return _RESULTS[name](value)


def refusal_of(error: BaseException) -> Refusal:
    """Return the error reply for the exception with which a gang has replied."""
    text = printable(text_of(error)) or type(error).__name__
    if isinstance(error, pykka.ActorDeadError):
        return Refusal("ended", "the gang has ended")
    return Refusal("invalid" if isinstance(error, SpecError) else "failed", text)


def _status(status: say.GangStatus) -> dict[str, Any]:
    fields = say.RankStatus.__dataclass_fields__
    return {
        "pid": os.getpid(),
        "phase": status.phase,
        "attempt": status.attempt,
        "running": sorted(status.running),
        "leftovers": sorted(status.leftovers),
        "waiters": status.waiters,
        "ranks": {rank: {name: getattr(row, name) for name in fields} for rank, row in sorted(status.ranks.items())},
    }


def _pids(pids: dict[int, int]) -> dict[str, Any]:
    return {"pids": dict(sorted(pids.items()))}


def _reached(ranks: frozenset[int]) -> dict[str, Any]:
    return {"ranks": sorted(ranks)}


def _stacks(stacks: dict[int, RankStacks]) -> dict[str, Any]:
    from supervise.stacks import group_stacks  # lazy: few runs get this request

    return {"groups": group_stacks(stacks), "ranks": {rank: _rank_stacks(each) for rank, each in stacks.items()}}


def _rank_stacks(stacks: RankStacks) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(stacks)


def _end(result: RunProcsResult | None) -> dict[str, Any]:
    if result is None:
        return {"finished": False, "outcome": None, "root_cause": None, "exit_codes": {}}
    return {
        "finished": True,
        "outcome": result.outcome,
        "root_cause": result.root_cause,
        "exit_codes": {rank: end.exitcode for rank, end in sorted(result.ends.items())},
    }


_RESULTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "status": _status,
    "pids": _pids,
    "stop": _end,
    "restart": _pids,
    "signal": _reached,
    "stacks": _stacks,
    "wait": _end,
}
