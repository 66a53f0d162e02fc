"""The socket file and its server: made before the ranks, gone with the gang, and never in the way of another."""

import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervise import Close, RestartRanks, SpecError, Start, Supervisor, start_processes
from supervise._control.client import ControlClient, ControlError
from supervise._control.server import ControlServer
from tests.control.raw import Raw, served
from tests.patience import PATIENCE_S

HOST = Path(__file__).parent / "host.py"
SLEEP = ("1000",)


def stale(path: Path) -> None:
    """Leave a socket file of a process that is dead."""
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(path))


@contextlib.contextmanager
def host(path: Path, what: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, HOST, str(path), what], stdout=subprocess.PIPE)
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_a_stale_socket_is_replaced(gang, tmp_path):
    path = tmp_path / "control.sock"
    stale(path)
    with served(gang.supervisor, path), Raw(path) as client:
        client.ask("status")
        assert client.result()["phase"] == "running"


def test_a_socket_in_use_and_a_file_that_is_none_stay(gang, path, tmp_path):
    """The error says which, and has the path."""
    other = tmp_path / "other"
    other.write_text("precious")
    for taken, why in ((path, "another process listens there already"), (other, "a file that is not a socket")):
        with pytest.raises(FileExistsError, match=why) as caught:
            ControlServer(str(taken), gang.supervisor, name="second").start()
        assert caught.value.filename == str(taken)
    assert other.read_text() == "precious"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["control.sock", "other"]
    with Raw(path) as client:
        client.ask("status")
        assert client.result()


def test_a_path_of_any_length_works(gang, tmp_path):
    """The kernel's limit is 107 bytes."""
    folder = tmp_path / ("x" * 200) / ("y" * 200)
    folder.mkdir(parents=True)
    with served(gang.supervisor, folder / "control.sock"), ControlClient(str(folder / "control.sock")) as client:
        assert client.request("status", timeout_s=PATIENCE_S)["phase"] == "running"


def test_a_file_that_has_replaced_the_socket_is_not_removed(gang, tmp_path):
    path = tmp_path / "control.sock"
    server = ControlServer(str(path), gang.supervisor, name="fake")
    server.start()
    path.unlink()
    path.write_text("mine")
    server.close()
    assert server.join(PATIENCE_S)
    assert path.read_text() == "mine"


def test_open_requests_are_answered_at_the_end(gang, tmp_path):
    """The server's end does not wait for a reply that does not come, nor for a client that does not read."""
    path = tmp_path / "control.sock"
    with served(gang.supervisor, path) as server, Raw(path) as client:
        client.ask("wait", id=5)
        client.ask("pids")
        assert client.result()
        server.close()
        reply = client.hear()
        assert (reply["id"], reply["error"]["code"]) == (5, "ended")
        assert client.line() == b""
    with pytest.raises(FileNotFoundError):
        Raw(path)


def test_a_gang_whose_actor_has_stopped_is_said_to_have_ended(gang, path):
    gang.supervisor.ask(Close(), timeout=PATIENCE_S)
    gang.supervisor.stop(timeout=PATIENCE_S)
    with ControlClient(str(path)) as client, pytest.raises(ControlError, match="the gang has ended") as caught:
        client.request("status", timeout_s=PATIENCE_S)
    assert caught.value.code == "ended"


# Embedding programs


@pytest.mark.parametrize(
    ("control", "why"),
    [
        (3, "give the path of a socket file"),
        (b"bytes", "give the path of a socket file"),
        ("with\0nul", "give the path of a socket file"),
        ("/not/there/control.sock", "its folder does not exist"),
        ("/tmp/", "its last part is the name"),
        ("x" * 81, "more than 80 bytes"),
    ],
)
def test_a_path_that_is_not_valid_is_an_error_before_any_process_starts(control, why, no_launch):
    with pytest.raises(SpecError, match=why):
        Supervisor.start(name="g", entrypoint="/bin/true", args={0: ()}, control=control)
    with pytest.raises(SpecError, match=why):
        start_processes("g", "/bin/true", {0: ()}, control=control)


def test_a_gang_of_an_embedding_program_has_its_socket_until_it_stops(tmp_path):
    """A second gang with the same path is refused; the result of the first stays available as long as its actor."""
    path = tmp_path / "control.sock"
    stale(path)
    gang = Supervisor.start(name="g", entrypoint="/bin/sleep", args={0: SLEEP, 1: SLEEP}, control=path)
    try:
        with Raw(path) as client:
            client.ask("status")
            assert client.result()["phase"] == "new"
            gang.ask(Start(), timeout=PATIENCE_S)
            with pytest.raises(SpecError, match="another process listens there already"):
                Supervisor.start(name="h", entrypoint="/bin/true", args={0: ()}, control=path)
            client.ask("stop")
            assert client.result()["outcome"] == "stopped"
            client.ask("wait")
            assert client.result()["exit_codes"] == {"0": -15, "1": -15}
    finally:
        gang.stop(timeout=PATIENCE_S)
    assert not path.exists()


def test_start_processes_has_a_socket_too(tmp_path):
    path = tmp_path / "control.sock"
    with start_processes("g", "/bin/sleep", {0: SLEEP}, control=path) as context:
        with ControlClient(str(path)) as client:
            pids = client.request("pids", timeout_s=PATIENCE_S)["pids"]
            with pytest.raises(SpecError, match="another process listens there already"):
                start_processes("h", "/bin/true", {0: ()}, control=path)
            assert pids == {str(rank): pid for rank, pid in context.pids().items()}
            assert client.request("stop", timeout_s=PATIENCE_S)["outcome"] == "stopped"
        result = context.wait(PATIENCE_S)
        assert result is not None
        assert result.outcome == "stopped"
    assert not path.exists()


def test_a_forked_child_does_not_keep_the_socket_of_a_killed_host(tmp_path):
    """A connection is refused then, instead of staying without a reply."""
    path = tmp_path / "control.sock"
    with host(path, "forks") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        with Raw(path) as client:
            client.ask("status")
            assert client.result()
        process.kill()
        process.wait()
        try:
            with pytest.raises(ConnectionRefusedError):
                Raw(path)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_program_that_exits_leaves_no_socket(tmp_path):
    path = tmp_path / "control.sock"
    with host(path, "exits") as process:
        assert process.wait(PATIENCE_S) == 0
    assert not path.exists()


def test_a_suspended_program_does_not_reply_and_the_client_says_so(tmp_path):
    path = tmp_path / "control.sock"
    with host(path, "waits") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        with ControlClient(str(path)) as client, pytest.raises(ControlError, match="it may be suspended") as caught:
            client.request("status", timeout_s=0.2)
        assert caught.value.code == "timeout"


# Many at once


def test_p8_a_thousand_random_commands_are_each_answered_and_the_gang_is_intact(tmp_path):
    """From eight clients, restarts among them; afterwards all ranks run, and a stop ends all."""
    path = tmp_path / "control.sock"
    answers: list[str] = []
    errors: list[BaseException] = []

    def client(seed: int) -> None:
        rng = random.Random(seed)
        try:
            with ControlClient(str(path)) as connection:
                answers.extend(one(connection, rng) for _ in range(125))
        except BaseException as error:
            errors.append(error)

    def one(connection: ControlClient, rng: random.Random) -> str:
        name = rng.choices(
            ["status", "pids", "wait", "signal", "restart", "stacks", "nonsense"], [30, 30, 20, 20, 3, 1, 10]
        )[0]
        more = {"wait": {"timeout": 0}, "signal": {"signal": "CONT"}, "restart": {"ranks": [rng.randrange(3)]}}
        try:
            connection.request(name, timeout_s=PATIENCE_S, **more.get(name, {}))
        except ControlError as error:
            return error.code
        return name

    gang = Supervisor.start(name="g", entrypoint="/bin/sleep", args=dict.fromkeys(range(3), SLEEP), control=path)
    try:
        gang.ask(Start(), timeout=PATIENCE_S)
        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert errors == []
        assert len(answers) == 1000
        assert set(answers) <= {"status", "pids", "wait", "signal", "restart", "stacks", "bad-request", "failed"}
        assert gang.ask(RestartRanks(frozenset({0, 1, 2})), timeout=PATIENCE_S).keys() == {0, 1, 2}
        with ControlClient(str(path)) as last:
            status = last.request("status", timeout_s=PATIENCE_S)
            assert {row["state"] for row in status["ranks"].values()} == {"ready"}
            fds = [os.pidfd_open(row["pid"]) for row in status["ranks"].values()]
            assert last.request("stop", timeout_s=PATIENCE_S)["outcome"] == "stopped"
        for fd in fds:
            assert select.select([fd], [], [], PATIENCE_S)[0]
            os.close(fd)
    finally:
        gang.stop(timeout=PATIENCE_S)
