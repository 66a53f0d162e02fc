"""The example of a web service, over real HTTP: gangs start, are watched and end; nothing outlives the service."""

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.patience import PATIENCE_S

pytestmark = pytest.mark.timeout(4 * PATIENCE_S)  # whole programs, one after the other
EXAMPLES = Path(__file__).parent.parent / "examples"
PROGRAM = EXAMPLES / "service_fastapi.py"
FOREVER = 10**12
"""No rank counts the primes up to here."""

WITH_MORE = f"""
import gc, os, pathlib, signal, sys, time
sys.path.insert(0, {str(EXAMPLES)!r})
import service_fastapi as service
from supervise import aio, notify

def stubborn(rank, ranks, below):
    signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(__file__).with_name(str(os.getpid())).touch())
    notify(ready=True)
    while True:
        signal.sigtimedwait([], 0.05)

def make_app(jobs, make=service.make_app):
    app = make(jobs)

    @app.get("/consumers")
    async def consumers() -> int:
        gc.collect()
        return sum(isinstance(each, aio.Events) for each in gc.get_objects())

    return app

def held(rank, ranks, below):
    notify(ready=True)
    while not pathlib.Path(__file__).with_name("go").exists():
        time.sleep(0.01)
    return service.primes(rank, ranks, below)

service.JOBS.update(stubborn=stubborn, held=held)
service.make_app = make_app
if __name__ == "__main__":
    service.main()
"""
"""The service with a job that only notes SIGTERM, in a file; one that waits for the file ``go`` before it counts; and a
route that counts the iterators over events."""


class Service:
    """A running service, and a client of it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr
        self.process = process
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"running on (http://\S+)", line):
                self.http = httpx.Client(base_url=found[1], timeout=PATIENCE_S)
                return
        pytest.fail("".join(lines))

    def start(self, **order: Any) -> dict[str, Any]:
        """Start a gang; return what the service says about it."""
        answer = self.http.post("/gangs", json={"job": "primes", "ranks": 2, **order})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    @contextmanager
    def events(self, gang: dict[str, Any]) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
        """Open the stream of events of a gang."""
        with self.http.stream("GET", f"/gangs/{gang['id']}/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            yield _parsed(stream.iter_lines())

    def end(self, *signals: signal.Signals) -> str:
        """Send signals, and return the log once the process has ended."""
        for sig in signals:
            self.process.send_signal(sig)
        _, stderr = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == -signals[0]
        assert "Traceback" not in stderr
        return stderr


def _parsed(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``(event, data)`` of server-sent events."""
    for line in lines:
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
            yield kind, json.loads(next(lines).removeprefix("data: "))


@contextmanager
def running(program: Path, *words: str) -> Iterator[Service]:
    """Start a service on a free port."""
    command = [sys.executable, "-W", "error", program, "--port", "0", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            service = Service(process)
            with service.http:
                yield service
        finally:
            process.kill()


def processes(*gangs: dict[str, Any]) -> list[psutil.Process]:
    return [psutil.Process(rank["pid"]) for gang in gangs for rank in gang["ranks"].values()]


def until_told(folder: Path, gang: dict[str, Any]) -> None:
    """Wait until each rank of a stubborn gang has noted SIGTERM."""
    pause = threading.Event()
    for process in processes(gang):
        while not (folder / str(process.pid)).exists():
            pause.wait(0.01)


def test_gangs_are_started_listed_watched_and_ended_over_http(tmp_path: Path) -> None:
    """And what cannot be done is refused with a reason."""
    (program := tmp_path / "service.py").write_text(WITH_MORE)
    with running(program) as service:
        counts = service.start(job="held", below=20_000)
        with service.events(counts) as events:
            first = next(events)
            (tmp_path / "go").touch()  # only now may the gang end: its events are those of a running gang
            kinds, told = zip(first, *events, strict=True)
        assert kinds[:2] == ("WorkerStarted", "WorkerStarted")
        assert set(kinds[2:-1]) == {"WorkerReady", "GangStarted", "WorkerExited"}
        assert kinds[-1] == "GangFinished"
        assert sum(told[-1]["values"].values()) == 2262  # the primes below 20 000

        long = service.start(below=FOREVER)
        assert long["state"] == "running"
        ranks = processes(long)
        assert [each["state"] for each in service.http.get("/gangs").json()] == ["succeeded", "running"]
        ended = service.http.delete(f"/gangs/{long['id']}").json()
        assert ended["state"] == "stopped"
        assert not any(rank.is_running() for rank in ranks)
        assert [each["id"] for each in service.http.get("/gangs").json()] == [counts["id"]]

        post, get = service.http.post, service.http.get
        refusals = [
            (post("/gangs", json={"job": "rm"}), 422, "job is 'rm'; it is one of primes, stubborn, held"),
            (post("/gangs", json={"job": "primes", "ranks": 0}), 422, "greater than or equal to 1"),
            (post("/gangs", json={"job": "primes", "below": 0}), 422, "rank [01] ended before it was ready"),
            (get(f"/gangs/{long['id']}"), 404, f"no gang has the number {long['id']}"),
            (get("/gangs/77/events"), 404, "no gang has the number 77"),
        ]
        for answer, code, why in refusals:
            assert answer.status_code == code
            assert re.search(why, answer.text)
        service.end(signal.SIGTERM)


def test_sigterm_of_the_service_closes_its_gangs_and_ends_their_streams() -> None:
    """Politely: SIGTERM ended the ranks, and the last event arrived."""
    with running(PROGRAM, "--grace", "1000") as service:
        gangs = [service.start(below=FOREVER) for _ in range(3)]
        ranks = processes(*gangs)
        with service.events(gangs[0]) as events, service.events(gangs[1]) as others:
            next(events)
            next(others)
            service.process.send_signal(signal.SIGTERM)
            for stream in (events, others):
                *_, (kind, result) = stream
                assert kind == "GangFinished"
                assert result["state"] == "stopped"
                assert set(result["failures"].values()) == {f"exit code -{signal.SIGTERM:d}"}
        service.process.wait(PATIENCE_S)
        assert not any(rank.is_running() for rank in ranks)
        service.end(signal.SIGTERM)


def test_a_second_signal_or_delete_kills(tmp_path: Path) -> None:
    """The grace would outlast the test, so the first one alone ends nothing."""
    program = tmp_path / "service.py"
    program.write_text(WITH_MORE)
    with running(program, "--grace", "1000") as service:
        first, second = service.start(job="stubborn"), service.start(job="stubborn")
        with ThreadPoolExecutor() as pool:
            ending = pool.submit(service.http.delete, f"/gangs/{first['id']}")
            until_told(tmp_path, first)
            assert service.http.get(f"/gangs/{first['id']}").json()["state"] == "stopping"
            for answer in (service.http.delete(f"/gangs/{first['id']}"), ending.result(PATIENCE_S)):
                assert set(answer.json()["failures"].values()) == {f"exit code -{signal.SIGKILL:d}"}
        with service.events(second) as events:
            next(events)
            service.process.send_signal(signal.SIGTERM)
            until_told(tmp_path, second)
            service.process.send_signal(signal.SIGTERM)
            *_, (_, result) = events
            assert set(result["failures"].values()) == {f"exit code -{signal.SIGKILL:d}"}
        service.process.wait(PATIENCE_S)
        service.end(signal.SIGTERM)


def test_clients_that_leave_the_stream_leave_nothing_behind(tmp_path: Path) -> None:
    """Neither an iterator, with its subscription, nor a connection."""
    program = tmp_path / "service.py"
    program.write_text(WITH_MORE)
    with running(program) as service:
        gang, server = service.start(below=FOREVER), psutil.Process(service.process.pid)
        for _ in range(10):
            with service.events(gang) as events:
                next(events)
        connections = []
        while service.http.get("/consumers").json() or len(connections) != 1:
            connections = [one for one in server.net_connections() if one.status == psutil.CONN_ESTABLISHED]
        assert service.http.get(f"/gangs/{gang['id']}").json()["state"] == "running"
        service.end(signal.SIGTERM)
