"""Gangs of different programs: mixed roles, services, and the close role by role; on real processes."""

import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervise import (
    Close,
    DefaultLogsSpecs,
    RestartPolicy,
    RestartRanks,
    Role,
    SpawnError,
    SpecError,
    Start,
    Status,
    Std,
    Supervisor,
    start_processes,
)
from tests.breaking import end_of_the_interpreter
from tests.patience import PATIENCE_S
from tests.processes import work
from tests.processes.gangs import launched

TELLS = """
name, number = os.environ["ROLE_NAME"], os.environ["ROLE_RANK"]
def stopping(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a further one would interrupt the wait
    say(f"{name} stops")
    wait_for_word()
    os._exit(0)
signal.signal(signal.SIGTERM, stopping)
say(f"{name} runs")
"""
"""A rank that says when it is told to stop, and then ends when the test lets it."""
WAITS = TELLS + f"while True: {work.LOOK}  # pause() would not see a signal that came just before"
POLITE = WAITS.replace("    wait_for_word()\n", "")
DEAF = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say(os.environ["ROLE_NAME"] + " runs")
while True: signal.pause()
"""
ENDS = """
say(os.environ["ROLE_NAME"] + " runs")
code = int(wait_for_word())
if code: os._exit(code)
value = os.environ["ROLE_RANK"]
"""


def role(name, *sources, kind="binary", **more):
    """Return a role whose ranks run Python source."""
    if kind == "binary":
        args = {rank: ("-S", "-c", work.PREAMBLE + source) for rank, source in enumerate(sources)}
        return Role(name=name, entrypoint=sys.executable, args=args, **more)
    args = {rank: (source,) for rank, source in enumerate(sources)}
    return Role(name=name, entrypoint=work.run_source, args=args, start_method=kind, **more)


@contextmanager
def made(folder, *roles, **more):
    """Yield a started gang of these roles."""
    ranks = range(sum(len(each.args) for each in roles))
    with launched(folder, None, dict.fromkeys(ranks, ()), roles=roles, **more) as gang:
        yield gang.start()


def codes(result):
    return {rank: end.exitcode for rank, end in result.ends.items()}


def test_r10_functions_and_programs_are_ranks_of_one_gang(tmp_path):
    """Each knows its role; a result has the values of the functions."""
    tells = "text = ' '.join(os.environ['ROLE_' + name] for name in ('NAME', 'RANK', 'WORLD_SIZE'))\nsay(text)\n"
    returns = tells + "value = text"
    kinds = ("binary", "spawn", "fork", "forkserver")
    roles = [role(kind, returns, returns, kind=kind) for kind in kinds]
    with made(tmp_path, *roles) as gang:
        said = gang.hear(8)
        result = gang.wait()
    expected = [f"{kind} {rank} 2" for kind in kinds for rank in range(2)]
    assert sorted(said) == sorted(expected)
    assert result.outcome == "succeeded"
    assert result.return_values == {0: None, 1: None} | {rank: expected[rank] for rank in range(2, 8)}


def test_r10_the_environment_of_a_role_and_of_the_gang_reaches_its_ranks(tmp_path):
    tells = "say(os.environ['ROLE_NAME'] + os.environ['ROLE_RANK'] + os.environ['MINE'] + os.getcwd())"
    (tmp_path / "there").mkdir()
    roles = [
        role("a", tells, envs={0: {"MINE": "x", "ROLE_NAME": "own"}}, cwd=tmp_path / "there"),
        role("b", tells, envs={0: {"MINE": 3}}),
    ]
    with made(tmp_path, *roles, envs={1: {"ROLE_RANK": 7, "MINE": "hidden"}}) as gang:
        assert sorted(gang.hear(2)) == [f"b73{Path.cwd()}", f"own0x{tmp_path / 'there'}"]
        gang.wait()


def test_r10_roles_are_launched_in_their_order_and_not_behind_one_that_cannot_be(tmp_path):
    """The error names the role and the rank in it; events name the role."""
    roles = [
        role("first", ENDS, ENDS),
        Role(name="second", entrypoint="/proc/nonexistent", args={0: ()}),
        role("third", ENDS),
    ]
    ranks = dict.fromkeys(range(4), ())
    with launched(tmp_path, None, ranks, roles=roles) as gang:
        with pytest.raises(OSError, match=r"rank 2 \(second 0\) could not be started"):
            gang.ask(Start())
        assert gang.await_event("supervise.process.started")["role"] == "first"
        assert gang.await_event("supervise.process.started")["local_rank"] == 1
        assert gang.await_event("supervise.process.start_failed")["role"] == "second"
        assert set(gang.pids) == {0, 1}


READY = """
say("store runs")
text = wait_for_word()
from supervise import notify
notify(status="loading", ready=text == "ready")
while True: signal.pause()
"""


def test_r10_a_role_waits_until_the_one_before_it_has_reported_that_it_is_ready(tmp_path):
    roles = [role("store", READY, kind="spawn", ready="notify", service=True), role("job", ENDS)]
    with launched(tmp_path, None, {0: (), 1: ()}, roles=roles) as gang:
        start = gang.supervisor.ask(Start(), block=False)
        assert gang.hear() == ["store runs"]
        gang.await_event("supervise.process.started", local_rank=0)  # it may have spoken before supervise knows of it
        assert set(gang.pids) == {0}
        gang.tell(0, "ready")
        assert gang.hear() == ["job runs"]
        assert set(start.get(timeout=PATIENCE_S)) == {0, 1}
        gang.tell(1, "0")
        assert gang.wait().outcome == "succeeded"


def test_r10_a_role_that_is_not_ready_in_time_fails_the_start_of_those_above_it(tmp_path):
    store = role("store", READY, kind="spawn", ready="notify", ready_timeout_s=0.5)
    with launched(tmp_path, None, {0: (), 1: ()}, roles=[store, role("job", ENDS)]) as gang:
        with pytest.raises(SpawnError, match=r"^rank 0 \(store 0\) did not start: was not ready within 0.5 s"):
            gang.ask(Start())
        assert set(gang.pids) == {0}


def test_r10_services_stop_last_role_first_when_all_others_have_succeeded(tmp_path):
    """The result is a success, with the values of the others."""
    services = [role("store", WAITS, service=True), role("cache", WAITS, service=True, kind="fork")]
    with made(tmp_path, *services, role("job", ENDS, ENDS, kind="fork")) as gang:
        gang.hear(4)
        gang.tell(2, "0")
        gang.await_event("supervise.process.exited", local_rank=2)
        gang.tell(3, "0")
        assert gang.hear() == ["cache stops"]
        gang.tell(1)
        assert gang.hear() == ["store stops"]
        gang.supervisor.ask(Close(), block=False)  # changes nothing: all that had work to do have done it
        gang.tell(0)
        result = gang.wait()
    assert (result.outcome, codes(result)) == ("succeeded", dict.fromkeys(range(4), 0))
    assert result.return_values == {0: None, 1: None, 2: "0", 3: "1"}


def test_r10_a_service_that_ignores_its_stop_is_killed_after_the_grace(tmp_path):
    with made(tmp_path, role("store", DEAF, service=True), role("job", ENDS), grace=0.2) as gang:
        gang.hear(2)
        gang.tell(1, "0")
        result = gang.wait()
    assert (result.outcome, codes(result)) == ("succeeded", {0: -signal.SIGKILL, 1: 0})
    assert result.ends[0].role == "bystander"


@pytest.mark.parametrize(("service", "job"), [("3", None), ("0", "3")])
def test_r10_a_failure_is_judged_as_any_other_whether_of_a_service_or_of_its_client(tmp_path, service, job):
    """A service that succeeds early stops nobody."""
    with made(tmp_path, role("store", ENDS, service=True), role("job", ENDS)) as gang:
        gang.hear(2)
        gang.tell(0, service)
        gang.await_event("supervise.process.exited", local_rank=0)
        if job is not None:
            gang.tell(1, job)
        result = gang.wait()
    assert result.outcome == "failed"
    assert list(result.failures) == [0 if job is None else 1]


def test_r10_a_service_restarts_alone_and_ends_with_its_clients(tmp_path):
    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    roles = [role("store", ENDS, service=True), role("job", ENDS, restart="temporary")]
    with made(tmp_path, *roles, strategy="one_for_one", restart_policy=policy) as gang:
        gang.hear(2)
        gang.tell(0, "3")
        assert gang.hear() == ["store runs"]
        gang.tell(1, "4")
        result = gang.wait()
    assert result.outcome == "failed"
    assert list(result.failures) == [1]
    assert codes(result) == {0: -signal.SIGTERM, 1: 4}
    assert result.restarts_total == 1


@pytest.mark.parametrize("backoff", [0.0, 60.0])
def test_r10_a_service_that_waits_for_its_restart_is_no_failure_once_its_clients_have_succeeded(tmp_path, backoff):
    """The result does not depend on the length of the backoff."""
    roles = [role("store", ENDS, service=True), role("job", ENDS)]
    policy = RestartPolicy(max_restarts=1, backoff=backoff)
    with made(tmp_path, *roles, strategy="one_for_one", restart_policy=policy) as gang:
        gang.hear(2)
        gang.tell(0, "3")
        if backoff:
            gang.await_event("supervise.process.restarting", local_rank=0, role="store", end_role="root_cause")
        else:
            assert gang.hear() == ["store runs"]
        gang.tell(1, "0")
        result = gang.wait()
    assert (result.outcome, result.root_cause) == ("succeeded", None)
    assert result.return_values == {0: None, 1: None}
    assert {rank: end.role for rank, end in result.ends.items()} == {0: "bystander", 1: "finished"}


@pytest.mark.parametrize("kind", ["binary", "fork"])
@pytest.mark.parametrize("before", [None, "0", "4"])
def test_r2_a_temporary_rank_stays_down_in_a_restart_of_all_ranks(tmp_path, kind, before):
    """Whether it was stopped, had succeeded or had failed: its end, and its logs, are those of its only life."""
    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    roles = [role("job", ENDS, kind=kind), role("helper", ENDS, kind=kind, restart="temporary")]
    logs = DefaultLogsSpecs(log_dir=str(tmp_path / "logs"), redirects=Std.ALL)
    with made(tmp_path, *roles, restart_policy=policy, logs_specs=logs) as gang:
        gang.hear(2)
        if before is not None:
            gang.tell(1, before)
            gang.await_event("supervise.process.exited", local_rank=1)
        gang.tell(0, "3")
        assert gang.hear() == ["job runs"]
        row = gang.supervisor.ask(Status(), timeout=PATIENCE_S).ranks[1]
        assert (row.state, row.attempt, row.restarts) == ("finished" if before == "0" else "failed", 0, 0)
        gang.tell(0, "0")
        result = gang.wait()
    assert codes(result) == {0: 0, 1: -signal.SIGTERM if before is None else int(before)}
    assert result.restarts_total == 1
    for paths in (result.stdouts, result.stderrs):
        assert [Path(paths[rank]).parent.parent.name for rank in range(2)] == ["attempt_1", "attempt_0"]
        assert all(Path(path).exists() for path in paths.values())
    if before == "4":
        assert (result.outcome, list(result.failures)) == ("failed", [1])
    else:
        assert (result.outcome, dict(result.failures)) == ("succeeded", {})
        assert result.ends[1].role == ("bystander" if before is None else "finished")
        assert result.return_values == {0: "0" if kind == "fork" else None, 1: None}


def test_r4_a_temporary_rank_that_a_restart_of_all_has_left_out_can_be_restarted(tmp_path):
    """Also by a request from before that restart, which does not do it."""
    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    roles = [role("job", TELLS + "if wait_for_word(): os._exit(3)"), role("helper", WAITS, restart="temporary")]
    with made(tmp_path, *roles, restart_policy=policy) as gang:
        gang.hear(2)
        gang.tell(0, "3")
        assert gang.hear() == ["helper stops"]
        early = gang.supervisor.ask(RestartRanks(ranks=frozenset({1})), block=False)
        gang.tell(1)
        assert sorted(gang.hear(2)) == ["helper runs", "job runs"]
        assert set(early.get(timeout=PATIENCE_S)) == {1}
        assert gang.supervisor.ask(Status(), timeout=PATIENCE_S).ranks[1].attempt == 2
        reply = gang.supervisor.ask(Close(), block=False)
        for rank in (1, 0):
            assert gang.hear() == [f"{('job', 'helper')[rank]} stops"]
            gang.tell(rank)
        result = reply.get(timeout=PATIENCE_S)
    assert (result.outcome, codes(result)) == ("stopped", {0: 0, 1: 0})


def test_r11_a_close_stops_the_last_role_first(tmp_path):
    """The ranks of a role are signaled together, and those of the role before it when all of them have ended."""
    with made(tmp_path, role("a", WAITS), role("b", WAITS, WAITS), role("c", WAITS, kind="fork")) as gang:
        gang.hear(4)
        reply = gang.supervisor.ask(Close(), block=False)
        assert gang.hear() == ["c stops"]
        gang.tell(3)
        assert gang.hear(2) == ["b stops"] * 2
        gang.tell(1)
        gang.await_event("supervise.process.exited", local_rank=1)
        gang.tell(2)
        assert gang.hear() == ["a stops"]
        gang.tell(0)
        result = reply.get(timeout=PATIENCE_S)
    assert (result.outcome, codes(result)) == ("stopped", dict.fromkeys(range(4), 0))


def test_r11_each_role_has_a_grace_of_its_own(tmp_path):
    """Its expiry kills that role only."""
    with made(tmp_path, role("a", POLITE), role("b", DEAF), grace=5.0) as gang:
        gang.hear(2)
        result = gang.close()
        assert gang.hear() == ["a stops"]
    assert (result.outcome, codes(result)) == ("stopped", {0: 0, 1: -signal.SIGKILL})


def test_r11_a_timeout_bounds_the_close_of_all_roles(tmp_path):
    """A role whose turn does not come is killed with the others."""
    with made(tmp_path, role("a", WAITS), role("b", DEAF)) as gang:
        gang.hear(2)
        result = gang.close(timeout=0.2)
    assert (result.outcome, codes(result)) == ("stopped", {0: -signal.SIGKILL, 1: -signal.SIGKILL})


@pytest.mark.parametrize("hurry", ["a close", "the end of the interpreter"])
def test_r11_who_hurries_stops_all_roles_at_once(tmp_path, hurry):
    with made(tmp_path, role("a", WAITS), role("b", WAITS), grace=PATIENCE_S) as gang:
        gang.hear(2)
        reply = gang.supervisor.ask(Close(), block=False)
        assert gang.hear() == ["b stops"]
        gang.supervisor.ask(Close(), block=False)  # does not hurry
        exits = threading.Thread(target=end_of_the_interpreter)
        if hurry == "a close":
            gang.supervisor.ask(Close(timeout=20.0), block=False)
        else:
            exits.start()
        assert gang.hear() == ["a stops"]
        gang.tell(0)
        gang.tell(1)
        assert codes(reply.get(timeout=PATIENCE_S)) == {0: 0, 1: 0}
        if exits.is_alive():
            exits.join(PATIENCE_S)


@pytest.mark.parametrize("cause", ["a failure", "the timeout of the gang", "SIGKILL"])
def test_r11_other_ends_stop_all_roles_at_once(tmp_path, cause):
    timeout = 10.0 if cause.startswith("the") else None
    last = ENDS if cause == "a failure" else WAITS
    with made(tmp_path, role("a", WAITS), role("b", WAITS), role("c", last), timeout=timeout) as gang:
        gang.hear(3)
        if cause == "SIGKILL":
            result = gang.close(death_sig=signal.SIGKILL)
            assert codes(result) == dict.fromkeys(range(3), -signal.SIGKILL)
            return
        if cause == "a failure":
            gang.tell(2, "3")
        said = sorted(gang.hear(2 if cause == "a failure" else 3))
        assert said[:2] == ["a stops", "b stops"]
        for rank in range(3 if cause != "a failure" else 2):
            gang.tell(rank)
        assert gang.wait().outcome == ("failed" if cause == "a failure" else "timed_out")


def test_r10_start_processes_takes_roles(tmp_path):
    roles = [role("store", "while True: signal.pause()", service=True), role("job", "value = 5", kind="fork")]
    with start_processes("app", roles=roles) as context:
        result = context.wait(PATIENCE_S)
        assert context.nprocs == 2
        assert set(context.pids()) == {0, 1}
    assert (result.outcome, result.return_values) == ("succeeded", {0: None, 1: 5})


A = {"name": "a", "entrypoint": "true", "args": {0: ()}}


def test_a_role_without_ranks_is_switched_off():
    """Its settings need not be valid for this gang, and the other roles are numbered without it."""
    off = Role(name="off", entrypoint="/proc/nonexistent", args={}, restart="permanent")
    with start_processes("app", roles=[off, Role(**A)]) as context:
        result = context.wait()
    assert (result.outcome, set(result.ends)) == ("succeeded", {0})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "there is nothing to start; give entrypoint and args, or roles"),
        (
            {"roles": [Role(**A)], "args": {0: ()}},
            "args is not an argument of a gang with roles; each Role has its own",
        ),
        ({"roles": [Role(**A)], "start_method": "fork"}, "start_method is not an argument of a gang with roles"),
        ({"roles": []}, "roles is not a list of roles"),
        ({"roles": ["a"]}, "roles is not a list of roles"),
        ({"roles": [Role(**A), Role(**A)]}, "two roles have the name 'a'"),
        ({"roles": [Role(**A, service=True)]}, "every role is a service"),
        ({"roles": [Role(**A, restart="permanent")]}, "role 'a': restart is 'permanent', but the gang has no"),
        ({"roles": [Role(**A | {"args": {1: ()}})]}, "role 'a': args, local rank mapping mismatch"),
        ({"roles": [Role(**A | {"args": {}})]}, "every role is switched off, because its args are empty"),
        ({"roles": [Role(**A | {"args": None})]}, "role 'a': args is None"),
        ({"roles": [Role(**A, envs={})]}, "role 'a': envs, local rank mapping mismatch"),
        ({"roles": [Role(**A, cwd="/proc/nonexistent")]}, "role 'a': cwd is '/proc/nonexistent'"),
        ({"roles": [Role(**A | {"args": {0: ("\0",)}})]}, "role 'a': rank 0: the argument"),
        ({"roles": [Role(**A | {"entrypoint": None})]}, "role 'a': entrypoint is None"),
        (
            {"roles": [Role(**A), Role(name="b", entrypoint=len, args={0: (), 1: (threading.Lock(),)})]},
            "role 'b': rank 1: len or one of its arguments",
        ),
    ],
)
def test_a_gang_with_roles_that_are_not_valid_is_refused(settings, text):
    with pytest.raises(SpecError) as caught:
        Supervisor.start(name="app", **settings)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("name", "", "the name of a role is ''"),
        ("ready", "soon", "role 'a': ready is 'soon'; it is one of exec, notify"),
        ("ready_timeout_s", 0, "role 'a': ready_timeout_s is 0"),
        ("restart", "often", "role 'a': restart is 'often'"),
        ("service", 1, "role 'a': service is 1; give True or False"),
    ],
)
def test_a_role_that_is_not_valid_is_refused(field, value, text):
    with pytest.raises(SpecError) as caught:
        Role(**A | {field: value})
    assert str(caught.value).startswith(text)
