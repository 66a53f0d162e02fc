"""Each request of the control protocol, and what is refused."""

import contextlib
import json
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervise._control.protocol import MOST_LINE_BYTES, Refusal, answer_line, parse
from supervise._control.requests import message_of
from tests.control.raw import Raw, served
from tests.patience import PATIENCE_S


def test_each_request_has_its_result(gang, path):
    """All on one connection; the ``id`` comes back."""
    with Raw(path) as client:
        client.ask("status", id="first")
        reply = client.hear()
        assert (reply["version"], reply["id"], reply["ok"]) == (1, "first", True)
        assert (reply["result"]["phase"], reply["result"]["running"]) == ("running", [0, 1])
        assert reply["result"]["ranks"]["1"]["state"] == "ready"
        pids = {str(rank): process.pid for rank, process in gang.processes.items()}
        client.ask("pids", id=7)
        assert client.hear() == {"version": 1, "id": 7, "ok": True, "result": {"pids": pids}}
        client.ask("signal", signal="URG", ranks=[1])
        assert client.result() == {"ranks": [1]}
        gang.processes[1].wait_for_signal(signal.SIGURG)  # the Worker sends it behind the reply
        assert gang.processes[0].signals == []
        client.ask("signal", signal=int(signal.SIGCONT))
        assert client.result() == {"ranks": [0, 1]}
        client.ask("wait", timeout=0)
        assert client.result()["finished"] is False
        client.ask("stop", signal="SIGINT", timeout=PATIENCE_S)
        end = {"finished": True, "outcome": "stopped", "root_cause": None, "exit_codes": {"0": -2, "1": -2}}
        assert client.result() == end
        client.ask("wait")
        assert client.result() == end


def test_a_wait_and_later_requests_of_one_client_do_not_wait_for_each_other(gang, path):
    """Replies come as they are ready, so that ``id`` tells which is which."""
    with Raw(path) as client:
        client.ask("wait", id="end")
        client.ask("pids", id="now")
        assert client.hear()["id"] == "now"
        gang.processes[0].exit(3)
        reply = client.hear()
        assert (reply["id"], reply["result"]["outcome"], reply["result"]["root_cause"]) == ("end", "failed", 0)
        assert reply["result"]["exit_codes"] == {"0": 3, "1": -15}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"", "bad-request"),
        (b"\xff\xfe\x00", "bad-request"),
        (b"GET / HTTP/1.1", "bad-request"),
        (b"[1]", "bad-request"),
        (b"NaN", "bad-request"),
        (b"[" * 5000, "bad-request"),
        (b"1" * 5000, "bad-request"),
        (b'{"request": "status"}', "version"),
        (b'{"version": 2, "request": "status"}', "version"),
        (b'{"version": true, "request": "status"}', "version"),
        (b'{"version": 1}', "bad-request"),
        (b'{"version": 1, "request": "status", "id": [1]}', "bad-request"),
        (b'{"version": 1, "request": "explode"}', "bad-request"),
        (b'{"version": 1, "request": "status", "ranks": [0]}', "bad-request"),
        (b'{"version": 1, "request": "restart"}', "invalid"),
        (b'{"version": 1, "request": "restart", "ranks": []}', "invalid"),
        (b'{"version": 1, "request": "restart", "ranks": [true]}', "invalid"),
        (b'{"version": 1, "request": "restart", "ranks": [9]}', "invalid"),
        (b'{"version": 1, "request": "signal"}', "invalid"),
        (b'{"version": 1, "request": "signal", "signal": "SIGNOTHING"}', "invalid"),
        (b'{"version": 1, "request": "signal", "signal": 0}', "invalid"),
        (b'{"version": 1, "request": "signal", "signal": "USR1", "ranks": "0"}', "invalid"),
        (b'{"version": 1, "request": "stop", "timeout": -1}', "invalid"),
        (b'{"version": 1, "request": "stop", "timeout": 1e400}', "invalid"),
        (b'{"version": 1, "request": "wait", "timeout": "soon"}', "invalid"),
    ],
)
def test_a_request_that_is_not_valid_is_an_error_and_the_connection_goes_on(gang, path, line, code):
    """Nothing was done."""
    with Raw(path) as client:
        client.send(line + b"\n")
        assert client.error() == code
        client.ask("status")
        assert client.result()["phase"] == "running"
    assert [process.signals for process in gang.processes.values()] == [[], []]


@given(st.one_of(st.binary(), st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists)))
def test_no_line_raises_anything_but_a_refusal(what):
    line = what if isinstance(what, bytes) else json.dumps(what).encode()
    with pytest.raises(Refusal):
        parse(line)


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()))
NAMES = st.sampled_from(["status", "pids", "stop", "restart", "signal", "stacks", "wait", "other"])


@given(NAMES, st.dictionaries(st.sampled_from(["signal", "timeout", "ranks", "x"]), VALUES), st.integers())
def test_arguments_make_a_message_or_a_refusal(name, arguments, ident):
    line = json.dumps({"version": 1, "id": ident, "request": name, **arguments}).encode()
    with contextlib.suppress(Refusal):
        assert message_of(parse(line))


SMALL = {"max_size": 4}  # a larger mapping of mappings of mappings takes a second to be made


@given(
    st.dictionaries(
        st.text(), st.dictionaries(st.text(), st.dictionaries(st.text(), VALUES, **SMALL), **SMALL), **SMALL
    )
)
def test_an_answer_that_is_encoded_in_parts_is_the_same_json(result):
    text = answer_line(1, result)
    assert text.count(b"\n") == 1
    assert json.loads(text) == json.loads(json.dumps({"version": 1, "id": 1, "ok": True, "result": result}))


def test_the_longest_line_is_accepted_and_one_byte_more_is_not(path):
    """The client is told, and the connection ends."""
    with Raw(path) as client:
        line = b'{"version": 1, "request": "status"}'
        client.send(line.ljust(MOST_LINE_BYTES - 1) + b"\n")
        assert client.result()["phase"] == "running"
        client.send(line.ljust(MOST_LINE_BYTES) + b"\n")
        assert client.error() == "too-long"
        assert client.line() == b""


def test_a_request_that_this_kind_of_gang_does_not_have_is_refused(gang, tmp_path):
    """Such as a restart of single ranks on Ray."""
    path = tmp_path / "other.sock"
    with served(gang.supervisor, path, without=frozenset({"restart"})), Raw(path) as client:
        client.ask("restart", ranks=[0])
        assert client.error() == "unsupported"
        client.ask("status")
        assert client.result()
