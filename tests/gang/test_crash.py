"""Whatever of ours raises: workers are killed and reaped, every asker is answered, nobody else is harmed."""

import threading
from signal import SIGKILL, SIGTERM

import pykka
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

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
    SupervisorCrashed,
    TerminateRanks,
    Wait,
)
from supervise.testing import FakeGang, FakeLauncher, Recorder
from tests.breaking import PLACES, found
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


def workers():
    """Return the actors of ranks of all gangs."""
    return pykka.ActorRegistry.get_by_class_name("Worker")


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


@pytest.mark.parametrize("place", PLACES)
def test_each_place_where_a_bug_can_be_planted_is_there(place):
    """A function that was renamed is named here, before the tests that plant a bug in it."""
    owner, name = found(place)
    assert callable(getattr(owner, name))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "place",
    [
        *("report to the gang", "signal", "result", "subscribers", "event of an exit", "message to subscribers"),
        *("look for records", "drain of the logs", "report of an exit", "reap of a fake", "delivery of a signal"),
    ],
)
def test_a_handler_callback_or_posted_call_that_raises(breaking, stranger, place, kind):
    with FakeGang(3) as gang, Recorder() as recorder:
        gang.supervisor.ask(Subscribe(ref=recorder.ref), timeout=PATIENCE_S)
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        waits = [later(gang, Wait()), later(gang, Wait(timeout=3600))]
        gang.supervisor.ask(Status(), timeout=PATIENCE_S)
        raised = breaking.raises(place, kind("on purpose"), once=True)
        gang.processes[1].exit(1)
        assert raised.wait(PATIENCE_S)
        assert_buried(gang, waits, recorder)


def test_requests_that_are_pending_at_a_crash_are_answered_with_it(breaking, stranger):
    """The ranks ignore the signal of a restart and of a termination, so neither request is answered before."""
    launchers = {rank: FakeLauncher(ignored=[SIGTERM]) for rank in range(3)}
    with FakeGang(3, launchers=launchers) as gang, Recorder() as recorder:
        gang.supervisor.ask(Subscribe(ref=recorder.ref), timeout=PATIENCE_S)
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        waits = [later(gang, RestartRanks(ranks={0})), later(gang, TerminateRanks(ranks={1}))]
        gang.supervisor.ask(Status(), timeout=PATIENCE_S)
        raised = breaking.raises("report to the gang", RuntimeError("on purpose"), once=True)
        gang.processes[2].exit(0)
        assert raised.wait(PATIENCE_S)
        assert_buried(gang, waits, recorder)


@pytest.mark.parametrize("place", ["report to the gang", "result", "delivery of a signal"])
def test_a_handler_that_raises_an_exception_without_a_text(breaking, stranger, place):
    with FakeGang(3) as gang, Recorder() as recorder:
        gang.supervisor.ask(Subscribe(ref=recorder.ref), timeout=PATIENCE_S)
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        waits = [later(gang, Wait())]
        raised = breaking.raises(place, Unspeakable("on purpose"), once=True)
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
@pytest.mark.parametrize("place", ["launch of a rank", "watch of a rank"])
def test_a_worker_that_raises_while_it_starts(breaking, stranger, place, kind, caplog):
    raised = breaking.raises(place, kind("on purpose"), once=True)
    with FakeGang(2) as gang, Recorder() as recorder:
        gang.supervisor.ask(Subscribe(ref=recorder.ref), timeout=PATIENCE_S)
        waits = [later(gang, Wait()), later(gang, Start())]
        assert raised.wait(PATIENCE_S)
        assert_buried(gang, waits, recorder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_timer_that_raises(breaking, stranger, kind, caplog):
    launchers = {0: FakeLauncher(ignored=[SIGTERM])}
    with FakeGang(2, launchers=launchers, grace=0.05) as gang, Recorder() as recorder:
        gang.supervisor.ask(Subscribe(ref=recorder.ref), timeout=PATIENCE_S)
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        raised = threading.Event()

        def kill_raises(deliver, runner, ranks, sig, *why):
            if sig == SIGKILL:
                raised.set()
                raise kind("on purpose")
            deliver(runner, ranks, sig, *why)

        breaking.instead("signal", kill_raises)
        waits = [later(gang, Wait()), later(gang, Close())]
        assert raised.wait(PATIENCE_S)
        assert_buried(gang, waits, recorder)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, RuntimeError])
def test_an_ask_that_raises_what_is_nobody_s_mistake(breaking, stranger, kind, caplog):
    with FakeGang(2) as gang, Recorder() as recorder:
        gang.supervisor.ask(Subscribe(ref=recorder.ref), timeout=PATIENCE_S)
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        wait = later(gang, Wait())
        breaking.raises("status", kind("on purpose"), once=True)
        with pytest.raises(kind, match="on purpose"):
            gang.supervisor.ask(Status(), timeout=PATIENCE_S)
        assert_buried(gang, [wait], recorder)


def test_a_second_look_at_a_process_that_was_not_reapable_raises(breaking, stranger, caplog):
    """The retry is a timer of the Worker's."""
    looks = []

    def reap(whole, process):
        looks.append(process)
        if len(looks) == 2:
            raise OSError("on purpose")
        return None if len(looks) == 1 else whole(process)

    with FakeGang(2) as gang, Recorder() as recorder:
        gang.supervisor.ask(Subscribe(ref=recorder.ref), timeout=PATIENCE_S)
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        waits = [later(gang, Wait())]
        gang.supervisor.ask(Status(), timeout=PATIENCE_S)
        breaking.instead("reap of a fake", reap)
        gang.processes[1].exit(1)
        assert_buried(gang, waits, recorder)


def test_a_crash_while_a_launch_is_under_way_kills_who_starts_after_it(stranger, caplog, patient_shutdown):
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
                wait.get(timeout=PATIENCE_S)  # not only once the patience with the dead is at its end
        assert gang.supervisor.actor_stopped.wait(PATIENCE_S)
        assert all(SIGKILL in process.signals for process in gang.processes.values())


def test_an_ask_that_is_the_asker_s_mistake_harms_nobody(stranger):
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
            "worker": lambda: replies.extend(ref.stop(block=False) for ref in workers()[:1]),
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
