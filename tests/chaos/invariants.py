"""What must be true of a gang that has ended, whatever was done to it."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pykka

from supervise import (
    Close,
    GangFinished,
    Poll,
    ProcessFailure,
    RestartRanks,
    RunProcsResult,
    Signal,
    SpawnError,
    SpecError,
    Start,
    SuperviseError,
    SupervisorCrashed,
    TerminateRanks,
    Wait,
    WorkerExited,
)
from tests.chaos import lives, scripts
from tests.chaos.case import Case, settle

_AFTER_THE_END = {"supervise.process.signaled", "supervise.process.unkillable", "supervise.process.leaked"}
"""What may be told behind `gang.finished`: what a close does about what the ranks have left behind."""


def violations(case: Case) -> list[str]:
    """Return everything that is wrong with a gang that was closed and stopped."""
    results = _results(case)[:1]
    found = [*_answers(case), *_events(case), *_subscribers(case), *lives.violations(case, *(results or [None]))]
    for result in results:
        for look in (_verdict, _blame, _codes, _logs, _values):
            found += look(case, result)
    return found


def _results(case: Case) -> list[RunProcsResult]:
    """Every result that anybody was given, in the order of the questions."""
    answers = [settle(asked, 0) for asked in case.asked]
    told = [m.result for recorder, _ in case.recorders for m in recorder.messages if isinstance(m, GangFinished)]
    return [result for result in [*answers, *told] if isinstance(result, RunProcsResult)]


def _answers(case: Case) -> Iterator[str]:
    """E1, K4: every question is answered, with what it may be answered with; all results are the same object."""
    for asked in case.asked:
        answer = settle(asked, 0)
        if isinstance(answer, pykka.Timeout):
            yield f"{asked.what} was never answered"
        elif isinstance(answer, SupervisorCrashed):
            yield f"{asked.what}: the supervisor crashed: {answer}, {answer.__cause__!r}"
        elif isinstance(answer, pykka.ActorDeadError):
            if not asked.after_stop and not case.stop_asked:
                yield f"{asked.what}: {answer!r}"
        elif isinstance(answer, Exception) and not _may_fail(case, asked.message, answer):
            yield f"{asked.what}: {answer!r}"
    results = {id(result): result for result in _results(case)}
    if len(results) > 1:
        yield f"there are {len(results)} results: {list(results.values())}"
    hopeless = case.spec.kind == "missing" or case.cramped
    if not results and not hopeless and _has_started(case) and not any(asked.after_stop for asked in case.asked):
        yield "nobody was given a result"


def _may_fail(case: Case, message: object, error: Exception) -> bool:  # noqa: PLR0911 - one line a reason
    if isinstance(message, str):  # nonsense, on purpose
        return True
    if isinstance(message, Signal):  # to ranks that there are not
        return isinstance(error, SpecError)
    if isinstance(message, (RestartRanks, TerminateRanks)):
        return isinstance(error, (SuperviseError, OSError))
    if case.spec.kind == "missing" or (case.cramped and not _has_started(case)):
        return isinstance(message, (Start, Wait, Poll, Close)) and isinstance(error, (OSError, SpawnError, SpecError))
    full = case.spec.logs == "full disk" and isinstance(error, OSError)
    if isinstance(message, Start):  # after one that had no descriptor, another one may succeed
        return full or isinstance(error, (SpawnError, SpecError)) or (case.cramped and isinstance(error, OSError))
    if case.spec.ready == "notify" and not _has_started(case):  # a rank has failed before all were ready
        return isinstance(message, (Wait, Poll, Close)) and isinstance(error, SpawnError)
    return not isinstance(message, (Wait, Poll, Close)) and isinstance(error, SpecError)


def _has_started(case: Case) -> bool:
    """Whether the first start has succeeded: then there is a result, whatever happens to later attempts."""
    return any(event["event"] == "supervise.gang.started" for event in case.events)


def _may_leave_children(case: Case) -> bool:
    """Whether a rank may leave processes behind, whose output is shown until they have ended, also after the end.

    On a busy machine, the children of a shell may end some time after it, although SIGKILL was sent to both.
    """
    shells = scripts.WITH_CHILDREN if case.spec.kind == "binary" else {"busy_orphan"}
    return any(script.name in shells for script in case.spec.ranks)


def _events(case: Case) -> Iterator[str]:
    """E3: the sequence has no holes, each start has its exit, and there is one end, which is last."""
    events = case.events
    if [event["seq"] for event in events] != list(range(len(events))):
        yield f"seq has holes: {[event['seq'] for event in events]}"
    times = [event["monotonic_ns"] for event in events]
    if times != sorted(times):
        yield "monotonic_ns goes back"
    names = [event["event"].removeprefix("supervise.") for event in events]
    if names.count("gang.finished") != 1:
        yield f"gang.finished {names.count('gang.finished')} times: {names}"
    else:
        after = events[names.index("gang.finished") + 1 :]
        allowed = _AFTER_THE_END | ({"supervise.log.failed"} if _may_leave_children(case) else set())
        if late := [event["event"] for event in after if event["event"] not in allowed]:
            yield f"after gang.finished came {late}"
    told = Counter((event["event"].rpartition(".")[2], event["attempt"], event.get("local_rank")) for event in events)
    for attempt, rank in {(attempt, rank) for _, attempt, rank in told if rank is not None}:
        starts = told["started", attempt, rank]
        ends = told["exited", attempt, rank] + told["unkillable", attempt, rank]
        if starts > 1 or starts != ends:
            yield f"rank {rank}, attempt {attempt}: {starts} process.started, {ends} process.exited or unkillable"


def _subscribers(case: Case) -> Iterator[str]:
    """Whoever stayed subscribed was told the end, once and last, and each exit once."""
    for recorder, stayed in case.recorders:
        messages = recorder.messages
        ends = [message for message in messages if isinstance(message, GangFinished)]
        if len(ends) > 1 or (stayed and len(ends) != 1):
            yield f"a subscriber was told {len(ends)} times that the gang finished"
        if ends and messages[-1] is not ends[-1]:
            yield f"a subscriber was told {messages[-1]} after the end"
        exits: Counter[tuple[int, int]] = Counter()
        for message in messages:
            if isinstance(message, WorkerExited):
                exits[message.attempt, message.local_rank] += 1
        if any(count > 1 for count in exits.values()):
            yield f"a subscriber was told an exit more than once: {exits}"


def _own_codes(case: Case, rank: int) -> set[int | None]:
    """With which codes a rank may end by itself, or by what the harness did to it."""
    codes: set[int | None] = set(case.spec.ranks[rank].codes(function=case.spec.function))
    for sig in case.hurt.get(rank, ()):
        codes |= _of_signal(sig)
    if case.spec.logs.startswith("full"):
        codes |= {1, 2, 120, 255}
    return codes


def _of_signal(sig: int) -> set[int | None]:
    return {-sig, 128 + sig, 1 if sig == signal.SIGINT else -sig}


def _verdict(case: Case, result: RunProcsResult) -> Iterator[str]:
    """The outcome fits what happened."""
    spec, ends = case.spec, result.ends
    down = {rank for rank, end in ends.items() if end.role in lives.STOPPED_FOR_GOOD and _may_be_down(case, rank)}
    codes = {rank: end.exitcode for rank, end in ends.items() if rank not in down}
    if result.outcome == "succeeded":
        if set(ends) != set(range(len(spec.ranks))) or any(code != 0 for code in codes.values()) or result.failures:
            yield f"succeeded, with exit codes {codes} and failures {sorted(result.failures)}"
        if endless := [rank for rank in codes if spec.ranks[rank].name in scripts.ENDLESS]:
            yield f"succeeded, though ranks {endless} never end"
    elif not (result.is_failed() or (result.outcome == "stopped" and not any(codes.values()))):
        yield f"{result.outcome} without a failure, with exit codes {codes}"
    if result.outcome == "stopped" and not (case.close_asked or case.moved):
        yield "stopped, though nobody asked for it"
    if result.outcome == "timed_out" and spec.timeout is None:
        yield "timed out, without a timeout"
    if result.outcome == "failed" and result.root_cause is None:
        yield "failed, without a root cause"
    roots = [rank for rank, end in ends.items() if end.role == "root_cause"]
    if roots != [result.root_cause] * (result.outcome == "failed"):
        yield f"{result.outcome} with the root cause {result.root_cause}, but the role of {roots}"


def _may_be_down(case: Case, rank: int) -> bool:
    """Whether a rank may have been stopped though the gang has not failed: on request, or as a service."""
    return rank in case.moved or (case.spec.service and rank < case.spec.roles)


def _blame(case: Case, result: RunProcsResult) -> Iterator[str]:
    """Only ranks that we did not stop are to blame."""
    if case.cramped:
        return
    for rank, end in result.ends.items():
        if end.role in ("root_cause", "concurrent_failure"):
            own = _own_codes(case, rank)
            failure = result.failures.get(rank)
            shown = case.spec.logs == "none" and case.spec.ranks[rank].name == "raise"  # there is no error file
            if case.spec.function and failure is not None and (failure.error_file != "<N/A>" or shown):
                own |= {-signal.SIGTERM, -signal.SIGKILL}  # it had recorded its exception, and was on its way out
            if end.role == "root_cause" and case.spec.restarts and case.spec.restart == "permanent":
                own.add(0)
            if _faulted(case, rank, failure) or (end.pid is None and _never_ran(case, failure)):
                continue
            if end.exitcode not in own and not (end.exitcode is None and rank in case.robbed):
                yield f"rank {rank} is blamed ({end.role}) for {end.exitcode}; by itself it ends with {own}"


def _faulted(case: Case, rank: int, failure: ProcessFailure | None) -> bool:
    """Whether a rank is blamed because it hung or was not ready in time: then supervise has stopped it."""
    message = "" if failure is None else str(failure.message)
    hung = message.startswith("hung: ") and case.spec.watchdog == "fail"
    late = message.startswith("was not ready within ") and case.spec.ready == "notify"
    told = any(
        event["event"] == "supervise.process.faulted" and event["local_rank"] == rank and event["message"] == message
        for event in case.events
    )
    return (hung or late) and told


def _never_ran(case: Case, failure: ProcessFailure | None) -> bool:
    """Whether a later life may have failed to start, as where the disk has no room for its files."""
    return case.spec.logs == "full disk" and failure is not None and "could not be started" in str(failure.message)


def _codes(case: Case, result: RunProcsResult) -> Iterator[str]:
    """Every exit code is one that the rank can have ended with."""
    if case.cramped:
        return
    for rank, end in result.ends.items():
        possible = _own_codes(case, rank)
        stopped = case.close_asked or result.outcome != "succeeded" or _may_be_down(case, rank)
        for sig in case.closing_sigs if stopped else ():
            possible |= _of_signal(sig)
        if end.pid is None and _never_ran(case, result.failures.get(rank)):
            continue
        if end.exitcode not in possible and not (end.exitcode is None and rank in case.robbed):
            yield f"rank {rank} ({case.spec.ranks[rank]}) is said to have ended with {end.exitcode}, not {possible}"


def _logs(case: Case, result: RunProcsResult) -> Iterator[str]:
    """The files hold what the ranks wrote, whole where a rank ended by itself."""
    if case.spec.logs not in ("files", "tee") or case.cramped:
        return
    for rank, end in result.ends.items():
        expected = case.spec.ranks[rank].output()
        path = Path(result.stdouts[rank])
        if expected is None or not path.exists():
            continue
        held = path.read_bytes()
        whole = end.exitcode in case.spec.ranks[rank].codes(function=case.spec.function)
        if held != expected if whole and not case.hurt.get(rank) else not expected.startswith(held):
            yield f"rank {rank} (ended with {end.exitcode}) wrote {len(expected)} bytes, its log holds {len(held)}"
    if case.spec.logs == "tee" and case.spec.console == "file":
        yield from _console(case, result)


def _console(case: Case, result: RunProcsResult) -> Iterator[str]:
    """A console that takes everything has shown each line of each rank, in order, and mixed none."""
    if any(event["event"] == "supervise.log.failed" or event["attempt"] for event in case.events):
        return  # a life has lost output, or there are several
    lines = case.console.path.read_bytes().splitlines(keepends=True)
    for rank in result.ends:
        if case.spec.ranks[rank].output() is None or case.spec.ranks[rank].name == "raise":
            continue
        prefix = f"[{case.spec.title(rank) or f'{case.name}{rank}'}]:".encode()
        shown = b"".join(line.removeprefix(prefix) for line in lines if line.startswith(prefix))
        logged = Path(result.stdouts[rank]).read_bytes() + Path(result.stderrs[rank]).read_bytes()
        if sorted(shown.split()) != sorted(logged.split()):
            yield f"rank {rank}: the console shows {len(shown)} bytes of the {len(logged)} in its logs"


def _values(case: Case, result: RunProcsResult) -> Iterator[str]:
    """A gang of functions that succeeded has all their values."""
    downs = [end for end in result.ends.values() if end.role in lives.STOPPED_FOR_GOOD]
    if result.outcome == "succeeded" and not downs:
        right: dict[int, Any] = dict.fromkeys(range(len(case.spec.ranks)))
        if case.spec.function:
            right = {rank: script.value() for rank, script in enumerate(case.spec.ranks)}
        if result.return_values != right:
            yield f"the values are {result.return_values}, not {right}"
