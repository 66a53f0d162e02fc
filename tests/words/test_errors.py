"""Errors: what they say, and that they arrive whole in another process."""

import copy
import pickle
import signal

import pytest

from supervise.errors import (
    ChildFailedError,
    GangFailed,
    SignalException,
    SpawnError,
    SpecError,
    SuperviseError,
    SupervisorCrashed,
    UnkillableError,
)
from supervise.result import ProcessFailure, RankEnd, RunProcsResult

NOWHERE = "/proc/nonexistent/error.json"


def failure(local_rank: int, exitcode: int, timestamp: int) -> ProcessFailure:
    made = ProcessFailure(local_rank, 100 + local_rank, exitcode, NOWHERE)
    made.timestamp = timestamp
    return made


EXAMPLES = [
    SuperviseError("x"),
    SpecError("x"),
    SpawnError("the argument cannot be pickled", local_rank=3),
    UnkillableError({1: 4711}, {1: "D"}),
    SupervisorCrashed("on_receive failed"),
    GangFailed(RunProcsResult({}, {0: failure(0, 1, 5)}, {0: ""}, {0: ""}, "failed")),
    SignalException("got it", sigval=signal.SIGTERM),
    ChildFailedError("trainer", {0: failure(0, 1, 5), 1: failure(1, -9, 6)}),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_survives_pickling_with_its_attributes(error, protocol):
    back = pickle.loads(pickle.dumps(error, protocol))
    assert (type(back), str(back), back.args, vars(back)) == (type(error), str(error), error.args, vars(error))


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_every_error_can_be_copied_with_its_notes(error):
    noted = copy.copy(error)
    noted.add_note("seen on host 7")
    assert pickle.loads(pickle.dumps(noted)).__notes__ == ["seen on host 7"]


def test_a_subclass_with_another_signature_survives_pickling():
    back = pickle.loads(pickle.dumps(Derived()))
    assert (back.sigval, back.extra, str(back)) == (signal.SIGINT, 7, "derived")


class Derived(SignalException):
    def __init__(self) -> None:
        super().__init__("derived", signal.SIGINT)
        self.extra = 7


def test_the_tree_is_the_one_that_is_drawn():
    for cls in (SpecError, SpawnError, UnkillableError, SupervisorCrashed):
        assert issubclass(cls, SuperviseError)
    assert issubclass(SpecError, RuntimeError)  # what PyTorch raises for bad rank maps
    for cls in (ChildFailedError, SignalException):
        assert issubclass(cls, Exception)
        assert not issubclass(cls, SuperviseError)


def test_errors_name_the_culprit():
    assert str(SpawnError("too big", local_rank=3)) == "rank 3 did not start: too big"
    text = str(UnkillableError({2: 11, 5: 12}, {2: "D"}))
    assert text == "not gone after SIGKILL: rank 2 (pid 11, state D), rank 5 (pid 12, state unknown)"


def test_the_first_failure_is_the_smallest_timestamp():
    error = ChildFailedError("x", {0: failure(0, 1, 9), 1: failure(1, 1, 7), 2: failure(2, 1, 8)})
    assert error.get_first_failure() == (1, error.failures[1])


def test_among_equal_timestamps_the_first_key_is_first():
    error = ChildFailedError("x", {4: failure(4, 1, 7), 1: failure(1, 1, 7)})
    assert error.get_first_failure()[0] == 4


def test_no_failures_is_a_programming_error():
    with pytest.raises(AssertionError):
        ChildFailedError("x", {})


def test_the_block_of_text_is_torchruns(monkeypatch):
    monkeypatch.setattr("socket.getfqdn", lambda: "node7")
    monkeypatch.setattr(ProcessFailure, "timestamp_isoformat", lambda self: f"at {self.timestamp}")
    raised = failure(0, 1, 6)
    raised.message = {"message": "E: m", "extraInfo": {"py_callstack": "Traceback\n  frame\nE: m\n", "timestamp": "6"}}
    error = ChildFailedError("trainer", {8: raised, 9: failure(1, -11, 5)})
    assert str(error) == "\n".join(
        [
            "",
            "=" * 53,
            "trainer FAILED",
            "-" * 53,
            "Failures:",
            "[0]:",
            "  time      : at 6",
            "  host      : node7",
            "  rank      : 8 (local_rank: 0)",
            "  exitcode  : 1 (pid: 100) ",
            "  error_file: <N/A>",
            "  traceback : Traceback",
            "    frame",
            "  E: m",
            "  ",
            "-" * 53,
            "Root Cause (first observed failure):",
            "[1]:",
            "  time      : at 5",
            "  host      : node7",
            "  rank      : 9 (local_rank: 1)",
            "  exitcode  : -11 (pid: 101)  (SIGSEGV)",
            "  error_file: <N/A>",
            "  traceback : Signal 11 (SIGSEGV) received by PID 101",
            "=" * 53,
        ]
    )


def test_a_single_failure_says_that_there_is_no_other():
    error = ChildFailedError("trainer", {0: failure(0, 1, 6)})
    text = error.format_msg(boarder_delim="*", section_delim="+")
    lines = text.split("\n")
    assert (lines[1], lines[3], lines[5]) == ("*" * 60, "+" * 60, "  <NO_OTHER_FAILURES>")


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ({"message": "m", "extraInfo": {}}, "m"),
        ({"message": "m", "extraInfo": "foreign"}, "m"),
        ({}, "<N/A>"),
        ({"extraInfo": {"py_callstack": 7}}, "7"),
        ("a text of\ntwo lines", "a text of\ntwo lines"),
    ],
)
def test_a_record_with_holes_is_shown_as_far_as_it_goes(message, shown):
    odd = failure(0, 1, 6)
    odd.message = message
    assert f"  traceback : {shown}\n" in str(ChildFailedError("x", {0: odd}))


@pytest.mark.parametrize(("others", "rows", "rest"), [(10, 10, 0), (11, 9, 2)])
def test_ten_kinds_of_ends_are_shown_and_of_more_the_first_nine(others, rows, rest):
    """Ranks with the same end share a row; the row about the rest names the place of the others."""
    codes = dict(enumerate(range(1, others + 2)))
    failures = {rank: failure(rank, code, 5 + rank) for rank, code in codes.items()}
    ends = {
        rank: RankEnd(
            local_rank=rank,
            pid=100 + rank,
            exitcode=code,
            role="concurrent_failure" if rank else "root_cause",
            started_ns=1,
            ended_ns=2,
        )
        for rank, code in codes.items()
    }
    text = str(GangFailed(RunProcsResult({}, failures, {}, {}, "failed", ends=ends)))
    assert text.count("failed too: exit code ") == rows
    assert (f"{rest} other ends; see the ends of the result" in text) is bool(rest)
    assert ("other ends" in text) is bool(rest)


def test_the_report_of_a_gang_over_several_hosts_takes_no_rank_for_that_of_another_host():
    """The SIGTERM of rank 1 came from an operator; that of rank 3, which is local rank 1 of host 1, from supervise."""
    ends = {
        rank: RankEnd(
            local_rank=rank % 2,
            pid=100 + rank,
            exitcode=-15,
            role="root_cause" if rank == 1 else "bystander",
            started_ns=1,
            ended_ns=2,
            host=f"h{rank // 2}",
        )
        for rank in range(4)
    }
    text = str(GangFailed(RunProcsResult({}, {1: failure(1, -15, 5)}, {}, {}, "failed", ends=ends)))
    assert text.startswith("rank 1 of 4 failed: SIGTERM (")
    assert text.endswith("  ranks 0, 2-3: stopped by SIGTERM (sent by supervise)")
