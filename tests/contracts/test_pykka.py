"""The hooks of pykka that the runtime stands on. Where one of these breaks, a new pykka has changed under us."""

import importlib
import inspect
import queue
import threading

import pykka
import pytest
from pykka import messages as pykka_messages
from pykka._envelope import Envelope
from pykka._introspection import get_attr_directly

from supervise._runtime.actor import _OF_PYKKA, LoopActor
from supervise._runtime.future import Reply
from supervise._runtime.loop import Loop
from tests.patience import PATIENCE_S

NEW_PYKKA = "pykka has changed: "


# What pykka does


class _Inbox:
    def __init__(self):
        self.put_here = []

    def put(self, envelope, /):
        self.put_here.append(envelope)


class _Probe(pykka.Actor):
    """Only notes which hooks are called, and how."""

    calls: list

    def __init__(self, mark):
        self.mark = mark
        super().__init__()

    def _create_actor_inbox(self):
        assert self.mark == "set before", NEW_PYKKA + "the inbox is not created on the instance any more"
        return _Inbox()

    @staticmethod
    def _create_future():
        return Reply()

    def _start_actor_loop(self):
        assert self.actor_ref in pykka.ActorRegistry.get_all(), NEW_PYKKA + "registered after its loop starts"
        self.began = True


@pytest.fixture
def probe():
    """A probe that somebody holds strongly, since a ref does not."""
    actor = _Probe("set before")
    pykka.ActorRegistry.register(actor.actor_ref)
    actor._start_actor_loop()
    yield actor
    pykka.ActorRegistry.unregister(actor.actor_ref)


def test_start_creates_the_inbox_on_the_instance_registers_and_starts_the_loop(probe):
    assert probe.began
    assert probe.actor_ref.actor_inbox is probe.actor_inbox, NEW_PYKKA + "a ref has another inbox"
    source = inspect.getsource(pykka.Actor.start)
    order = [source.index(call) for call in ("cls(*args", "ActorRegistry.register(", "._start_actor_loop()")]
    assert order == sorted(order), NEW_PYKKA + "the order of a start"


def test_the_constructor_sets_these_attributes(probe):
    """The constructor of an actor of ours sets the same, and calls no other."""
    of_pykka = {name.removeprefix("_") for name in vars(probe)} - {"mark", "began"}
    assert of_pykka == {"actor_urn", "actor_inbox", "actor_stopped", "actor_ref"}, NEW_PYKKA + "the constructor"


def test_a_ref_holds_its_actor_only_weakly():
    ref = _Probe("set before").actor_ref
    assert ref._actor_weakref() is None, NEW_PYKKA + "a ref holds its actor; the loop need not any more"


def test_an_inbox_gets_whole_envelopes(probe):
    probe.actor_ref.tell("told")
    future = probe.actor_ref.ask("asked", block=False)
    told, asked = probe.actor_inbox.put_here
    for envelope in (told, asked):
        assert isinstance(envelope, Envelope), NEW_PYKKA + "an inbox gets something else than envelopes"
    assert (told.message, told.reply_to) == ("told", None)
    assert (asked.message, asked.reply_to) == ("asked", future), NEW_PYKKA + "an envelope's reply_to"


def test_a_future_is_created_by_the_class_without_an_instance(probe):
    assert isinstance(probe.actor_ref.ask("x", block=False), Reply), NEW_PYKKA + "another future"
    assert isinstance(inspect.getattr_static(pykka.ThreadingActor, "_create_future"), staticmethod)


def test_a_stop_is_a_message_whose_future_is_of_the_asks_class_with_a_hook(probe):
    future = probe.actor_ref.stop(block=False)
    (envelope,) = probe.actor_inbox.put_here
    assert isinstance(envelope.message, pykka_messages._ActorStop), NEW_PYKKA + "the message of a stop"
    assert isinstance(future, Reply), NEW_PYKKA + "a stop's future is not of the asks' class"
    assert future._get_hook is not None, NEW_PYKKA + "a stop's future has no get-hook"
    envelope.reply_to.set(None)
    assert future.get(timeout=1) is True
    refused = probe.actor_ref.stop(block=False)
    error = pykka.ActorDeadError("gone")
    probe.actor_inbox.put_here[-1].reply_to.set_exception((pykka.ActorDeadError, error, None))
    assert refused.get(timeout=1) is False


def test_stop_unregisters_sets_the_event_and_calls_on_stop(probe):
    stopped = []
    probe.on_stop = lambda: stopped.append(probe.actor_stopped.is_set())
    probe._stop()
    assert stopped == [True], NEW_PYKKA + "_stop() and on_stop()"
    assert probe.actor_ref not in pykka.ActorRegistry.get_all(), NEW_PYKKA + "_stop() does not unregister"
    with pytest.raises(pykka.ActorDeadError):
        probe.actor_ref.tell("x")
    assert probe.actor_inbox.put_here == []


def test_handle_receive_serves_proxies_and_hands_the_rest_to_on_receive(probe):
    probe.on_receive = lambda message: ("received", message)
    probe.number = 5
    probe.double = lambda n: 2 * n
    handle = probe._handle_receive
    assert handle("x") == ("received", "x")
    assert handle(pykka_messages.ProxyGetAttr(attr_path=("number",))) == 5
    assert handle(pykka_messages.ProxyCall(attr_path=("double",), args=(4,), kwargs={})) == 8
    handle(pykka_messages.ProxySetAttr(attr_path=("number",), value=6))
    assert probe.number == 6
    assert get_attr_directly(probe, ("number",)) == 6


def test_handle_failure_logs_unregisters_and_stops_without_hooks(probe, caplog):
    probe.on_stop = probe.on_failure = pytest.fail
    probe._handle_failure(ValueError, ValueError("why"), None)
    assert "Unhandled exception in _Probe" in caplog.text
    assert probe.actor_stopped.is_set()
    assert probe.actor_ref not in pykka.ActorRegistry.get_all()


def test_the_registry_is_a_list_with_a_lock():
    """Both are replaced in a forked child, which has none of the threads."""
    assert isinstance(pykka.ActorRegistry._actor_refs, list), NEW_PYKKA + "the registry's list"
    with pykka.ActorRegistry._actor_refs_lock:
        assert isinstance(pykka.ActorRegistry._actor_refs_lock, type(threading.RLock())), NEW_PYKKA + "its lock"


# What an actor of ours is to everybody else


class _Echo(LoopActor):
    def __init__(self, loop, told):
        super().__init__(loop)
        self.told = told
        self.began = None

    def on_start(self):
        self.began = threading.current_thread().name

    def on_stop(self):
        self.told.put("on_stop")

    def on_receive(self, message):
        if isinstance(message, type) and issubclass(message, BaseException):
            raise message("on purpose")
        if callable(message):
            return message(self)
        self.told.put(message)
        return message

    def add(self, a, b=0):
        return a + b


class _Quiet(_Echo):
    """Its crash is heard."""

    def on_crash(self, error):
        self.told.put(error)


@pytest.fixture
def told():
    return queue.SimpleQueue()


@pytest.fixture
def loop():
    made = Loop("contract", lost=pytest.fail)
    made.start()
    yield made
    made.post(made.end)
    assert made.join(PATIENCE_S)


@pytest.fixture
def echo(loop, told):
    ref = _Echo.start(loop, told)
    yield ref
    ref.stop(timeout=PATIENCE_S)


def test_tell_and_ask(echo, told):
    assert echo.ask(1, timeout=PATIENCE_S) == 1
    echo.tell(2)
    assert (told.get(timeout=PATIENCE_S), told.get(timeout=PATIENCE_S)) == (1, 2)
    assert echo.is_alive()
    assert echo in pykka.ActorRegistry.get_by_class(_Echo)


def test_on_start_is_the_first_thing_and_runs_on_the_loop(echo):
    assert echo.proxy().began.get(timeout=PATIENCE_S) == "contract"


def test_a_proxy_calls_methods_and_reads_and_writes_attributes(echo):
    proxy = echo.proxy()
    assert proxy.add(1, b=2).get(timeout=PATIENCE_S) == 3
    proxy.began = "never"
    assert proxy.began.get(timeout=PATIENCE_S) == "never"
    with pytest.raises(AttributeError):
        proxy.nothing  # noqa: B018
    proxy.add.defer(1)
    with pytest.raises(TypeError):
        proxy.add().get(timeout=PATIENCE_S)


def test_an_exception_in_an_ask_goes_to_the_asker_and_the_actor_lives(echo):
    with pytest.raises(ValueError, match="on purpose"):
        echo.ask(ValueError, timeout=PATIENCE_S)
    assert echo.ask(1, timeout=PATIENCE_S) == 1


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_exception_in_a_tell_is_told_to_on_crash_of_this_actor_alone(loop, told, echo, kind):
    quiet = _Quiet.start(loop, told)
    quiet.tell(kind)
    assert isinstance(told.get(timeout=PATIENCE_S), kind)
    assert echo.ask(1, timeout=PATIENCE_S) == 1
    assert quiet.ask(2, timeout=PATIENCE_S) == 2
    quiet.stop(timeout=PATIENCE_S)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exit_in_a_handler_reaches_its_asker_and_stops_no_other_actor(loop, told, echo, kind, caplog):
    """pykka would stop every actor of the process, and leave the asker hanging."""

    class Bystander(pykka.ThreadingActor):
        pass

    bystander, victim = Bystander.start(), _Echo.start(loop, told)
    with pytest.raises(kind):
        victim.ask(kind, timeout=PATIENCE_S)
    assert echo.ask(1, timeout=PATIENCE_S) == 1
    assert bystander.is_alive()
    assert victim.actor_stopped.wait(PATIENCE_S)
    bystander.stop(timeout=PATIENCE_S)


def test_a_crash_that_nobody_hears_ends_the_actor_and_is_logged(loop, told, caplog):
    ref = _Echo.start(loop, told)
    ref.tell(ValueError)
    assert ref.actor_stopped.wait(PATIENCE_S)
    with pytest.raises(pykka.ActorDeadError):
        ref.ask(1, timeout=PATIENCE_S)
    assert "Unhandled exception in _Echo" in caplog.text
    assert "on purpose" in caplog.text


def test_a_crash_in_on_crash_ends_the_actor(loop, told, caplog):
    class Worse(_Echo):
        def on_crash(self, error):
            raise SystemExit("worse")

    ref = Worse.start(loop, told)
    ref.tell(ValueError)
    assert ref.actor_stopped.wait(PATIENCE_S)
    assert "worse" in caplog.text
    assert ref not in pykka.ActorRegistry.get_all()


def test_an_actor_whose_on_start_fails_ends_and_is_logged(loop, told, caplog):
    class Stillborn(_Echo):
        def on_start(self):
            raise SystemExit("stillborn")

    ref = Stillborn.start(loop, told)
    with pytest.raises(pykka.ActorDeadError):
        ref.ask(1, timeout=PATIENCE_S)
    assert "stillborn" in caplog.text
    assert ref not in pykka.ActorRegistry.get_all()


def test_an_ask_behind_a_stop_gets_actor_dead_error_and_a_stop_behind_it_none(loop, told):
    ref, gate = _Echo.start(loop, told), threading.Event()
    ref.tell(lambda _: gate.wait(PATIENCE_S))
    stopping = ref.stop(block=False)
    late, again, lost = ref.ask("late", block=False), ref.stop(block=False), ref.tell("lost")
    gate.set()
    assert stopping.get(timeout=PATIENCE_S) is True
    with pytest.raises(pykka.ActorDeadError):
        late.get(timeout=PATIENCE_S)
    assert again.get(timeout=PATIENCE_S) is True
    assert ref.stop(timeout=PATIENCE_S) is False
    assert told.get(timeout=PATIENCE_S) == "on_stop"
    assert (told.empty(), lost) == (True, None)


def test_an_ask_that_slips_in_after_the_end_is_refused(loop, told):
    """Between pykka's check and its put the actor may end."""
    ref = _Echo.start(loop, told)
    ref.stop(timeout=PATIENCE_S)
    reply = Reply()
    ref.actor_inbox.put(Envelope("late", reply_to=reply))
    ref.actor_inbox.put(Envelope("told"))
    with pytest.raises(pykka.ActorDeadError):
        reply.get(timeout=PATIENCE_S)
    assert ref.actor_inbox.empty()


def test_a_stopped_actor_is_out_of_the_registry_and_freed(loop, told):
    ref = _Echo.start(loop, told)
    assert ref._actor_weakref() is not None
    ref.stop(timeout=PATIENCE_S)
    assert ref not in pykka.ActorRegistry.get_all()
    freed = threading.Event()
    loop.post(freed.set)  # behind the callback that held it
    assert freed.wait(PATIENCE_S)
    assert ref._actor_weakref() is None


def test_an_actor_lives_although_nobody_holds_it(loop, told):
    import gc

    ref = _Echo.start(loop, told)
    gc.collect()
    assert ref.ask(1, timeout=PATIENCE_S) == 1
    ref.stop(timeout=PATIENCE_S)


def test_asking_oneself_raises_instead_of_hanging(echo):
    with pytest.raises(RuntimeError, match="own thread"):
        echo.ask(lambda actor: actor.actor_ref.ask(1, timeout=PATIENCE_S), timeout=PATIENCE_S)


def test_an_actor_may_answer_later_and_with_a_future_of_another(echo):
    inner = Reply()
    deferred = echo.ask(lambda _: inner, block=False)
    assert not deferred.done()
    inner.set(5)
    assert deferred.get(timeout=PATIENCE_S) == 5
    mapped = echo.ask(lambda actor: actor.actor_ref.ask(6, block=False).map(str), timeout=PATIENCE_S)
    assert mapped == "6"


def test_k7_no_actor_of_supervise_is_left_in_a_forked_child_s_registry():
    """It has no thread there, so `stop_all` would wait for it forever."""
    for name in ("_gang.supervisor", "_gang.tail", "_hosts.host", "_tree.supervisor", "pytest_plugin._gang", "testing"):
        importlib.import_module(f"supervise.{name}")
    found, left = [pykka.Actor], set()
    while found:
        found += (actor := found.pop()).__subclasses__()
        if actor.__module__.startswith("supervise.") and not getattr(actor, "ends_with_its_thread", False):
            left.add(actor)
    assert not left


def test_stop_all_ends_them(loop, told):
    refs = [_Echo.start(loop, told) for _ in range(3)]
    assert pykka.ActorRegistry.stop_all(timeout=PATIENCE_S) == [True] * 3
    assert not set(refs) & set(pykka.ActorRegistry.get_all())


def test_an_inbox_is_never_read(echo):
    with pytest.raises(NotImplementedError):
        echo.actor_inbox.get()


def test_pykka_has_these_messages_of_its_own():
    """All others go straight to `on_receive` of an actor of a gang."""
    found = {each for each in vars(pykka_messages).values() if isinstance(each, type) and issubclass(each, tuple)}
    assert found == _OF_PYKKA, NEW_PYKKA + "its messages"
