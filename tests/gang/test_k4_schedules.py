"""Row K4: whatever is asked, stopped and crashes, in whatever order and from however many threads, no ask hangs."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from signal import SIGINT, SIGKILL, SIGTERM, SIGUSR1, Signals
from typing import Any, NoReturn

import pykka
import pytest
from hypothesis import Phase, settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule

from supervise import (
    Close,
    GangFinished,
    GangStatus,
    Pids,
    Poll,
    RunProcsResult,
    Signal,
    Start,
    Status,
    Subscribe,
    SuperviseError,
    SupervisorCrashed,
    Unsubscribe,
    Wait,
)
from supervise.testing import FakeGang, FakeLauncher, Recorder
from tests.breaking import crash
from tests.gang.test_crash import object_that_breaks, workers
from tests.patience import PATIENCE_S

QUESTIONS = {
    "start": Start(),
    "wait": Wait(),
    "wait briefly": Wait(timeout=0.001),
    "wait long": Wait(timeout=3600),
    "poll": Poll(),
    "pids": Pids(),
    "status": Status(),
    "close": Close(),
    "close hastily": Close(timeout=0.005),
    "kill": Close(death_sig=SIGKILL),
    "signal": Signal(sig=SIGUSR1),
    "signal a stranger": Signal(sig=SIGINT, ranks=frozenset({7})),
    "a signal that is none": Signal(sig="SIGUSR1"),  # type: ignore[arg-type]
    "wait for nonsense": Wait(timeout="soon"),  # type: ignore[arg-type]
    "close nonsensically": Close(timeout=float("nan")),
}
ANSWERS = (RunProcsResult, GangStatus, dict, frozenset, bool, type(None))
ERRORS = (SuperviseError, OSError, TypeError, ValueError, AttributeError, pykka.ActorDeadError)


class Ranks:
    """A set of ranks that breaks whoever looks at it."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    def __iter__(self) -> NoReturn:
        raise self._error("on purpose")


class Schedule(RuleBasedStateMachine):
    """A gang of three, one of which may not start, ignores a signal or is slow; and all that can befall it."""

    replies = Bundle("replies")

    def __init__(self) -> None:
        super().__init__()
        self._asked: list[tuple[str, Any]] = []
        self._ending = contextlib.ExitStack()

    @initialize(deaf=st.booleans(), failing=st.booleans(), held=st.booleans(), window=st.sampled_from([1, 3]))
    def make(self, deaf: bool, failing: bool, held: bool, window: int) -> None:
        launchers = {
            1: FakeLauncher(ignored=[SIGTERM] if deaf else [], held=held),
            2: FakeLauncher(error=OSError(2, "none") if failing else None),
        }
        self.gang = self._ending.enter_context(FakeGang(3, launchers=launchers, grace=0.01, window=window))
        self.recorder = self._ending.enter_context(Recorder())
        self._ask("subscribe", Subscribe(ref=self.recorder.ref))

    def _ask(self, what: str, message: object) -> Any:
        try:
            reply = self.gang.supervisor.ask(message, block=False)
        except pykka.ActorDeadError:
            return None
        self._asked.append((what, reply))
        return reply

    @rule(target=replies, what=st.sampled_from(sorted(QUESTIONS)))
    def ask(self, what: str) -> Any:
        return self._ask(what, QUESTIONS[what])

    @rule(reply=consumes(replies))
    def give_up(self, reply: Any) -> None:
        """An asker that does not wait; pykka's word for it is a timeout."""
        if reply is not None:
            with contextlib.suppress(pykka.Timeout, *ERRORS):
                reply.get(timeout=0)

    @rule(block=st.booleans())
    def ask_for_the_lifecycle_no_more(self, block: bool) -> None:
        self._ask("unsubscribe", Unsubscribe(ref=pykka.ActorRegistry.get_all()[-1]) if block else Status())

    @rule(code=st.sampled_from([0, 0, 1, -9]), rank=st.integers(0, 2))
    def exit(self, code: int, rank: int) -> None:
        process = self.gang.processes.get(rank)
        if process is not None and not process.ended:
            process.exit(code)

    @rule()
    def release(self) -> None:
        self.gang.launchers[1].release()

    @rule()
    def stop(self) -> None:
        with contextlib.suppress(pykka.ActorDeadError):
            self._asked.append(("stop", self.gang.supervisor.stop(block=False)))

    @rule(rank=st.integers(0, 2))
    def stop_a_worker(self, rank: int) -> None:
        for ref in workers()[rank : rank + 1]:
            self._asked.append(("stop a worker", ref.stop(block=False)))

    @rule(how=st.sampled_from(["worker", "message", "answer", "exit"]))
    def crash_somewhere(self, how: str) -> None:
        with contextlib.suppress(pykka.ActorDeadError):
            if how == "worker":
                crash(self.gang.supervisor, RuntimeError("on purpose"))
            elif how == "message":
                self.gang.supervisor.tell(object_that_breaks())
            else:
                error = RuntimeError if how == "answer" else SystemExit
                self._ask("crash", Signal(sig=Signals.SIGUSR1, ranks=Ranks(error)))  # type: ignore[arg-type]

    @rule(rank=st.integers(0, 2))
    def crash_a_worker(self, rank: int) -> None:
        for ref in workers()[rank : rank + 1]:
            with contextlib.suppress(pykka.ActorDeadError):
                ref.tell(object_that_breaks())

    def teardown(self) -> None:
        if not hasattr(self, "gang"):
            return
        try:
            self.stop()
            self.gang.launchers[1].release()
            for what, reply in self._asked:
                self._check(what, reply)
            assert self.gang.supervisor.actor_stopped.wait(PATIENCE_S)
            assert len(self.gang.events.named("supervise.gang.finished")) <= 1
            assert sum(isinstance(message, GangFinished) for message in self.recorder.messages) <= 1
        finally:
            self._ending.close()
        assert not pykka.ActorRegistry.get_all()

    def _check(self, what: str, reply: Any) -> None:
        """Every future is resolved, with an answer or an error of ours."""
        try:
            answer = reply.get(timeout=PATIENCE_S)
        except pykka.Timeout:
            pytest.fail(f"{what!r} hangs; asked were {[name for name, _ in self._asked]}")
        except ERRORS:
            return
        except (RuntimeError, SystemExit):
            if what != "crash":
                raise
        else:
            assert isinstance(answer, ANSWERS), (what, answer)


TestK4AnySchedule = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")(
    Schedule.TestCase
)
TestK4AnySchedule.settings = settings(
    max_examples=200,
    stateful_step_count=20,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to shrink an ask that hangs would take an hour
)


@pytest.mark.parametrize("end", ["stop", "crash", "close", "kill"])
def test_k4_asks_from_8_threads_are_all_answered_while_the_gang_ends(end):
    """Each thread asks until it is told that there is nobody any more; none of its futures stays open."""
    begun = threading.Barrier(9)

    def ask_on(gang: FakeGang, kind: int) -> int:
        messages = [Wait(), Wait(timeout=0.001), Poll(), Status(), Pids(), Close(), Signal(sig=SIGUSR1), Start()]
        replies: list[Any] = []
        begun.wait(PATIENCE_S)
        with contextlib.suppress(pykka.ActorDeadError):
            while len(replies) < 1000:
                replies.append(gang.supervisor.ask(messages[kind], block=False))
        for reply in replies:
            with contextlib.suppress(*ERRORS):
                reply.get(timeout=PATIENCE_S)
        return len(replies)

    with FakeGang(2, grace=0.05) as gang, ThreadPoolExecutor(8) as pool:
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        asking = [pool.submit(ask_on, gang, kind) for kind in range(8)]
        begun.wait(PATIENCE_S)
        if end == "crash":
            crash(gang.supervisor, RuntimeError("on purpose"))
        elif end == "stop":
            gang.supervisor.stop(timeout=PATIENCE_S)
        else:
            how = {"death_sig": SIGKILL} if end == "kill" else {}
            with contextlib.suppress(pykka.ActorDeadError):
                gang.supervisor.ask(Close(**how), timeout=PATIENCE_S)
            gang.supervisor.stop(timeout=PATIENCE_S)
        assert all(found.result(PATIENCE_S * 2) for found in asking)
    assert not pykka.ActorRegistry.get_all()


def test_k4_an_ask_behind_a_crash_and_one_behind_a_stop_are_refused_at_once():
    """Both are queued before the first is handled, so that neither could know."""
    for last in ("crash", "stop"):
        with FakeGang(1) as gang:
            actor = gang.supervisor._actor_weakref()
            held = threading.Event()
            actor.loop.post(held.wait, PATIENCE_S)
            if last == "stop":
                gang.supervisor.stop(block=False)
            else:
                crash(gang.supervisor, RuntimeError("on purpose"))
            behind = [gang.supervisor.ask(message, block=False) for message in (Start(), Wait(), Close(), Status())]
            del actor
            held.set()
            for reply in behind:
                with contextlib.suppress(SupervisorCrashed, SuperviseError, pykka.ActorDeadError):
                    reply.get(timeout=PATIENCE_S)
                assert reply.done()


def test_k4_many_signals_behind_a_crash_are_refused_by_it():
    """The Workers leave while some of them wait their turn."""
    with FakeGang(2) as gang:
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        actor = gang.supervisor._actor_weakref()
        held = threading.Event()
        actor.loop.post(held.wait, PATIENCE_S)
        del actor
        crash(gang.supervisor, RuntimeError("on purpose"))
        behind = [gang.supervisor.ask(Signal(sig=SIGUSR1), block=False) for _ in range(200)]
        held.set()
        for reply in behind:
            with pytest.raises((SupervisorCrashed, pykka.ActorDeadError)):
                reply.get(timeout=PATIENCE_S)
