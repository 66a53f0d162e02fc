"""Clients that flood, fall silent, die or belong to another user harm neither the gang nor other clients."""

import contextlib
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

from supervise import Status
from supervise._control import clients as module
from supervise._control import connection, server
from tests.control.raw import Raw, served
from tests.patience import PATIENCE_S

OTHER_USER = 65534


def until(holds: Callable[[], bool]) -> None:
    """Ask again until it holds: no message tells it."""
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients are looked at often."""
    monkeypatch.setattr(module, "_LOOK_S", 0.02)
    monkeypatch.setattr(server, "_RETRY_S", 0.02)


def test_p7_a_client_that_sends_and_never_reads_is_dropped_and_keeps_no_memory(gang, path, impatient, monkeypatch):
    """The server stops reading it, so its own socket fills; others are answered meanwhile."""
    monkeypatch.setattr(module, "SLOW_S", 1.0)
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


def test_a_client_has_a_bounded_number_of_open_requests(gang, path):
    """The others are read when these are answered."""
    with Raw(path) as client:
        for number in range(3 * connection.MOST_PENDING):
            client.ask("wait", id=number)
        until(lambda: gang.supervisor.ask(Status(), timeout=PATIENCE_S).waiters == connection.MOST_PENDING)
        gang.processes[0].exit(0)
        gang.processes[1].exit(0)
        found = [client.hear() for _ in range(3 * connection.MOST_PENDING)]
    assert sorted(reply["id"] for reply in found) == list(range(3 * connection.MOST_PENDING))
    assert {reply["result"]["outcome"] for reply in found} == {"succeeded"}


def test_one_client_too_many_is_told_so(path):
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Raw(path)) for _ in range(module.MOST_CLIENTS)]
        for client in clients:  # each is admitted before the next one comes
            client.ask("pids")
            assert client.result()
        with Raw(path) as client:
            assert client.error() == "too-many"
            assert client.line() == b""
        clients[0].ask("status")
        assert clients[0].result()


def test_a_client_without_a_request_is_dropped_and_one_that_waits_is_not(gang, path, impatient, monkeypatch):
    with Raw(path) as waiting:
        waiting.ask("wait")
        until(lambda: gang.supervisor.ask(Status(), timeout=PATIENCE_S).waiters == 1)
        monkeypatch.setattr(module, "IDLE_S", 0.1)
        with Raw(path) as idle:
            with contextlib.suppress(BrokenPipeError):  # dropped already
                idle.send(b'{"version": 1, ')
            assert idle.error() == "idle"
            assert idle.line() == b""
        gang.processes[1].exit(3)
        assert waiting.result()["root_cause"] == 1


def test_the_server_survives_a_time_without_descriptors(path, impatient, monkeypatch):
    """It stops to accept, instead of trying without pause, and accepts the client later."""
    pauses, pause = threading.Event(), server.ControlServer._pause

    def pausing(self: server.ControlServer, listener: socket.socket) -> None:
        pauses.set()
        pause(self, listener)

    monkeypatch.setattr(server.ControlServer, "_pause", pausing)
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


def test_an_error_inside_the_server_concerns_one_client(path, monkeypatch):
    """It is logged, the client is dropped, and the next one is served."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "message_of", lambda _: 1 / 0)
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
