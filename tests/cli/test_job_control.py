"""Ctrl-Z, ``fg`` and ``bg`` in a real interactive shell."""

import json
import select
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pykka
import pytest

from supervise import Signal, Start, Status
from supervise.cli.run.rank_stdin import JobControl
from supervise.testing import FakeGang, FakeLauncher
from tests.cli.command import Command
from tests.cli.shell import PROMPT, RUN, Shell, shell
from tests.patience import PATIENCE_S

BEATS = """\
import itertools, supervise, time
for number in itertools.count():
    supervise.notify(heartbeat=True)
    if number % 20 == 0:
        print("beats", flush=True)
    time.sleep(0.1)
"""
READY = "echo ready; exec sleep 1000"  # a shell that starts another program is in the state D for a moment
TICKS = "trap 'echo usr1' USR1; echo ready; while :; do sleep 0.05; done"


def until_suspended(pids: list[int]) -> None:
    """Wait until the kernel has carried out the suspension of these processes, which has been ordered."""
    deadline_s = time.monotonic() + PATIENCE_S
    while states := {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids} - {"T"}:
        assert time.monotonic() < deadline_s, states
        select.select([], [], [], 0.01)


def started(supervise: Command) -> list[int]:
    """Return the pids of all ranks."""
    lines = (supervise.directory() / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return [event["pid"] for event in events if event["event"] == "supervise.process.started"]


def events(supervise: Command, name: str) -> list[dict[str, object]]:
    lines = (supervise.directory() / "events.jsonl").read_text().splitlines()
    return [found for line in lines if (found := json.loads(line))["event"] == name]


def suspend(bash: Shell) -> None:
    bash.type("\x1a")
    bash.until("Stopped", PROMPT)


def stop(bash: Shell) -> None:
    """Continue in the foreground and interrupt."""
    bash.type("fg\n")
    bash.until("supervise run")
    bash.until_in_front()
    bash.type("\x03")
    bash.until("stopped by SIGINT", PROMPT)


def test_ctrl_z_suspends_the_ranks_and_fg_continues_them(supervise: Command):
    """The shell has its prompt back; nothing is said about suspended ranks, and none counts as one."""
    with shell(supervise) as bash:
        bash.type(f'{RUN} -n 2 sh -c "{READY}"\n')
        bash.until("]:", "ready", "]:", "ready")
        suspend(bash)
        until_suspended(started(supervise))
        stop(bash)
        assert "kill -CONT" not in bash.raw
    assert events(supervise, "supervise.process.stopped") == []


def test_bg_continues_them_too(supervise: Command):
    """And a signal that was passed on meanwhile arrives."""
    with shell(supervise) as bash:
        bash.type(f'{RUN} -n 1 sh -c "{TICKS}"\n')
        bash.until("]:", "ready")
        suspend(bash)
        bash.type("bg; kill -USR1 %1\n")
        bash.until("]:", "usr1")
        stop(bash)


@pytest.mark.parametrize("words", ["-n 1", "-n 2 --stdin 1"])
def test_ctrl_z_at_a_rank_with_the_terminal_suspends_all(supervise: Command, words: str):
    """The terminal signals that rank only; supervise suspends the rest and itself. ``fg`` gives the terminal back."""
    program = "[ $RANK = 1 ] || [ $WORLD_SIZE = 1 ] || exec sleep 1000; while read a; do echo got $a; done; exit 7"
    with shell(supervise) as bash:
        bash.type(f"{RUN} {words} sh -c '{program}'; echo ended $?\n")
        bash.until("logs in")
        for number in range(3):
            bash.type(f"a{number}\n")
            bash.until(f"got a{number}")
            suspend(bash)
            until_suspended(started(supervise))
            bash.type("fg\n")
            bash.until("supervise run")
        bash.type("last\n")
        bash.until("got last")
        bash.type("\x04")
        bash.until("failed: exit code 7", PROMPT)


def test_a_rank_of_a_background_run_that_reads_suspends_the_run(supervise: Command):
    """As any job of a shell; ``fg`` gives it the terminal."""
    with shell(supervise) as bash:
        bash.type(f"{RUN} sh -c 'read a; echo got $a' &\n")
        bash.until("logs in")
        bash.type("\n")
        while "Stopped" not in bash.raw:
            bash.until(PROMPT)
            bash.type("wait; :\n")
        bash.type("fg\n")
        bash.until("supervise run")
        bash.type("Ada\n")
        bash.until("]:", "got Ada", PROMPT)


def test_a_stop_of_a_background_run_is_not_suspended_by_a_rank_that_reads(supervise: Command):
    """SIGTERM continues the rank, which reads again, and is suspended again by the kernel."""
    with shell(supervise) as bash:
        bash.type(f"bash -c 'timeout 2 {RUN} cat; echo ended $?'\n")
        bash.until("ended 124", PROMPT)


def test_the_other_programs_of_a_pipeline_are_suspended_too(supervise: Command):
    """Otherwise the shell would wait for them."""
    with shell(supervise) as bash:
        bash.type(f"{RUN} sh -c 'read a; echo got $a; read a; echo got $a' | cat\n")
        bash.until("logs in")
        bash.type("one\n")
        bash.until("]:got one")
        suspend(bash)
        bash.type("fg\n")
        bash.until("| cat")
        bash.type("two\n")
        bash.until("]:got two", PROMPT)


def test_no_watchdog_counts_the_suspension(supervise: Command, tmp_path: Path):
    """The time is longer than the timeout for heartbeats, and no rank is blamed."""
    program = tmp_path / "beats.py"
    program.write_text(BEATS)
    with shell(supervise) as bash:
        bash.type(f"{RUN} -n 2 --heartbeat-timeout 4 --on-hang fail {program}\n")
        bash.until("]:beats", "]:beats")
        suspend(bash)
        bash.type("sleep 6; fg\n")
        bash.until("supervise run", *["]:beats"] * 6)  # for longer than the timeout
        bash.type("\x03")
        bash.until("stopped by SIGINT", PROMPT)
    assert events(supervise, "supervise.process.hung") == []


def test_without_a_shell_ctrl_z_has_no_effect(supervise: Command):
    """No process could continue supervise: the kernel does not suspend it, and the ranks go on."""
    with supervise.on_terminal(sys.executable, "-c", "while 1: print('got', input(), flush=True)") as terminal:
        terminal.type(b"one\n")
        terminal.until("got one")
        terminal.type(b"\x1a")
        terminal.until("^Z")
        terminal.type(b"two\n")
        terminal.until("got two")
        terminal.type(b"\x03")
        assert terminal.end()[0] == 130


def test_supervise_suspends_itself_after_its_ranks_on_a_machine_that_stood_still(monkeypatch: pytest.MonkeyPatch):
    """The gang has replied by then, which has taken 3 seconds."""
    order: list[object] = []

    class Late:
        def __init__(self, message: object) -> None:
            self._message = message

        def get(self, timeout: float) -> object:
            if timeout < 3:
                raise pykka.Timeout
            order.append(getattr(self._message, "sig", "sent"))
            return frozenset() if isinstance(self._message, Signal) else SimpleNamespace(running=frozenset())

    monkeypatch.setattr("supervise.cli.run.rank_stdin.os.kill", lambda _, sig: order.append(sig))
    stdin, console = SimpleNamespace(terminal=None), SimpleNamespace(clear=list)
    JobControl(stdin, console, Late).suspend(signal.SIGTSTP)  # type: ignore[arg-type]
    assert order == [signal.SIGSTOP, "sent", signal.SIGTSTP, signal.SIGCONT, "sent"]


def test_ranks_that_start_meanwhile_are_suspended_too(monkeypatch: pytest.MonkeyPatch):
    """A signal reaches no rank before its start is reported, and a start goes on until supervise itself stops."""
    suspended: set[int] = set()
    with FakeGang(4, launchers={rank: FakeLauncher(held=True) for rank in (1, 2)}) as gang:

        def ask(message: object) -> object:
            if isinstance(message, Status):  # the first one follows the first signal
                for rank in (1, 2):
                    gang.launchers[rank].release()
            return gang.supervisor.ask(message, block=False)

        def stops(_pid: int, _sig: int) -> None:
            suspended.update(rank for rank, process in gang.processes.items() if signal.SIGSTOP in process.signals)

        monkeypatch.setattr("supervise.cli.run.rank_stdin.os.kill", stops)
        gang.supervisor.ask(Start(), block=False)
        assert gang.launchers[1].asked.wait(PATIENCE_S)
        stdin, console = SimpleNamespace(terminal=None), SimpleNamespace(clear=list)
        JobControl(stdin, console, ask).suspend(signal.SIGTSTP)  # type: ignore[arg-type]
    assert suspended == {0, 1, 2, 3}


def test_sigtstp_without_a_terminal_suspends_the_ranks(supervise: Command):
    """``kill -TSTP``, from any program; SIGCONT continues all. The process group must not be an orphan."""
    with shell(supervise) as bash:
        bash.type(f'{RUN} -n 2 sh -c "{READY}" </dev/null >out 2>&1 &\n')
        bash.until(PROMPT)
        bash.type("until [ $(grep -c ready out) = 2 ]; do sleep 0.05; done; kill -TSTP %1; wait; jobs\n")
        bash.until("Stopped", PROMPT)
        until_suspended(started(supervise))
        bash.type("kill -TERM %1; kill -CONT %1; wait %1; echo code $?\n")
        bash.until("code 143")
        assert not any(Path(f"/proc/{pid}").exists() for pid in started(supervise))
