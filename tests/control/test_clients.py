"""Each request of the control protocol; and clients that flood, fall silent, die or belong to another user."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from supervise import Start, Status
from supervise._control import clients as module
from supervise._control.clients import message_of
from supervise._control.protocol import MOST_LINE_BYTES, Refusal, answer_line, parse
from supervise.testing import FakeGang, FakeLauncher
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
        (b'{"version": 1, "request": "signal", "signal": "USR1", "group": "yes"}', "invalid"),
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
    with Raw(path) as client:
        client.send(line.ljust(MOST_LINE_BYTES))  # an end can only make it longer
        assert client.error() == "too-long"


@pytest.mark.parametrize(
    ("request_", "more"),
    [("explode", {}), ("status", {"version": 2}), ("restart", {"ranks": [9]}), ("wait", {"timeout": "soon"})],
)
def test_an_error_has_the_id_of_its_request(path, request_, more):
    """Whether the version, the name, an argument or the gang refuses it."""
    with Raw(path) as client:
        client.ask(request_, id="mine", **more)
        reply = client.hear()
        assert (reply["id"], reply["ok"]) == ("mine", False)


def test_a_request_that_this_kind_of_gang_does_not_have_is_refused(gang, tmp_path):
    """Such as a restart of single ranks on Ray."""
    path = tmp_path / "other.sock"
    with served(gang.supervisor, path, without=frozenset({"restart"})), Raw(path) as client:
        client.ask("restart", ranks=[0])
        assert client.error() == "unsupported"
        client.ask("status")
        assert client.result()


OTHER_USER = 65534


def until(holds: Callable[[], bool]) -> None:
    """Ask again until it holds: no message tells it."""
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s


def test_p7_a_client_that_sends_and_never_reads_is_dropped_and_keeps_no_memory(
    gang, path, impatient_server, slow_clients_go_soon
):
    """The server stops reading it, so its own socket fills; others are answered meanwhile."""
    with Raw(path) as stuck, Raw(path) as other:
        stuck.end.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while sent < 64 << 20:
                sent += stuck.end.send(b'{"version": 1, "request": "status"}\n' * 100)
                if sent % 36000 == 0:
                    other.ask("pids")
                    assert other.result()["pids"]
        assert sent < 8 << 20
        stuck.end.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while stuck.end.send(b"\n"):
                pass
        other.ask("status")
        assert other.result()["phase"] == "running"


def test_p7_unread_answers_of_all_clients_together_are_bounded(path, monkeypatch):
    """Those of one client leave no room for the answer to another, until they are read or it has gone."""
    monkeypatch.setattr(module, "_MOST_UNSENT_BYTES", 64 << 10)
    with Raw(path) as other:
        with Raw(path) as silent:
            silent.send(b'{"version": 1, "request": "status"}\n' * 1000)  # more than its socket takes as answers

            def is_refused() -> bool:
                other.ask("status")
                reply = other.hear()
                return not reply["ok"] and reply["error"]["code"] == "too-large"

            until(is_refused)
        until(lambda: not is_refused())


def test_p7_a_flood_does_not_slow_the_gang_down(gang, path):
    """The number of requests in a time is bounded, for all clients together; the gang answers its own asks at once."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Raw(path)) for _ in range(4)]
        for client in clients:
            client.end.setblocking(False)
        begun = time.monotonic()
        longest_s, sent, data = 0.0, 0, 0
        while (took_s := time.monotonic() - begun) < 1.0 or data <= 10:
            for client in clients:
                with contextlib.suppress(BlockingIOError):
                    sent += client.end.send(b'{"version": 1, "request": "pids"}\n' * 500)
                with contextlib.suppress(BlockingIOError):
                    data += client.end.recv(1 << 20).count(b"\n")
            asked_s = time.monotonic()
            gang.supervisor.ask(Status(), timeout=PATIENCE_S)
            longest_s = max(longest_s, time.monotonic() - asked_s)
            assert took_s < PATIENCE_S
        assert data <= (time.monotonic() - begun) / 0.02 * 32 + 32
        assert sent < 4 << 20  # the rest stays with the clients
        assert longest_s < PATIENCE_S / 2


def test_a_client_is_served_beside_as_many_that_flood_as_may_connect(path):
    """Each gets its turn."""
    with contextlib.ExitStack() as stack:
        floods = [stack.enter_context(Raw(path)) for _ in range(module.MOST_CLIENTS - 1)]
        for client in floods:
            client.end.setblocking(False)
        with Raw(path) as client:
            for _ in range(5):
                client.ask("status")
                client.end.settimeout(0.001)
                for _ in range(10_000):
                    for flood in floods:
                        with contextlib.suppress(BlockingIOError):
                            flood.end.send(b'{"version": 1, "request": "pids"}\n' * 20)
                        with contextlib.suppress(BlockingIOError):
                            flood.end.recv(1 << 20)
                    with contextlib.suppress(TimeoutError):
                        assert client.result()["phase"] == "running"
                        break
                else:
                    pytest.fail("no reply")


def test_garbage_without_an_end_is_cut_off(path):
    """The rest of it is not read; the next client is served."""
    with Raw(path) as client:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(100):
                client.send(os.urandom(1 << 16).replace(b"\n", b"x"))
        assert client.error() == "too-long"
        assert client.line() == b""
    with Raw(path) as client:
        client.ask("status")
        assert client.result()


def test_a_client_that_dies_leaves_no_wait_behind(gang, path):
    """Killed while it waits for the end."""
    code = (
        "import socket, sys, signal\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        's.sendall(b\'{"version": 1, "request": "wait"}\\n\' * 3)\n'
        "print('sent', flush=True); signal.pause()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"sent\n"
        until(lambda: gang.supervisor.ask(Status(), timeout=PATIENCE_S).waiters == 3)
        process.kill()
    until(lambda: gang.supervisor.ask(Status(), timeout=PATIENCE_S).waiters == 0)


def test_a_client_that_closes_its_side_gets_its_answer(path):
    """As a shell does with ``nc -U``."""
    with Raw(path) as client:
        client.ask("status")
        client.end.shutdown(1)
        assert client.result()["phase"] == "running"
        assert client.line() == b""


def test_the_end_of_what_a_client_sends_ends_its_last_line(path):
    """Also without a newline, as ``printf`` sends it."""
    with Raw(path) as client:
        client.end.sendall(b'{"version": 1, "id": 1, "request": "status"}')
        client.end.shutdown(1)
        assert client.result()["phase"] == "running"
        assert client.line() == b""


def test_a_client_has_a_bounded_number_of_open_requests(gang, path):
    """The others are read when these are answered."""
    with Raw(path) as client:
        for number in range(3 * module.MOST_PENDING):
            client.ask("wait", id=number)
        until(lambda: gang.supervisor.ask(Status(), timeout=PATIENCE_S).waiters == module.MOST_PENDING)
        gang.processes[0].exit(0)
        gang.processes[1].exit(0)
        found = [client.hear() for _ in range(3 * module.MOST_PENDING)]
    assert sorted(reply["id"] for reply in found) == list(range(3 * module.MOST_PENDING))
    assert {reply["result"]["outcome"] for reply in found} == {"succeeded"}


def test_one_client_too_many_is_told_so(tmp_path):
    path, deaf = tmp_path / "control.sock", FakeLauncher(ignored=(signal.SIGTERM,))
    with contextlib.ExitStack() as stack:
        gang = stack.enter_context(FakeGang(1, launchers={0: deaf}))
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        stack.enter_context(served(gang.supervisor, path))
        clients = [stack.enter_context(Raw(path)) for _ in range(module.MOST_CLIENTS)]
        for number, client in enumerate(clients):  # each is admitted before the next one comes, and waits for an answer
            client.ask("wait") if number < module.MOST_WAITS else client.ask("terminate", ranks=[0])
            client.ask("pids")
            assert client.result()
        with Raw(path) as client:
            assert client.error() == "too-many"
            assert client.line() == b""
        clients[0].ask("status")
        assert clients[0].result()


def test_those_that_wait_for_the_end_leave_a_place_to_others(path):
    """Otherwise no request could stop the run until its end."""
    with contextlib.ExitStack() as stack:
        for _ in range(module.MOST_WAITS):
            client = stack.enter_context(Raw(path))
            client.ask("wait")
            client.ask("pids")
            assert client.result()
        with Raw(path) as client:
            client.ask("wait")
            assert client.error() == "too-many"
            client.ask("status")
            assert client.result()


def test_the_client_that_is_idle_for_the_longest_time_gives_way(path):
    """So `supervise stop` has a place."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Raw(path)) for _ in range(module.MOST_CLIENTS)]
        for client in clients:
            client.ask("pids")
            assert client.result()
        clients[0].ask("pids")
        assert clients[0].result()
        for number in (1, 2):
            client = stack.enter_context(Raw(path))
            client.ask("status")
            assert client.result()
            assert clients[number].error() == "idle"
        clients[0].ask("status")
        assert clients[0].result()


def test_a_client_without_a_request_is_dropped_and_one_that_waits_is_not(
    gang, path, impatient_server, idle_clients_go_at_once
):
    with Raw(path) as waiting:
        waiting.ask("wait")
        until(lambda: gang.supervisor.ask(Status(), timeout=PATIENCE_S).waiters == 1)
        idle_clients_go_at_once()
        with Raw(path) as idle:
            with contextlib.suppress(BrokenPipeError):  # dropped already
                idle.send(b'{"version": 1, ')
            assert idle.error() == "idle"
            assert idle.line() == b""
        gang.processes[1].exit(3)
        assert waiting.result()["root_cause"] == 1


def test_the_server_survives_a_time_without_descriptors(path, impatient_server, breaking):
    """It stops to accept, instead of trying without pause, and accepts the client later."""
    pauses = threading.Event()
    breaking.instead("pause of the control server", lambda pause, *args: (pauses.set(), pause(*args)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as end:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            end.connect(f"/proc/self/fd/{folder}/{path.name}")
            assert pauses.wait(PATIENCE_S)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            os.close(folder)
        end.settimeout(PATIENCE_S)
        end.sendall(b'{"version": 1, "request": "status"}\n')
        assert b'"ok": true' in end.recv(1 << 16)


def test_an_error_inside_the_server_concerns_one_client(path, breaking):
    """It is logged, the client is dropped, and the next one is served."""
    breaking.raises("message of a control request", ZeroDivisionError(), once=True)
    with Raw(path) as client:
        client.ask("status")
        assert client.line() == b""
    with Raw(path) as client:
        client.ask("status")
        assert client.result()


# Another user


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def as_other_user(path: Path) -> bytes:
    """Connect as another user; return the first line of the server, or the name of the error."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setuid(OTHER_USER)
            signal.alarm(int(PATIENCE_S))
            with Raw(path) as client:
                with contextlib.suppress(BrokenPipeError):  # refused already
                    client.ask("status")
                os.write(write, client.line())
        except BaseException as error:
            os.write(write, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
def test_p7_another_user_cannot_connect_and_is_refused_even_if_the_mode_is_changed(gang, open_folder):
    """The mode is 0600; behind it, the kernel's credentials of the peer."""
    path = open_folder / "control.sock"
    with served(gang.supervisor, path):
        assert oct(path.stat().st_mode & 0o7777) == "0o600"
        assert as_other_user(path) == b"PermissionError"
        path.chmod(0o666)
        said = as_other_user(path)
        assert b'"code": "refused"' in said
        assert f"you are user {OTHER_USER}".encode() in said
        with Raw(path) as client:
            client.ask("status")
            assert client.result()


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_the_socket_is_private_whatever_the_umask(gang, tmp_path, umask):
    before = os.umask(umask)
    try:
        with served(gang.supervisor, tmp_path / "control.sock"):
            assert oct((tmp_path / "control.sock").stat().st_mode & 0o7777) == "0o600"
    finally:
        os.umask(before)
