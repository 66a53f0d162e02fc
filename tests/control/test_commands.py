"""``supervise status``, ``stop``, ``restart``, ``signal``, ``wait`` and ``stacks``: the real program and a real run."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import inotify_simple
import pytest

from supervise._views.recorded_run import RecordedRun
from supervise.cli.commands.steering import Target, _wait_for_run, stack_lines
from supervise.cli.run.console import Console
from supervise.cli.run.run import open_control
from supervise.cli.run.signal_inbox import SignalInbox
from tests.cli.command import SUPERVISE, Command, Started, environment
from tests.patience import PATIENCE_S

HOST = str(Path(__file__).parent / "host.py")
SAYS = 'trap "echo usr1 $RANK" USR1; echo up $RANK; while :; do sleep 1000 & wait $!; done'
WHERE = """
import os, signal, supervise
supervise.enable_stacks()
def load_batch():
    print("up", flush=True)
    while True:  # a signal that asks for stacks ends a pause
        signal.pause()
def all_reduce():
    print("up", flush=True)
    while True:  # a signal that asks for stacks ends a pause
        signal.pause()
load_batch() if os.environ["RANK"] == "1" else all_reduce()
"""


@pytest.fixture
def supervise(tmp_path: Path) -> Command:
    return Command(tmp_path)


@contextmanager
def running(supervise: Command, *words: str, count: int = 2, **env: str) -> Iterator[Started]:
    """Start a run named job, of ranks that say something first; yield it when all have, and end it."""
    with supervise.started("--no-prefix", "-n", str(count), "--run-id", "job", *words, **env) as run:
        run.hear(count)
        yield run
        if run.process.returncode is None:
            run.signal(signal.SIGTERM)
            run.end()


def told(supervise: Command, *words: str) -> str:
    """Return what a command prints, which must succeed."""
    done = supervise.supervise(*words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refused(supervise: Command, *words: str) -> tuple[int, str]:
    """Return the exit code and the error of a command, which prints nothing else."""
    done = supervise.supervise(*words)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_status_begins_with_the_state_and_has_a_row_for_each_rank(supervise: Command):
    with running(supervise, "sh", "-c", SAYS):
        head, *rows = told(supervise, "status", "job").splitlines()
        name = supervise.directory().name
        assert re.fullmatch(rf"running: {name} \(supervise has pid \d+\)", head)
        assert [row.split()[:2] for row in rows] == [["RANK", "STATE"], ["0", "ready"], ["1", "ready"]]
        whole = json.loads(told(supervise, "status", "--json", "job"))
        assert (whole["schema_version"], whole["name"], whole["phase"]) == (1, name, "running")
        assert whole["path"] == str(supervise.directory())
        assert rows[1].split()[2] == str(whole["ranks"]["0"]["pid"])
        by_path = told(supervise, "status", "--json", str(supervise.directory() / "control.sock"))
        with_role = {
            rank: row | {"role": "default", "role_rank": int(rank)}
            for rank, row in json.loads(by_path)["ranks"].items()
        }
        assert with_role == whole["ranks"]


def test_a_reader_that_is_gone_ends_a_command_without_a_word(supervise: Command):
    """As in ``supervise status job | head -1``; the exit code is that of SIGPIPE in a shell."""
    with running(supervise, "sh", "-c", SAYS):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [*SUPERVISE, "status", "job"],
            check=False,
            cwd=supervise.tmp_path,
            env=environment(supervise.tmp_path, PYTHONUNBUFFERED="1"),
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=PATIENCE_S,
        )
        os.close(writer)
        assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_below_stdout_is_no_error_of_the_run(supervise: Command, unbuffered: str):
    with running(supervise, "sh", "-c", SAYS), Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*SUPERVISE, "status", "job"],
            check=False,
            cwd=supervise.tmp_path,
            env=environment(supervise.tmp_path, PYTHONUNBUFFERED=unbuffered),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=PATIENCE_S,
        )
    assert (done.returncode, done.stderr) == (
        1,
        b"supervise status: cannot write to stdout: No space left on device\n",
    )


def test_what_ranks_report_is_in_the_status(supervise: Command):
    rank = (
        "import signal, supervise\n"
        "supervise.notify(ready=True, status='all\\x1b[31m_reduce', step=1841, heartbeat=True)\n"
        "print('up', flush=True); signal.pause()\n"
    )
    with running(supervise, "--ready", "notify", sys.executable, "-c", rank, count=1):
        _, head, row = told(supervise, "status", "job").splitlines()
        assert head.split() == ["RANK", "STATE", "PID", "STEP", "BEAT", "STATUS"]
        assert re.fullmatch(r"0 +ready +\d+ +1841 +[\d.]+ s +all.*_reduce", row)
        assert "\x1b" not in row


def test_a_rank_that_hangs_is_hung_in_the_status(supervise: Command):
    """As in the live table: from the report of the watchdog on."""
    rank = "import signal, supervise; supervise.notify(step=7, heartbeat=True); print('up', flush=True); signal.pause()"
    with running(supervise, "--heartbeat-timeout", "0.3", sys.executable, "-c", rank, count=1):
        end_s = time.monotonic() + PATIENCE_S
        while (state := told(supervise, "status", "job").splitlines()[2].split()[1]) == "ready":
            assert time.monotonic() < end_s
        assert state == "hung"
        assert json.loads(told(supervise, "status", "--json", "job"))["ranks"]["0"]["state"] == "hung"


def test_stop_waits_for_the_end_and_the_run_says_who_stopped_it(supervise: Command):
    """The exit code is that of SIGTERM; the files are complete when the command returns."""
    with running(supervise, "sh", "-c", SAYS) as run:
        name = supervise.directory().name
        assert told(supervise, "stop", "job") == f"{name}: stopped, exit code 143\n"
        assert json.loads((supervise.directory() / "result.json").read_text())["outcome"] == "stopped"
        code, _, err = run.end()
        assert code == 143
        assert "supervise: stopped by supervise stop\n" in err
    assert not (supervise.directory() / "control.sock").exists()


@pytest.mark.parametrize("words", [("stop",), ("restart", "--rank", "0"), ("wait",)])
def test_a_command_that_waits_for_a_suspended_supervise_says_so(supervise: Command, words: tuple[str, ...]):
    """The command goes on when supervise is continued."""
    with running(supervise, "sh", "-c", SAYS) as run:
        run.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, run.process.pid, os.WSTOPPED)
        with supervise.started_command(*words, "job") as asked:
            pid = run.process.pid
            said = asked.hear_error("is suspended")
            name = supervise.directory().name
            assert said == (
                f"supervise {words[0]}: {name}: supervise (pid {pid}) is suspended and does not reply; "
                f"kill -CONT {pid} continues it\n"
            )
            run.signal(signal.SIGCONT)
            if words[0] == "wait":
                run.signal(signal.SIGTERM)
            assert asked.end()[0] == (143 if words[0] == "wait" else 0)


def test_a_wait_for_a_suspended_supervise_ends_at_its_timeout(supervise: Command):
    with running(supervise, "sh", "-c", SAYS) as run:
        run.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, run.process.pid, os.WSTOPPED)
        name = supervise.directory().name
        assert refused(supervise, "wait", "job", "--timeout", "100ms") == (124, f"supervise wait: {name} still runs\n")
        run.signal(signal.SIGCONT)


def test_stop_with_a_signal_and_a_time_of_its_own(supervise: Command):
    """Ranks that ignore the signal are killed after that time, and not after that of the run."""
    words = ("--shutdown-timeout", "1000", "sh", "-c", 'trap "" INT TERM; echo up; exec sleep 1000')
    with running(supervise, *words) as run:
        whole = json.loads(told(supervise, "stop", "--json", "--signal", "INT", "--timeout", "200ms", "job"))
        assert (whole["outcome"], whole["exit_codes"]) == ("stopped", {"0": -9, "1": -9})
        assert run.end()[0] == 130


def test_a_stop_while_a_restart_is_pending_ends_the_run(supervise: Command):
    with supervise.started("--run-id", "job", "--max-restarts", "1", "--backoff", "1000", "sh", "-c", "exit 3") as run:
        run.hear_error("restart 1 of 1 in")
        assert "exit code 143" in told(supervise, "stop", "job")
        code, _, err = run.end()
    assert code == 143
    assert "no restart 1 of 1: stopped by supervise stop" in err
    assert "  exit:     143\n" in told(supervise, "show", "job")


def test_a_restart_that_a_stop_has_canceled_did_not_take_place(supervise: Command):
    """Nor does the rank wait for it any more."""
    words = ("--strategy", "one_for_one", "--max-restarts", "3", "--backoff", "1000", "sh", "-c")
    with supervise.started("-n", "2", "--run-id", "job", *words, "[ $RANK = 1 ] || exit 3; exec sleep 1000") as run:
        run.hear_error("restart 1 of this rank in")
        told(supervise, "stop", "job", "0")
        told(supervise, "stop", "job", "1")
        _, _, err = run.end()
    assert "after 1 restart" not in err
    assert json.loads((supervise.directory() / "result.json").read_text())["restarts"] == 0
    shown = told(supervise, "show", "job")
    assert "after 1 restart" not in shown
    assert "  rank 0 ended (exit code 3); restart 1 of this rank did not take place\n" in shown
    whole = json.loads(told(supervise, "show", "job", "--json"))
    assert (whole["restarts"], "waiting for a restart" in whole["ranks"].values()) == ([], False)
    page = json.loads(told(supervise, "report", "job", "--json"))
    assert [each["text"] for each in page["incidents"]] == ["a restart of rank 0 did not take place: exit code 3"]


def test_a_request_that_comes_too_late_is_refused_and_no_wrong_usage(supervise: Command):
    with running(
        supervise, "--shutdown-timeout", "1000", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"
    ) as run:
        run.signal(signal.SIGTERM)
        run.hear_error("stopping")
        for command in ("restart", "stop", "reload"):
            code, err = refused(supervise, command, "job", "0")
            assert (code, "the gang is stopping; its ranks cannot be" in err) == (1, True)
        run.signal(signal.SIGKILL)


def test_a_restart_that_a_request_hastens_is_shown_once(supervise: Command):
    words = ("--strategy", "one_for_one", "--max-restarts", "3", "--backoff", "1000", "sh", "-c")
    script = "[ $RANK = 1 ] || [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3; exec sleep 1000"
    with supervise.started("-n", "2", "--run-id", "job", *words, script) as run:
        run.hear_error("restart 1 of this rank in")
        told(supervise, "restart", "job", "0")
        assert told(supervise, "show", "job").count("restart 1 of this rank") == 1
        told(supervise, "stop", "job")
        run.end()


def test_restart_replaces_exactly_these_ranks(supervise: Command):
    with running(supervise, "sh", "-c", SAYS) as run:
        before = json.loads(told(supervise, "status", "--json", "job"))["ranks"]
        out = told(supervise, "restart", "job", "--rank", "1")
        assert run.hear() == ["up 1\n"]
        after = json.loads(told(supervise, "status", "--json", "job"))["ranks"]
        assert out == f"{supervise.directory().name}: rank 1 was restarted, pid {after['1']['pid']}\n"
        assert after["0"] == before["0"]
        assert after["1"]["pid"] != before["1"]["pid"]
        assert (after["1"]["attempt"], after["1"]["restarts"]) == (1, 1)
        assert told(supervise, "status", "job").splitlines()[1].split() == ["RANK", "STATE", "PID", "RESTARTS"]
        assert json.loads(told(supervise, "restart", "job", "--rank", "0,1", "--json"))["pids"].keys() == {"0", "1"}


@pytest.mark.parametrize(("command", "done"), [("restart", "was restarted, pid "), ("stop", "stopped")])
def test_a_request_for_ranks_during_the_first_start_says_that_it_waits(
    supervise: Command, tmp_path: Path, command: str, done: str
):
    words = ("--strategy", "one_for_one", "--ready", f"file:{tmp_path}/go", "sh", "-c", SAYS)
    with running(supervise, *words), supervise.started_command(command, "job", "--rank", "1") as asked:
        said = asked.hear_error("is starting")
        name = supervise.directory().name
        assert said == f"supervise {command}: {name} is starting; the {command} waits until the start is over\n"
        (tmp_path / "go").touch()
        code, out, _ = asked.end()
        assert (code, out.startswith(f"{name}: rank 1 {done}")) == (0, True)


@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all"])
def test_a_restart_of_a_rank_that_fails_again_and_again_is_an_error(supervise: Command, tmp_path: Path, strategy: str):
    words = ("--strategy", strategy, "--max-restarts", "1000", "--backoff", "0.01", "--ready", "file:good")
    stays = 'trap "rm good; exit" TERM; touch good; echo up; while :; do sleep 1000 & wait $!; done'
    with running(supervise, *words, "sh", "-c", f"[ ! -e bad ] || exit 1; {stays}", count=1):
        assert supervise.supervise("restart", "job", "--rank", "0").returncode == 0  # it is ready
        (tmp_path / "bad").touch()
        code, error = refused(supervise, "restart", "job", "--rank", "0")
        name = supervise.directory().name
        assert code == 1
        assert error.startswith(
            f"supervise restart: {name}: rank 0 did not become ready again: exit code 1; file:good was"
        )


@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all"])
def test_a_restart_of_a_rank_whose_program_is_gone_says_so(supervise: Command, tmp_path: Path, strategy: str):
    (tmp_path / "svc").write_text(f"#!/bin/sh\n{SAYS}\n")
    (tmp_path / "svc").chmod(0o755)
    with running(supervise, "--strategy", strategy, "./svc"):
        (tmp_path / "svc").unlink()
        code, error = refused(supervise, "restart", "job", "--rank", "0")
        why = (
            r"rank 0 ended, and will not restart: attempt 1 could not be started: .*No such file or directory: './svc'"
        )
        assert (code, re.fullmatch(rf"supervise restart: job_\w+: {why}\n", error) is not None) == (1, True), error


def test_a_restart_of_a_rank_that_does_not_exist_is_wrong_usage(supervise: Command):
    with running(supervise, "sh", "-c", SAYS):
        code, error = refused(supervise, "restart", "job", "--rank", "2")
        assert code == 2
        assert "rank 2 does not exist; the ranks are 0 to 1" in error
        assert refused(supervise, "restart", "job")[0] == 2


def test_signal_reaches_the_ranks_that_are_named(supervise: Command):
    with running(supervise, "sh", "-c", SAYS) as run:
        name = supervise.directory().name
        assert told(supervise, "signal", "job", "USR1", "--rank", "1") == f"{name}: SIGUSR1 was sent to rank 1\n"
        assert run.hear() == ["usr1 1\n"]
        assert json.loads(told(supervise, "signal", "job", "SIGUSR1", "--json"))["ranks"] == [0, 1]
        assert run.hear(2) == ["usr1 0\n", "usr1 1\n"]
        assert "'NOTHING' is not a signal" in refused(supervise, "signal", "job", "NOTHING")[1]
        assert "argument SIG: it is missing; give a name or number" in refused(supervise, "signal", "job")[1]


def test_stacks_show_the_odd_rank_first(supervise: Command):
    with running(supervise, sys.executable, "-c", WHERE, count=3, **supervise.patient_stacks()):
        odd, others = told(supervise, "stacks", "job").splitlines()
        assert odd.startswith("rank 1: load_batch (")
        assert others.startswith("ranks 0, 2: all_reduce (")
        whole = json.loads(told(supervise, "stacks", "job", "--json"))
        assert odd in whole["groups"]
        assert whole["ranks"].keys() == {"0", "1", "2"}
        one = told(supervise, "stacks", "job", "--rank", "1").splitlines()
        assert re.match(r"rank 1, pid \d+, from (py-spy|faulthandler):", one[0])
        assert any("load_batch (" in line for line in one[1:])


def test_ranks_without_python_are_said_so_once(supervise: Command):
    """Neither py-spy nor faulthandler is to blame."""
    with running(supervise, "sh", "-c", SAYS, count=8, **supervise.patient_stacks()):
        lines = told(supervise, "stacks", "job").splitlines()
        assert "no Python frames of ranks 0-7: not a Python program: sh" in lines
        assert len(lines) <= 4, lines
        one = told(supervise, "stacks", "job", "--rank", "1").splitlines()
        assert one[-1] == "  not a Python program: sh"
        assert not [line for line in (*lines, *one) if "py-spy" in line or "faulthandler" in line]


@pytest.fixture
def embedded(supervise: Command) -> Iterator[tuple[Started, str]]:
    """A program with a gang of two ranks web and one worker, and the path of its socket."""
    path = str(supervise.tmp_path / "host.sock")
    with supervise.started_command(program=(sys.executable, HOST, path, "roles")) as host:
        host.hear()
        yield host, path


def test_roles_of_an_embedded_gang_have_names_at_its_socket(supervise: Command, embedded: tuple[Started, str]):
    """As those of ``supervise run``: the socket reports them, and results have them."""
    _, path = embedded
    _, head, *rows = told(supervise, "status", path).splitlines()
    assert head.split() == ["RANK", "ROLE", "STATE", "PID"]
    roles = [["0", "web.0"], ["1", "web.1"], ["2", "worker.0"]]
    assert [row.split()[:3] for row in rows] == [[*role, "ready"] for role in roles]
    whole = json.loads(told(supervise, "status", "--json", path))["ranks"]
    assert [[rank, f"{row['role']}.{row['role_rank']}"] for rank, row in whole.items()] == roles
    restarted = told(supervise, "restart", path, "web.1")
    assert re.fullmatch(rf"{path}: rank 1 \(web 1\) was restarted, pid \d+\n", restarted)
    sent = told(supervise, "signal", path, "WINCH", "web")
    assert sent == f"{path}: SIGWINCH was sent to ranks 0-1 (web 0-1)\n"
    assert told(supervise, "stacks", path).startswith("ranks 0-2 (web 0-1, worker 0): no Python frames")
    assert told(supervise, "stop", path, "worker") == f"{path}: rank 2 (worker 0) stopped\n"
    for command, *more in (("stacks",), ("signal", "WINCH")):
        ended = f"supervise {command}: {path}: none of these ranks runs\n"
        assert refused(supervise, command, path, *more, "worker") == (1, ended)
    code, why = refused(supervise, "restart", path)
    assert (code, "such as 0,2 or a role (web, worker)\n" in why) == (2, True)
    code, why = refused(supervise, "restart", path, "wep")
    assert code == 2
    assert "'wep' is not a rank or a role; the ranks are 0 to 2, the roles web, worker; did you mean 'web'?\n" in why


def test_a_role_at_the_socket_of_a_gang_that_has_ended(supervise: Command, embedded: tuple[Started, str]):
    """Its program was killed, and the file is left: the reason is that, and not the unknown role."""
    host, path = embedded
    host.signal(signal.SIGKILL)
    host.end()
    ended = f"supervise restart: {path}: no process listens; the gang has ended\n"
    assert refused(supervise, "restart", path, "web") == (3, ended)


def test_groups_of_stacks_have_the_roles_of_their_ranks():
    """Without roles, the lines of the server are unchanged."""
    result = {"groups": ["rank 1: load (a.py:1)", "ranks 0, 2-3: wait (b.py:2)"], "ranks": {}}
    assert stack_lines(result, whole=False) == result["groups"]
    assert stack_lines(result, ["web 0", "web 1", "web 2", "db 0"], whole=False) == [
        "rank 1 (web 1): load (a.py:1)",
        "ranks 0, 2-3 (web 0, 2, db 0): wait (b.py:2)",
    ]


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_wait_exits_as_the_run_did_also_afterwards(supervise: Command, script: str, code: int):
    """In text and as JSON."""
    os.mkfifo(gate := supervise.tmp_path / "gate")
    with running(supervise, "sh", "-c", f"echo up; read go < {gate}; {script}", count=1) as run:
        waiting = subprocess.Popen(
            [*SUPERVISE, "wait", "job"], env=environment(supervise.tmp_path), stdout=subprocess.PIPE, text=True
        )
        with waiting:
            assert refused(supervise, "wait", "job", "--timeout", "100ms")[0] == 124
            gate.write_text("go\n")
            assert run.end()[0] == code
            assert waiting.wait(PATIENCE_S) == code
            assert waiting.stdout is not None
            outcome = "failed" if code else "succeeded"
            assert waiting.stdout.read() == f"{supervise.directory().name}: {outcome}, exit code {code}\n"
    done = supervise.supervise("wait", "job", "--json")
    whole = json.loads(done.stdout)
    assert (done.returncode, whole["exit_code"], whole["outcome"]) == (code, code, outcome)


def reply(client: socket.socket, result: dict[str, object]) -> str:
    """Reply to the next request of a client; return the name of the request."""
    with client.makefile("rw") as lines:
        request = json.loads(lines.readline())
        lines.write(json.dumps({"version": 1, "id": request["id"], "ok": True, "result": result}) + "\n")
    return str(request["request"])


@pytest.mark.parametrize(("word", "code"), [("wait", 3), ("stop", 0)])
def test_the_end_at_a_socket_names_the_role_of_the_root_cause(supervise: Command, word: str, code: int):
    """A gang reports its roles only while it lives: nothing listens at the socket when the result arrives."""
    path = str(supervise.tmp_path / "host.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(PATIENCE_S)
        server.bind(path)
        server.listen()
        command = [*SUPERVISE, word, path]
        waiting = subprocess.Popen(command, env=environment(supervise.tmp_path), stdout=subprocess.PIPE, text=True)
        with waiting, server.accept()[0] as client:
            with server.accept()[0] as other:
                assert reply(other, {"ranks": {"0": {"role": "store"}, "1": {"role": "web"}}}) == "status"
            server.close()
            Path(path).unlink()
            end = {"finished": True, "outcome": "failed", "root_cause": 1, "exit_codes": {"0": -15, "1": 3}}
            assert reply(client, end) == word
            assert waiting.communicate(timeout=PATIENCE_S)[0] == f"{path}: failed, rank 1 (web 0): exit code 3\n"
    assert waiting.returncode == code


@contextmanager
def closing_connections(path: Path) -> Iterator[None]:
    """Listen in place of a run; close each connection without a reply."""
    path.unlink()
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)
        server.listen()

        def close_all() -> None:
            with suppress(OSError):  # shut down, below
                while True:
                    server.accept()[0].close()

        thread = threading.Thread(target=close_all)
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_connection_that_ends_is_not_the_end_of_the_run(supervise: Command):
    """Each command says that there was no reply, and fails."""
    more = {"signal": ["USR1"], "restart": ["--rank", "0"]}
    with running(supervise, "sh", "-c", SAYS), closing_connections(supervise.directory() / "control.sock"):
        for command in ("status", "stop", "stacks", "signal", "restart", "wait"):
            code, error = refused(supervise, command, "job", *more.get(command, []))
            assert code == 1
            assert error.startswith(f"supervise {command}: {supervise.directory().name}: the connection ended without")


def test_a_run_that_has_ended_is_said_to_have_ended_and_how(supervise: Command):
    """Exit code 3, for each command but wait."""
    supervise.run("--run-id", "job", "sh", "-c", "exit 7")
    name = supervise.directory().name
    for words in (["status"], ["stop"], ["stacks"], ["signal"], ["restart"]):
        more = {"signal": ["USR1"], "restart": ["--rank", "0"]}.get(words[0], [])
        code, error = refused(supervise, *words, "job", *more)
        assert code == 3
        assert error == f"supervise {words[0]}: {name} has ended: failed, exit code 7; see: supervise show {name}\n"


def test_a_run_that_was_killed_has_ended_although_its_socket_is_there(supervise: Command):
    with running(supervise, "sh", "-c", SAYS) as run:
        run.signal(signal.SIGKILL)
        run.process.wait()
        assert (supervise.directory() / "control.sock").exists()
        for command, code in (("status", 3), ("stop", 3), ("wait", 1)):
            found, error = refused(supervise, command, "job")
            assert found == code
            assert "has ended: supervise was killed; see: supervise show job_" in error
        ended = json.loads(supervise.supervise("wait", "job", "--json").stdout)
        assert (ended["finished"], ended["outcome"], ended["exit_code"]) == (True, None, None)


def test_of_runs_with_the_same_name_the_one_that_runs_is_meant(supervise: Command):
    """As of a job that runs every night; if several run, the name is ambiguous, and if none runs, it is the newest."""
    for _ in range(2):
        supervise.run("--run-id", "job", "true")
    assert "job_" in (error := refused(supervise, "status", "job")[1])
    assert "has ended" in error
    with running(supervise, "sh", "-c", SAYS) as run:
        assert told(supervise, "status", "job").startswith("running: job_")
        with running(supervise, "sh", "-c", SAYS):
            assert "2 runs are named 'job'" in refused(supervise, "stop", "job")[1]
        assert "exit code 143" in told(supervise, "stop", "job")
        assert run.end()[0] == 143


def test_a_run_that_does_not_exist_is_wrong_usage(supervise: Command):
    for command in ("status", "stop", "wait", "stacks"):
        code, error = refused(supervise, command, "nothing")
        assert code == 2
        missing = r"(if 'nothing' is a role or a rank, RUN is missing, and there are no runs in \S+; )?"
        assert re.search(rf"is named 'nothing'; {missing}see: supervise ls", error)
        assert refused(supervise, command)[0] == 2


def test_a_path_of_any_length_works(supervise: Command):
    runs = str(supervise.tmp_path / ("x" * 150) / ("y" * 150))
    Path(runs).mkdir(parents=True)
    with supervise.started("--run-id", "job", "sh", "-c", SAYS, SUPERVISE_RUNS_DIR=runs) as run:
        run.hear()
        done = supervise.supervise("stop", "job", SUPERVISE_RUNS_DIR=runs)
        assert (done.returncode, done.stderr) == (0, "")
        assert run.end()[0] == 143


def test_a_run_without_files_has_no_socket(supervise: Command):
    with supervise.started("--log-dir", "/dev/null", "sh", "-c", SAYS) as run:
        run.hear()
        assert list(supervise.tmp_path.rglob("control.sock")) == []
        run.signal(signal.SIGTERM)
        assert run.end()[0] == 143


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a command as another user")
def test_a_run_of_another_user_is_refused_with_a_reason():
    """A folder that is closed to the caller, and one that the owner has opened to all."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        supervise = Command(folder)
        with running(supervise, "sh", "-c", SAYS):
            as_other = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
            importing = [*as_other, sys.executable, "-c", "import supervise, pykka, psutil, structlog"]
            if subprocess.run(
                importing, env=environment(folder), cwd=folder, capture_output=True, check=False
            ).returncode:
                pytest.skip("another user cannot read this installation of supervise")
            run = str(supervise.directory())
            done = supervise.supervise("status", run, before=as_other)
            assert done.returncode == 2
            assert "belongs to another user, and you may not read it" in done.stderr
            for path in (supervise.directory().parent, supervise.directory()):
                path.chmod(0o755)
            (supervise.directory() / "run.json").chmod(0o644)
            (supervise.directory() / "events.jsonl").chmod(0o644)
            done = supervise.supervise("stop", run, before=as_other)
            assert (done.returncode, done.stdout) == (1, "")
            assert "belongs to user root; only that user and root may ask it" in done.stderr
            assert "running" in told(supervise, "status", run)


def test_a_run_whose_socket_cannot_be_made_says_so_and_goes_on(gang, tmp_path, capfd):
    (tmp_path / "control.sock").write_text("precious")
    inbox, console = SignalInbox([], restore=True), Console("never")
    assert open_control(str(tmp_path), gang.supervisor, inbox, console, engine="local") is None
    assert "no control socket: " in capfd.readouterr().err
    assert (tmp_path / "control.sock").read_text() == "precious"


@pytest.mark.parametrize("command", ["status", "stop"])
@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "the reply is not a JSON object"),
        (b'{"version": 1, "id": 1, "ok": true, "result": {}}\n', "the reply is not as expected"),
        (b'{"version": 2, "id": 1, "ok": true, "result": {}}\n', "the server speaks version 2, not 1"),
        (b'{"version": 1, "id": 1, "ok": false, "error": {}}\n', "refused without a reason"),
    ],
)
def test_a_socket_of_another_program_is_an_error_without_a_traceback(
    supervise: Command, command: str, reply: bytes, why: str
):
    path = supervise.tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(PATIENCE_S)

        def answer() -> None:
            end, _ = listener.accept()
            with end:
                end.recv(1 << 16)
                end.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        code, error = refused(supervise, command, str(path))
        thread.join(PATIENCE_S)
    assert (code, error) == (1, f"supervise {command}: {path}: {why}\n")


def test_a_start_that_fails_is_the_end_of_a_wait(supervise: Command):
    """The gang has no result, and the run has an exit code."""
    os.mkfifo(gate := supervise.tmp_path / "gate")
    script = f"echo up; read go < {gate}; exit 5"
    with running(supervise, "--ready", "notify", "sh", "-c", script, count=1) as run:
        command = [*SUPERVISE, "wait", "job"]
        with subprocess.Popen(command, env=environment(supervise.tmp_path), stdout=subprocess.PIPE) as waiting:
            assert json.loads(told(supervise, "status", "--json", "job"))["phase"] == "starting"
            gate.write_text("go\n")
            assert waiting.wait(PATIENCE_S) == run.end()[0] == 5


class Closes:
    """The client of a run that has a result, and closes the connection in time or not."""

    def __init__(self, *, in_time: bool) -> None:
        self.in_time = in_time

    def request(self, *_: object, **__: object) -> dict[str, Any]:
        return {"finished": True}

    def until_closed(self, _: float | None) -> bool:
        return self.in_time


@pytest.mark.parametrize(("in_time", "code"), [(True, 3), (False, 124)])
def test_wait_lasts_until_supervise_has_exited(supervise: Command, in_time: bool, code: int):
    """The connection is closed after the result is written."""
    supervise.run("sh", "-c", "exit 3")
    run = RecordedRun(str(supervise.directory()))
    found = Namespace(timeout=1.0, json=False, target=Target(run.name, "", run))
    assert _wait_for_run(found, cast("Any", Closes(in_time=in_time))) == code


def test_a_run_whose_socket_comes_late_is_waited_for(supervise: Command):
    """As long as the run goes on: it has a directory before it has a socket."""
    with running(supervise, "sh", "-c", SAYS):
        [directory] = (supervise.tmp_path / "runs").glob("job_*")
        (directory / "control.sock").rename(directory / "hidden")
        with inotify_simple.INotify() as watch:
            watch.add_watch(directory / "events.jsonl", inotify_simple.flags.OPEN)
            asking = subprocess.Popen(
                [*SUPERVISE, "status", "job"], env=environment(supervise.tmp_path), stdout=subprocess.PIPE
            )
            with asking:
                looked = 0
                while looked < 3 and asking.poll() is None:  # each attempt asks first whether the run goes on
                    looked += len(watch.read(timeout=20))
                (directory / "hidden").rename(directory / "control.sock")
                assert asking.communicate(timeout=PATIENCE_S)[0]
        assert asking.returncode == 0
