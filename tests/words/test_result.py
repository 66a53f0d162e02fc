"""Results: what an error file is made into, and who is the root cause."""

import json
import os
import pickle
import time

import pytest

from supervise.result import ProcessFailure, RankEnd, RunProcsResult

NO_TRACEBACK = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
TRAITS = {"category": "system_terminated_error", "retryability": "False"}
RECORD = {"message": {"message": "E: m", "extraInfo": {"py_callstack": "tb", "timestamp": "7"}}}
MTIME_NS = 1_700_000_000_123_456_789


@pytest.fixture
def error_file(tmp_path):
    path = tmp_path / "error.json"

    def write(content: object) -> str:
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        os.utime(path, ns=(MTIME_NS, MTIME_NS))
        return str(path)

    return write


def end(local_rank: int, role: str) -> RankEnd:
    return RankEnd(local_rank=local_rank, pid=9, exitcode=1, role=role, started_ns=1, ended_ns=2)  # type: ignore[arg-type]


def test_without_a_file_an_exit_code_gets_pytorchs_text():
    before = time.time_ns()
    failure = ProcessFailure(0, 11, 138, "/proc/nonexistent/error.json")
    assert (failure.error_file, failure.message) == ("<N/A>", NO_TRACEBACK)
    assert failure.error_file_data == {"message": "<NONE>", "errorTraits": TRAITS}
    assert before <= failure.timestamp_ns <= time.time_ns()
    assert failure.timestamp == failure.timestamp_ns // 10**9


def test_without_a_file_a_signal_is_named():
    failure = ProcessFailure(0, 11, -11, "")
    assert failure.message == "Signal 11 (SIGSEGV) received by PID 11"
    assert failure.error_file_data == {"message": "<NONE>"}
    assert failure.signal_name() == "SIGSEGV"


def test_failures_do_not_share_their_data():
    exited, signaled = ProcessFailure(0, 1, 1, ""), ProcessFailure(1, 2, -9, "")
    exited.error_file_data["mine"] = True
    assert signaled.error_file_data == {"message": "<NONE>"}


@pytest.mark.parametrize(("exitcode", "name"), [(0, "<N/A>"), (9, "<N/A>"), (-9, "SIGKILL"), (-999, "<N/A>")])
def test_signal_names(exitcode, name):
    assert ProcessFailure(0, 1, exitcode, "").signal_name() == name


@pytest.mark.parametrize("timestamp", ["7", 7, 7.9, "7.9"], ids=repr)
def test_a_record_gives_message_and_time(error_file, timestamp):
    record = {"message": {"message": "E: m", "extraInfo": {"py_callstack": "tb", "timestamp": timestamp}}}
    path = error_file(record)
    failure = ProcessFailure(0, 1, 1, path)
    assert (failure.error_file, failure.error_file_data, failure.message) == (path, record, record["message"])
    assert (failure.timestamp, failure.timestamp_ns) == (7, MTIME_NS)


@pytest.mark.parametrize(("record", "timestamp"), [({"message": "x"}, 0), ({"message": "x", "timestamp": "5"}, 5)])
def test_a_message_may_be_a_string(error_file, record, timestamp):
    failure = ProcessFailure(0, 1, -9, error_file(record))
    assert (failure.message, failure.timestamp, failure.error_file_data) == ("x", timestamp, record)


def test_an_empty_message_gets_the_usual_text(error_file):
    path = error_file({"message": "", "timestamp": 5})
    assert ProcessFailure(0, 1, -9, path).message == "Signal 9 (SIGKILL) received by PID 1"
    exited = ProcessFailure(0, 1, 1, path)
    assert exited.message == NO_TRACEBACK
    assert exited.error_file_data == {"message": "", "timestamp": 5, "errorTraits": TRAITS}


BAD = {
    "empty": b"",
    "blank": b"\n",
    "torn": b'{"message": {"mess',
    "binary": b"\xff\xfe\x00\x01\x80",
    "list": b"[]",
    "number": b"1e999",
    "no message": b"{}",
    "null message": b'{"message": null}',
    "no extraInfo": b'{"message": {}}',
    "odd extraInfo": b'{"message": {"extraInfo": 3}}',
    "no timestamp": b'{"message": {"extraInfo": {}}}',
    "odd timestamp": b'{"message": "x", "timestamp": "soon"}',
    "list timestamp": b'{"message": "x", "timestamp": [1]}',
    "nan": b'{"message": "x", "timestamp": NaN}',
    "infinite": b'{"message": "x", "timestamp": 1e999}',
    "too deep": b"[" * 200_000,
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_bad_file_is_an_ordinary_failure_that_says_so(error_file, content):
    path = error_file(content)
    exited, signaled = ProcessFailure(0, 11, 3, path), ProcessFailure(0, 11, -9, path)
    start = f"error file {path} could not be read: "
    assert exited.message.startswith(start)
    assert exited.message.endswith("; exit code 3")
    assert len(exited.message) < len(start) + 200
    assert signaled.message.startswith(start)
    assert signaled.message.endswith("; Signal 9 (SIGKILL) received by PID 11")
    assert exited.error_file == path
    assert exited.error_file_data == {"message": "<NONE>", "errorTraits": TRAITS}
    assert signaled.error_file_data == {"message": "<NONE>"}
    assert (exited.timestamp, exited.timestamp_ns) == (MTIME_NS // 10**9, MTIME_NS)


def test_a_file_that_may_not_be_read_says_so(error_file, system_call):
    path = error_file(RECORD)

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied", path)

    system_call("open", refuse)
    failure = ProcessFailure(0, 1, 1, path)
    assert failure.message == f"error file {path} could not be read: Permission denied; exit code 1"


@pytest.mark.parametrize("odd", [os.devnull, "/", "nul\0character"])
def test_what_is_no_regular_file_is_no_error_file(odd):
    assert ProcessFailure(0, 1, 1, odd).error_file == "<N/A>"


def test_of_tells_what_the_exit_code_does_not():
    failure = ProcessFailure.of(
        1, 11, 0, "", message="exited with code 0 without a return value", timestamp_ns=MTIME_NS
    )
    assert failure.message == "exited with code 0 without a return value"
    assert (failure.local_rank, failure.pid, failure.exitcode, failure.error_file) == (1, 11, 0, "<N/A>")
    assert (failure.timestamp, failure.timestamp_ns) == (MTIME_NS // 10**9, MTIME_NS)


def test_of_with_a_record_is_the_record(error_file):
    path = error_file(RECORD)
    assert ProcessFailure.of(1, 11, 1, path, message="exited", timestamp_ns=5) == ProcessFailure(1, 11, 1, path)
    assert ProcessFailure.of(1, 11, 1, path, message="exited", timestamp_ns=5).timestamp_ns == MTIME_NS


def test_of_with_a_torn_file_says_both(error_file):
    path = error_file(b"")
    failure = ProcessFailure.of(1, 11, 1, path, message="exit status lost")
    assert failure.message == f"exit status lost; error file {path} could not be read: the file is empty"
    assert failure.error_file == path


def test_of_without_a_message_is_the_usual_text():
    assert ProcessFailure.of(1, 11, 1, "", message="").message == NO_TRACEBACK


def test_the_time_is_shown_like_torchruns(error_file):
    failure = ProcessFailure(0, 1, 1, "")
    failure.timestamp = 1_700_000_000
    assert failure.timestamp_isoformat() == time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(1_700_000_000))
    failure.timestamp = 10**40
    assert failure.timestamp_isoformat() == "<N/A>"


def test_failures_are_compared_by_pytorchs_fields():
    a, b = ProcessFailure(0, 1, 1, ""), ProcessFailure(0, 1, 1, "")
    b.timestamp = a.timestamp
    b.timestamp_ns = a.timestamp_ns + 1
    assert a == b
    assert "timestamp_ns" not in repr(a)
    assert pickle.loads(pickle.dumps(b)).timestamp_ns == b.timestamp_ns


def test_a_result_is_failed_when_it_has_failures():
    assert not RunProcsResult().is_failed()
    assert RunProcsResult(failures={0: ProcessFailure(0, 1, 1, "")}).is_failed()


def test_results_are_compared_by_pytorchs_fields_and_pickled_whole():
    result = RunProcsResult({0: 1}, {}, {0: ""}, {0: ""}, outcome="stopped", ends={0: end(0, "bystander")})
    assert result == RunProcsResult({0: 1}, {}, {0: ""}, {0: ""})
    back = pickle.loads(pickle.dumps(result))
    assert (back, back.outcome, back.ends) == (result, "stopped", result.ends)
    assert result != RunProcsResult({0: 2}, {}, {0: ""}, {0: ""})


def test_the_root_cause_is_the_rank_with_that_role():
    failures = {0: ProcessFailure.of(0, 1, 1, "", message="", timestamp_ns=1), 1: ProcessFailure(1, 1, 1, "")}
    ends = {0: end(0, "concurrent_failure"), 1: end(1, "root_cause")}
    assert RunProcsResult(failures=failures, ends=ends).root_cause == 1


def test_without_roles_the_root_cause_is_the_earliest_failure():
    failures = {rank: ProcessFailure.of(rank, 1, 1, "", message="", timestamp_ns=9 - rank) for rank in range(3)}
    assert RunProcsResult(failures=failures).root_cause == 2
    assert RunProcsResult().root_cause is None


def test_a_gang_that_was_stopped_has_no_root_cause():
    result = RunProcsResult(
        failures={0: ProcessFailure(0, 1, -15, "")}, ends={0: end(0, "bystander")}, outcome="stopped"
    )
    assert result.root_cause is None
