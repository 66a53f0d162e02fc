"""Sockets of ``supervise run --listen`` and of roles, and a server of others that restarts under load."""

import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.cli.test_run_commands import until
from tests.patience import PATIENCE_S
from tests.ports import free_port

APPLICATION = """
import os
def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getppid()).encode()]
"""


class Clients:
    """Eight clients that connect without pause, and count the answers."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._go_on, daemon=True) for _ in range(8)]
        self.count = 0
        self.masters: set[bytes] = set()
        """The pids of the masters whose workers have answered."""
        self.lost: list[str] = []

    def _go_on(self) -> None:
        while not self._over.is_set():
            got = b""
            try:
                with socket.create_connection(("127.0.0.1", self._port), PATIENCE_S) as end:
                    end.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    while data := end.recv(1000):
                        got += data
                assert got.startswith(b"HTTP/1.0 200 OK"), got
            except (OSError, AssertionError) as error:
                self.lost.append(repr(error))
            with self._changed:
                self.count += 1
                self.masters.add(got.rpartition(b"\r\n")[2])
                self._changed.notify_all()

    def serve(self, more: int) -> None:
        """Wait until so many further connections have been answered."""
        with self._changed:
            wanted = self.count + more
            assert self._changed.wait_for(lambda: self.count >= wanted or self.lost, PATIENCE_S)
        assert self.lost == []

    @contextmanager
    def running(self) -> Iterator["Clients"]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join(PATIENCE_S)
        assert self.lost == []


def test_t14_restarts_of_gunicorn_lose_no_connection(supervise: Command):
    """Its workers answer what they have accepted, and what they have not waits for the next life."""
    pytest.importorskip("gunicorn", reason="not installed: pip install gunicorn")
    (supervise.tmp_path / "application.py").write_text(APPLICATION)
    port = free_port()
    (supervise.tmp_path / "gang.toml").write_text(
        "strategy = 'one_for_one'\n"
        f"[roles.web]\ncommand = [{sys.executable!r}, '-m', 'gunicorn', '--workers', '2', 'application:app']\n"
        f"listen = ['tcp:127.0.0.1:{port}', 'unix:run/web.sock']\nready = 'notify'\nkill-mode = 'mixed'\n"
        "[roles.other]\ncommand = 'sleep 1000'\n"
    )
    with supervise.started("--run-id", "job", "--file", "gang.toml") as run:
        until(lambda: [*supervise.tmp_path.glob("runs/job_*/control.sock")])
        with Clients(port).running() as clients:
            clients.serve(50)
            for _ in range(2):
                done = supervise.supervise("restart", "job", "--rank", "0")
                assert done.returncode == 0, done.stderr
                clients.serve(50)
        assert len(clients.masters) == 3
        run.signal(signal.SIGTERM)
        code, _, err = run.end()
    assert (code, "Traceback" in err) == (128 + signal.SIGTERM, False)
    assert not (supervise.tmp_path / "run/web.sock").exists()


def test_the_option_gives_sockets_to_all_ranks(supervise: Command):
    """The path is relative to the folder of the ranks."""
    (supervise.tmp_path / "app").mkdir()
    words = ("-n", "2", "--no-prefix", "-q", "--cwd", "app", "--listen", "unix:run/a.sock,unix:b,,c", "--", "sh", "-c")
    done = supervise.run(*words, 'echo $LISTEN_FDS $LISTEN_FDNAMES; ls . run; test "$LISTEN_PID" = $$')
    assert done.returncode == 0, done.stderr
    assert sorted(set(done.stdout.split())) == [".:", "2", "a.sock", "a.sock:b,c", "b,c", "run", "run:"]
    assert [path.name for path in (supervise.tmp_path / "app").rglob("*")] == ["run"]


def test_repeated_options_add_sockets_and_take_the_place_of_a_file(supervise: Command):
    """As with --ready."""
    (supervise.tmp_path / "gang.toml").write_text("listen = ['unix:c']\n[roles.web]\ncommand = 'true'\n")
    for words in (("--file", "gang.toml"), ("--", "true")):
        done = supervise.run("--dry-run", "--listen", "unix:a", "--listen", "unix:b,unix:d", *words)
        assert done.returncode == 0, done.stderr
        found = [line.partition(" listens on ")[2] for line in done.stdout.splitlines() if " listens on " in line]
        assert found == ["unix:a", "unix:b", "unix:d"]
    done = supervise.run("--listen", "unix:a", "--listen", "unix:a", "true")
    assert (done.returncode, "listen: 'unix:a' is given twice" in done.stderr) == (2, True)


def test_an_address_in_use_is_refused(supervise: Command):
    """With the role, the address and what to do; there is no run then."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp:127.0.0.1:{server.getsockname()[1]}"
        (supervise.tmp_path / "gang.toml").write_text(f"[roles.web]\ncommand = 'true'\nlisten = [{address!r}]\n")
        done = supervise.run("--file", "gang.toml")
        assert supervise.supervise("check", "gang.toml").returncode == 0  # it binds nothing
    assert done.returncode == 2
    assert f"role 'web': listen: '{address}': Address already in use; stop the process that listens" in done.stderr


def test_sockets_and_hosts_of_an_engine_exclude_each_other(supervise: Command):
    """They belong to one machine."""
    done = supervise.refused("run", "--engine", "ray", "--listen", "tcp:1", "true")
    assert done.returncode == 2
    assert "--listen and --engine ray exclude each other" in done.stderr


def test_a_relative_path_is_one_socket_for_each_folder(supervise: Command, tmp_path: Path):
    """Two roles may have the same words, and a link and `..` lead elsewhere than the words say."""
    for name in ("a", "b"):
        (tmp_path / name / "below").mkdir(parents=True)
    (tmp_path / "a" / "link").symlink_to(tmp_path / "b" / "below")
    roles = {"one": ("a", "unix:x"), "two": ("b", "unix:y"), "three": ("a", "unix:y")}
    text = "".join(
        f"[roles.{name}]\ncommand = 'true'\ncwd = '{cwd}'\nlisten = ['{at}']\n" for name, (cwd, at) in roles.items()
    )
    (tmp_path / "g.toml").write_text(text)
    assert supervise.supervise("check", "g.toml").returncode == 0
    (tmp_path / "g.toml").write_text(text.replace("unix:x", "unix:link/../y"))
    assert "is an address of role 'one', too" in supervise.supervise("check", "g.toml").stderr
