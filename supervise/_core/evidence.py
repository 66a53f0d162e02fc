"""The evidence of stacks in a hang: which of the silent ranks is not where the others wait.

This module is pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from supervise._printable import one_line, ranks_as_text
from supervise._record import NamedTuple
from supervise.stacks import RankStacks, StackFrame, ThreadStack, is_own, main_thread, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    Threads: TypeAlias = Callable[[RankStacks], Sequence[ThreadStack]]

_STANDARD = ("/lib/python3", "<frozen ")
_INSTALLED = ("/site-packages/", "/dist-packages/")
_NAMES = frozenset(
    f"{prefix}{name}"
    for name in ("all_gather", "all_reduce", "all_to_all", "allgather", "allreduce", "alltoall", "reduce_scatter")
    for prefix in ("", "_")
) | {"barrier", "broadcast", "monitored_barrier", "wait_tensor"}
"""Functions that wait for other ranks, whatever their module."""
_FILES = (
    *("/torch/distributed/distributed_c10d.py", "/torch/distributed/c10d_logger.py", "/torch/distributed/utils.py"),
    *("/torch/distributed/rendezvous.py", "/torch/distributed/_functional_collectives.py"),
    *("/torch/distributed/nn/functional.py", "/torch/nn/parallel/distributed.py"),
    *("/torch/distributed/rpc/api.py", "/torch/distributed/pipelining/schedules.py"),
    *("/torch/autograd/graph.py", "/torch/autograd/__init__.py"),  # gradients are reduced in `backward`
)
"""Files of PyTorch whose functions block only while they wait for other ranks."""
_CALLS_OF_OPERATORS = "/torch/_ops.py"
_REQUESTS = "/torch/distributed/rpc/internal.py"
"""The file of PyTorch that calls functions for other ranks, each in a thread."""


BY_STACK = "by its stack: "
"""Beginning of the evidence if the stacks decide."""


class Suspect(NamedTuple):
    """The rank that is blamed for a hang, and the reason."""

    rank: int
    evidence: str
    """Why this rank, in words that follow the message of a hang."""
    waits: bool = False
    """Whether every silent rank whose stack is known waits in a collective."""


def by_stacks(stacks: Mapping[int, RankStacks], suspects: Sequence[int]) -> Suspect:
    """Return which of the suspects hangs, as far as the stacks of the silent ranks tell.

    It is the rank outside of the collective in which the others wait; otherwise the rank whose innermost calls differ
    from those of the majority; if all calls are alike, the rank on another line than the majority. Of two ranks, only a
    known collective decides. The main threads are compared first, then all threads, because another thread may do the
    work. A rank that executes a function for another rank is outside. If the stacks do not decide, it is the first
    suspect; but a suspect whose stack could not be read precedes ranks that wait in a collective.

    Args:
        stacks: Rank to stacks, of the silent ranks.
        suspects: The ranks that may hang, the most suspicious first.
    """
    read = {rank: each for rank, each in stacks.items() if _is_known(each)}
    serving = {rank for rank, each in read.items() if any(map(_serves_another, each.threads))}
    for threads in (_main_only, _all_with_frames):
        inside = {rank for rank, each in read.items() if any(map(_waits_for_others, threads(each)))} - serving
        outside = read.keys() - inside
        odd = [rank for rank in suspects if rank in outside]
        if odd and inside and (len(outside) < len(inside) or len(read) == 2):
            return _odd(odd, read, ", outside of the collective")
        most = _majority(read, threads)
        if odd := [rank for rank in suspects if most and rank in read.keys() - most]:
            return _odd(odd, read, f", unlike {ranks_as_text(most)}")
    same_line = _majority(read, _main_only, lines=True)
    if len(most) == len(read) and (odd := [rank for rank in suspects if same_line and rank in read.keys() - same_line]):
        return _odd(odd, read, f", on another line than {ranks_as_text(same_line)}")
    all_wait = bool(read) and all(any(map(_waits_for_others, _all_with_frames(each))) for each in read.values())
    missing = sorted({*stacks, *suspects} - read.keys())
    notes = [stacks[rank].notes[0] for rank in missing if rank in stacks and stacks[rank].notes][:1]
    unread = f"no stack of {ranks_as_text(missing)}{''.join(f' ({one_line(note)})' for note in notes)}"
    if all_wait and (odd := [rank for rank in suspects if rank in missing]):
        return Suspect(odd[0], f"{unread}, and the others wait in a collective", all_wait)
    if len(read) < 2:
        why = "no stacks can be compared"
    elif len(same_line) == len(read):
        why = "the stacks are alike"
    else:
        why = "all wait in a collective, but not in the same call" if all_wait else "the stacks do not decide"
    return Suspect(suspects[0], f"silent longest: {why}{f'; {unread}' if missing else ''}", all_wait)


def _odd(odd: Sequence[int], read: Mapping[int, RankStacks], how: str) -> Suspect:
    also = f", as {ranks_as_text(odd[1:])}" if len(odd) > 1 else ""
    stacks = read[odd[0]]
    serving = [replace(stacks, threads=(each,)) for each in stacks.threads if _serves_another(each)]
    return Suspect(odd[0], f"{BY_STACK}{one_line(place_of(next(iter(serving), stacks)))}{how}{also}")


def _majority(read: Mapping[int, RankStacks], threads: Threads, *, lines: bool = False) -> Collection[int]:
    """Return the ranks with the most frequent stack, if they are more than half; of two ranks, only if both have it.

    There are none if one rank has more threads than another, such as a thread that writes a log.
    """
    if len({len(threads(each)) for each in read.values()}) > 1:
        return ()
    groups: dict[object, set[int]] = {}
    for rank, each in read.items():
        groups.setdefault(frozenset(_innermost(thread, lines=lines) for thread in threads(each)), set()).add(rank)
    most = max(groups.values(), key=len, default=set[int]())
    return most if 2 * len(most) > len(read) else ()


def _main_only(stacks: RankStacks) -> Sequence[ThreadStack]:
    return [main_thread(stacks)]


def _all_with_frames(stacks: RankStacks) -> Sequence[ThreadStack]:
    return [thread for thread in stacks.threads if thread.frames]


def _is_known(stacks: RankStacks) -> bool:
    """Return whether the stack of a rank tells where it is.

    If the kernel blocks the main thread uninterruptibly, no Python frames are needed: it is in no collective.
    """
    return stacks.source != "kernel" or main_thread(stacks).state == "D"


def _innermost(thread: ThreadStack, *, lines: bool) -> tuple[tuple[str, str, int], ...]:
    """Return the calls from the innermost one to the innermost one of user code, without `lines` with 0 as line."""
    own = next((place for place, frame in enumerate(thread.frames) if is_own(frame)), len(thread.frames))
    inner = thread.frames[: own + 1]
    return tuple((_name(frame), frame.file.rpartition("/")[2], frame.line if lines else 0) for frame in inner)


def _waits_for_others(thread: ThreadStack) -> bool:
    """Return whether the innermost call outside of Python's library is one of a collective."""
    for frame in thread.frames:
        if not (_is_standard(frame) or frame.file.endswith(_CALLS_OF_OPERATORS)):
            return _name(frame) in _NAMES or frame.file.endswith(_FILES)
    return False


def _serves_another(thread: ThreadStack) -> bool:
    """Return whether a thread executes a function that another rank has called (torch.distributed.rpc)."""
    return any(frame.file.endswith(_REQUESTS) for frame in thread.frames) and not _waits_for_others(thread)


def _name(frame: StackFrame) -> str:
    """Return the name of a function without its class, which only py-spy gives."""
    return frame.function.rpartition(".")[2]


def _is_standard(frame: StackFrame) -> bool:
    return any(part in frame.file for part in _STANDARD) and not any(part in frame.file for part in _INSTALLED)
