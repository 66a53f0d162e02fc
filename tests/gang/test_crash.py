"""Whatever of ours raises: workers are killed and reaped, every asker is answered, nobody else is harmed."""

import threading
from signal import SIGKILL, SIGTERM

import pykka
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervise import (
    Close,
    GangFinished,
    Poll,
    RestartRanks,
    Signal,
    SpecError,
    Start,
    Status,
    Subscribe,
    SuperviseError,
    Supervisor,
    SupervisorCrashed,
    Wait,
)
from supervise._gang.describe import Describer
from supervise._gang.ranks import RankActors
from supervise._gang.runner import GangRunner
from supervise._gang.subscribers import Subscribers
from supervise._gang.worker import Worker
from supervise.testing import FakeGang, FakeLauncher, FakeProcess, Recorder
from tests.patience import PATIENCE_S
from tests.processes.work import Unspeakable, UnspeakableValue

KINDS = [RuntimeError, SystemExit, KeyboardInterrupt]


class _Stranger(pykka.ThreadingActor):
    """Another actor of the application."""


@pytest.fixture
def stranger():
    ref = _Stranger.start()
    yield ref
    assert ref.is_alive(), "another actor was harmed"
    ref.stop(timeout=PATIENCE_S)


def break_it(monkeypatch, owner, name, kind):
    """Have a method raise when it is called next; return an event that is set then."""
    raised, whole = threading.Event(), getattr(owner, name)

    def broken(*args, **kwargs):
        if raised.is_set():
            return whole(*args, **kwargs)
        raised.set()
        raise kind("on purpose")

    monkeypatch.setattr(owner, name, broken)
    return raised


def later(gang, message):
    return gang.supervisor.ask(message, block=False)


def assert_buried(gang, waits, recorder, says="on purpose"):
    """Everybody is answered with the crash, nobody is left."""
    for wait in waits:
        with pytest.raises(SupervisorCrashed, match=says):
            wait.get(timeout=PATIENCE_S)
    finished = recorder.wait_for(GangFinished)
    assert finished.result is None
    assert isinstance(finished.error, SupervisorCrashed)
    assert sum(isinstance(message, GangFinished) for message in recorder.messages) == 1
    assert all(process.ended for process in gang.processes.values())
    assert gang.supervisor.actor_stopped.wait(PATIENCE_S)
    assert {ref.actor_class for ref in pykka.ActorRegistry.get_all()} <= {_Stranger, recorder.ref.actor_class}
    assert len(gang.events.named("supervise.gang.finished")) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Supervisor, "_told"),
        (GangRunner, "signal"),
        (GangRunner, "_publish"),
        (Subscribers, "tell"),
        (Describer, "_exited"),
        (GangRunner, "_tell"),
        (RankActors, "recorded"),
        (RankActors, "drain"),
        (Worker, "_report_exit"),
        (FakeProcess, "reap"),
        (Worker, "_deliver"),
    ],
)
def test_a_handler_callback_or_posted_call_that_raises(monkeypatch, stranger, owner, name, kind):
    with FakeGang(3) as gang, Recorder() as recorder:
        gang.supervisor.ask(Subscribe(ref=recorder.ref), timeout=PATIENCE_S)
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        waits = [later(gang, Wait()), later(gang, Wait(timeout=3600))]
        gang.supervisor.ask(Status(), timeout=PATIENCE_S)
        raised = break_it(monkeypatch, owner, name, kind)
        gang.processes[1].exit(1)
        assert raised.wait(PATIENCE_S)
        assert_buried(gang, waits, recorder)


@pytest.mark.parametrize(("owner", "name"), [(Supervisor, "_told"), (GangRunner, "_publish"), (Worker, "_deliver")])
def test_a_handler_that_raises_an_exception_without_a_text(monkeypatch, stranger, owner, name):
    with FakeGang(3) as gang, Recorder() as recorder:
        gang.supervisor.ask(Subscribe(ref=recorder.ref), timeout=PATIENCE_S)
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        waits = [later(gang, Wait())]
        raised = break_it(monkeypatch, owner, name, Unspeakable)
        gang.processes[1].exit(1)
        assert raised.wait(PATIENCE_S)
        assert_buried(gang, waits, recorder, r"raised <Unspeakable: repr\(\) failed>; every worker was killed")


def test_a_message_without_a_text_is_refused_and_harms_no_rank():
    with FakeGang(2) as gang:
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        with pytest.raises(SpecError, match=r"does not accept <UnspeakableValue: repr\(\) failed>"):
            gang.supervisor.ask(UnspeakableValue(), timeout=PATIENCE_S)
        gang.supervisor.tell(UnspeakableValue())
        assert gang.supervisor.ask(Status(), timeout=PATIENCE_S).phase == "running"


@pytest.mark.parametrize(
    "message",
    [
        Wait(timeout=UnspeakableValue()),
        Close(death_sig=UnspeakableValue()),
        Signal(sig=SIGTERM, ranks=UnspeakableValue()),
        Signal(sig=SIGTERM, ranks={UnspeakableValue()}),
        RestartRanks(ranks={UnspeakableValue()}),
        Subscribe(ref=UnspeakableValue()),
    ],
    ids=["timeout", "death_sig", "ranks", "a rank", "a rank to restart", "ref"],
)
def test_a_message_with_a_value_whose_methods_raise_is_refused_and_harms_no_rank(message):
    with FakeGang(2) as gang:
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        with pytest.raises(SpecError, match=r"<Unspeakable(Value)?: repr\(\) failed>"):
            gang.supervisor.ask(message, timeout=PATIENCE_S)
        gang.supervisor.tell(message)
        assert gang.supervisor.ask(Status(), timeout=PATIENCE_S).phase == "running"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["_launch", "_watch"])
def test_a_worker_that_raises_while_it_starts(monkeypatch, stranger, name, kind, caplog):
    raised = break_it(monkeypatch, Worker, name, kind)
    with FakeGang(2) as gang, Recorder() as recorder:
        gang.supervisor.ask(Subscribe(ref=recorder.ref), timeout=PATIENCE_S)
        waits = [later(gang, Wait()), later(gang, Start())]
        assert raised.wait(PATIENCE_S)
        assert_buried(gang, waits, recorder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_timer_that_raises(monkeypatch, stranger, kind, caplog):
    launchers = {0: FakeLauncher(ignored=[SIGTERM])}
    with FakeGang(2, launchers=launchers, grace=0.05) as gang, Recorder() as recorder:
        gang.supervisor.ask(Subscribe(ref=recorder.ref), timeout=PATIENCE_S)
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        raised = threading.Event()
        deliver = GangRunner.signal

        def kill_raises(runner, ranks, sig, *why):
            if sig == SIGKILL:
                raised.set()
                raise kind("on purpose")
            deliver(runner, ranks, sig, *why)

        monkeypatch.setattr(GangRunner, "signal", kill_raises)
        waits = [later(gang, Wait()), later(gang, Close())]
        assert raised.wait(PATIENCE_S)
        assert_buried(gang, waits, recorder)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, RuntimeError])
def test_an_ask_that_raises_what_is_nobody_s_mistake(monkeypatch, stranger, kind, caplog):
    with FakeGang(2) as gang, Recorder() as recorder:
        gang.supervisor.ask(Subscribe(ref=recorder.ref), timeout=PATIENCE_S)
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        wait = later(gang, Wait())
        break_it(monkeypatch, Supervisor, "status", kind)
        with pytest.raises(kind, match="on purpose"):
            gang.supervisor.ask(Status(), timeout=PATIENCE_S)
        assert_buried(gang, [wait], recorder)


def test_a_second_look_at_a_process_that_was_not_reapable_raises(monkeypatch, stranger, caplog):
    """The retry is a timer of the Worker's."""
    looks, whole = [], FakeProcess.reap

    def reap(process):
        looks.append(process)
        if len(looks) == 2:
            raise OSError("on purpose")
        return None if len(looks) == 1 else whole(process)

    with FakeGang(2) as gang, Recorder() as recorder:
        gang.supervisor.ask(Subscribe(ref=recorder.ref), timeout=PATIENCE_S)
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        waits = [later(gang, Wait())]
        gang.supervisor.ask(Status(), timeout=PATIENCE_S)
        monkeypatch.setattr(FakeProcess, "reap", reap)
        gang.processes[1].exit(1)
        assert_buried(gang, waits, recorder)


def test_a_crash_while_a_launch_is_under_way_kills_who_starts_after_it(stranger, caplog):
    """A launch may be queued behind the crash: its process must not outlive the gang."""
    with FakeGang(1) as gang, Recorder() as recorder:
        gang.supervisor.ask(Subscribe(ref=recorder.ref), timeout=PATIENCE_S)
        actor = gang.supervisor._actor_weakref()
        held = threading.Event()
        actor.loop.post(held.wait, PATIENCE_S)  # so that both are queued before either is handled
        waits = [later(gang, Wait()), later(gang, Start())]
        tell(gang, object_that_breaks())
        held.set()
        del actor
        for wait in waits:
            with pytest.raises(SupervisorCrashed):
                wait.get(timeout=4.0)  # not only once the patience with the dead is at its end
        assert gang.supervisor.actor_stopped.wait(PATIENCE_S)
        assert all(SIGKILL in process.signals for process in gang.processes.values())


def test_an_ask_that_is_the_asker_s_mistake_harms_nobody(monkeypatch, stranger):
    with FakeGang(1) as gang:
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        with pytest.raises(SpecError):
            gang.supervisor.ask(Wait(timeout="soon"), timeout=PATIENCE_S)
        gang.processes[0].exit(0)
        assert gang.supervisor.ask(Wait(), timeout=PATIENCE_S).outcome == "succeeded"


def test_a_listener_that_raises_is_its_own_problem(stranger):
    def broken(event):
        raise ValueError("a listener's failure")

    with FakeGang(1, event_sink=broken) as gang:
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        gang.processes[0].exit(0)
        assert gang.supervisor.ask(Wait(), timeout=PATIENCE_S).outcome == "succeeded"


def test_a_selector_that_is_closed_by_a_stranger(stranger, caplog):
    with FakeGang(3) as gang, Recorder() as recorder:
        gang.supervisor.ask(Subscribe(ref=recorder.ref), timeout=PATIENCE_S)
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        waits = [later(gang, Wait()) for _ in range(3)]
        actor = gang.supervisor._actor_weakref()
        actor.loop.post(actor.loop._selector.close)
        for wait in waits:
            with pytest.raises(SupervisorCrashed, match="selector failed"):
                wait.get(timeout=PATIENCE_S)
        assert recorder.wait_for(GangFinished).result is None
        assert all(process.ended for process in gang.processes.values())
        assert gang.supervisor.actor_stopped.wait(PATIENCE_S)
        del actor


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.sampled_from(
            ["wait", "wait briefly", "poll", "close", "kill", "stop", "crash", "exit 0", "exit 1", "worker"]
        ),
        max_size=12,
    )
)
def test_k4_no_ask_hangs_whatever_is_asked_stopped_and_crashes(steps):
    """A random schedule; in the end every future is resolved."""
    replies = []
    with FakeGang(2, grace=0.02) as gang:
        replies.append(later(gang, Start()))
        act = {
            "wait": lambda: replies.append(later(gang, Wait())),
            "wait briefly": lambda: replies.append(later(gang, Wait(timeout=0.001))),
            "poll": lambda: replies.append(later(gang, Poll())),
            "close": lambda: replies.append(later(gang, Close())),
            "kill": lambda: replies.append(later(gang, Close(death_sig=SIGKILL))),
            "stop": lambda: replies.append(gang.supervisor.stop(block=False)),
            "crash": lambda: tell(gang, object_that_breaks()),
            "exit 0": lambda: [process.exit(0) for process in gang.processes.values()],
            "exit 1": lambda: [process.exit(1) for process in list(gang.processes.values())[:1]],
            "worker": lambda: replies.extend(
                ref.stop(block=False) for ref in pykka.ActorRegistry.get_by_class(Worker)[:1]
            ),
        }
        for step in steps:
            act[step]()
        replies.append(gang.supervisor.stop(block=False))
        for reply in replies:
            try:
                reply.get(timeout=PATIENCE_S)
            except pykka.Timeout:
                pytest.fail(f"an ask hangs after {steps}")
            except (SuperviseError, pykka.ActorDeadError):  # an answer, too
                continue
        assert len(gang.events.named("supervise.gang.finished")) <= 1
    assert pykka.ActorRegistry.get_all() == []


def tell(gang, message):
    if gang.supervisor.is_alive():
        try:
            gang.supervisor.tell(message)
        except pykka.ActorDeadError:
            return


def object_that_breaks():
    """A message at whose look a handler fails: that of the Supervisor reads its timeout, that of a Worker its text."""

    class Breaks(Wait):
        def __str__(self):
            raise SystemExit("at the sight of a message")

        __repr__ = __str__
        timeout = property(__str__)

    return Breaks.__new__(Breaks)
