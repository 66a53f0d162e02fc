"""The promises hold without pidfds, and without signals to a group through one (Linux before 6.9)."""

import errno
import os
import select
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from supervise import Signal, Start, Status
from supervise._process.containment.groups import Member
from supervise._process.exits.leader import Process, exit_notice
from supervise._process.exits.thread import ExitThread
from supervise.elastic.subprocess_handler import SubprocessHandler
from tests.kernels import use_older_kernel
from tests.patience import PATIENCE_S
from tests.processes.gangs import Stopwatch, each_kind, faulty
from tests.processes.hosts import Host, make_gang, pids_of, watched
from tests.processes.stubborn import DEAF, LEAVES_CHILD, OBEDIENT
from tests.processes.test_outcome import Barrier
from tests.processes.work import BLOCK

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(params=["no group flag", "no pidfd"])
def old_kernel(request, monkeypatch):
    """Force the ways of older kernels."""
    use_older_kernel(monkeypatch, "pidfd" if request.param == "no pidfd" else "group")
    if request.param == "no pidfd":
        for module, name in ((os, "pidfd_open"), (signal, "pidfd_send_signal")):
            monkeypatch.setattr(module, name, _not_ours(getattr(module, name)))
    return request.param


def _not_ours(function):
    """Let the test use what the package must do without."""

    def guarded(*args):
        assert not sys._getframe(1).f_globals["__name__"].startswith("supervise.")
        return function(*args)

    return guarded


@each_kind
def test_s3_what_a_rank_left_is_gone_after_close_on_an_old_kernel(tmp_path, old_kernel, kind, system_call):
    """It ignores SIGTERM, and its leader is reaped: it is signalled by who it is, not by the group's number."""
    sent = []
    system_call("killpg", lambda killpg, pgid, sig: (sent.append(sig), killpg(pgid, sig)))
    with faulty(tmp_path, kind, [LEAVES_CHILD] * 2, grace=0.3) as gang:
        pids = pids_of(gang.hear(2))
        gang.tell(0)
        gang.tell(1)
        assert gang.wait().outcome == "succeeded"
        assert gang.ask(Status()).leftovers == {0, 1}
        gang.close()
        for pid in set(pids) - set(gang.pids.values()):
            psutil.Process(pid).wait(PATIENCE_S)  # an orphan, and so our child (see conftest)
    assert set(sent) <= {0}


@each_kind
def test_a_leftover_that_ends_by_itself_is_forgotten_on_an_old_kernel(tmp_path, old_kernel, kind):
    """Who is in the group is watched from the leader's end on, so that the number is never taken for the group."""
    with faulty(tmp_path, kind, [LEAVES_CHILD], grace=0.3) as gang:
        pids = pids_of(gang.hear())
        gang.tell(0)
        assert gang.wait().outcome == "succeeded"
        (left,) = set(pids) - set(gang.pids.values())
        os.killpg(os.getpgid(left), signal.SIGKILL)  # also what it forks at this moment
        pause = threading.Event()
        for _ in range(4000):
            if not gang.ask(Status()).leftovers:
                break
            pause.wait(0.01)
        assert gang.ask(Status()).leftovers == frozenset()


def test_s7_a_handler_signals_what_its_program_left_only_while_the_number_is_its_own(old_kernel):
    """The program has ended: unreaped, its group is reached; once it was waited for, nobody is."""
    read, write = os.pipe()
    program = "sleep 1000 & echo $! >&$SAY; exec true"
    for waited_for in (False, True):
        os.set_inheritable(write, True)
        out = f"/proc/{os.getpid()}/fd/{write}"
        handler = SubprocessHandler("sh", ("-c", program), {"SAY": "1"}, out, None, 0, None)
        left = int(os.read(read, 100))
        os.waitid(os.P_PID, handler.proc.pid, os.WEXITED | os.WNOWAIT)
        if waited_for:
            handler.proc.wait()
        handler.close()
        orphan = psutil.Process(left)  # our child by now (see conftest)
        if waited_for:
            with pytest.raises(psutil.TimeoutExpired):
                orphan.wait(0.3)
            orphan.kill()
        assert orphan.wait(PATIENCE_S) == (-signal.SIGKILL if waited_for else -signal.SIGTERM)
        handler.proc.wait()
    os.close(read)
    os.close(write)


@each_kind
def test_s1_deaf_ranks_are_killed_on_an_old_kernel(tmp_path, old_kernel, kind):
    """Signals, the grace and SIGKILL reach every rank, and the codes are true."""
    with faulty(tmp_path, kind, [DEAF, OBEDIENT], grace=4.0) as gang:
        gang.hear(2)
        assert gang.ask(Signal(sig=signal.SIGTERM, ranks=frozenset({0}))) == {0}
        result = gang.close()
    assert {rank: end.exitcode for rank, end in result.ends.items()} == {0: -signal.SIGKILL, 1: -signal.SIGTERM}


@each_kind
def test_d1_a_death_is_noticed_at_once_on_an_old_kernel(tmp_path, old_kernel, kind):
    """By a waiting thread, or by the fork server's word."""
    with faulty(tmp_path, kind, [f"say('ready'); {BLOCK}"] * 8) as gang:
        gang.hear(8)
        with Stopwatch() as watch:
            os.kill(gang.pids[5], signal.SIGKILL)
            gang.await_event("supervise.process.exited", local_rank=5)
        assert watch.seconds < PATIENCE_S / 2
        assert {r: f.exitcode for r, f in gang.wait().failures.items()} == {5: -signal.SIGKILL}


@each_kind
def test_o5_who_is_dead_when_stopping_begins_is_a_cause_on_an_old_kernel(tmp_path, old_kernel, kind):
    """Also if its waiting thread has had no time to say so."""
    barrier = Barrier([2, 0, 1])
    source = "say('ready'); wait_for_word(); os._exit(int(os.environ['LOCAL_RANK']) + 1)"
    with faulty(tmp_path, kind, [source] * 3, event_sink=barrier) as gang:
        barrier.gang = gang
        gang.hear(3)
        gang.tell(2)
        result = gang.wait()
    assert {r: f.exitcode for r, f in result.failures.items()} == {0: 1, 1: 2, 2: 3}
    assert result.root_cause == 2


@each_kind
def test_s9_a_rank_whose_waiting_thread_cannot_start_is_no_rank(tmp_path, monkeypatch, no_threads, kind):
    """It is killed and reaped, and the start fails; nothing is left."""
    use_older_kernel(monkeypatch, "pidfd")
    gang = make_gang(kind, [OBEDIENT], envs={0: {"EAR": os.devnull}})
    try:
        could_not = "rank 0 could not be started: no thread to wait for process"
        with no_threads("supervise-wait-"), pytest.raises(OSError, match=could_not):
            gang.ask(Start(), timeout=PATIENCE_S)
    finally:
        gang.stop(timeout=PATIENCE_S)


def test_a_process_that_is_being_reaped_is_gone(system_call):
    """Linux before 6.15 answers EINVAL at that moment."""

    def refuse(pidfd_open, pid, flags=0):
        raise OSError(errno.EINVAL, "Invalid argument")

    system_call("pidfd_open", refuse)
    assert exit_notice(os.getpid()).fd == -1
    with pytest.raises(ProcessLookupError):
        Member(os.getpid())


def test_a_handle_that_is_closed_before_the_end_leaves_the_thread_nothing_to_ring(monkeypatch):
    """The thread waits on, and what it rings later is its own: not what has the descriptor's number by then."""
    use_older_kernel(monkeypatch, "pidfd")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        process = Process(child.pid, exit_notice(child.pid), keep=child)
        (thread,) = (t for t in threading.enumerate() if t.name == f"supervise-wait-{child.pid}")
        number = process.fileno()
        process.close()
        others = [os.pipe() for _ in range(4)]
        assert number in {fd for pair in others for fd in pair}
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert not select.select([r for r, _ in others], [], [], 0)[0]
    for fd in (fd for pair in others for fd in pair):
        os.close(fd)


def test_a_closed_handle_of_a_fork_servers_child_ends_its_thread():
    """Nobody waits for a word that nobody wants."""
    word, silent = os.pipe()
    notice = ExitThread(os.getpid(), parents_word=word)
    (thread,) = (t for t in threading.enumerate() if t.name == f"supervise-wait-{os.getpid()}")
    notice.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    os.close(word)
    os.close(silent)


def test_who_has_the_number_of_a_fork_servers_child_now_is_another():
    """Its parent is gone, so it is looked at: the start time tells a stranger, who is not waited for."""
    word, parent = os.pipe()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        notice = ExitThread(child.pid, parents_word=word)
        notice._started -= 1
        os.close(parent)
        assert select.select([notice.fd], [], [], PATIENCE_S)[0]
        notice.close()
    os.close(word)


def test_a_process_that_dies_while_the_loop_asks_for_it_has_its_status(system_call):
    """The loop has been answered that the process runs; before it goes on, the process dies and the thread is told."""
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    notice = ExitThread(child.pid)
    process = Process(child.pid, notice, keep=child)

    def slow(waitid, kind, pid, options):
        answer = waitid(kind, pid, options)
        if options & os.WNOHANG and not notice.dead:
            child.kill()
            assert select.select([notice.fd], [], [], PATIENCE_S)[0]
        return answer

    system_call("waitid", slow)
    notice.look()
    assert process.reap().code == -signal.SIGKILL
    child.stdin.close()
    process.close()


def test_waiting_threads_do_not_hold_up_the_interpreters_exit():
    """The host leaves without a close, its threads waiting: it ends, and its ranks with it."""
    program = f"""
if __name__ == "__main__":
    gang = start_gang(kind, [{OBEDIENT!r}] * 3, envs={{r: {{"EAR": os.devnull}} for r in range(3)}})
    print(*gang.ask(Pids(), timeout=40).values(), flush=True)
    sys.stdin.readline()
"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUPERVISE_WITHOUT", "pidfd")
        host = Host(program, "spawn")
    with host, watched([int(word) for word in host.hear().split()]) as watch:
        host.process.stdin.write(b"\n")
        host.process.stdin.flush()
        assert host.exit_code() == 0
        assert watch.survivors() == set()
