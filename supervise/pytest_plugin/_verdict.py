"""One report of a test, from the reports of its ranks."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from _pytest._code.code import ExceptionRepr

from supervise import group_stacks
from supervise._blame import Cause, lost_peer, put_dead_first
from supervise._printable import ending, ranks_as_text
from supervise.pytest_plugin._gather import RankGatherError

if TYPE_CHECKING:
    import pytest

    from supervise import RankStacks, ThreadStack, WorkerExited
    from supervise.pytest_plugin._gang import Gang, Record

Outcome = Literal["passed", "failed", "skipped", "xfailed", "xpassed", "xpassed strictly", "died", "stopped"]
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_STRICT = "[XPASS(strict)]"
_GATHER = f"{RankGatherError.__module__}.{RankGatherError.__qualname__}"
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankVerdict:
    """How the test ended in one rank."""

    rank: int
    outcome: Outcome
    at_ns: int = 0
    """When it failed, in monotonic nanoseconds."""
    end: WorkerExited | None = None
    """The end of the process, if the rank's own pytest could not report."""
    report: pytest.TestReport | None = None
    """The report of the phase that decided."""
    text: str = ""
    """How the rank ended, if the rank's own pytest could not report it."""
    was_over: bool = False
    """Whether a rank that did not end had already skipped the test, or failed as expected: it waited for no peer."""
    later: tuple[pytest.TestReport, ...] = ()
    """The reports of later phases that failed, too."""

    @property
    def key(self) -> tuple[object, ...]:
        """The key by which failures are equal: the message, then the place."""
        longrepr: Any = self.report.longrepr if self.report is not None else None
        crash = getattr(longrepr, "reprcrash", None)
        if crash is not None:
            return _ADDRESS.sub("0x", crash.message), crash.path, crash.lineno
        return _ADDRESS.sub("0x", str(longrepr) if longrepr is not None else self.text), None, None


@dataclass(slots=True, kw_only=True)
class Verdict:
    """The outcome and the texts that the report of the test shows."""

    outcome: Literal["passed", "failed", "skipped", "interrupted"]
    """``interrupted``: the host was; the report of the test then says how."""
    longrepr: Any = None
    summary: str = ""
    """One line about a failure or the reason of a skip."""
    wasxfail: str | None = None
    notes: list[str] = field(default_factory=list)
    """Lines about the other ranks, shown below the failure."""
    sections: list[tuple[str, str]] = field(default_factory=list)
    """Titles and texts from other plugins in the ranks."""


def judge_rank(rank: int, record: Record, reports: list[pytest.TestReport]) -> RankVerdict:
    """Return how the test ended in a rank.

    Args:
        rank: The rank.
        record: The known facts about it.
        reports: The reports of its phases, in order.
    """
    told = [
        RankVerdict(rank=rank, outcome=outcome, at_ns=entry["at_ns"], report=report)
        for entry, report in zip(record.entries, reports, strict=True)
        if (outcome := _outcome(report)) != "passed"
    ]
    failed = [each for each in told if each.outcome == "failed"]
    if failed:
        later = tuple(each.report for each in failed[1:] if each.report is not None)
        return replace(failed[0], later=later)
    if record.stopped:
        return RankVerdict(rank=rank, outcome="stopped", text=_where(record), was_over=bool(told))
    if record.has_died:
        end, text = record.exited, f"rank {rank} {_end(record)}"
        return RankVerdict(rank=rank, outcome="died", at_ns=0 if end is None else end.ended_ns, end=end, text=text)
    if told:
        return told[0]
    unexpected = [report for report in reports if hasattr(report, "wasxfail")]
    if unexpected:
        return RankVerdict(rank=rank, outcome="xpassed", report=unexpected[0])
    return RankVerdict(rank=rank, outcome="passed")


def judge(ranks: list[RankVerdict], gang: Gang, place: str) -> Verdict:
    """Return the verdict on the whole test.

    Args:
        ranks: How the test ended in each rank.
        gang: The gang, which has ended.
        place: Path of the file of the test, as in the frames of a traceback.
    """
    by = {outcome: [each for each in ranks if each.outcome == outcome] for outcome in {each.outcome for each in ranks}}
    failed = sorted([*by.get("failed", ()), *by.get("died", ())], key=lambda each: (each.at_ns, each.rank))
    put_dead_first(failed, _cause)
    stopped, strictly = by.get("stopped", []), by.get("xpassed strictly", [])
    notes = stopped_notes(stopped, gang, place)
    if failed:
        return _failure(failed, len(ranks), notes)
    was_over = any(each.was_over for each in stopped)
    if "xfailed" in by and not was_over:
        first = min(by["xfailed"], key=lambda each: each.at_ns).report
        return Verdict(outcome="skipped", longrepr=_longrepr(first), wasxfail=getattr(first, "wasxfail", ""))
    if "skipped" in by and not was_over:
        return _skip(by["skipped"], ranks, notes)
    if stopped:
        return _stop(stopped, gang, notes)
    if strictly:
        return Verdict(outcome="failed", longrepr=_longrepr(strictly[0].report), summary=_STRICT)
    unexpected = by.get("xpassed")
    reason = getattr(unexpected[0].report, "wasxfail", "") if unexpected else None
    return Verdict(outcome="passed", wasxfail=reason)


def _cause(each: RankVerdict) -> Cause:
    if each.end is not None:
        return Cause(None, each.at_ns, each.end.exitcode, each.end.oom_kill, lost_peer=False)
    return Cause(each.at_ns, each.at_ns, None, oom_kill=False, lost_peer=lost_peer(str(each.key[0])))


def named(ranks: list[RankVerdict]) -> str:
    """Return ``rank 2`` or ``ranks 0, 2`` for verdicts on these ranks."""
    return ranks_as_text(each.rank for each in ranks)


def stopped_notes(stopped: list[RankVerdict], gang: Gang, place: str) -> list[str]:
    """Return lines about the ranks that the host has stopped, with their stacks.

    Args:
        stopped: How the test ended in these ranks.
        gang: The gang, which has ended.
        place: Path of the file of the test.
    """
    lines = []
    for each in stopped:
        since = "after the start" if gang.timed_out else "later"
        late = "" if gang.waited_s is None else f" {gang.waited_s:.1f} s {since}"
        lines.append(f"rank {each.rank} was still running{late}, {each.text}, and was stopped")
        stacks = gang.records[each.rank].stacks
        lines += [f"    {line}" for line in stack_lines(stacks, place)]
    return lines


def stack_lines(stacks: RankStacks | None, place: str) -> list[str]:
    """Return the threads of a rank as text, the outermost call first, without the calls around the test."""
    if stacks is None:
        return ["(its stacks could not be read)"]
    lines = []
    for number, thread in enumerate(stacks.threads):
        frames = list(reversed(thread.frames))
        begin = _begin([frame.file for frame in frames], place)
        if not frames and number:
            continue  # a thread of C code
        title = "main thread" if number == 0 else f"thread {thread.name}".rstrip()
        lines.append(f"{title}{_kernel(thread)}:")
        lines += [f'  File "{frame.file}", line {frame.line}, in {frame.function}' for frame in frames[begin:]]
        lines += [f"  no Python frames: {note}" for note in stacks.notes if not frames]
    return lines


def _kernel(thread: ThreadStack) -> str:
    parts = [part for part in (thread.syscall, thread.wchan) if part]
    return f" (in the kernel: {', '.join(parts)})" if parts else ""


def _begin(files: list[str], place: str) -> int:
    """Return the index of the first call in the test's file; if there is none, of the first call below supervise."""
    ours = [index for index, file in enumerate(files) if file.startswith(_PACKAGE)]
    return next((index for index, file in enumerate(files) if file == place), ours[-1] + 1 if ours else 0)


def _outcome(report: pytest.TestReport) -> Outcome:
    if report.failed:
        strict = isinstance(report.longrepr, str) and report.longrepr.startswith(_STRICT)
        return "xpassed strictly" if strict else "failed"
    if report.skipped:
        return "xfailed" if hasattr(report, "wasxfail") else "skipped"
    return "passed"


def _longrepr(report: pytest.TestReport | None) -> Any:
    assert report is not None  # noqa: S101 - of a rank that has reported
    return tuple(report.longrepr) if isinstance(report.longrepr, list) else report.longrepr


def _failure(failed: list[RankVerdict], world_size: int, notes: list[str]) -> Verdict:
    """Return the verdict on a test that failed in some ranks. The rank that failed first decides."""
    first = failed[0]
    same = [each for each in failed[1:] if each.key == first.key]
    others = [each for each in failed[1:] if each.key != first.key]
    place = first.key[1:]
    phase = f" (in {first.report.when})" if first.report is not None and first.report.when != "call" else ""
    lines = [f"rank {first.rank} of {world_size} failed first{phase}"] if world_size > 1 else []
    for report in first.later:
        lines.append(f"rank {first.rank} failed in {report.when}, too:")
        lines += [f"    {line}" for line in str(report.longrepr).splitlines()]
    if same:
        lines.append(f"{named(same)} failed in the same way")
    while others:
        group = [each for each in others if each.key == others[0].key]
        others = [each for each in others if each.key != group[0].key]
        lines += _other_failure(group, same_place=place[0] is not None and group[0].key[1:] == place)
    longrepr = first.text if first.report is None else _longrepr(first.report)
    summary = first.text or f"rank {first.rank} failed"
    return Verdict(outcome="failed", longrepr=longrepr, summary=summary, notes=[*lines, *notes])


def _other_failure(group: list[RankVerdict], *, same_place: bool) -> list[str]:
    """Return lines about a group of ranks that failed alike, but not like the first. A known traceback is left out."""
    first = group[0]
    if first.report is None:
        return [each.text for each in group]
    crash = getattr(first.report.longrepr, "reprcrash", None)
    if crash is not None and crash.message.startswith(_GATHER):
        return [f"{named(group)}: {crash.message.partition(': ')[2].splitlines()[0]}"]
    if same_place and crash is not None:
        return [f"{named(group)} failed at the same place:", *(f"    {line}" for line in crash.message.splitlines())]
    text = str(first.report.longrepr)
    return [f"{named(group)} failed in another way:", *(f"    {line}" for line in text.splitlines())]


def _skip(skipped: list[RankVerdict], ranks: list[RankVerdict], notes: list[str]) -> Verdict:
    """Return a skip if all ranks have skipped, otherwise a failure."""
    longrepr = _longrepr(skipped[0].report)
    reason = str(longrepr[2] if isinstance(longrepr, tuple) else longrepr).removeprefix("Skipped: ")
    if len(skipped) == len(ranks):
        return Verdict(outcome="skipped", longrepr=longrepr, summary=reason)
    others = [each for each in ranks if each.outcome != "skipped"]
    text = (
        f"the test was skipped in {named(skipped)} only ({reason}), and not in {named(others)}; skip it in all ranks or"
        " in none"
    )
    return Verdict(outcome="failed", longrepr=text, summary=text, notes=notes)


def _stop(stopped: list[RankVerdict], gang: Gang, notes: list[str]) -> Verdict:
    """Return the failure of a test in which no rank failed, but some ranks did not end."""
    if not gang.timed_out:
        text = f"{named(stopped)}: the test had passed, and the process did not exit"
        if any(each.was_over for each in stopped):
            text = f"{named(stopped)} did not end after the test"
        return Verdict(outcome="failed", longrepr=text, summary=text, notes=notes)
    text = f"timeout: {named(stopped)} of {len(gang.records)} still running after {gang.waited_s or 0:.1f} s"
    stacks = {each.rank: gang.records[each.rank].stacks for each in stopped}
    grouped = group_stacks({rank: found for rank, found in stacks.items() if found is not None})
    return Verdict(outcome="failed", longrepr="\n".join([text, *grouped]), summary=text, notes=notes)


def _where(record: Record) -> str:
    return "at its exit" if record.is_complete else f"in the {record.phase} of the test"


def _end(record: Record) -> str:
    """Return how a rank died, as a predicate."""
    exited, where = record.exited, _where(record)
    if exited is None or exited.exitcode is None:
        return f"ended {where}; its exit status is not known"
    if exited.exitcode >= 0:
        return f"exited with code {exited.exitcode} {where}"
    return f"was killed by {ending(exited.exitcode, oom_kill=exited.oom_kill)} {where}"


def with_notes(longrepr: Any, notes: list[str]) -> Any:
    """Return `longrepr` with the lines about the other ranks below it."""
    if not notes:
        return longrepr
    if isinstance(longrepr, ExceptionRepr):
        longrepr.addsection("ranks", "\n".join(notes), "-")
        return longrepr
    return "\n".join([str(longrepr), "", *notes])
