"""``Reload``: ranks get their reload signal, and those that report it are awaited; on real processes."""

import signal
from contextlib import ExitStack

import pykka
import pytest

from supervise import Reload, RestartPolicy, Role, SpecError, Start, SuperviseError, Supervisor, Wait
from tests.patience import PATIENCE_S
from tests.processes import work
from tests.processes.gangs import launched
from tests.processes.hosts import ROOT
from tests.processes.test_role_order import kill
from tests.processes.test_roles import ENDS, POLITE, WAITS, role

NOTIFIES = f"""
sys.path.insert(0, {ROOT!r})
import socket
def tell(text):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.sendto(text.encode(), "\\0" + os.environ["NOTIFY_SOCKET"][1:])
asked = []
signal.signal(signal.SIGHUP, lambda *_: asked.append(1))
tell("READY=1")
say("runs")
while True:
    {{look}}
    if asked and asked.pop():
        for word in iter(wait_for_word, "end"): tell(word); say(word)
"""
SIGNALED = "signal.signal(signal.SIGHUP, lambda *_: say('reloads'))\n" + POLITE
"""Says so after the signal, and reports nothing."""


def notifies():
    return NOTIFIES.format(look=work.LOOK)


@pytest.fixture
def gang(tmp_path):
    """Return the maker of a started gang of these roles."""
    with ExitStack() as stack:

        def make(*roles, **more):
            ranks = dict.fromkeys(range(sum(len(each.args) for each in roles)), ())
            found = stack.enter_context(launched(tmp_path, None, ranks, roles=roles, **more))
            return found.start()

        yield make


def test_a_rank_without_reports_has_reloaded_at_once_and_one_without_a_signal_has_not(gang):
    """Exactly the named ranks, each at its own process; the signal is that of the role."""
    made = gang(role("web", SIGNALED, SIGNALED, reload_signal=signal.SIGHUP), role("worker", POLITE))
    made.hear(3)
    assert made.ask(Reload(frozenset({1}))) == {1: True}
    assert made.hear() == ["reloads"]
    assert made.await_event("supervise.process.signaled")["local_rank"] == 1
    assert made.ask(Reload()) == {0: True, 1: True, 2: False}
    assert made.hear(2) == ["reloads", "reloads"]
    with pytest.raises(SpecError, match="not in this gang"):
        made.ask(Reload(frozenset({7})))


def test_a_rank_that_reports_its_reload_is_awaited_until_it_is_ready_again(gang, reloads_may_begin_late):
    made = gang(role("web", notifies(), kind="binary", ready="notify", reload_signal=signal.SIGHUP))
    made.hear()
    reply = made.supervisor.ask(Reload(), block=False)
    made.tell(0, "RELOADING=1")
    assert made.hear() == ["RELOADING=1"]
    with pytest.raises(pykka.Timeout):
        reply.get(timeout=9.0)  # longer than the wait for the first report
    made.tell(0, "READY=1")
    assert reply.get(timeout=PATIENCE_S) == {0: True}


def test_a_rank_that_reports_nothing_counts_as_reloaded(gang):
    made = gang(role("web", notifies(), ready="notify", reload_signal=signal.SIGHUP))
    made.hear()
    assert made.ask(Reload()) == {0: True}


def test_a_rank_that_is_being_stopped_is_not_reloaded(gang):
    """Another rank has failed; all ranks will restart."""
    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    web = role("web", ENDS, reload_signal=signal.SIGHUP)
    made = gang(web, role("worker", WAITS, reload_signal=signal.SIGHUP), restart_policy=policy)
    made.hear(2)
    made.tell(0, "3")
    assert made.hear() == ["worker stops"]
    assert made.ask(Reload()) == {}
    made.tell(1)


@pytest.mark.parametrize("how", ["it ends", "it is late"])
def test_a_reload_that_fails_is_an_error_that_names_the_rank(gang, how, reloads_may_begin_late):
    limit_s = 9.0 if how == "it is late" else PATIENCE_S
    made = gang(role("web", notifies(), ready="notify", ready_timeout_s=limit_s, reload_signal=signal.SIGHUP))
    made.hear()
    reply = made.supervisor.ask(Reload(frozenset({0})), block=False)
    made.tell(0, "RELOADING=1")
    assert made.hear() == ["RELOADING=1"]
    if how == "it ends":
        kill(made, 0)
    why = r"ended \(SIGKILL\) while it reloaded" if how == "it ends" else "no READY=1 within 9 s"
    with pytest.raises(SuperviseError, match=rf"rank 0 \(web 0\).*{why}"):
        reply.get(timeout=PATIENCE_S)


def test_a_rank_without_reports_that_the_signal_ends_has_not_reloaded(monkeypatch):
    """Also if nothing else about the health of the ranks is of interest."""
    for name in ("_SURVIVED_S", "_RELOADING_S"):  # a process may end late on a busy machine
        monkeypatch.setattr(f"supervise._gang.health.{name}", 900.0)
    role = Role(name="web", entrypoint="sleep", args={0: (1000,)}, reload_signal=signal.SIGHUP)
    gang = Supervisor.start(name="g", roles=[role])
    try:
        gang.ask(Start())
        with pytest.raises(SuperviseError, match=r"rank 0 \(web 0\) ended \(SIGHUP\) while it reloaded"):
            gang.ask(Reload(), timeout=PATIENCE_S)
        assert gang.ask(Wait(), timeout=PATIENCE_S).ends[0].exitcode == -signal.SIGHUP
    finally:
        gang.stop()
