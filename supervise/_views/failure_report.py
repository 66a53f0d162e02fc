"""The report on a gang that did not succeed: the root cause, the ends of the other ranks, the folder of the logs."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from signal import SIGINT, SIGKILL, Signals
from typing import TYPE_CHECKING

from supervise._logs.files import last_lines, no_room
from supervise._printable import one_line
from supervise._views.failure_text import WHY_LINES, clean, first_and_last, recorded, without_our_frames
from supervise._views.story import ERRNO, stopped_by_us
from supervise._views.wording import ending, seconds, shortened, spans

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._views.story import Story
    from supervise.result import ProcessFailure, RankEnd, RunProcsResult

_FAULTS = ("hung: ", "was not ready within ")
"""Beginnings of the messages of ranks that failed while they ran."""
_ROWS = 10
_LONGEST_CAUSE = 120


def plain(text: str, _style: str) -> str:
    """Return `text` without a style."""
    return text


def lines(result: RunProcsResult, story: Story, paint: Callable[[str, str], str] = plain) -> list[str]:
    """Return the lines of the report.

    Args:
        result: The result of the gang; its outcome is not ``succeeded``.
        story: Further facts.
        paint: Applies a style (SGR numbers) to a text, or returns it unchanged.
    """
    if any(end.host for end in result.ends.values()):  # a run of several hosts: the report names global ranks
        result = replace(result, ends={rank: replace(end, local_rank=rank) for rank, end in result.ends.items()})
    failed = result.outcome in ("failed", "succeeded")  # user code may make a result with the default outcome
    root = result.root_cause if failed and result.root_cause != story.interrupted else None
    shown = [f"{paint('supervise:', '1')} {paint(one_line(_headline(result, story, root)), '1;31')}"]
    if root is not None and (why := _why(result, root, story)):
        shown += ["", *(f"  {one_line(line)}".rstrip() for line in why), ""]
    rows = _rows(result, story, root)
    shown += [f"  {paint(spans(who) + ':', '1')} {how}" for who, how in rows]
    if story.stacks and root is not None:
        shown.append(f"  {paint('stacks:', '1')} {one_line(story.stacks)}")
    if story.directory is not None:
        shown.append(f"  {paint('logs:', '1')} {one_line(story.directory)}")
    return shown


def of_rank(result: RunProcsResult, story: Story, rank: int) -> list[str]:
    """Return the lines of the report about how and why `rank` failed, as if its failure had ended the gang."""
    return [_headline(result, story, rank), *(f"  {line}".rstrip() for line in _why(result, rank, story))]


def _headline(result: RunProcsResult, story: Story, root: int | None) -> str:
    if root is not None:
        failure = result.failures[root]
        how = ending(failure.exitcode, core_dumped=_core(result, root)) + _origin(root, failure.exitcode, story)
        if (fault := _fault(failure)) is not None:
            how = fault
        elif stopped_by_us(root, failure.exitcode, story):
            how = _raised(failure).partition(":")[0]
        if root in result.ends:
            how += _memory(result.ends[root])
        of = f" of {story.nproc * story.hosts}" if story.nproc * story.hosts > 1 else ""
        local = f"local rank {root}, " if story.hosts > 1 else ""
        local += f"{story.titles[root]}, " if story.titles else ""
        host = (result.ends[root].host if root in result.ends else "") or os.uname().nodename
        process = f"pid {failure.pid}{_uptime(result, root)}"
        if not _ran(result, root):
            how, process = re.sub(ERRNO, "", clean(str(failure.message))[0]), "no process"
        where = f"host {host}, {local}{process}"
        return f"rank {story.host * story.nproc + root}{of} failed: {how} ({where}){_no_restart(story)}"
    if result.outcome == "timed_out":
        return f"stopped: {_timeout(story)} exceeded"
    if story.user_signal is not None:
        name = _by_user(story.user_signal, story)
        return f"killed after {name} and a second signal" if story.killed else f"stopped by {name}"
    return "stopped: no program reads the output (--halt-on-broken-pipe)" if story.halted else "stopped"


def _timeout(story: Story) -> str:
    name = "--timeout" if story.of_command else "timeout"
    return name if story.timeout_s is None else f"{name} of {seconds(story.timeout_s)}"


def _by_user(sig: Signals, story: Story) -> str:
    if story.by_command:
        return "supervise stop"
    return "SIGINT (Ctrl-C)" if sig == SIGINT else sig.name


def _ran(result: RunProcsResult, rank: int) -> bool:
    """Return whether the last life of a rank had a process. Without a process, its launch has failed."""
    return rank not in result.ends or result.ends[rank].pid is not None


def _memory(end: RankEnd) -> str:
    return ", out of memory suspected" if end.oom_kill else ""


def _no_restart(story: Story) -> str:
    """Return why no restart followed the last failure, or how many restarts came before it."""
    if story.waiting is not None:
        limit = f"{_timeout(story)} exceeded"
        stopped = f"stopped by {_by_user(story.user_signal, story)}" if story.user_signal else limit
        return f"; no {story.waiting}: {stopped}"
    if story.restarts and (story.user_signal is None or story.used_up):
        # A result does not say whether the policy or the timeout of the gang permitted no further restart
        verb = "gave up after" if story.of_command else "after"
        return f"; {verb} {story.restarts} restart{'s' if story.restarts > 1 else ''}"
    return ""


def _origin(rank: int, exitcode: int | None, story: Story) -> str:
    """Return a note if supervise passed on the signal that killed a rank."""
    return " (passed on by supervise)" if exitcode and -exitcode in story.passed_on.get(rank, ()) else ""


def _core(result: RunProcsResult, rank: int) -> bool:
    return rank in result.ends and result.ends[rank].core_dumped


def _uptime(result: RunProcsResult, rank: int) -> str:
    end = result.ends.get(rank)
    return f", after {seconds((end.ended_ns - end.started_ns) / 1e9)}" if end is not None and end.started_ns else ""


# Why


def _why(result: RunProcsResult, rank: int, story: Story) -> list[str]:
    """Return the reason of a failure in some twenty lines; none if the stderr of the rank was just shown."""
    if not _ran(result, rank):
        return []  # the first line has the whole reason
    failure = result.failures[rank]
    record = recorded(failure.message)
    end = result.ends.get(rank)
    alone = story.nproc == 1 and rank in story.stderr_shown  # no lines of another rank have followed
    if record is not None:
        rows = clean(record)
        if alone and end is not None and rows[-1] in clean(end.stderr_tail):
            return []
        return first_and_last(without_our_frames(rows), f"in {failure.error_file}")
    said = first_and_last(clean(str(failure.message)), f"in {failure.error_file}") if _tells_more(failure) else []
    if end is None or not end.stderr_tail.strip():
        return [*said, *_nothing_in(result.stderrs.get(rank), _stream(result, rank), story), *_stdout(end, story)]
    if alone:
        return said
    cut = ", cut off because its disk is full" if no_room(end.stderr_log) else ""
    shown = [f"  {line}" for line in clean(end.stderr_tail)[-WHY_LINES:]]
    return [*said, f"the end of its {_stream(result, rank)}{cut}:", *shown]


def _stdout(end: RankEnd | None, story: Story) -> list[str]:
    """Return the end of the stdout of a rank that wrote nothing to stderr; none if that stdout was just shown."""
    if end is None or end.stdout_log == end.stderr_log or (story.nproc == 1 and story.stderr_shown):
        return []
    rows = clean(last_lines(end.stdout_log, WHY_LINES))
    return ["the end of its stdout:", *(f"  {row}" for row in rows)] if any(rows) else []


def _stream(result: RunProcsResult, rank: int) -> str:
    """Return a word for the content of a rank's stderr log: ``stderr``, or ``output`` if it has both streams."""
    log = result.stderrs.get(rank)
    return "output" if log and log != os.devnull and log == result.stdouts.get(rank) else "stderr"


def _nothing_in(log: str | None, stream: str, story: Story) -> list[str]:
    """Return why the report has no stderr of a rank."""
    if not log:
        giver = "supervise; its output is above" if story.of_command else "this process"
        return ["its stderr was not recorded", f"the rank inherited it from {giver}"]
    if log == os.devnull:
        excludes = "--local-ranks-filter" if story.of_command else "local_ranks_filter"
        return ["its stderr was not recorded", f"{excludes} excludes the rank"]
    if not os.path.lexists(log):
        return [f"the log of its {stream} was removed: {log}"]
    if no_room(log):
        return [f"the log of its {stream} is empty, and its disk is full: {log}"]
    return ["it wrote nothing to stderr" if stream == "stderr" else "it wrote nothing"]


def _tells_more(failure: ProcessFailure) -> bool:
    """Return whether the message of a failure has more than the headline."""
    return not str(failure.message).startswith(("To enable traceback see:", "Signal ", *_FAULTS))


def _fault(failure: ProcessFailure) -> str | None:
    """Return why a rank failed while it ran: ``hung: no output for 30.0 s``; None if the rank failed by its exit."""
    return clean(str(failure.message))[0] if str(failure.message).startswith(_FAULTS) else None


# The others


def _rows(result: RunProcsResult, story: Story, root: int | None) -> list[tuple[list[int], str]]:
    """Return rows of ranks and the text of their end. Ranks with equal ends share a row; failures come first."""
    kinds: dict[str, list[int]] = {}
    order = {"concurrent_failure": 0, "lost": 1, "bystander": 2, "finished": 3}
    causes = {rank: at for at, rank in enumerate(result.failures)}  # ordered by time
    at_end = len(causes)
    ends = sorted(
        result.ends.values(),
        key=lambda end: (order.get(end.role, 2), causes.get(end.local_rank, at_end), end.local_rank),
    )
    for end in ends:
        if end.local_rank != root:
            how = "interrupted at the terminal" if end.local_rank == story.interrupted else _fate(end, result, story)
            if end.pid is None:
                how = str(story.unlaunched.get(end.local_rank, "could not be started"))
            kinds.setdefault(how, []).append(end.local_rank)
    never = [rank for rank in range(story.nproc) if rank not in result.ends]
    if never:
        kinds["not started"] = never
    rows = [(ranks, how) for how, ranks in kinds.items()]
    if len(rows) > _ROWS:
        rest = [rank for ranks, _ in rows[_ROWS - 1 :] for rank in ranks]
        place = "result.json" if story.of_command else "the ends of the result"
        rows[_ROWS - 1 :] = [(rest, f"{len(rows) - _ROWS + 1} other ends; see {place}")]
    return rows


def _fate(end: RankEnd, result: RunProcsResult, story: Story) -> str:
    how = ending(end.exitcode, core_dumped=end.core_dumped)
    sent = story.sent.get(end.local_rank, [])
    if end.role == "concurrent_failure":
        return f"failed too: {_cause(end, how, result.failures.get(end.local_rank), story)}{_memory(end)}"
    if end.role == "lost":
        return "survived SIGKILL"
    if end.role == "finished":
        return "finished" if end.exitcode == 0 else how
    if end.exitcode == -SIGKILL and SIGKILL in sent:
        late = "" if story.killed or len(sent) < 2 else f", {seconds(story.grace_s)} after {sent[0].name}"
        return f"killed by SIGKILL (sent by supervise{late})"
    if end.exitcode is not None and -end.exitcode in sent:
        return f"stopped by {how} (sent by supervise)"
    return f"{how} after {sent[0].name} from supervise" if sent else f"{how}, stopped by supervise"


def _cause(end: RankEnd, how: str, failure: ProcessFailure | None, story: Story) -> str:
    if failure is not None and stopped_by_us(end.local_rank, end.exitcode, story):
        return _raised(failure)
    last_word = f": {_raised(failure)}" if failure is not None and recorded(failure.message) else ""
    return f"{how}{_origin(end.local_rank, end.exitcode, story)}{last_word}"


def _raised(failure: ProcessFailure) -> str:
    """Return the recorded exception of a rank in one line: ``ValueError: the 7th shard is empty``."""
    if (fault := _fault(failure)) is not None:
        return shortened(fault, _LONGEST_CAUSE)
    if failure.error_file_data.get("message") == "<NONE>":
        return "an exception without a readable record"
    message = failure.message.get("message") if isinstance(failure.message, dict) else failure.message
    return shortened(clean(str(message))[0], _LONGEST_CAUSE) or "an exception"
