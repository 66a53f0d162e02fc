"""A signal can be passed on to ranks, to all or to some, and nothing else happens to the gang."""

from signal import SIGUSR1, SIGUSR2

import pytest

from supervise import Signal, SpecError, Status
from tests.processes.gangs import each_kind, faulty

HEARS = """
rank = os.environ["LOCAL_RANK"]
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: say(f"{rank} {signal.Signals(number).name}"))
say("ready")
while True:
    signal.sigtimedwait([], 0.05)  # a signal right before a pause() would be handled behind it
    signal.pthread_sigmask(signal.SIG_BLOCK, ())  # has handlers called, also in a forked process of Python 3.13
"""


@each_kind
def test_g7_a_signal_is_passed_on_to_all_or_some_ranks_without_closing(tmp_path, kind):
    with faulty(tmp_path, kind, [HEARS] * 3) as gang:
        assert gang.hear(3) == ["ready"] * 3
        assert gang.ask(Signal(sig=SIGUSR1)) == {0, 1, 2}
        assert sorted(gang.hear(3)) == ["0 SIGUSR1", "1 SIGUSR1", "2 SIGUSR1"]
        assert gang.ask(Signal(sig=SIGUSR2, ranks=frozenset({1}))) == {1}
        assert gang.hear() == ["1 SIGUSR2"], "and nobody else, who would have been heard first or next"
        assert gang.ask(Signal(sig=SIGUSR1, ranks=frozenset({0, 2}))) == {0, 2}
        assert sorted(gang.hear(2)) == ["0 SIGUSR1", "2 SIGUSR1"]
        status = gang.ask(Status())
        assert (status.phase, status.running) == ("running", {0, 1, 2})
        with pytest.raises(SpecError, match="7"):
            gang.ask(Signal(sig=SIGUSR1, ranks=frozenset({7})))
        with pytest.raises(SpecError, match="group is 'no'; give True"):
            gang.ask(Signal(sig=SIGUSR1, group="no"))
        gang.close()


HELPED = """
import subprocess, time
child = subprocess.Popen(["sleep", "1000"])
signal.signal(signal.SIGUSR1, lambda number, frame: say("told"))
say("ready")
while True:
    signal.sigtimedwait([], 0.05)
    signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if child.poll() is not None:
        say(f"child {child.returncode}")
        break
"""


@each_kind
def test_t4_the_message_reaches_the_processes_of_a_rank_only_on_request(tmp_path, kind):
    """By default only the rank's own process gets the signal."""
    with faulty(tmp_path, kind, [HELPED]) as gang:
        assert gang.hear() == ["ready"]
        for _ in range(3):
            assert gang.ask(Signal(sig=SIGUSR1)) == {0}
            assert gang.hear() == ["told"], "and not the end of the child, which would be said first or next"
            assert gang.await_event("supervise.process.signaled")["target"] == "process"
        gang.ask(Signal(sig=SIGUSR1, group=True))
        assert sorted(gang.hear(2)) == ["child -10", "told"]
        assert gang.await_event("supervise.process.signaled")["target"] == "group"
        assert gang.wait().outcome == "succeeded"
