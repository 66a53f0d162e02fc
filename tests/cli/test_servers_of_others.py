"""Redis, PostgreSQL, nginx and uvicorn below `supervise run`: none of them knows supervise."""

import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.cli.test_run_commands import until
from tests.patience import PATIENCE_S
from tests.ports import free_port

APPLICATION = """
import time
tries = 0
async def app(scope, receive, send):
    global tries
    tries += 1
    if scope["path"] == "/hang":
        time.sleep(1000)
    status = 200 if tries > 2 else 503
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
"""
"""An application that is busy for two requests, and whose loop stands still at a certain path."""


def found(name: str) -> Path:
    """Return the path of a program; skip the test without it."""
    for path in (Path(shutil.which(name) or ""), *Path("/usr/lib/postgresql").glob(f"*/bin/{name}")):
        if path.is_file():
            return path
    pytest.skip(f"{name} is not installed: apt-get install redis-server nginx-light postgresql")


@pytest.fixture
def ports() -> list[int]:
    """Ports at which no server listens."""
    return [free_port() for _ in range(2)]


def test_redis_is_ready_and_restarts_when_it_hangs(supervise: Command, tmp_path: Path, ports: list[int]):
    """A server whose loop is blocked accepts connections, but does not answer its own client."""
    found("redis-server")
    (tmp_path / "gang.toml").write_text(f"""
on-hang = "fail"
max-restarts = 1
backoff = 0
env = {{ PORT = {ports[0]} }}
[roles.redis]
command = ["sh", "-c", 'exec redis-server --port $PORT --save "" --enable-debug-command local']
ready = ["tcp:${{PORT}}", "exec:redis-cli -p ${{PORT}} ping"]
alive = "exec:redis-cli -p ${{PORT}} ping"
alive-interval = 0.1
alive-timeout = 5
alive-failures = 2
shutdown-timeout = 1
service = true
[roles.client]
command = ["sh", "-c", 'redis-cli -p $PORT ping; redis-cli -p $PORT debug sleep 1000; echo gone; sleep 1000']
""")
    with supervise.started("--file", "gang.toml", "--run-id", "redis", "--strategy", "one_for_one") as run:
        out = run.process.stdout
        assert out is not None
        lines = iter(out.readline, "")
        assert next(line for line in lines if line.startswith("[client0]:")) == "[client0]:PONG\n"
        assert "redis" in run.hear_error(" hangs: no answer for ")
        next(line for line in lines if line == "[client0]:gone\n")

        def row() -> bool:
            done = supervise.supervise("status", "redis", "--json")
            row = json.loads(done.stdout)["ranks"]["0"]
            return (row["state"], row["restarts"]) == ("ready", 1)

        until(row)
        run.signal(signal.SIGTERM)
        run.end()


@pytest.fixture
def db() -> Iterator[Path]:
    """A folder of which every user may be the owner of files."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def test_a_database_is_made_before_its_server_and_the_web(
    supervise: Command, tmp_path: Path, db: Path, ports: list[int]
):
    """initdb, then postgres, then a migration, then nginx; each is ready before the next one starts."""
    folder = found("initdb").parent
    found("nginx")
    as_user = "exec"
    if os.geteuid() == 0:  # PostgreSQL refuses root
        found("setpriv")
        as_user = "exec setpriv --reuid=nobody --regid=nogroup --clear-groups"
    (tmp_path / "nginx.conf").write_text(f"""
daemon off;
pid {tmp_path}/nginx.pid;
error_log stderr;
events {{}}
http {{ access_log off; server {{ listen 127.0.0.1:{ports[1]}; location / {{ return 200 "it serves"; }} }} }}
""")
    (tmp_path / "gang.toml").write_text(
        f"""
env = {{ PGPORT = {ports[0]}, PGHOST = "{db}", PGUSER = "me", PATH = "{folder}:/usr/sbin:/usr/bin:/bin" }}
[roles.initdb]
command = ["sh", "-c", "cd {db}; {as_user} initdb -D data -U me >/dev/null"]
ready = "exit"
[roles.postgres]
command = ["sh", "-c", "cd {db}; {as_user} postgres -D data -k {db} -c listen_addresses=127.0.0.1 -p {ports[0]}"]
ready = ["log:database system is ready", "unix:{db}/.s.PGSQL.${{PGPORT}}", "exec:pg_isready -d postgres"]
alive = "tcp:${{PGPORT}}"
[roles.migrate]
command = ["psql", "-d", "postgres", "-c", "create table items (name text)"]
ready = "exit"
[roles.web]
command = ["nginx", "-c", "{tmp_path}/nginx.conf", "-p", "{tmp_path}"]
ready = "http://localhost:{ports[1]}/"
alive = "http://localhost:{ports[1]}/"
"""
    )
    with supervise.started("--file", "gang.toml", "--run-id", "web", "--stop-signal", "INT") as run:

        def states() -> list[str]:
            done = supervise.supervise("status", "web", "--json")
            rows = json.loads(done.stdout)["ranks"] if done.returncode == 0 else {}
            return [row["state"] for row in rows.values()]

        until(lambda: states() == ["finished", "ready", "finished", "ready"])
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[1]}/") as answer:
            assert answer.read() == b"it serves"
        run.signal(signal.SIGINT)
        code, out, _ = run.end()
    assert "CREATE TABLE" in out
    assert code == 130


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_uvicorn_is_ready_and_restarts_when_it_hangs(supervise: Command, tmp_path: Path, ports: list[int], scheme: str):
    """Also with a certificate that no authority has signed, as those of local servers."""
    pytest.importorskip("uvicorn", reason="not installed: pip install uvicorn")
    (tmp_path / "application.py").write_text(APPLICATION)
    words = ["-m", "uvicorn", "--port", str(ports[0]), "--lifespan", "off", "application:app"]
    if scheme == "https":
        made = f"{found('openssl')} req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -subj /CN=me"
        subprocess.run(made.split(), cwd=tmp_path, check=True, capture_output=True, timeout=PATIENCE_S)
        words += ["--ssl-keyfile", "key", "--ssl-certfile", "cert"]
    address = f"{scheme}://127.0.0.1:{ports[0]}"
    (tmp_path / "gang.toml").write_text(f"""
on-hang = "fail"
max-restarts = 1
backoff = 0
[roles.web]
command = {json.dumps([sys.executable, *words])}
ready = "{address}/health"
alive = "{address}/health?alive"
alive-interval = 0.1
alive-timeout = 4
alive-failures = 2
shutdown-timeout = 1
""")
    trusting = {"context": ssl._create_unverified_context()} if scheme == "https" else {}
    with supervise.started("--file", "gang.toml", "--run-id", "job") as run:

        def row() -> tuple[str, int]:
            done = supervise.supervise("status", "job", "--json")
            row = json.loads(done.stdout)["ranks"]["0"]
            return row["state"], row["restarts"]

        def lives() -> int:
            texts = [path.read_text() for path in supervise.tmp_path.glob("runs/job_*/events.jsonl")]
            return sum(text.count('"supervise.process.ready"') for text in texts)

        until(lambda: lives() == 1)
        assert row() == ("ready", 0)
        log = (supervise.directory() / "attempt_0/0/stdout.log").read_text()
        assert log.count("503 Service Unavailable") == 2
        client = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        with closing(client("127.0.0.1", ports[0], timeout=PATIENCE_S, **trusting)) as connection:
            connection.request("GET", "/hang")  # no answer comes
            assert "hangs: no answer for " in run.hear_error(" hangs: ")
        until(lambda: lives() == 2)
        assert row() == ("ready", 1)
        run.signal(signal.SIGTERM)
        run.end()
