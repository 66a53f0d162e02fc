"""The end of a rank is noticed at once, whatever it left behind, and nobody wakes up in vain."""

import importlib
import os
import re
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from supervise import Wait
from tests.patience import PATIENCE_S
from tests.processes.gangs import Stopwatch, each_kind, faulty, launched
from tests.processes.work import BLOCK

TELL_TIME = """
import time
def obey(*_):
    say(time.monotonic_ns())
    os._exit(0)
signal.signal(signal.SIGTERM, obey)
say("ready")
while True: signal.sigtimedwait([], 0.05), signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""


@pytest.mark.parametrize("kind", ["binary", "fork"])
def test_d1_the_stop_begins_at_once_when_one_of_64_dies(tmp_path, kind):
    """From the SIGKILL of one rank to the first SIGTERM that another one sees. A machine may stand still meanwhile."""

    def took_ns():
        with faulty(tmp_path, kind, [TELL_TIME] * 64) as gang:
            gang.hear(64)
            victim = gang.pids[17]
            killed_ns = time.monotonic_ns()
            os.kill(victim, signal.SIGKILL)
            seen_ns = min(int(word) for word in gang.hear(63))
            result = gang.wait()
        assert {r: f.exitcode for r, f in result.failures.items()} == {17: -9}
        return seen_ns - killed_ns

    assert any(0 < took_ns() < 0.5e9 for _ in range(5))


def _wake_ups():
    """How often the threads of this process went to sleep by themselves, so far."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        found += int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.MULTILINE)[1])
    return found


@each_kind
def test_d1_an_idle_gang_wakes_nobody(tmp_path, kind):
    """While two seconds go by, no thread of the host runs but those that serve the one question.

    A machine may do something to this process meanwhile, but not in each of three times.
    """
    with faulty(tmp_path, kind, [f"say('ready'); {BLOCK}"] * 4) as gang:
        gang.hear(4)
        gang.ask(Wait(timeout=0.0))

        def is_idle():
            before, cpu = _wake_ups(), time.process_time()
            assert gang.ask(Wait(timeout=2.0)) is None
            # a loop that wakes five times a second would be at ten and more
            return _wake_ups() - before <= 8 and time.process_time() - cpu < 0.1

        assert any(is_idle() for _ in range(3))


LEAVE_SLEEPER = """
if os.fork() == 0:
    if os.environ["AWAY"]:
        os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(os.getpid())
    wait_for_word()
    os._exit(0)
signal.pause()
"""


@each_kind
def test_d2_a_sleeper_that_inherited_everything_delays_nothing(tmp_path, kind):
    """The rank's death is noticed while the sleeper lives, and the sleeper is gone after the close."""
    with faulty(tmp_path, kind, [BLOCK, LEAVE_SLEEPER], grace=0.2, envs={1: {"AWAY": ""}}) as gang:
        (sleeper,) = map(int, gang.hear())
        held = os.pidfd_open(sleeper)
        with Stopwatch() as watch:
            os.kill(gang.pids[1], signal.SIGKILL)
            gang.await_event("supervise.process.exited", local_rank=1)
        assert watch.seconds < PATIENCE_S / 2
        os.kill(sleeper, 0)
        result = gang.wait()
        gang.close()
        assert _is_dead(held)
    os.close(held)
    assert {r: f.exitcode for r, f in result.failures.items()} == {1: -9}


@each_kind
def test_d2_a_sleeper_in_a_session_of_its_own_delays_not_even_the_result(tmp_path, kind):
    """It is out of reach, and the gang is over all the same."""
    with faulty(tmp_path, kind, [BLOCK, LEAVE_SLEEPER], envs={1: {"AWAY": "yes"}}) as gang:
        (sleeper,) = map(int, gang.hear())
        with Stopwatch() as watch:
            os.kill(gang.pids[1], signal.SIGKILL)
            result = gang.wait()
        assert watch.seconds < PATIENCE_S / 2
        held = os.pidfd_open(sleeper)
        gang.tell(1)
        assert select.select([held], [], [], PATIENCE_S)[0]
    os.close(held)
    assert {r: f.exitcode for r, f in result.failures.items()} == {1: -9}


def _is_dead(pidfd):
    return bool(select.select([pidfd], [], [], 0)[0])


def _module(folder, monkeypatch, fault):
    """Return a function of a new module that imports well here, and has a fault in a worker."""
    name = f"faulty_{folder.name}".replace("[", "_").replace("]", "_")
    source = f"import os, sys\nif 'GATE' in os.environ:\n    {fault}\ndef work():\n    return 1\n"
    (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    return importlib.import_module(name).work


DEATHS_AT_IMPORT = [
    ("raise LookupError('while importing')", 1, "LookupError: while importing"),
    ("print('last words', file=sys.stderr, flush=True); os._exit(7)", 7, "last words"),
    ("print('last words', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)", -9, "last words"),
    ("print('last words', file=sys.stderr, flush=True); os._exit(0)", 0, "last words"),
]


@pytest.mark.parametrize("kind", ["spawn", "forkserver"])
@pytest.mark.parametrize("death", DEATHS_AT_IMPORT)
def test_d3_a_death_while_importing_is_a_failure_with_its_stderr(tmp_path, monkeypatch, kind, death):
    """The function's module dies in the worker: the start does not hang, and the log has the reason."""
    fault, code, words = death
    function = _module(tmp_path, monkeypatch, fault)
    with Stopwatch() as watch, launched(tmp_path, function, {0: ()}, start_method=kind) as gang:
        result = gang.start().wait()
    assert watch.seconds < 20
    assert (result.outcome, result.failures[0].exitcode) == ("failed", code)
    assert words in result.ends[0].stderr_tail


@pytest.mark.parametrize(("fault", "code", "words"), DEATHS_AT_IMPORT)
def test_d3_a_binary_that_dies_while_importing_is_a_failure_with_its_stderr(tmp_path, monkeypatch, fault, code, words):
    """The same module, imported by a program."""
    function = _module(tmp_path, monkeypatch, fault)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {function.__module__}"
    with launched(tmp_path, sys.executable, {0: ("-S", "-c", program), 1: ("-S", "-c", program)}) as gang:
        result = gang.start().wait()
    cause = result.root_cause
    if code == 0:
        assert result.outcome == "succeeded"
        return
    assert result.failures[cause].exitcode == code
    assert words in result.ends[cause].stderr_tail


@pytest.mark.parametrize("kind", ["spawn", "forkserver"])
def test_d3_a_function_that_is_gone_is_a_failure_with_its_stderr(tmp_path, monkeypatch, kind):
    """The module was removed between its import here and the start."""
    function = _module(tmp_path, monkeypatch, "pass")
    next(tmp_path.glob("*.py")).unlink()
    with launched(tmp_path, function, {0: ()}, start_method=kind) as gang:
        result = gang.start().wait()
    assert result.failures[0].exitcode == 1
    assert "ModuleNotFoundError" in result.ends[0].stderr_tail


@each_kind
def test_d3_a_rank_that_is_killed_at_once_is_a_failure(tmp_path, kind):
    """Before it is ready, even before its session, its streams and its signals are in place."""
    with faulty(tmp_path, kind, [BLOCK], event_sink=_kill_started) as gang:
        result = gang.wait()
    assert {r: f.exitcode for r, f in result.failures.items()} == {0: -9}


def _kill_started(event):
    if event["event"] == "supervise.process.started":
        os.kill(event["pid"], signal.SIGKILL)
