"""The fork server is killed: its ranks are not taken for dead, and each one's end is still noticed."""

import os
import select
import signal
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path

import pytest

from tests.kernels import use_older_kernel
from tests.patience import PATIENCE_S
from tests.processes.gangs import Fifo, Stopwatch, faulty
from tests.processes.hosts import Host, pids_of, watched
from tests.processes.stubborn import OBEDIENT

each_kernel = pytest.mark.parametrize("without", ["", "group", "pidfd"])

PROGRAM = """
import contextlib
from multiprocessing import forkserver
from supervise._gang import worker
if __name__ == "__main__":
    if not {inherited}:
        worker._SERVER_PATIENCE_S = 900.0
    gang = start_gang("forkserver", [{source!r}] * 3, grace=5.0)
    pids = gang.ask(Pids(), timeout=40)
    server = forkserver._forkserver._forkserver_pid
    held = []
    if {inherited}:  # somebody has inherited the write ends of what the server tells us by
        for fd in os.listdir(f"/proc/{{server}}/fd"):
            path = f"/proc/{{server}}/fd/{{fd}}"
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if os.readlink(path).startswith("pipe:"):
                    held.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    print(server, *pids.values(), flush=True)
    sys.stdin.readline()
    os.kill(server, signal.SIGKILL)
    os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    print(gang.ask(Wait(timeout=0.3), timeout=40), flush=True)
    os.kill(pids[1], signal.SIGKILL)
    result = gang.ask(Wait(), timeout=40)
    print(result.outcome, result.ends[1].role, [end.exitcode for end in result.ends.values()], flush=True)
    print(*(str(failure.message) for failure in result.failures.values()), flush=True)
    gang.stop(timeout=40)
    os._exit(0)
"""


def _kill_the_server(folder: Path, *, inherited: bool) -> Stopwatch:
    """Kill a host's fork server, then one of three ranks; return how long both took to be the gang's end."""
    ear = Fifo(folder / "ear")
    with Host(PROGRAM.format(source=OBEDIENT, inherited=inherited), "forkserver", ear.path) as host:
        pids = [int(word) for word in host.hear().split()]
        for _ in range(3):
            ear.hear()
        with watched(pids[1:]) as watch:
            with Stopwatch() as took:  # from before the kill, of which nobody tells this process at once
                host.process.stdin.write(b"\n")
                host.process.stdin.flush()
                assert host.hear() == "None"
                outcome = host.hear()
            assert host.hear() == "exit status lost: another part of this program reaped the process"
            assert watch.survivors() == set()
        assert outcome == "failed root_cause [None, None, None]"
        assert host.exit_code() == 0
    ear.close()
    return took


@each_kernel
def test_k6_ranks_of_a_killed_fork_server_are_judged_by_themselves(tmp_path, monkeypatch, without):
    """They go on; one that dies is a failure whose code is lost at once, and the others are stopped."""
    monkeypatch.setenv("SUPERVISE_WITHOUT", without)
    assert _kill_the_server(tmp_path, inherited=False).seconds < PATIENCE_S / 2


@pytest.mark.parametrize("without", ["", "group"])
def test_k6_a_server_that_is_gone_and_cannot_be_seen_to_be_is_waited_for_in_vain_not_for_ever(
    tmp_path, monkeypatch, without
):
    """Its pipes stay open, so nothing is told: after some seconds the codes are lost."""
    monkeypatch.setenv("SUPERVISE_WITHOUT", without)
    assert 4 < _kill_the_server(tmp_path, inherited=True).seconds < PATIENCE_S


@each_kernel
def test_k6_a_subreaper_reaps_what_a_killed_fork_server_leaves(tmp_path, monkeypatch, without):
    """This process is one (see conftest): the codes are true, and no zombie is left."""
    use_older_kernel(monkeypatch, without)
    with faulty(tmp_path, "forkserver", [OBEDIENT] * 3) as gang:
        pids = pids_of(gang.hear(3))
        server = forkserver._forkserver._forkserver_pid
        held = os.pidfd_open(server)
        os.kill(server, signal.SIGKILL)
        assert select.select([held], [], [], PATIENCE_S)[0]
        os.close(held)
        os.waitpid(server, 0)
        os.kill(gang.pids[1], signal.SIGKILL)
        result = gang.wait()
        assert {r: f.exitcode for r, f in result.failures.items()} == {1: -signal.SIGKILL}
        assert {end.exitcode for end in result.ends.values()} == {-signal.SIGKILL, -signal.SIGTERM}
        gang.close()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@each_kernel
def test_k6_server_and_ranks_killed_in_one_moment_leave_no_zombie(tmp_path, monkeypatch, without):
    """A rank's end may be noticed before it is known whose child it is from now on."""
    use_older_kernel(monkeypatch, without)
    with faulty(tmp_path, "forkserver", [OBEDIENT] * 8) as gang:
        pids = pids_of(gang.hear(8))
        server = forkserver._forkserver._forkserver_pid
        for pid in (*pids, server):
            with suppress(ProcessLookupError):  # the gang has been stopped, and the server has reaped it
                os.kill(pid, signal.SIGKILL)
        os.waitpid(server, 0)
        result = gang.wait()
        stopped = -signal.SIGTERM  # the gang may stop those that have not been killed yet
        assert {end.exitcode for end in result.ends.values()} <= {-signal.SIGKILL, stopped, None}
        assert result.is_failed()
        gang.close()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
