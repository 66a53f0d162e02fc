"""Processes that leave the groups of their ranks: ended where that is asked for, else told, and nobody else hurt."""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from supervise import RestartPolicy, Status, Supervisor, start_processes
from tests.kernels import control_groups, need_cgroup
from tests.patience import PATIENCE_S
from tests.processes.gangs import Fifo, Stopwatch, each_kind, faulty, launched
from tests.processes.hosts import NO_FILES, Host, pids_of, watched
from tests.processes.stubborn import DEAF, OBEDIENT, READY

_DAEMON = """
child = os.fork()
if child == 0:
    os.setsid()
    if os.fork() == 0:
        {become}
    os._exit(0)
os.waitpid(child, 0)
"""
"""What a rank does to leave a daemon behind: a session of its own, whose leader is gone."""
FORKED = _DAEMON.format(
    become="; ".join([*READY.split("\n"), "[signal.pause() for _ in iter(int, 1)]"]).replace("; ;", ";")
)
"""Never executes anything: it has what the rank had in memory."""
DEAF_FORKED = FORKED.replace("say(", "signal.signal(signal.SIGTERM, signal.SIG_IGN); say(")
EXECUTED = _DAEMON.format(become="os.execvp('sh', ['sh', '-c', 'echo ready $$ > $EAR; read word < $GATE'])")
"""Executes nothing behind its word: in the middle of an exec, a process cannot be looked at."""
DAEMONS = {"forked": FORKED, "deaf": DEAF_FORKED, "executed": EXECUTED}

IN_THE_MAKING = """
left, leaving = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.write(leaving, b".")
    say("the middle one")
    wait_for_word()
    if (daemon := os.fork()) == 0:
        while True: signal.pause()
    say(f"ready {daemon}")
    os._exit(0)
os.read(left, 1)
"""
"""The rank ends while its double fork is half done: its child has left the group, which gets SIGTERM at the end."""

each_daemon = pytest.mark.parametrize("daemon", DAEMONS)


@pytest.fixture(params=["sweep", "cgroup"])
def containment(request: pytest.FixtureRequest) -> str:
    """Each containment that ends what has escaped."""
    if request.param == "cgroup":
        need_cgroup()
    return request.param


@contextmanager
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a child of the host in its own session, which must outlive the block."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        try:
            yield process
            assert process.poll() is None
        finally:
            process.kill()


@each_kind
@each_daemon
def test_s4_daemons_are_gone_after_close(tmp_path, kind, daemon, containment):
    """They left session and group; those of a running rank and of one that has ended, and no stranger."""
    sources = [DAEMONS[daemon] + OBEDIENT, DAEMONS[daemon]]
    # At the end of the grace, a control group is killed at once; so the grace is longer than a scan on a busy machine
    grace = 8.0 if daemon == "deaf" else PATIENCE_S
    with stranger(), faulty(tmp_path, kind, sources, grace=grace, containment=containment) as gang:
        heard = pids_of(gang.hear(3))
        daemons = sorted(set(heard) - {gang.pids[0]})
        assert len(daemons) == 2
        while 1 in gang.ask(Status()).running:  # before its end, the middle process of its double fork may live
            threading.Event().wait(0.01)
        with watched(daemons) as watch:
            assert watch.survivors(0) == set(daemons)
            gang.close()
            assert watch.survivors(0) == set()
        leaked = {rank: gang.await_event("supervise.process.leaked", local_rank=rank) for rank in (0, 1)}
        assert sorted(pid for event in leaked.values() for pid in event["descendants"]) == daemons
        assert all(event["ended"] for event in leaked.values())


def test_s4_a_daemon_that_is_made_while_the_sweep_looks_is_ended(tmp_path, breaking, containment):
    """The middle one of its double fork is seen, and has ended before it can be signalled; its child was not seen."""
    daemons = []

    def await_the_dying(real, found):
        if found and not daemons:
            gang.tell(0)
            daemons.extend(pids_of(gang.hear()))
        real(found)

    with faulty(tmp_path, "fork", [IN_THE_MAKING], grace=60.0, containment=containment) as gang:
        gang.hear()
        gang.wait()
        breaking.instead("wait for dying processes", await_the_dying)
        gang.close()
        (daemon,) = daemons
        with watched([daemon]) as watch:
            assert watch.survivors(0) == set()


@each_kind
@each_daemon
def test_s4_the_default_names_daemons_and_lets_them_live(tmp_path, kind, daemon):
    """One event a rank, when the gang has ended; the limit of process groups is no secret."""
    with stranger(), faulty(tmp_path, kind, ["", DAEMONS[daemon] + OBEDIENT]) as gang:
        (pid,) = set(pids_of(gang.hear(2))) - {gang.pids[1]}
        with watched([pid]) as watch:
            gang.close()
            event = gang.await_event("supervise.process.leaked")
            assert (event["local_rank"], event["descendants"], event["ended"]) == (1, [pid], False)
            assert watch.survivors(0) == {pid}


JOBS = {"sh": "timeout 1000 sh -c '{job}'; :", "bash": "set -m; sh -c '{job}'; :"}
"""Script to shell: what it runs stays in the session of its rank, in a process group of its own."""


def job(shell: str) -> tuple[str, str]:
    """Return the arguments of a shell that says two pids, of which the second is the job's."""
    return "-c", "echo rank $$ > $EAR; " + JOBS[shell].format(job="echo ready $$ > $EAR; read word < $GATE")


@pytest.mark.parametrize("shell", JOBS)
def test_s4_a_job_in_a_group_of_its_own_is_named_and_lives(tmp_path, shell):
    """As the documentation says of `timeout` and `set -m`."""
    with launched(tmp_path, shell, {0: job(shell)}) as gang:
        gang.start()
        _, pid = pids_of(gang.hear(2))
        with watched([pid]) as watch:
            gang.close()
            found = gang.await_event("supervise.process.leaked", ended=False)["descendants"]
            assert pid in found
            assert watch.survivors(0) == {pid}
            with watched(found) as all_found:  # `timeout` ends after its program
                gang.tell(0)
                assert all_found.survivors() == set()


@pytest.mark.parametrize("shell", JOBS)
def test_s4_a_job_in_a_group_of_its_own_is_ended_where_that_is_asked_for(tmp_path, shell, containment):
    with launched(tmp_path, shell, {0: job(shell)}, containment=containment) as gang:
        gang.start()
        _, pid = pids_of(gang.hear(2))
        with watched([pid]) as watch:
            gang.close()
            assert watch.survivors(0) == set()


@each_kind
def test_s4_nothing_left_is_nothing_told(tmp_path, kind):
    """What ended in its group with its rank, and other children of the host, are no leak."""
    told = []
    with stranger(), faulty(tmp_path, kind, [OBEDIENT] * 2, event_sink=told.append) as gang:
        gang.hear(2)
        gang.close()
    assert "supervise.process.leaked" not in {event["event"] for event in told}


def test_s4_a_polite_end_does_not_use_the_grace(tmp_path, containment):
    """SIGTERM ends the daemon; SIGKILL after a minute is not waited for."""
    with faulty(tmp_path, "binary", [FORKED], grace=60.0, containment=containment) as gang:
        gang.hear()
        with Stopwatch() as time:
            gang.close()
    assert time.seconds < 20


@each_kind
def test_s4_two_gangs_do_not_sweep_each_other(tmp_path, kind, containment):
    """The one is closed; ranks and daemons of the other live on."""
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    with (
        faulty(tmp_path / "a", kind, [FORKED + OBEDIENT], containment=containment) as one,
        faulty(tmp_path / "b", kind, [FORKED + OBEDIENT], containment=containment) as other,
    ):
        pids_of(one.hear(2))
        with watched(pids_of(other.hear(2))) as watch:
            assert one.close().outcome == "stopped"
            assert len(watch.survivors(0)) == 2
            other.close()
            assert watch.survivors(0) == set()


def test_s4_a_restart_begins_when_nothing_is_left(tmp_path, containment):
    """The daemon of the first attempt is gone when the second runs."""
    source = (
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        + "".join(f"    {line}\n" for line in FORKED.splitlines())
        + "    wait_for_word()\n    sys.exit(3)\n"
        + READY
    )
    policy = RestartPolicy(max_restarts=1)
    with faulty(tmp_path, "binary", [source], containment=containment, restart_policy=policy) as gang:
        with watched(pids_of(gang.hear())) as watch:
            gang.tell(0)
            gang.hear()
            assert watch.survivors(0) == set()
        assert gang.wait().outcome == "succeeded"


@each_kind
def test_k1_in_a_control_group_workers_die_with_a_killed_host(tmp_path, kind, containment):
    """The lifeline holds there, too; the empty control groups are cleared away by the next use."""
    start = f"start_gang(kind, [{DEAF!r}] * 2, containment={containment!r})"
    ear = Fifo(tmp_path / "ear")
    try:
        with (
            Host(f"{start}\nprint('runs', flush=True)\nsignal.pause()", kind, ear.path) as host,
            watched(pids_of([ear.hear() for _ in range(2)])) as watch,
        ):
            assert host.hear() == "runs"
            host.kill()
            assert watch.survivors() == set()
    finally:
        ear.close()
    if containment == "cgroup":
        gang = Supervisor.start(name="next", entrypoint="true", args={0: ()}, logs_specs=NO_FILES, containment="cgroup")
        gang.stop(timeout=PATIENCE_S)
        assert control_groups(host.process.pid) == set()


def test_start_processes_takes_the_containment(tmp_path, containment):
    """The façade passes it on."""
    ear = Fifo(tmp_path / "ear")
    script = f"setsid sh -c 'echo $$ > {ear.path}; exec sleep 1000' & exec sleep 1000"
    context = start_processes(
        "gang", "sh", {0: ("-c", script)}, {0: {}}, logs_specs=NO_FILES, containment=containment, grace=1.0
    )
    with watched([int(ear.hear())]) as watch:
        context.close()
        assert watch.survivors(0) == set()
    ear.close()


def test_the_environment_of_the_host_stays_as_it_is(tmp_path):
    """The marker is the ranks' alone."""
    before = dict(os.environ)
    with faulty(tmp_path, "fork", ["value = os.environ['SUPERVISE_WORKER']"] * 2) as gang:
        values = gang.wait().return_values
    assert {rank: value.rpartition(":")[2] for rank, value in values.items()} == {0: "0", 1: "1"}
    assert dict(os.environ) == before
