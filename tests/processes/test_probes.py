"""Probes of real servers, files, logs and commands: when a rank is ready, and whether it is alive."""

import contextlib
import errno
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest

from supervise import Pids, RestartPolicy, Role, Signal, SpawnError, Start, Status, Watchdog
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.processes import work
from tests.processes.gangs import Gang, each_kind, launched, prepared
from tests.processes.hosts import ROOT
from tests.processes.test_stacks import await_suspended

OBEYS = """
import http.server, socket, threading, time
port, kept, status = int(os.environ.get("PORT", 0)), [], 200
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if status == 0: threading.Event().wait()
        self.send_response(status if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *_): pass
def listen(family=socket.AF_INET, address="127.0.0.1"):
    kept.append(socket.create_server((address, port), family=family))
def listen_at(path):
    kept.append(socket.socket(socket.AF_UNIX))
    kept[-1].bind(path)
    kept[-1].listen()
def serve():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
say("up")
for word in iter(wait_for_word, "end"):
    exec(word)
    say("done")
"""
"""Executes the lines of source that it is told."""


@pytest.fixture
def port() -> int:
    """A port at which no server listens."""
    return free_port()


@contextlib.contextmanager
def begun(folder: Path, port: int, **more: Any) -> Iterator[tuple[Gang, Any]]:
    """Yield a gang of one rank that obeys, and the pending reply to its start."""
    with prepared(folder, "binary", [OBEYS], envs={0: {"PORT": port}}, cwd=str(folder), **more) as gang:
        reply = gang.supervisor.ask(Start(), block=False)
        assert gang.hear() == ["up"]
        yield gang, reply


def do(gang: Gang, source: str, rank: int = 0) -> None:
    gang.tell(rank, source)
    assert gang.hear() == ["done"]


def state(gang: Gang, rank: int = 0) -> str:
    return str(gang.ask(Status()).ranks[rank].state)


def until_gone(pid: int) -> None:
    """Wait until a process has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        assert psutil.wait_procs([psutil.Process(pid)], timeout=PATIENCE_S)[1] == []


def until_written(path: Path) -> str:
    """Return the first line of a file, when it has one."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not path.exists() or not (text := path.read_text()).endswith("\n"):  # a later try writes it again
        assert time.monotonic() < give_up_s, f"{path} was not written"
        select.select([], [], [], 0.01)
    return text.strip()


def until_tried(tries: Path, times: int) -> None:
    """Wait until a probe that writes a line at each try was tried so many times."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not tries.exists() or len(tries.read_text()) < times:
        assert time.monotonic() < give_up_s
        select.select([], [], [], 0.01)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


READY = {
    "tcp:${PORT}": "listen()",
    "tcp:localhost:${PORT}": "listen()",
    "unix:app.sock": "listen_at('app.sock')",
    "http://127.0.0.1:${PORT}/health": "serve()",
    "file:run-${LOCAL_RANK}": "open('run-0', 'w').close()",
    "log:^Listening on \\d+$": "print('Listening on 80', flush=True)",
    "log:(?i)READY": "sys.stderr.write('it is'), sys.stderr.write(' ready\\n'), sys.stderr.flush()",
    "log:^INFO: up$": r"print('\x1b[32mINFO\x1b[0m: up', end='\r\n', flush=True)",
    "log:^INFO: +up$": r"print('\x1b[32mINFO\x1b[0m: up', end='\r\n', flush=True)",
    "log:^done$": r"print('50 %\r99 %\rdone', flush=True)",
    "log:^done *$": r"print('50 %\r99 %\rdone', flush=True)",
    "exec:test -e 'a file'": "open('a file', 'w').close()",
}


@pytest.mark.parametrize("ready", READY)
def test_n11_a_rank_is_ready_when_its_probe_succeeds(tmp_path, port, ready):
    """The program speaks no protocol."""
    with begun(tmp_path, port, ready=ready) as (gang, reply):
        assert state(gang) == "starting"
        do(gang, READY[ready])
        reply.get(timeout=PATIENCE_S)
        gang.await_event("supervise.process.ready", local_rank=0)
        assert state(gang) == "ready"


def test_n11_a_server_with_only_an_ipv6_address_is_found(tmp_path, port):
    """Its address is between brackets, as in a URL."""
    with socket.socket(socket.AF_INET6) as end:
        try:
            end.bind(("::1", 0))
        except OSError as error:
            pytest.skip(f"this machine has no IPv6: {error}")
    with begun(tmp_path, port, ready="tcp:[::1]:${PORT}") as (gang, reply):
        do(gang, "listen(socket.AF_INET6, '::1')")
        reply.get(timeout=PATIENCE_S)


def test_n11_all_conditions_of_a_list_must_be_met(tmp_path, port):
    """In any order; a report by `supervise.notify` may be one of them."""
    told = f"sys.path.insert(0, {ROOT!r}); import supervise; supervise.notify(ready=True)"
    with begun(tmp_path, port, ready=["exec", "tcp:${PORT}", "notify", "file:x"]) as (gang, reply):
        for word in (told, "open('x', 'w').close()"):
            do(gang, word)
            assert state(gang) == "starting"
        do(gang, "listen()")
        reply.get(timeout=PATIENCE_S)
        do(gang, "kept.pop().close()")  # a probe that has succeeded is not tried again
        assert state(gang) == "ready"


FAILS = {
    "tcp:${PORT}": ("", r"tcp:\d+ was tried \d+ times; the last answer: connection refused"),
    "http://127.0.0.1:${PORT}/": ("serve()", r"http://.*/ was tried \d+ times; the last answer: HTTP status 404"),
    "file:x": ("", "file:x was tried \\d+ times; the last answer: no such file or directory"),
    "log:x": ("", "log:x was tried \\d+ times; the last answer: no line matches"),
    "exec:sh -c 'echo not yet; exit 3'": ("", "exec:.* was tried \\d+ times; the last answer: exit code 3: not yet"),
    "exit": ("", "it has not ended"),
}  # fmt: skip


@pytest.mark.parametrize("ready", FAILS)
def test_n12_the_failure_of_a_start_names_the_probe_and_its_last_answer(tmp_path, port, ready):
    word, why = FAILS[ready]
    with begun(tmp_path, port, ready=ready, ready_timeout_s=10.0) as (gang, reply):
        if word:
            do(gang, word)
        with pytest.raises(SpawnError, match=f"was not ready within 10 s: {why}$"):
            reply.get(timeout=PATIENCE_S)


def test_n12_a_server_that_never_answers_does_not_hold_up_the_gang(tmp_path, port):
    """It accepts the connection; the try ends at its timeout, and the next one begins."""
    more = {"ready": "http://127.0.0.1:${PORT}/health", "alive_timeout_s": 0.2, "ready_timeout_s": 10.0}
    with begun(tmp_path, port, **more) as (gang, reply):
        do(gang, "status = 0; serve()")
        assert state(gang) == "starting"
        with pytest.raises(SpawnError, match=r"was tried \d+ times; the last answer: (none within 0.2 s|timed out)"):
            reply.get(timeout=PATIENCE_S)


def test_n12_a_lookup_that_hangs_holds_up_neither_the_gang_nor_more_than_one_thread(tmp_path, port, monkeypatch):
    """A name server does not answer. The tries fail at their timeouts; none begins before the thread has ended."""
    over, look_up = threading.Event(), socket.getaddrinfo

    def hanging(*args: Any, **named: Any) -> Any:
        over.wait()
        return look_up(*args, **named)

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    more = {"ready": f"tcp:db.example:{port}", "alive_timeout_s": 0.2, "ready_timeout_s": 10.0}
    try:
        with begun(tmp_path, port, **more) as (gang, reply):
            assert state(gang) == "starting"
            with pytest.raises(SpawnError, match=r"was tried \d+ times?; the last answer: none within 0.2 s"):
                reply.get(timeout=PATIENCE_S)
            assert [thread.name for thread in threading.enumerate()].count("supervise-probe") == 1
    finally:
        over.set()


def test_n12_a_thread_that_has_answered_delays_no_try(tmp_path, port):
    """On a busy machine, it runs on for a while."""
    over = threading.Event()

    def linger(frame: Any, event: str, _: Any) -> None:
        if (event, frame.f_code.co_name) == ("return", "_run") and "probing" in frame.f_code.co_filename:
            over.wait(PATIENCE_S)

    threading.setprofile(linger)
    try:
        with begun(tmp_path, port, ready="file:x", alive_timeout_s=PATIENCE_S) as (gang, reply):
            do(gang, "open('x', 'w').close()")
            reply.get(timeout=PATIENCE_S / 2)
    finally:
        threading.setprofile(None)
        over.set()


@pytest.mark.parametrize("how", ["ignored", "reaped"])
def test_n12_a_command_whose_exit_status_another_part_of_the_program_takes(how):
    """Linux 6.15 and later still know it."""
    handler = "signal.SIG_IGN" if how == "ignored" else "lambda *_: reap()"
    source = f"""
import os, signal, sys
sys.path.insert(0, {ROOT!r})
from supervise import SpawnError, Start, Supervisor
def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError: pass
signal.signal(signal.SIGCHLD, {handler})
more = {{"ready": "exec:true", "ready_timeout_s": 6.0}}
with Supervisor.start(name="a", entrypoint="sleep", args={{0: ("1000",)}}, **more) as gang:
    try:
        gang.ask(Start())
    except SpawnError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert re.fullmatch("(.*; the last answer: exit status lost: another part of .*\n)?", done.stdout)
    assert done.stderr == ""


def test_n12_only_lines_of_the_present_life_count(tmp_path, port):
    """The log of the earlier life has the line."""
    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    more = {"ready": "log:ready", "restart_policy": policy, "strategy": "one_for_one", "event_sink": None}
    with begun(tmp_path, port, **more) as (gang, reply):
        do(gang, "print('ready', flush=True)")
        reply.get(timeout=PATIENCE_S)
        gang.tell(0, "os._exit(3)")
        assert gang.hear() == ["up"]
        assert state(gang) == "starting"
        do(gang, "print('ready', flush=True)")
        give_up_s = time.monotonic() + PATIENCE_S
        while state(gang) != "ready":
            assert time.monotonic() < give_up_s


# One-shots


def one_shot(tmp_path: Path, source: str, **more: Any) -> list[Role]:
    """Return a role that succeeds, and a server that must start after it."""
    first = [sys.executable, {0: ("-S", "-c", work.PREAMBLE + source)}]
    then = work.PREAMBLE + "say('web ' + str(os.path.exists(os.environ['MARK']))); wait_for_word()"
    return [
        Role(name="migrate", entrypoint=first[0], args=first[1], ready="exit", **more),
        Role(name="web", entrypoint=sys.executable, args={0: ("-S", "-c", then)}),
    ]


MIGRATES = "say('migrates'); wait_for_word(); open(os.environ['MARK'], 'w').close()"


def marked(tmp_path: Path) -> dict[int, dict[str, str]]:
    return {rank: {"MARK": str(tmp_path / "mark")} for rank in range(2)}


@pytest.mark.parametrize("restart", [None, "permanent", "temporary"])
def test_n13_a_role_starts_when_the_one_before_has_succeeded(tmp_path, restart):
    """A migration comes before the server, is not a failure, and is not run again."""
    policy = None if restart is None else RestartPolicy(max_restarts=3, backoff=0.0)
    roles = one_shot(tmp_path, MIGRATES, restart=restart)
    more = {"roles": roles, "restart_policy": policy, "strategy": "one_for_one"}
    with launched(tmp_path, None, {0: (), 1: ()}, envs=marked(tmp_path), **more) as gang:
        reply = gang.supervisor.ask(Start(), block=False)
        assert gang.hear() == ["migrates"]
        gang.await_event("supervise.process.started", local_rank=0)
        assert list(gang.ask(Pids())) == [0]
        gang.tell(0)
        assert gang.hear() == ["web True"]
        reply.get(timeout=PATIENCE_S)
        assert (state(gang, 0), state(gang, 1)) == ("finished", "ready")
        gang.tell(1)
        result = gang.wait()
    assert (result.outcome, result.restarts_total) == ("succeeded", 0)


def test_n13_a_gang_that_restarts_runs_the_one_shot_again_before_the_others(tmp_path):
    """With one_for_all, all ranks start again, in their order."""
    roles = one_shot(tmp_path, MIGRATES)
    more = {"roles": roles, "restart_policy": RestartPolicy(max_restarts=1, backoff=0.0)}
    roles[1] = Role(
        name="web",
        entrypoint=sys.executable,
        args={0: ("-S", "-c", work.PREAMBLE + "say('web'); os._exit(int(wait_for_word()))")},
    )
    with launched(tmp_path, None, {0: (), 1: ()}, envs=marked(tmp_path), **more) as gang:
        reply = gang.supervisor.ask(Start(), block=False)
        for code in ("3", "0"):
            assert gang.hear() == ["migrates"]
            gang.tell(0)
            assert gang.hear() == ["web"]
            reply.get(timeout=PATIENCE_S)
            gang.tell(1, code)
        assert gang.wait().outcome == "succeeded"


def test_n13_the_failure_of_a_one_shot_fails_the_start(tmp_path):
    """The error has its exit code; no other role has started."""
    with launched(tmp_path, None, {0: (), 1: ()}, roles=one_shot(tmp_path, "os._exit(7)")) as gang:
        with pytest.raises(SpawnError, match=r"^rank 0 \(migrate 0\) ended before it was ready: exit code 7") as caught:
            gang.start()
        assert caught.value.exitcode == 7
        assert list(gang.pids) == [0]


def test_n13_the_error_of_a_rank_that_ends_before_it_is_ready_has_the_last_answer_of_its_probe(tmp_path):
    role = Role(name="migrate", entrypoint="sh", args={0: ("-c", "exit 7")}, ready="log:never")
    with launched(tmp_path, None, {0: ()}, roles=[role]) as gang, pytest.raises(SpawnError) as caught:
        gang.start()
    why = "ended before it was ready: exit code 7; log:never was tried"
    assert re.fullmatch(rf"rank 0 \(migrate 0\) {why} \d+ times?; the last answer: .+", str(caught.value))


@each_kind
def test_n13_a_gang_of_one_shots_has_started_when_all_have_succeeded(tmp_path, kind):
    """Functions, too, also those whose processes are held until all have returned."""
    held = {} if kind == "binary" else {"hold_returned": True}
    with prepared(tmp_path, kind, ["value = 5"] * 2, ready="exit", **held) as gang:
        gang.start()
        result = gang.wait()
    assert (result.outcome, {end.role for end in result.ends.values()}) == ("succeeded", {"finished"})


# Liveness


def alive(probe: str, **more: Any) -> dict[str, Any]:
    return {"ready": "tcp:${PORT}", "alive": probe, "alive_interval_s": 0.05, "alive_timeout_s": 10.0, **more}


def test_n14_a_rank_that_does_not_answer_is_reported_once_until_it_answers_again(tmp_path, port):
    """No watchdog was given."""
    with begun(tmp_path, port, **alive("tcp:${PORT}")) as (gang, reply):
        do(gang, "listen()")
        reply.get(timeout=PATIENCE_S)
        gang.await_event("supervise.process.ready")
        for _ in range(2):
            do(gang, "kept.pop().close()")
            event = gang.await_event("supervise.process.hung", local_rank=0, tier="answer")
            assert event["status"] == f"tcp:{port}: connection refused"
            do(gang, "listen()")
            gang.await_event("supervise.process.ready", local_rank=0)
        gang.tell(0, "end")
        assert gang.wait().outcome == "succeeded"


def test_n14_a_hang_may_be_a_failure_that_restarts_the_rank(tmp_path, port):
    """The watchdog has no timeout of its own. The server accepts connections, and answers no more."""
    settings = alive("http://localhost:${PORT}/health", alive_failures=2, alive_timeout_s=3.0)
    more = {"watchdog": Watchdog(action="fail"), "restart_policy": RestartPolicy(max_restarts=1, backoff=0.0)}
    with begun(tmp_path, port, **settings, **more) as (gang, reply):
        do(gang, "serve()")
        reply.get(timeout=PATIENCE_S)
        do(gang, "status = 0")
        assert gang.hear() == ["up"]
        do(gang, "serve()")
        gang.await_event("supervise.process.ready", attempt=1)
        do(gang, "status = 500")
        result = gang.wait()
    assert result.outcome == "failed"
    why = rf'hung: no answer for \d+\.\d s \("http://localhost:{port}/health: HTTP status 500"\)'
    assert re.fullmatch(why, str(result.failures[0].message))


def test_n14_a_suspended_rank_does_not_count_as_hung(tmp_path, port):
    """A person may have suspended it for a debugger. When it goes on, its failures count from then on."""
    settings = alive("exec:sh -c 'test ! -e bad && exit; echo >> tries; exit 1'", alive_failures=5)
    with begun(tmp_path, port, **settings) as (gang, reply):
        do(gang, "listen()")
        reply.get(timeout=PATIENCE_S)
        pid = gang.pids[0]
        os.kill(pid, signal.SIGSTOP)
        await_suspended(pid)
        (tmp_path / "bad").touch()
        until_tried(tmp_path / "tries", 5)
        suspended_s = time.monotonic()
        until_tried(tmp_path / "tries", 10)
        os.kill(pid, signal.SIGCONT)
        event = gang.await_event("supervise.process.hung")
        assert 0 < event["age_s"] < time.monotonic() - suspended_s


def test_n14_a_rank_that_was_suspended_after_its_report_answers_again(tmp_path, port):
    settings = alive("exec:sh -c 'echo >> tries; test -e good'", alive_failures=1)
    with begun(tmp_path, port, **settings) as (gang, reply):
        do(gang, "listen()")
        reply.get(timeout=PATIENCE_S)
        gang.await_event("supervise.process.ready")
        gang.await_event("supervise.process.hung")
        os.kill(gang.pids[0], signal.SIGSTOP)
        tries = tmp_path / "tries"
        until_tried(tries, len(tries.read_text()) + 5)
        os.kill(gang.pids[0], signal.SIGCONT)
        (tmp_path / "good").touch()
        gang.await_event("supervise.process.ready")


def no_thread(monkeypatch: pytest.MonkeyPatch, refused: Any) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "supervise-probe":
            refused.release()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


def no_descriptor(monkeypatch: pytest.MonkeyPatch, refused: Any) -> None:
    def refuse(*_: Any) -> None:
        refused.release()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "create_connection", refuse)


@pytest.mark.parametrize("lack", [no_thread, no_descriptor])
def test_n14_a_lack_of_threads_or_descriptors_is_not_a_hang(tmp_path, port, monkeypatch, lack):
    """It tells nothing about the rank."""
    refused = threading.Semaphore(0)
    with begun(tmp_path, port, **alive("tcp:${PORT}", alive_failures=2)) as (gang, reply):
        do(gang, "listen()")
        reply.get(timeout=PATIENCE_S)
        with monkeypatch.context() as patch:
            lack(patch, refused)
            for _ in range(5):
                assert refused.acquire(timeout=PATIENCE_S)
        do(gang, "kept.pop().close()")
        assert gang.await_event("supervise.process.hung")["status"] == f"tcp:{port}: connection refused"


def test_n14_a_host_that_did_not_run_blames_no_rank(tmp_path, port, monkeypatch):
    """As if it had been suspended during a try. The thread of that try ends when the next try is due long since."""
    events: SimpleQueue[dict[str, Any]] = SimpleQueue()
    waitpid = os.waitpid

    def waits_long(pid: int, options: int) -> tuple[int, int]:
        found = waitpid(pid, options)
        if found[1] and threading.current_thread().name == "supervise-probe":
            threading.Event().wait(2.0)
        return found

    monkeypatch.setattr(os, "waitpid", waits_long)

    def sink(event: dict[str, Any]) -> None:
        events.put(event)
        if event["event"] == "supervise.process.signaled" and event["signal"] == "SIGURG":
            (tmp_path / "slow").unlink()
            threading.Event().wait(10.0)  # on the thread of the gang

    probe = "exec:sh -c 'test -e slow && echo >> tries && sleep 1000; test ! -e bad'"
    settings = alive(probe, alive_failures=1, alive_timeout_s=9.0)
    with begun(tmp_path, port, event_sink=sink, **settings) as (gang, reply):
        do(gang, "listen()")
        reply.get(timeout=PATIENCE_S)
        (tmp_path / "slow").touch()
        until_tried(tmp_path / "tries", 1)
        gang.ask(Signal(sig=signal.SIGURG))
        (tmp_path / "bad").touch()
        heard = iter(lambda: events.get(timeout=PATIENCE_S), None)
        hung = next(event for event in heard if event["event"] == "supervise.process.hung")
        assert hung["status"].endswith(": exit code 1")


# What is left of probes


HANGS = "exec:sh -c 'sleep 1000 & echo $$ $! > pids; wait'"


def test_n15_the_processes_of_a_probe_end_with_the_gang(tmp_path, port):
    """They are killed and reaped when the close returns."""
    with begun(tmp_path, port, ready=HANGS) as (gang, _):
        pids = [int(pid) for pid in until_written(tmp_path / "pids").split()]
        gang.close()
        assert not psutil.pid_exists(pids[0])
        until_gone(pids[1])


def test_n15_a_probe_that_takes_too_long_is_killed(tmp_path, port):
    """With the processes that it has started; then it is tried again."""
    with begun(tmp_path, port, ready=HANGS, alive_timeout_s=1.0) as (_, _):
        first = [int(pid) for pid in until_written(tmp_path / "pids").split()]
        for pid in first:
            until_gone(pid)
        give_up_s = time.monotonic() + PATIENCE_S
        while until_written(tmp_path / "pids").split() == [str(pid) for pid in first]:
            assert time.monotonic() < give_up_s


def test_n15_the_probes_of_a_life_end_with_it(tmp_path, port):
    """A rank that ends before it is ready fails the start at once, while a command runs."""
    with begun(tmp_path, port, ready=HANGS) as (gang, reply):
        pids = [int(pid) for pid in until_written(tmp_path / "pids").split()]
        gang.tell(0, "os._exit(4)")
        with pytest.raises(SpawnError, match="exit code 4"):
            reply.get(timeout=PATIENCE_S)
        gang.close()
        assert not psutil.pid_exists(pids[0])
        until_gone(pids[1])


def test_n15_a_gang_ends_although_no_thread_was_available_for_its_probe(tmp_path, port, no_threads):
    with no_threads("supervise-probe"), begun(tmp_path, port, ready="exec:true") as (gang, reply):
        gang.tell(0, "os._exit(4)")
        with pytest.raises(SpawnError, match="exit code 4"):
            reply.get(timeout=PATIENCE_S)


def test_n15_the_processes_of_a_probe_end_with_the_host(tmp_path):
    """The kernel kills them, as it kills ranks."""
    source = f"""
import sys
sys.path.insert(0, {ROOT!r})
from supervise import Start, Supervisor
more = {{"ready": {HANGS!r}, "cwd": {str(tmp_path)!r}}}
Supervisor.start(name="a", entrypoint="sleep", args={{0: ("1000",)}}, **more).ask(Start())
"""
    host = subprocess.Popen([sys.executable, "-c", source])
    try:
        pids = [int(pid) for pid in until_written(tmp_path / "pids").split()]
    finally:
        host.kill()
        host.wait()
    for pid in pids:
        until_gone(pid)


def test_n16_probes_need_no_descriptor_between_their_tries(tmp_path, port):
    """A gang that is probed often has no more open files than at its start."""
    with begun(tmp_path, port, **alive("exec:sh -c 'echo >> tries'")) as (gang, reply):
        before = open_files()
        do(gang, "listen()")
        reply.get(timeout=PATIENCE_S)
        tries, give_up_s = tmp_path / "tries", time.monotonic() + PATIENCE_S
        while not tries.exists() or len(tries.read_text()) < 20 or open_files() > before:
            assert time.monotonic() < give_up_s
            select.select([], [], [], 0.01)
