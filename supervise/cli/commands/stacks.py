"""``supervise stacks RUN``: the places in the code where the ranks of a running gang are now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervise._story.wording import spans, titled
from supervise.cli.commands import steering

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervise._control.client import ControlClient
    from supervise.cli.commands.runs import RunParser


def options() -> RunParser:
    """Return the parser."""
    return steering.SteeringParser(
        "stacks",
        "Show where the main threads of the ranks are: a line for equal stacks, the stack\n"
        "with the fewest ranks first.",
        ranks="only these, with all frames of all threads",
    )


def stacks(words: Sequence[str]) -> int:
    """Print the stacks; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = options().read(words)

    def act(client: ControlClient) -> int:
        result = client.request("stacks", timeout_s=steering.REPLY_S, ranks=found.ranks)
        lines = page(result, found.target.titles, whole=found.ranks is not None)
        steering.show(found, result, lines)
        return 0 if result["ranks"] else steering.none_runs("stacks", found.target)

    return steering.steer("stacks", found.target, act)


def page(result: dict[str, Any], titles: Sequence[str] = (), *, whole: bool) -> list[str]:
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
        name = thread["name"] or "thread"
        yield f"  {name}{f' ({kernel})' if kernel else ''}"
        for frame in thread["frames"]:
            yield f"    {frame['function']} ({frame['file']}:{frame['line']})"
    for note in stacks["notes"]:
        yield f"  {note}"
