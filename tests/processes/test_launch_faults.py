"""Faults in the few microseconds between the start of a process and our hold on it."""

import errno
import os
import select
import signal
import sys

import pytest

from supervise import Close, Start, Wait
from tests.kernels import HAS_PIDFD
from tests.patience import PATIENCE_S
from tests.processes import work
from tests.processes.gangs import Stopwatch, each_kind, faulty, launched
from tests.processes.work import BLOCK


def test_d3_a_death_that_the_fork_server_reaped_before_we_looked_has_its_exit_code(tmp_path, breaking):
    """There is no pidfd to be had for it any more, but the server has told its code."""
    first = []

    def late(read, status):
        number = read(status)
        if not first:
            first.append(number)
            assert select.select([status.fileno()], [], [], PATIENCE_S)[0]  # dead, reaped, and told
        return number

    breaking.instead("word of the fork server", late)
    with faulty(tmp_path, "forkserver", ["os._exit(7)"]) as gang:
        result = gang.wait()
    assert {r: f.exitcode for r, f in result.failures.items()} == {0: 7}


@each_kind
@pytest.mark.skipif(not HAS_PIDFD, reason="without pidfds a thread holds it; see test_old_kernels.py")
def test_s9_a_process_that_we_cannot_hold_is_ended_and_the_start_fails(tmp_path, kind, scarce_pidfds):
    """No descriptor is left for the second pidfd: the error names its rank, and no process stays behind."""
    rank = "[0-2]" if kind == "forkserver" else "1"  # a fork server is asked by threads, in any order

    args = dict.fromkeys(range(3), ("-S", "-c", work.PREAMBLE + BLOCK) if kind == "binary" else (BLOCK,))
    how = {} if kind == "binary" else {"start_method": kind}
    with launched(tmp_path, sys.executable if kind == "binary" else work.run_source, args, **how) as gang:
        could_not = f"rank {rank} could not be started"
        with scarce_pidfds(1) as opened, pytest.raises(OSError, match=could_not) as raised:
            gang.ask(Start())
    assert raised.value.errno == errno.EMFILE
    assert opened


@pytest.mark.parametrize("host", [signal.SIG_IGN, lambda *_: None], ids=["ignored", "handled"])
def test_s2_a_fork_hears_a_signal_that_came_before_its_handlers(tmp_path, breaking, host):
    """The host's own handling of SIGTERM must not swallow it: the end comes at once, not after the grace."""

    def late(settle_in, settings):
        os.environ.update(settings.env)
        work.say("forked")
        names = {}
        exec(work.PREAMBLE, names)
        names["wait_for_word"]()
        settle_in(settings)

    breaking.instead("first step of a fork", late)
    before = signal.signal(signal.SIGTERM, host)
    try:
        with Stopwatch() as watch, faulty(tmp_path, "fork", [BLOCK]) as gang:
            gang.hear()
            closing = gang.supervisor.ask(Close(), block=False)
            gang.await_event("supervise.process.signaled", local_rank=0)
            gang.tell(0)
            result = closing.get(timeout=PATIENCE_S)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (result.outcome, result.ends[0].exitcode) == ("stopped", -15)
    assert watch.seconds < 25


@each_kind
def test_a_second_wait_gets_the_same_result(tmp_path, kind):
    """Also one asked after the end."""
    with faulty(tmp_path, kind, ["value = 1"]) as gang:
        assert gang.wait() is gang.ask(Wait())
