"""The report on a gang that did not succeed, from its result and from facts that the result lacks."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from signal import SIGINT, SIGKILL, SIGTERM, Signals
from typing import TYPE_CHECKING, Any

from supervise._files import last_lines, no_room
from supervise._printable import OUT_OF_MEMORY, ending, one_line, printable
from supervise._record import field, record, replace
from supervise._story.wording import at_step, counted, seconds, shortened, spans
from supervise.result import FAULTS, LINGERED, ProcessFailure, RankEnd, RunProcsResult, lost_with

if TYPE_CHECKING:
    from collections.abc import Callable


ERRNO = r"\[Errno \d+\] "
_SIGNALS = frozenset(Signals)
_STOPS = frozenset({SIGINT, SIGKILL, SIGTERM})


def unlaunched(why: str) -> str:
    """Return why a life of a rank could not be launched, as a message."""
    return f"could not be started: {re.sub(ERRNO, '', why)}"


@record(frozen=False, eq=False)
class Story:
    """Facts about a run that its result does not have."""

    nproc: int
    hosts: int = 1
    """Number of hosts. All hosts have the same number of ranks."""
    host: int = 0
    """Number of this host, from 0."""
    titles: tuple[str, ...] = ()
    """Role and role rank of each local rank; empty if all have the same role."""
    timeout_s: float | None = None
    stacks: str = ""
    """The file with the stacks of the last hang; empty: none."""
    directory: str | None = None
    """The run directory; None: no files."""
    of_command: bool = True
    """Whether `supervise run` has started the gang, so that the report names its options; otherwise Python code has."""
    by_command: bool = False
    """Whether a command, ``supervise stop``, has stopped the run. Then `user_signal` is the signal of that command."""
    user_signal: Signals | None = None
    """The signal with which the user stopped the run."""
    cut_short: bool = False
    """Whether a stop or the timeout ended a gang that would have gone on after its failure, without a restart."""
    interrupted: int | None = None
    """The local rank that had the terminal, ended at Ctrl-C, and so stopped the run."""
    killed: bool = False
    """Whether the user sent a second signal."""
    used_up: bool = False
    """Whether the policy permitted no restart after the last failure, even if the user then stopped the run."""
    restarts: int = 0
    """Number of attempts before the present one; if only single ranks restart, the number of restarts that count."""
    failures: int = 0
    """Number of failures that used up the permitted restarts before any restart took place; 0: they did not."""
    waiting: str | None = None
    """The restart that is pending, or that a stop has canceled, such as ``restart 1 of 3``."""
    unlaunched: dict[int, tuple[int | None, str]] = field(default_factory=dict)
    """Local rank to the errno and the error because of which its present life could not be launched."""
    sent: dict[int, dict[Signals, int]] = field(default_factory=dict)
    """Local rank to the signals that supervise sent to stop it, in their order. Each signal to the monotonic ns."""
    passed_on: dict[int, list[Signals]] = field(default_factory=dict)
    """Local rank to the signals that supervise passed on: SIGUSR1, SIGUSR2."""
    halted: bool = False
    """Whether `--halt-on-broken-pipe` has stopped the run."""
    advice: str = ""
    """A sentence about a usual cause of the failure, and its remedy."""
    stderr_shown: frozenset[int] = frozenset()
    """Ranks whose stderr was both shown and written."""


def of_result(result: RunProcsResult, *, timeout_s: float | None = None) -> Story:
    """Return the facts that a result has about a gang that Python code has started.

    A result does not have the signals that supervise has sent. If supervise stopped a rank and a signal ended the rank,
    this function assumes that supervise has sent that signal. It assumes the same of a SIGTERM, SIGINT or SIGKILL that
    ended a rank after the rank had recorded an exception.

    Args:
        result: The result of the gang.
        timeout_s: The timeout of the gang in seconds; None if it is not known.
    """
    raised = {rank for rank, failure in result.failures.items() if isinstance(failure.message, dict)}
    ended = {
        rank: -(end.exitcode or 0)
        for rank, end in result.ends.items()
        if end.role == "bystander" or (-(end.exitcode or 0) in _STOPS and rank in raised)
    }
    logs = [log for log in (*result.stdouts.values(), *result.stderrs.values()) if log and log != os.devnull]
    return Story(
        nproc=max((*result.stdouts, *result.ends, *result.failures), default=-1) + 1,
        timeout_s=timeout_s,
        directory=os.path.commonpath(map(os.path.dirname, logs)) if logs else None,
        of_command=False,
        restarts=sum(restart.counted for restart in result.restarts),
        sent={rank: {Signals(number): 0} for rank, number in ended.items() if number in _SIGNALS},
    )


def stopped_by_us(rank: int, exitcode: int | None, story: Story) -> bool:
    """Return whether a signal of supervise ended a rank. Such a rank is a cause only if it recorded an exception."""
    return exitcode is not None and -exitcode in story.sent.get(rank, ())


# The recorded texts of a failure, as a report shows them: cleaned, shortened, without the frames of supervise


WHY_LINES = 20
_WHY_HEAD = 3
_LINE_CHARS = 300
_LINE_END_CHARS = 100
_HEAD = "Traceback (most recent call last):"
_FRAME = r'[ |]*  File "(?P<path>[^"]*)", line \d+'
_OUR_FILES = r"/supervise/(recording|ray/calls|_process/launch/\w+)\.py$|/cloudpickle/\w+\.py$|^<frozen runpy>$"
"""The files that import the main module of a rank, call its function and pickle its value: of supervise, runpy and
cloudpickle."""


def recorded(message: str | dict[str, Any]) -> str | None:
    """Return the traceback or the message of an error file; None if there is no record."""
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo")
    trace = extra.get("py_callstack") if isinstance(extra, dict) else None
    return str(trace or message.get("message", ""))


def traceback_of(failure: ProcessFailure) -> str:
    """Return the traceback that a rank has recorded, without the frames of supervise at its beginning; "" if none."""
    text = recorded(failure.message) or ""
    return "\n".join(without_our_frames(printable(text.rstrip()).split("\n"))) if "Traceback (" in text else ""


def without_our_frames(rows: list[str]) -> list[str]:
    """Remove the frames of supervise at the beginning of a traceback, and of each chained exception in it."""
    kept: list[str] = []
    leading = ours = False
    for row in rows:
        frame = re.match(_FRAME, row)
        if row.endswith(_HEAD):
            leading, ours = True, False
        elif frame is not None:
            ours = leading and re.search(_OUR_FILES, frame["path"]) is not None
            leading = ours
        elif not row.lstrip(" |").startswith(" ") and not row.startswith(("    ", "  |     ")):
            leading = ours = False  # the line of the exception
        if not ours:
            kept.append(row)
    return [row for row, after in pairwise([*kept, ""]) if not row.endswith(_HEAD) or re.match(_FRAME, after)]


def clean(text: str) -> list[str]:
    """Return the lines of a recorded text without control sequences, each of limited length."""
    return [_clipped(row.expandtabs()) for row in printable(text.rstrip()).split("\n")]


def clean_output(text: str) -> list[str]:
    """Return the lines of the output of a rank, as `clean` does; of a progress bar the last state.

    The line below the frames of a traceback is the exception, and no progress bar.
    """
    rows: list[str] = []
    traceback = False
    for row in text.rstrip().split("\n"):
        rows += clean(row if traceback and not row.startswith(" ") else row.rstrip("\r").rpartition("\r")[2])
        traceback = re.match(_FRAME, row) is not None or (traceback and row.startswith(" "))
    return rows


def end_of_output(text: str) -> list[str]:
    """Return the last lines of the output of a rank, as `clean_output` does, up to the last that is not blank."""
    rows = clean_output(text)
    while rows and not rows[-1].strip():  # of control sequences alone
        rows.pop()
    return rows[-WHY_LINES:]


def _clipped(row: str) -> str:
    """Return the beginning and the end of a long line: a command with its exit status, or many dots with an error."""
    left_out, begin = len(row) - _LINE_CHARS, _LINE_CHARS - _LINE_END_CHARS
    return row if left_out <= 0 else f"{row[:begin]} ... ({left_out} more characters) ... {row[-_LINE_END_CHARS:]}"


def first_and_last(rows: list[str], where: str, exception: str = "") -> list[str]:
    """Return `rows`; of too many rows, return only the first and the last, and the one that ends in `exception`.

    A line between them has the number of the rows that are left out, and `where` these are.
    """
    left_out = len(rows) - WHY_LINES
    if left_out <= 1:
        return rows
    begin = len(rows) - (WHY_LINES - _WHY_HEAD)
    raised = [row for row in rows[_WHY_HEAD:begin] if exception and row.endswith(exception)][-1:]
    return [*rows[:_WHY_HEAD], f"  ... {left_out} more lines {where}", *raised, *["  ..."] * len(raised), *rows[begin:]]


# The report on a gang that did not succeed: the root cause, the ends of the other ranks, the folder of the logs


_NO_READER = "no program reads the output (--halt-on-broken-pipe)"
_ROWS = 10
_LONGEST_CAUSE = 120
_FEW = 2
"""Up to this number of finished ranks, the report says of each how long before the failure it finished."""
_EARLY_S = 0.1


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
    if root is None:
        head, why = _stopped(result, story), []
    else:
        logs = result.stdouts.get(root), result.stderrs.get(root)
        head, *why = _failed(root, result.failures[root], result.ends.get(root), logs, story)
    shown = [f"{paint('supervise:', '1')} {paint(one_line(head), '1;31')}"]
    if why:
        shown += ["", *(f"  {one_line(line)}".rstrip() for line in why), ""]
    if story.advice and root is not None:
        shown.append(f"  {paint('note:', '1')} {one_line(story.advice)}")
    for who, how in _rows(result, story, root):
        name = spans(who, story.titles, local=story.hosts > 1)
        shown.append(f"  {paint(f'{one_line(name)}:', '1')} {how}")
    if story.stacks and root is not None:
        shown.append(f"  {paint('stacks:', '1')} {one_line(story.stacks)}")
    if story.directory is not None:
        shown.append(f"  {paint('logs:', '1')} {one_line(story.directory)}")
    return shown


def of_rank(failure: ProcessFailure, end: RankEnd, story: Story) -> list[str]:
    """Return the lines of the report about how and why a rank failed, as if its failure had ended the gang."""
    head, *why = _failed(end.local_rank, failure, end, (end.stdout_log, end.stderr_log), story)
    return [head, *(f"  {line}".rstrip() for line in why)]


def _failed(
    rank: int, failure: ProcessFailure, end: RankEnd | None, logs: tuple[str | None, str | None], story: Story
) -> list[str]:
    """Return the first line of the report about a failed rank, and the lines of the reason.

    Args:
        rank: The local rank; with several hosts, the global rank.
        failure: Its failure.
        end: Its end; None if it is not known.
        logs: The paths of its stdout and stderr.
        story: Further facts.
    """
    how = ending(failure.exitcode, core_dumped=end is not None and end.core_dumped)
    how += _origin(rank, failure.exitcode, story)
    if (fault := _fault(failure)) is not None:
        how = fault
    elif stopped_by_us(rank, failure.exitcode, story):
        how = _raised(failure).partition(":")[0]
    process = f"pid {failure.pid}"
    if end is not None:
        how += _memory(end)
        process += f", after {seconds((end.ended_ns - end.started_ns) / 1e9)}" if end.started_ns else ""
    ran = end is None or end.pid is not None  # without a process, the launch has failed
    if not ran:
        how, process = re.sub(ERRNO, "", clean(str(failure.message))[0]), "no process"
    of = f" of {story.nproc * story.hosts}" if story.nproc * story.hosts > 1 else ""
    local = f"local rank {rank}, " if story.hosts > 1 else ""
    local += f"{story.titles[rank]}, " if 0 <= rank < len(story.titles) else ""
    host = (end.host if end is not None else "") or os.uname().nodename
    where = f"host {host}, {local}{process}"
    at = "" if end is None or fault is not None else at_step(end.step, end.status)  # a hang has it
    head = f"rank {story.host * story.nproc + rank}{of} failed{at}: {how} ({where}){_no_restart(story)}"
    return [head, *_why(rank, failure, end, logs, story)]


def _stopped(result: RunProcsResult, story: Story) -> str:
    """Return the first line of the report about a gang that no rank has failed."""
    if result.outcome == "timed_out":
        return f"stopped: {_timeout(story)} exceeded"
    if story.user_signal is not None:
        name = _by_user(story.user_signal, story)
        return f"killed after {name} and a second signal" if story.killed else f"stopped by {name}"
    if story.halted:
        return f"stopped: {_NO_READER}"
    by_request = any(end.role == "terminated" for end in result.ends.values())
    return "stopped by requests to stop its ranks" if by_request else "stopped"


def _timeout(story: Story) -> str:
    name = "--timeout" if story.of_command else "timeout"
    return name if story.timeout_s is None else f"{name} of {seconds(story.timeout_s)}"


def _by_user(sig: Signals, story: Story) -> str:
    if story.by_command:
        return "supervise stop"
    return "SIGINT (Ctrl-C)" if sig == SIGINT else sig.name


def _memory(end: RankEnd) -> str:
    return f", {OUT_OF_MEMORY}" if end.oom_kill else ""


def _no_restart(story: Story) -> str:
    """Return why no restart followed the last failure, or how many restarts came before it."""
    if story.waiting is not None or story.cut_short:
        stopped = _NO_READER if story.halted else f"{_timeout(story)} exceeded"
        if story.user_signal is not None:
            stopped = f"stopped by {_by_user(story.user_signal, story)}"
        return f"; no {story.waiting}: {stopped}" if story.waiting is not None else f"; {stopped}"
    if story.restarts and (story.user_signal is None or story.used_up):
        # A result does not say whether the policy or the timeout of the gang permitted no further restart
        verb = "gave up after" if story.used_up else "after"
        return f"; {verb} {counted(story.restarts, 'restart')}"
    return f"; no restart is left after {story.failures} failures" if story.failures else ""


def _origin(rank: int, exitcode: int | None, story: Story) -> str:
    """Return a note if supervise passed on the signal that killed a rank."""
    return " (passed on by supervise)" if exitcode and -exitcode in story.passed_on.get(rank, ()) else ""


# Why


def _why(
    rank: int, failure: ProcessFailure, end: RankEnd | None, logs: tuple[str | None, str | None], story: Story
) -> list[str]:
    """Return the reason of a failure in some twenty lines; none if the stderr of the rank was just shown."""
    lost = lost_with(failure) is not None
    ran = end is None or end.pid is not None
    if lost or not ran:  # the first line of the report has the first line of the reason if the rank did not run
        return clean(str(failure.message))[0 if ran else 1 :] if lost else []
    record = recorded(failure.message)
    alone = story.nproc == 1 and rank in story.stderr_shown and (end is None or _was_shown(end.stderr_tail))
    if record is not None:
        rows = clean(record)
        if alone and end is not None and rows[-1] in clean_output(end.stderr_tail):
            return []
        return first_and_last(without_our_frames(rows), f"in {failure.error_file}", _exception(failure))
    said = first_and_last(clean(str(failure.message)), f"in {failure.error_file}") if _tells_more(failure) else []
    stream = "output" if logs[1] and logs[1] != os.devnull and logs[0] == logs[1] else "stderr"  # or both in one log
    if end is None or not end.stderr_tail.strip():
        return [*said, *_nothing_in(logs[1], stream, story), *_stdout(end, story)]
    if alone:
        return said
    cut = ", cut off because its disk is full" if no_room(end.stderr_log) else ""
    shown = [f"  {line}" for line in end_of_output(end.stderr_tail)]
    return [*said, f"the end of its {stream}{cut}:", *shown]


def _was_shown(text: str) -> bool:
    """Return whether the screen has the lines of a report: of a line with carriage returns, it has the last part."""
    return len(clean_output(text)) == text.rstrip().count("\n") + 1


def _stdout(end: RankEnd | None, story: Story) -> list[str]:
    """Return the end of the stdout of a rank that wrote nothing to stderr; none if that stdout was just shown."""
    if end is None or end.stdout_log == end.stderr_log or (story.nproc == 1 and story.stderr_shown):
        return []
    rows = end_of_output(last_lines(end.stdout_log, WHY_LINES))
    return ["the end of its stdout:", *(f"  {row}" for row in rows)] if any(rows) else []


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
    return not str(failure.message).startswith(("To enable traceback see:", "Signal ", *FAULTS))


def _fault(failure: ProcessFailure) -> str | None:
    """Return why a rank failed while it ran: ``hung: no output for 30.0 s``; None if the rank failed by its exit."""
    if (lost := lost_with(failure)) is not None:
        return one_line(lost)
    return clean(str(failure.message))[0] if str(failure.message).startswith(FAULTS) else None


# The others


def _rows(result: RunProcsResult, story: Story, root: int | None) -> list[tuple[list[int], str]]:
    """Return rows of ranks and the text of their end. Ranks with equal ends share a row; failures come first."""
    kinds: dict[str, list[int]] = {}
    order = {"concurrent_failure": 0, "lost": 1, "unkillable": 1, "bystander": 2, "finished": 3}
    causes = {rank: at for at, rank in enumerate(result.failures)}  # ordered by time
    finished = [end.local_rank for end in result.ends.values() if end.role == "finished"]
    cause = result.ends.get(-1 if root is None or len(finished) > _FEW else root)
    ends = sorted(
        (end for end in result.ends.values() if end.local_rank != root),
        key=lambda end: (order.get(end.role, 2), causes.get(end.local_rank, len(causes)), end.local_rank),
    )
    for end in ends:
        how = "interrupted at the terminal" if end.local_rank == story.interrupted else _fate(end, result, story)
        if end.pid is None and end.role != "lost":
            _, why = story.unlaunched.get(end.local_rank, (None, ""))
            how = unlaunched(why) if why else "could not be started"
        said = str(getattr(result.failures.get(end.local_rank), "message", ""))
        how = f"{one_line(said)}; {how}" if said.startswith(LINGERED) else how
        if end.role == "finished" and cause is not None and cause.host == end.host:
            how += _before(end, cause)
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


def _before(end: RankEnd, cause: RankEnd) -> str:
    """Return where a rank finished, and how long before the failure: the others may have failed because it had left."""
    early_s = (cause.ended_ns - end.ended_ns) / 1e9
    return "" if early_s < _EARLY_S else f"{at_step(end.step, end.status)}, {seconds(early_s)} before"


def _fate(end: RankEnd, result: RunProcsResult, story: Story) -> str:
    how = ending(end.exitcode, core_dumped=end.core_dumped)
    sent = story.sent.get(end.local_rank, {})
    if end.role == "concurrent_failure":
        return f"failed too: {_cause(end, how, result.failures.get(end.local_rank), story)}{_memory(end)}"
    if end.role in ("lost", "unkillable"):
        failure = result.failures.get(end.local_rank) if end.role == "lost" else None
        return "survived SIGKILL" if end.role == "unkillable" else (failure and lost_with(failure)) or "lost"
    if end.role == "finished":
        return "finished" if end.exitcode == 0 else how
    if end.exitcode == -SIGKILL and SIGKILL in sent:
        first = next(iter(sent))
        late = "" if first == SIGKILL else f", {seconds((sent[SIGKILL] - sent[first]) / 1e9)} after {first.name}"
        return f"killed by SIGKILL (sent by supervise{late})"
    if end.exitcode is not None and -end.exitcode in sent:
        return f"stopped by {how} (sent by supervise)"
    return f"{how} after {next(iter(sent)).name} from supervise" if sent else f"{how}, stopped by supervise"


def _cause(end: RankEnd, how: str, failure: ProcessFailure | None, story: Story) -> str:
    if failure is not None and stopped_by_us(end.local_rank, end.exitcode, story):
        return _raised(failure)
    last_word = ""
    if failure is not None and recorded(failure.message):
        last_word = f": {_raised(failure)}"
    elif failure is not None and end.exitcode == 0 and _tells_more(failure):
        last_word = f": {shortened(clean(str(failure.message))[0], _LONGEST_CAUSE)}"
    return f"{how}{_origin(end.local_rank, end.exitcode, story)}{last_word}"


def _raised(failure: ProcessFailure) -> str:
    """Return the recorded exception of a rank in one line: ``ValueError: the 7th shard is empty``."""
    if (fault := _fault(failure)) is not None:
        return shortened(fault, _LONGEST_CAUSE)
    if failure.error_file_data.get("message") == "<NONE>":
        return "an exception without a readable record"
    return shortened(_exception(failure).removesuffix(":"), _LONGEST_CAUSE) or "an exception"


def _exception(failure: ProcessFailure) -> str:
    """Return the first line of the recorded message of a rank, which has the type of the exception."""
    return clean(str(failure.message.get("message") if isinstance(failure.message, dict) else failure.message))[0]
