"""The destination of the first signal of a stop: the process group of a rank, or only its own process."""

import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from supervise import (
    Close,
    RestartPolicy,
    RestartRanks,
    Role,
    SpecError,
    Status,
    Supervisor,
    TerminateRanks,
    start_processes,
)
from tests.patience import PATIENCE_S
from tests.processes.gangs import Fifo, Gang, each_kind, faulty, launched
from tests.processes.hosts import watched
from tests.processes.test_stacks import await_suspended
from tests.processes.work import PREAMBLE, run_source

MASTER = """
import subprocess
worker = subprocess.Popen(["sh", "-c", 'read word < "$TASK"'])
def drain(number, frame):
    say("draining")
    say(f"worker: {worker.wait()}")
    os._exit(0)
signal.signal(signal.SIGTERM, drain)
say(f"ready {worker.pid}")
while True:
    signal.sigtimedwait([], 0.05)
    signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""
"""A master that waits for the task of its worker at SIGTERM. The worker does not handle SIGTERM."""
DEAF = """
import subprocess
worker = subprocess.Popen(["sh", "-c", "sleep 1000; :"])
signal.signal(signal.SIGTERM, lambda number, frame: say("got SIGTERM"))
say(f"ready {worker.pid}")
while True:
    signal.sigtimedwait([], 0.05)
    signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""
LEAVES = """
import subprocess
worker = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL)
say(f"ready {worker.pid}")
if AT_ONCE:
    os._exit(0)
signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
while True:
    signal.sigtimedwait([], 0.05)
    signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""
FAILS = "wait_for_word(); os._exit(3)"


@pytest.fixture
def task(tmp_path):
    """Make the pipe at which the worker of `MASTER` waits for the end of its task."""
    (tmp_path / "task").mkdir()
    made = Fifo(tmp_path / "task" / "fifo")
    yield made
    made.close()


def close(gang: Gang) -> None:
    gang.supervisor.ask(Close(), block=False)


def fail(gang: Gang) -> None:
    gang.tell(1)


def restart(gang: Gang) -> None:
    gang.supervisor.ask(RestartRanks(frozenset({0})), block=False)


def terminate(gang: Gang) -> None:
    gang.supervisor.ask(TerminateRanks(frozenset({0})), block=False)


@each_kind
@pytest.mark.parametrize("stop", [close, fail, restart, terminate])
def test_t5_a_master_drains_its_workers_in_every_stop(tmp_path, task: Fifo, kind: str, stop: Callable[[Gang], None]):
    """Only the master gets the first signal, so the worker's task ends by itself."""
    envs = {0: {"TASK": task.path}}
    with faulty(tmp_path, kind, [MASTER, FAILS], kill_mode="mixed", grace=1000.0, envs=envs) as gang:
        assert gang.hear()[0].startswith("ready ")
        stop(gang)
        assert gang.hear() == ["draining"]
        assert gang.await_event("supervise.process.signaled", local_rank=0)["target"] == "process"
        task.tell()
        assert gang.hear() == ["worker: 0"]
        if stop is restart:
            assert gang.hear()[0].startswith("ready ")
            task.tell()
        gang.close(timeout=0)


def test_t5_a_master_drains_before_a_restart_of_all_ranks(tmp_path, task: Fifo):
    """The failure of a peer restarts the master, too."""
    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    envs = {0: {"TASK": task.path}}
    with faulty(
        tmp_path, "binary", [MASTER, FAILS], kill_mode="mixed", grace=1000.0, restart_policy=policy, envs=envs
    ) as gang:
        gang.hear()
        gang.tell(1)
        assert gang.hear() == ["draining"]
        task.tell()
        assert gang.hear() == ["worker: 0"]
        assert gang.hear()[0].startswith("ready ")
        gang.close(timeout=0)


def test_t5_by_default_the_worker_gets_the_first_signal(tmp_path, task: Fifo):
    """As in every release: the group is signaled."""
    with faulty(tmp_path, "binary", [MASTER], grace=1000.0, envs={0: {"TASK": task.path}}) as gang:
        gang.hear()
        close(gang)
        assert sorted(gang.hear(2)) == ["draining", "worker: -15"]
        assert gang.await_event("supervise.process.signaled")["target"] == "group"


@each_kind
def test_t5_after_the_grace_sigkill_reaches_the_group(tmp_path, kind: str):
    """Neither the master nor its worker is left."""
    with faulty(tmp_path, kind, [DEAF], kill_mode="mixed", grace=5.0) as gang:
        worker = int(gang.hear()[0].split()[1])
        with watched([worker]) as watch:
            result = gang.close()
            assert watch.survivors(0) == set()
        assert gang.hear() == ["got SIGTERM"]
        assert result.ends[0].exitcode == -signal.SIGKILL
        first, last = (gang.await_event("supervise.process.signaled") for _ in range(2))
        assert (first["signal"], first["target"]) == ("SIGTERM", "process")
        assert (last["signal"], last["target"]) == ("SIGKILL", "group")


@pytest.mark.parametrize("at_once", [True, False])
def test_t5_what_a_master_leaves_behind_gets_the_first_signal(tmp_path, at_once: bool):
    """Also a worker whose master ends at the first signal: it does not wait for the grace."""
    with faulty(tmp_path, "binary", [LEAVES.replace("AT_ONCE", str(at_once))], kill_mode="mixed", grace=1000.0) as gang:
        worker = int(gang.hear()[0].split()[1])
        if at_once:
            gang.wait()
        with watched([worker]) as watch:
            gang.close()
            assert watch.survivors(0) == set()
        targets = [] if at_once else ["process"]
        for target in [*targets, "group"]:
            event = gang.await_event("supervise.process.signaled")
            assert (event["signal"], event["target"]) == ("SIGTERM", target)


def test_t5_sigcont_follows_the_first_signal_to_the_whole_group(tmp_path, task: Fifo):
    """A suspended master drains a suspended worker."""
    with faulty(tmp_path, "binary", [MASTER], kill_mode="mixed", grace=1000.0, envs={0: {"TASK": task.path}}) as gang:
        gang.hear()
        os.killpg(gang.pids[0], signal.SIGSTOP)
        await_suspended(gang.pids[0])
        gang.ask(Status())  # which looks; otherwise the next look may be half a minute away
        gang.await_event("supervise.process.stopped")
        close(gang)
        assert gang.hear() == ["draining"]
        task.tell()
        assert gang.hear() == ["worker: 0"]


def test_t5_a_role_has_a_kill_mode_of_its_own(tmp_path, task: Fifo):
    """It takes precedence over that of the gang."""
    roles = [
        Role(name=name, entrypoint=run_source, args={0: (MASTER,)}, start_method="fork", kill_mode=mode)
        for name, mode in (("drains", None), ("does_not", "group"))
    ]
    envs = {rank: {"TASK": task.path} for rank in range(2)}
    with launched(tmp_path, None, {0: (), 1: ()}, roles=roles, kill_mode="mixed", grace=1000.0, envs=envs) as gang:
        gang.start()
        gang.hear(2)
        close(gang)
        assert sorted(gang.hear(2)) == ["draining", "worker: -15"], "of the last role, which is stopped first"
        assert gang.hear() == ["draining"]
        task.tell()
        assert gang.hear() == ["worker: 0"]


def test_t5_the_context_of_pytorch_has_the_setting(tmp_path, task: Fifo):
    """`start_processes` has it, and a close drains."""
    ear = Fifo(tmp_path / "ear")

    def answer() -> list[str]:
        heard = [ear.hear()]
        task.tell()
        return [*heard, ear.hear()]

    try:
        envs = {0: {"TASK": task.path, "EAR": ear.path}}
        args = {0: ("-S", "-c", PREAMBLE + MASTER)}
        with (
            ThreadPoolExecutor(1) as pool,
            start_processes("job", sys.executable, args, envs, kill_mode="mixed", grace=PATIENCE_S) as context,
        ):
            ear.hear()
            answered = pool.submit(answer)
            context.close()
            assert answered.result() == ["draining", "worker: 0"]
    finally:
        ear.close()


@pytest.mark.parametrize("value", ["process", "", None, ["mixed"], 1])
def test_a_kill_mode_that_is_not_valid(value: object):
    """The error names the value and the accepted ones, for a gang and for a role."""
    with pytest.raises(SpecError) as of_gang:
        Supervisor.start(name="job", entrypoint="true", args={0: ()}, kill_mode=value)  # type: ignore[arg-type]
    assert str(of_gang.value) == f"kill_mode is {value!r}; it is one of group, mixed"
    if value is None:
        return
    with pytest.raises(SpecError) as of_role:
        Role(name="a", entrypoint="true", args={0: ()}, kill_mode=value)  # type: ignore[arg-type]
    assert str(of_role.value) == f"role 'a': kill_mode is {value!r}; it is one of group, mixed"
