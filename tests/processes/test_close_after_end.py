"""Row S12: a close behind a wait that has returned ends what the ranks left behind, within its own timeout."""

import os
import threading
from contextlib import contextmanager
from signal import SIGKILL

import pytest

from supervise import Close, DefaultLogsSpecs, RestartPolicy, Wait, start_processes
from tests.breaking import see_no_groups
from tests.patience import PATIENCE_S
from tests.processes import work
from tests.processes.gangs import Fifo, Stopwatch, faulty
from tests.processes.hosts import Host, watched
from tests.processes.work import BLOCK

NO_FILES = DefaultLogsSpecs(os.devnull)
LEAVES_DEAF_CHILD = """
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(f"child {os.getpid()}")
    while True:
        signal.pause()
wait_for_word()
if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") < os.environ.get("FAILS_BEFORE", "0"):
    os._exit(3)
"""
NOT_MUCH_LATER_S = 20.0
"""Far less than the grace of a minute, and more than a busy machine needs."""


@contextmanager
def pipes(folder):
    """Yield named pipes to hear from ranks and to let them go on."""
    ear, gate = Fifo(folder / "ear"), Fifo(folder / "gate")
    try:
        yield ear, gate
    finally:
        ear.close()
        gate.close()


def context_of(ear, gate, **more):
    """Start one rank that leaves a child in its group, which ignores SIGTERM."""
    env = {0: {"EAR": ear.path, "GATE": gate.path, **more.pop("env", {})}}
    settings = {"logs_specs": NO_FILES, "grace": 60.0, "start_method": "fork"} | more
    return start_processes("s12", work.run_source, {0: (LEAVES_DEAF_CHILD,)}, env, **settings)


def child_of(ear):
    return int(ear.hear().removeprefix("child "))


@pytest.mark.parametrize("containment", ["group", "sweep"])
@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("how", ["close", "kill", "with"])
def test_s12_a_close_behind_a_wait_ends_by_its_timeout_what_was_left(tmp_path, how, restarts, containment):
    """Not by the gang's grace, which the end of the gang has begun with; also in an attempt that is not the first."""
    more = {"containment": containment, "env": {"FAILS_BEFORE": str(restarts)}}
    if restarts:
        more["restart_policy"] = RestartPolicy(max_restarts=1, backoff=0.0)
    with pipes(tmp_path) as (ear, gate):
        context = context_of(ear, gate, grace=0.5 if how == "with" or restarts else 60.0, **more)
        for _ in range(restarts):
            child_of(ear)
            gate.tell()
        with watched([child_of(ear)]) as watch:
            gate.tell()
            with Stopwatch() as taken:
                if how == "with":
                    with context:
                        assert context.wait().outcome == "succeeded"
                else:
                    assert context.wait().outcome == "succeeded"
                    context.close(*((SIGKILL,) if how == "kill" else (None, 0.5)))
            assert watch.survivors(0) == set()
        assert taken.seconds < 0.5 + NOT_MUCH_LATER_S
        context.close()


def test_s12_a_close_looks_for_what_was_left_itself(tmp_path, monkeypatch, caplog):
    """Another gang has looked a moment ago, and has not seen the child."""
    with pipes(tmp_path) as (ear, gate):
        context = context_of(ear, gate)
        with watched([child_of(ear)]) as watch:
            gate.tell()
            assert context.wait().outcome == "succeeded"
            see_no_groups(monkeypatch)
            context.close(SIGKILL)
            assert watch.survivors(0) == set()
        context.close()
    assert "supervise.process.leaked" not in caplog.text


def test_s12_a_close_waits_no_longer_than_something_is_left(tmp_path):
    """Its timeout of a minute is not used up."""
    with pipes(tmp_path) as (ear, gate):
        context = context_of(ear, gate)
        child = child_of(ear)
        gate.tell()
        context.wait()
        with watched([child]) as watch:
            killer = threading.Timer(0.3, os.kill, (child, SIGKILL))
            killer.start()
            with Stopwatch() as taken:
                context.close(timeout=60)
            assert watch.survivors(0) == set()
        killer.join()
    assert taken.seconds < NOT_MUCH_LATER_S


def test_s12_every_close_behind_a_wait_returns_when_nothing_is_left(tmp_path):
    """Of eight threads, the most impatient sets the time for all."""
    with pipes(tmp_path) as (ear, gate):
        context = context_of(ear, gate)
        with watched([child_of(ear)]) as watch:
            gate.tell()
            context.wait()
            left = []

            def close(timeout):
                context.close(timeout=timeout)
                left.extend(watch.survivors(0))

            threads = [threading.Thread(target=close, args=(0.5 + 30 * (n % 2),)) for n in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert left == []


EXITS = f"""
from supervise import DefaultLogsSpecs, start_processes
from tests.processes import work
source, env = {LEAVES_DEAF_CHILD!r}, {{0: {{"EAR": ear}}}}
files = DefaultLogsSpecs(os.devnull)
grace = float(os.environ["GRACE"])
context = start_processes("s12", work.run_source, {{0: (source,)}}, env, files, start_method="fork", grace=grace)
print(context.wait().outcome, flush=True)
"""


@pytest.mark.parametrize("grace", [0.5, 60.0])
def test_s12_the_exit_of_the_interpreter_ends_what_was_left(tmp_path, monkeypatch, grace):
    """Within the gang's grace, and in five seconds at the most."""
    monkeypatch.setenv("GRACE", str(grace))
    with pipes(tmp_path) as (ear, gate):
        monkeypatch.setenv("GATE", gate.path)
        with Host(EXITS, "fork", ear.path) as host, watched([child_of(ear)]) as watch:
            gate.tell()
            assert host.hear() == "succeeded"
            with Stopwatch() as taken:
                assert host.exit_code() == 0
            assert watch.survivors() == set()
    assert taken.seconds < min(grace, 5.0) + NOT_MUCH_LATER_S


@pytest.mark.parametrize("containment", ["group", "sweep"])
def test_s12_a_close_of_the_actor_behind_its_end_keeps_to_its_timeout(tmp_path, containment):
    """Also while a close or a stop with the grace of a minute is under way."""
    with faulty(tmp_path, "fork", [LEAVES_DEAF_CHILD], grace=60.0, containment=containment) as gang:
        with watched([int(gang.hear()[0].removeprefix("child "))]) as watch:
            gang.tell(0)
            assert gang.wait().outcome == "succeeded"
            stopping = gang.supervisor.stop(block=False)
            with Stopwatch() as taken:
                gang.close(timeout=0.5)
            assert watch.survivors(0) == set()
        assert stopping.get(timeout=30)
        assert 0.4 < taken.seconds < 0.5 + NOT_MUCH_LATER_S


def test_s12_who_left_the_group_is_given_what_is_left_of_the_time(tmp_path):
    """And a moment to end politely; not all of it once more behind those who stayed."""
    daemon = LEAVES_DEAF_CHILD.replace("os.fork() == 0:", "os.fork() == 0:\n    os.fork() or os.setsid()", 1)
    with faulty(tmp_path, "fork", [daemon], grace=60.0, containment="sweep") as gang:
        with watched([int(said.removeprefix("child ")) for said in gang.hear(2)]) as watch:
            gang.tell(0)
            gang.wait()
            with Stopwatch() as taken:
                gang.close(timeout=14.0)
            assert watch.survivors(0) == set()
        assert 13.9 < taken.seconds < 27


def test_s10_a_further_close_never_lengthens_the_grace(tmp_path):
    """Not even one whose timeout is a little shorter, and which comes late."""
    deaf = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); say('deaf'); {BLOCK}"
    with faulty(tmp_path, "fork", [deaf]) as gang:
        gang.hear()
        with Stopwatch() as taken:
            first = gang.supervisor.ask(Close(timeout=10.0), block=False)
            for timeout in (9.8, 9.6, 9.4):
                gang.ask(Wait(timeout=2.9))
                gang.supervisor.ask(Close(timeout=timeout), block=False)
            first.get(timeout=PATIENCE_S)
        assert taken.seconds < 18  # the last alone would be over later
