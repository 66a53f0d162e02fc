"""The order of roles as a graph, and their own signals and graces, on real processes."""

import os
import select
import signal
import socket
import sys
import time

import pytest

from supervise import (
    Close,
    RestartPolicy,
    RestartRanks,
    Role,
    SpecError,
    Start,
    Status,
    Supervisor,
    TerminateRanks,
    start_processes,
)
from tests.patience import PATIENCE_S
from tests.processes import work
from tests.processes.gangs import launched
from tests.processes.test_roles import DEAF, ENDS, POLITE, READY, WAITS, made, role

TAKES = """
def stopping(number, _):
    say(os.environ["ROLE_NAME"] + " got " + signal.Signals(number).name)
    os._exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT): signal.signal(number, stopping)
say(os.environ["ROLE_NAME"] + " runs")
"""
FOREVER = f"while True: {work.LOOK}"
TAKES_ALL = TAKES + FOREVER
FAILS = "wait_for_word(); os._exit(3)"


def kill(gang, rank):
    os.kill(gang.pids[rank], signal.SIGKILL)


def await_exit(gang, rank):
    return gang.await_event("supervise.process.exited", local_rank=rank)


def await_state(gang, rank, state):
    deadline_s = time.monotonic() + PATIENCE_S
    while (found := gang.ask(Status()).ranks[rank].state) != state:
        assert time.monotonic() < deadline_s, found
        select.select([], [], [], 0.01)


def test_r10_a_role_waits_only_for_those_that_it_needs(tmp_path):
    """Roles without a way between them start side by side; a needed role may come later in the file."""
    roles = [
        role("web", POLITE, needs=["store"]),
        role("lone", POLITE, needs=[]),
        role("worker", POLITE, needs=["store"]),
        role("store", READY, kind="spawn", ready="notify"),
    ]
    with launched(tmp_path, None, dict.fromkeys(range(4), ()), roles=roles) as gang:
        start = gang.supervisor.ask(Start(), block=False)
        assert sorted(gang.hear(2)) == ["lone runs", "store runs"]
        for _ in range(2):  # they may have spoken before supervise knows of them
            gang.await_event("supervise.process.started")
        assert set(gang.pids) == {1, 3}
        gang.tell(3, "ready")
        assert sorted(gang.hear(2)) == ["web runs", "worker runs"]
        assert set(start.get(timeout=PATIENCE_S)) == {0, 1, 2, 3}


def test_r11_a_role_accepts_connections_until_those_that_need_it_are_gone(tmp_path):
    """The gang itself accepts none any more, and removes the file of the socket in the end."""
    path = tmp_path / "a.sock"
    with made(tmp_path, role("store", WAITS, listen=[f"unix:{path}"]), role("web", WAITS)) as gang:
        gang.hear(2)
        reply = gang.supervisor.ask(Close(), block=False)
        assert gang.hear() == ["web stops"]
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(str(path))
        gang.tell(1)
        assert gang.hear() == ["store stops"]
        gang.tell(0)
        reply.get(timeout=PATIENCE_S)
        assert not path.exists()


def test_r11_a_role_is_stopped_when_nothing_is_left_of_those_that_need_it(tmp_path):
    """Those that need it are stopped at the same time, and a role that needs nothing with them."""
    roles = [
        role("web", WAITS, needs=["store"]),
        role("worker", WAITS, needs=["store"]),
        role("store", POLITE),
        role("lone", POLITE),
    ]
    with made(tmp_path, *roles) as gang:
        gang.hear(4)
        closed = gang.supervisor.ask(Close(), block=False)
        assert sorted(gang.hear(3)) == ["lone stops", "web stops", "worker stops"]
        gang.tell(0)
        await_exit(gang, 0)
        gang.tell(1)
        await_exit(gang, 1)
        gang.await_event("supervise.process.signaled", local_rank=2)  # not before: this would not find it
        assert gang.hear() == ["store stops"]
        assert closed.get(timeout=PATIENCE_S).outcome == "stopped"


def test_r10_a_rank_that_restarts_waits_only_for_what_its_role_needs(tmp_path):
    """Its store is being restarted and not ready yet; a rank that needs no store starts at once."""
    roles = [
        role("web", POLITE, needs=["store"]),
        role("lone", POLITE),
        role("store", READY, kind="spawn", ready="notify"),
    ]
    policy = RestartPolicy(max_restarts=9, backoff=0.0)
    with launched(
        tmp_path, None, dict.fromkeys(range(3), ()), roles=roles, strategy="one_for_one", restart_policy=policy
    ) as gang:
        start = gang.supervisor.ask(Start(), block=False)
        gang.hear(2)
        gang.tell(2, "ready")
        gang.hear()
        start.get(timeout=PATIENCE_S)
        kill(gang, 2)
        assert gang.hear() == ["store runs"]
        kill(gang, 0)
        kill(gang, 1)
        assert gang.hear() == ["lone runs"]
        await_state(gang, 0, "waiting")
        gang.tell(2, "ready")
        assert gang.hear() == ["web runs"]


def test_no_role_waits_for_one_that_is_switched_off(tmp_path):
    """A role without ranks is never ready."""
    off = Role(name="off", entrypoint="false", args={}, ready="notify")
    roles = [off, Role(name="web", entrypoint="true", args={0: ()}, needs=["off"])]
    assert start_processes("g", roles=roles).wait().outcome == "succeeded"


def test_a_role_that_is_switched_off_does_not_change_the_order_of_the_others(tmp_path):
    """It is the only one that has needs; the others start side by side all the same."""
    roles = [
        role("store", READY, kind="spawn", ready="notify"),
        role("web", POLITE),
        Role(name="off", entrypoint="false", args={}, needs=["store"]),
    ]
    with launched(tmp_path, None, dict.fromkeys(range(2), ()), roles=roles) as gang:
        start = gang.supervisor.ask(Start(), block=False)
        assert sorted(gang.hear(2)) == ["store runs", "web runs"]
        gang.tell(0, "ready")
        assert set(start.get(timeout=PATIENCE_S)) == {0, 1}


def test_rest_for_one_concerns_those_that_need_the_role(tmp_path):
    roles = [
        role("web", WAITS, needs=["store"]),
        role("lone", POLITE),
        role("store", FAILS, WAITS),
    ]
    with made(tmp_path, *roles, strategy="rest_for_one") as gang:
        gang.hear(3)
        gang.tell(2)
        assert sorted(gang.hear(2)) == ["store stops", "web stops"]
        for rank in (0, 3):
            gang.tell(rank)
            await_exit(gang, rank)
        gang.ask(TerminateRanks(frozenset({1})))
        assert gang.wait().ends[1].role == "terminated", "the lone one had gone on"


def test_r10_services_side_by_side_are_stopped_at_the_same_time(tmp_path):
    roles = [
        role("store", WAITS, service=True),
        role("cache", WAITS, service=True),
        role("base", POLITE, service=True, needs=[]),
        role("job", ENDS, needs=["store", "cache", "base"]),
    ]
    roles[0], roles[1] = (role(each.name, WAITS, service=True, needs=["base"]) for each in roles[:2])
    with made(tmp_path, *roles) as gang:
        gang.hear(4)
        gang.tell(3, "0")
        assert sorted(gang.hear(2)) == ["cache stops", "store stops"]
        gang.tell(0)
        gang.tell(1)
        assert gang.hear() == ["base stops"]
        assert gang.wait().outcome == "succeeded"


STOPS = {
    "close": lambda gang: gang.ask(Close()),
    "close by a signal": lambda gang: gang.ask(Close(death_sig=signal.SIGQUIT)),
    "failure of a peer": lambda gang: gang.tell(2),
    "restart": lambda gang: gang.ask(RestartRanks(frozenset({0}))),
    "terminate": lambda gang: gang.ask(TerminateRanks(frozenset({0}))),
}


@pytest.mark.parametrize("stop", STOPS)
def test_r11_each_stop_begins_with_the_signal_of_the_role(tmp_path, stop):
    """A signal of the caller goes only to roles without their own."""
    roles = [
        role("web", TAKES_ALL, stop_signal=signal.SIGINT),
        role("worker", TAKES_ALL),
        role("third", FAILS),
    ]
    with made(tmp_path, *roles) as gang:
        gang.hear(2)
        STOPS[stop](gang)
        if stop in ("restart", "terminate"):
            assert gang.hear() == ["web got SIGINT"]
            return
        said = gang.hear(2)
        assert sorted(said) == ["web got SIGINT", f"worker got {'SIGQUIT' if 'signal' in stop else 'SIGTERM'}"]


def test_r11_a_service_gets_the_signal_of_its_role(tmp_path):
    roles = [role("store", TAKES_ALL, service=True, stop_signal=signal.SIGQUIT), role("job", ENDS)]
    with made(tmp_path, *roles) as gang:
        gang.hear(2)
        gang.tell(1, "0")
        assert gang.hear() == ["store got SIGQUIT"]
        assert gang.wait().outcome == "succeeded"


@pytest.mark.parametrize("stop", ["close", "failure", "with block", "terminate"])
def test_r11_each_stop_has_the_grace_of_the_role(tmp_path, stop):
    """The short grace of one role neither waits for that of the gang nor shortens that of another."""
    roles = [role("polite", WAITS), role("deaf", DEAF, grace=0.2, needs=[]), role("third", FAILS)]
    with made(tmp_path, *roles, grace=PATIENCE_S) as gang:
        gang.hear(2)
        if stop == "failure":
            gang.tell(2)
        elif stop == "terminate":
            gang.ask(TerminateRanks(frozenset({1})))
        else:
            gang.supervisor.tell(Close())
        await_exit(gang, 1)
        gang.tell(0)
        if stop != "terminate":
            assert gang.hear() == ["polite stops"]
            result = gang.wait()
            assert (result.ends[0].exitcode, result.ends[1].exitcode) == (0, -signal.SIGKILL)


def test_r11_a_long_grace_of_a_role_outlasts_that_of_the_gang(tmp_path):
    roles = [role("slow", WAITS, grace=PATIENCE_S), role("deaf", DEAF), role("third", FAILS)]
    with made(tmp_path, *roles, grace=0.2) as gang:
        gang.hear(2)
        gang.tell(2)
        assert gang.hear() == ["slow stops"]
        await_exit(gang, 1)  # after the grace of the gang
        gang.tell(0)
        result = gang.wait()
        assert (result.ends[0].exitcode, result.ends[1].exitcode) == (0, -signal.SIGKILL)


def test_r11_a_timeout_of_the_caller_bounds_every_role(tmp_path):
    roles = [role("deaf", DEAF, grace=3 * PATIENCE_S), role("other", DEAF, grace=3 * PATIENCE_S)]
    with made(tmp_path, *roles) as gang:
        gang.hear(2)
        result = gang.ask(Close(timeout=0.2))
        assert {end.exitcode for end in result.ends.values()} == {-signal.SIGKILL}


SLOW = """
import signal, sys, time
from supervise import notify
def stopping(*_):
    time.sleep(0.3)
    sys.exit(0)
signal.signal(signal.SIGTERM, stopping if sys.argv[1:] else signal.SIG_IGN)
notify(ready=True)
while True: time.sleep(0.05)
"""


def test_r11_a_context_closes_each_role_with_its_own_grace():
    """The grace of the gang is that of the other role."""
    roles = [
        Role(name="slow", entrypoint=sys.executable, args={0: ("-c", SLOW, "x")}, ready="notify", grace=PATIENCE_S),
        Role(name="deaf", entrypoint=sys.executable, args={0: ("-c", SLOW)}, ready="notify"),
    ]
    with start_processes("g", roles=roles, grace=0.1) as context:
        pass
    ends = context.wait().ends
    assert (ends[0].exitcode, ends[1].exitcode) == (0, -signal.SIGKILL)


def test_r11_a_context_gives_each_of_two_roles_the_grace_of_the_gang(caplog):
    """One after the other: the second role has its whole grace."""
    caplog.set_level("INFO", "supervise")
    roles = [
        Role(name=name, entrypoint=sys.executable, args={0: ("-c", SLOW)}, ready="notify") for name in ("store", "web")
    ]
    with start_processes("g", roles=roles, grace=0.5):
        pass
    events = [record.supervise for record in caplog.records if hasattr(record, "supervise")]
    sent = [event for event in events if event["event"] == "supervise.process.signaled"]
    assert [(event["role"], event["signal"]) for event in sent] == [
        *(("web", "SIGTERM"), ("web", "SIGKILL")),
        *(("store", "SIGTERM"), ("store", "SIGKILL")),
    ]
    assert sent[3]["monotonic_ns"] - sent[2]["monotonic_ns"] > 0.4e9


WRONG = {
    "an unknown name": ({"web": ["stor"], "store": None}, "role 'web': needs names 'stor', .* did you mean 'store'"),
    "a name like no other": ({"web": ["db"], "store": None}, "which is not a role; the roles are web, store"),
    "itself": ({"web": ["web"]}, "'web' needs 'web'"),
    "a circle": (
        {"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]},
        "roles wait for each other: '.' needs .*; remove one",
    ),
    "a text": ({"web": "store", "store": None}, "role 'web': needs is 'store'; give a list"),
}


def roles_of(needs):
    return (Role(name=name, entrypoint="true", args={0: ()}, needs=each) for name, each in needs.items())


@pytest.mark.parametrize("case", WRONG)
def test_needs_that_cannot_be_met_are_refused_before_any_start(case):
    needs, message = WRONG[case]
    with pytest.raises(SpecError, match=message):
        Supervisor.start(name="g", roles=[*roles_of(needs)])


@pytest.mark.parametrize("wrong", [{"stop_signal": signal.SIGKILL}, {"reload_signal": 0}, {"grace": -1.0}])
def test_a_wrong_signal_or_grace_of_a_role_is_refused(wrong):
    with pytest.raises(SpecError, match=f"role 'web': {next(iter(wrong))} is "):
        Role(name="web", entrypoint="true", args={0: ()}, **wrong)
