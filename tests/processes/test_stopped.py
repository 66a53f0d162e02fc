"""A rank that a signal has stopped is told of once, with its name and the signal: it never hangs in silence."""

import os
import signal
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervise import DefaultLogsSpecs, WorkerStarted
from supervise import messages as say
from supervise._gang.attempt import first_attempt
from supervise._gang.worker import Worker
from supervise._process.containment.procfs import look
from supervise._process.exits.slots import ExitSlots
from supervise._runtime.loop import Loop
from supervise.testing import Recorder
from tests.patience import PATIENCE_S
from tests.processes import work
from tests.processes.gangs import Fifo, each_kind
from tests.processes.stubborn import OBEDIENT

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


class Bench:
    """One Worker with a real process, and an owner that only listens."""

    def __init__(self, worker, loop, recorder, pid):
        self._worker, self._loop, self._recorder, self.pid = worker, loop, recorder, pid

    def stop(self):
        """Stop the process from outside, and return once it is stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        self.await_state("T")

    def go_on(self):
        os.kill(self.pid, signal.SIGCONT)
        self.await_state("S")

    def await_state(self, letter):
        """Return once all its threads are; for a process that is not our child nobody tells."""
        pause = threading.Event()
        for _ in range(3000):
            if {look(int(thread.name)).state for thread in Path(f"/proc/{self.pid}/task").iterdir()} == {letter}:
                return
            pause.wait(0.01)
        pytest.fail(f"never in state {letter}")

    def tell(self, message):
        """Have the Worker handle a message, and what it says of it arrive."""
        self._worker.tell(message)
        done = threading.Event()
        self._loop.post(done.set)
        assert done.wait(PATIENCE_S)

    def told(self):
        """Return the stops that the owner was told of so far."""
        self._recorder.ref.ask(None, timeout=PATIENCE_S)
        return [(m.local_rank, m.pid, m.sig) for m in self._recorder.messages if isinstance(m, say.WorkerStopped)]


@contextmanager
def bench(folder, kind):
    """Yield a Worker that runs the obedient source."""
    ear = Fifo(folder / "ear")
    function = kind != "binary"
    attempt = first_attempt(
        name="stopped",
        entrypoint=work.run_source if function else os.sys.executable,
        args={0: (OBEDIENT,) if function else ("-S", "-c", work.PREAMBLE + OBEDIENT)},
        envs={0: {"EAR": ear.path}},
        logs_specs=DefaultLogsSpecs(os.devnull),
        start_method=kind if function else "spawn",
    )
    loop = Loop("bench", lost=lambda _: None)
    loop.start()
    slots = ExitSlots()
    with Recorder() as recorder:
        worker = Worker.start(loop, local_rank=0, launcher=attempt.launchers[0], owner=recorder.ref, slots=slots)
        try:
            worker.tell(say.Launch())
            pid = recorder.wait_for(WorkerStarted).pid
            ear.hear()
            yield Bench(worker, loop, recorder, pid)
        finally:
            worker.tell(say.Deliver(sig=signal.SIGKILL))
            recorder.wait_for(say.WorkerExited)
            worker.tell(say.Leave())
            loop.post(loop.end)
            assert loop.join(PATIENCE_S)
            slots.close_outcomes()
            attempt.close()
            ear.close()


@each_kind
def test_s11_a_stop_is_told_once_and_the_next_one_again(tmp_path, kind):
    """Many looks at one stop are one message; a new stop is a new one."""
    with bench(tmp_path, kind) as one:
        one.tell(say.LookForStop())
        assert one.told() == []
        one.stop()
        for _ in range(3):
            one.tell(say.LookForStop())
        assert one.told() == [(0, one.pid, signal.SIGSTOP)]
        one.go_on()
        one.tell(say.LookForStop())
        one.stop()
        for _ in range(3):
            one.tell(say.LookForStop())
        assert one.told() == [(0, one.pid, signal.SIGSTOP)] * 2


@each_kind
def test_s11_a_stop_that_was_asked_for_is_no_news(tmp_path, kind):
    """A user stops a rank through us; a later stop by somebody else is told."""
    with bench(tmp_path, kind) as one:
        one.tell(say.Deliver(sig=signal.SIGSTOP))
        one.await_state("T")
        one.tell(say.LookForStop())
        assert one.told() == []
        one.tell(say.Deliver(sig=signal.SIGCONT))
        one.await_state("S")
        one.tell(say.LookForStop())
        one.stop()
        one.tell(say.LookForStop())
        assert one.told() == [(0, one.pid, signal.SIGSTOP)]


@each_kind
def test_s11_a_rank_that_has_ended_is_not_looked_at(tmp_path, kind):
    """Its number may be another's by now."""
    with bench(tmp_path, kind) as one:
        os.kill(one.pid, signal.SIGKILL)
        one._recorder.wait_for(say.WorkerExited)
        one.tell(say.LookForStop())
        assert one.told() == []
