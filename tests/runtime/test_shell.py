"""What all supervisors share: a start that fails, and a mistake of a sender."""

import errno
import os
import threading
from collections.abc import Callable
from typing import Any

import pykka
import pytest

from supervise import ActorSupervisor, Status, Supervisor, _platform as platform
from supervise._gang import shutdown
from supervise._hosts.plan import make_plan
from supervise._hosts.supervisor import HostsSupervisor
from supervise._runtime import loop as loop_module
from supervise._runtime.actor import LoopActor
from supervise._runtime.shell import with_jitter
from supervise._tree import lives
from tests.patience import PATIENCE_S


class Engine:
    """An engine that never makes a host."""

    def close(self, done: Callable[[], object]) -> None:
        done()


def start_hosts() -> Any:
    plan = make_plan(name="g", entrypoint="true", nnodes=1, nproc_per_node=1)
    engine: Any = Engine()
    return HostsSupervisor.start(plan, engine, load=lambda value: value, shown=None)


KINDS = {
    "gang": lambda: Supervisor.start(name="g", entrypoint="true", args={0: ()}),
    "hosts": start_hosts,
    "tree": lambda: ActorSupervisor.start(name="t", children=[]),
}


@pytest.fixture(params=KINDS)
def start(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]


@pytest.mark.parametrize(
    ("owner", "name"),
    [(loop_module.select, "epoll"), (loop_module.platform, "start_thread"), (LoopActor, "_start_actor_loop")],
)
def test_a_supervisor_whose_start_fails_is_gone(monkeypatch: pytest.MonkeyPatch, start: Any, owner: Any, name: str):
    """Without a descriptor or a thread, or when a signal handler raises behind the start of the thread."""
    main, call, raised = threading.get_ident(), getattr(owner, name), []

    def fail(*args: Any) -> Any:
        if threading.get_ident() == main and not raised:
            raised.append(args)
            raise OSError(errno.EMFILE, "the first failure")
        return call(*args)

    platform.refused(functions=False)  # it makes an epoll of its own, once in a process
    before = set(threading.enumerate())
    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(OSError, match="the first failure"):
        start()
    assert pykka.ActorRegistry.get_all() == []
    assert not shutdown._supervisors
    assert not lives.alive
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_told_message_that_is_not_accepted_is_logged_and_harms_no_supervisor(
    caplog: pytest.LogCaptureFixture, start: Any
):
    supervisor = start()
    try:
        supervisor.tell("what?")
        supervisor.ask(Status(), timeout=PATIENCE_S)
        supervisor.ask(Status(), timeout=PATIENCE_S)
        assert "refused a message of tell(): " in caplog.text
    finally:
        supervisor.stop(timeout=PATIENCE_S)


def test_the_jitter_is_a_quarter(monkeypatch):
    drawn = iter([b"\0" * 4, b"\xff" * 4])
    monkeypatch.setattr(os, "urandom", lambda _: next(drawn))
    assert (with_jitter(4.0), round(with_jitter(4.0), 6)) == (3.0, 5.0)
