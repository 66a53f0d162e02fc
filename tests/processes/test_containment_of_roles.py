"""Roles whose containment differs: each mechanism treats what the ranks of its own roles leave, and nothing else."""

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from supervise import (
    Close,
    RestartPolicy,
    RestartRanks,
    Role,
    SpecError,
    Status,
    Supervisor,
    SupervisorCrashed,
    TerminateRanks,
    Wait,
)
from tests.breaking import crash
from tests.kernels import control_groups, need_cgroup, own_control_groups, use_no_control_groups
from tests.patience import PATIENCE_S
from tests.processes.gangs import Fifo, Gang, each_kind, launched
from tests.processes.hosts import NO_FILES, Host, pids_of, watched
from tests.processes.stubborn import DEAF, FOR_EVER
from tests.processes.test_containment import FORKED
from tests.processes.work import PREAMBLE, run_source

LEAVES = FORKED.replace("f'ready {os.getpid()}'", "' '.join([os.environ['LOCAL_RANK'], str(os.getpid())])")
"""The rank leaves a daemon, which says the rank and its pid."""
LIVES = LEAVES + FOR_EVER
DEAF_LEAVES = LEAVES.replace("say(", "signal.signal(signal.SIGTERM, signal.SIG_IGN); say(")

LEAKED = "supervise.process.leaked"


@pytest.fixture(params=[("group", "sweep"), ("group", "sweep", "cgroup")], ids="-".join)
def kinds(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The containment of each role. The first only reports."""
    if "cgroup" in request.param:
        need_cgroup()
    return request.param


@contextmanager
def mixed(folder: Any, kind: str, kinds: tuple[str, ...], source: str = LIVES, **more: Any) -> Iterator[Gang]:
    """Yield a gang that runs. Each role has one rank and its containment; the last role has that of the gang."""
    what: dict[str, Any] = {"entrypoint": run_source, "args": {0: (source,)}, "start_method": kind}
    if kind == "binary":
        what = {"entrypoint": sys.executable, "args": {0: ("-S", "-c", PREAMBLE + source)}}
    own = (*kinds[:-1], None)
    roles = [Role(name=name, containment=each, **what) for name, each in zip(kinds, own, strict=True)]  # type: ignore[arg-type]
    with launched(folder, None, dict.fromkeys(range(len(kinds)), ()), roles=roles, containment=kinds[-1], **more) as it:
        yield it.start()


def daemons(gang: Gang, count: int) -> dict[int, int]:
    """Return the next daemons that say something: rank to pid."""
    return {int(line.split()[0]): int(line.split()[1]) for line in gang.hear(count)}


def told(gang: Gang, count: int) -> dict[int, tuple[list[int], bool]]:
    """Return rank to what the next reports of daemons say: the pids, and whether they were ended."""
    events = [gang.await_event(LEAKED) for _ in range(count)]
    return {event["local_rank"]: (event["descendants"], event["ended"]) for event in events}


@each_kind
def test_s4_a_close_ends_daemons_of_the_roles_that_ask_for_it(tmp_path, kind, kinds):
    """The others are reported; each with its own rank."""
    with mixed(tmp_path, kind, kinds) as gang:
        left = daemons(gang, len(kinds))
        with watched(list(left.values())) as watch:
            gang.close()
            assert watch.survivors(0) == {left[0]}
        assert told(gang, len(kinds)) == {rank: ([pid], rank > 0) for rank, pid in left.items()}
        assert own_control_groups() == set()


def test_s4_a_daemon_that_ignores_sigterm_is_killed_after_the_grace(tmp_path, kinds):
    """A further close shortens the grace of each mechanism."""
    with mixed(tmp_path, "binary", kinds, DEAF_LEAVES + FOR_EVER, grace=1000.0) as gang:
        left = daemons(gang, len(kinds))
        with watched(list(left.values())) as watch:
            closed = gang.supervisor.ask(Close(), block=False)
            gang.await_event(LEAKED, local_rank=0)  # the search for the others goes on
            gang.close(timeout=0.2)
            closed.get(timeout=PATIENCE_S)
            assert watch.survivors(0) == {left[0]}


@each_kind
def test_r3_the_restart_of_one_rank_ends_its_daemon_and_no_other(tmp_path, kind, kinds):
    """Whatever the containment of the other roles is."""
    with mixed(tmp_path, kind, kinds, strategy="one_for_one") as gang:
        left, later = daemons(gang, len(kinds)), {}
        alive = set(left.values())
        with watched(list(alive)) as watch:
            for rank in range(len(kinds)):
                gang.ask(RestartRanks(frozenset({rank})))
                later |= daemons(gang, 1)
                alive -= {left[rank]} if rank else set()
                assert watch.survivors(0) == alive
            assert told(gang, len(kinds)) == {rank: ([pid], rank > 0) for rank, pid in left.items()}
            gang.ask(TerminateRanks(frozenset({1})))
            with watched(list(later.values())) as present:
                assert present.survivors(0) == set(later.values()) - {later[1]}
                gang.close()
                assert present.survivors(0) == {later[0]}
            assert watch.survivors(0) == {left[0]}


@pytest.mark.parametrize("kind", ["binary", "fork"])
def test_r3_before_a_restart_of_all_ranks_the_daemons_of_these_roles_are_gone(tmp_path, kind, kinds):
    """Those of the first role live on, and are reported once."""
    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    source = LEAVES + "wait_for_word()\nos._exit(3)\n"
    with mixed(tmp_path, kind, kinds, source, restart_policy=policy) as gang:
        left = daemons(gang, len(kinds))
        with watched(list(left.values())) as watch:
            gang.tell(0)
            later = daemons(gang, len(kinds))
            assert watch.survivors(0) == {left[0]}
        assert told(gang, len(kinds)) == {rank: ([pid], rank > 0) for rank, pid in left.items()}
        with watched(list(later.values())) as watch:
            gang.close()
            assert watch.survivors(0) == {later[0]}
        assert told(gang, len(kinds)) == {rank: ([pid], rank > 0) for rank, pid in later.items()}


def fail_in_a_handler(gang: Gang, _breaking: Any) -> None:
    crash(gang.supervisor, ValueError("planted"))


def fail_without_a_loop(gang: Gang, breaking: Any) -> None:
    breaking.raises("poll of a loop", OSError("planted"), once=True)
    gang.supervisor.ask(Status(), block=False)


@pytest.mark.parametrize("fail", [fail_in_a_handler, fail_without_a_loop])
def test_k2_after_a_failure_of_supervise_the_daemons_of_these_roles_are_killed(
    tmp_path, kinds, breaking, fail: Callable[[Gang, Any], None]
):
    """Each mechanism has its own search there, too."""
    with mixed(tmp_path, "fork", kinds, DEAF_LEAVES + FOR_EVER, grace=1000.0) as gang:
        left = daemons(gang, len(kinds))
        with watched([*left.values(), *gang.pids.values()]) as watch:
            asked = gang.supervisor.ask(Wait(), block=False)
            fail(gang, breaking)
            with pytest.raises(SupervisorCrashed):
                asked.get(timeout=PATIENCE_S)
            assert watch.survivors(PATIENCE_S, at_most=1) == {left[0]}
        assert own_control_groups() == set()


@each_kind
def test_k1_ranks_of_all_roles_die_with_a_killed_host(tmp_path, kind, kinds):
    """The lifeline holds for each of them; the next use clears away the empty control groups."""
    roles = f"""
        roles = [
            Role(name=each, entrypoint=run_source, args={{0: ({DEAF!r},)}}, start_method=kind, containment=each)
            for each in {kinds!r}
        ]
    """
    if kind == "binary":
        roles = roles.replace("run_source", "sys.executable").replace(
            f"({DEAF!r},)", f"('-S', '-c', {PREAMBLE + DEAF!r})"
        )
        roles = roles.replace("start_method=kind, ", "")
    imports = "from supervise import DefaultLogsSpecs, Role\nfrom tests.processes.work import run_source\n"
    rest = "gang = Supervisor.start(name='host', roles=roles, logs_specs=DefaultLogsSpecs(os.devnull))\n"
    program = imports + "\n".join(line[8:] for line in roles.splitlines()) + f"\n{rest}"
    ear = Fifo(tmp_path / "ear")
    try:
        with (
            Host(f"{program}gang.ask(Start())\nprint('runs', flush=True)\nsignal.pause()", kind, ear.path) as host,
            watched(pids_of([ear.hear() for _ in kinds])) as watch,
        ):
            assert host.hear() == "runs"
            host.kill()
            assert watch.survivors() == set()
    finally:
        ear.close()
    if "cgroup" in kinds:
        gang = Supervisor.start(name="next", entrypoint="true", args={0: ()}, logs_specs=NO_FILES, containment="cgroup")
        gang.stop(timeout=PATIENCE_S)
        assert control_groups(host.process.pid) == set()


def roles_of(**containments: Any) -> list[Role]:
    return [Role(name=name, entrypoint="true", args={0: ()}, containment=each) for name, each in containments.items()]


def test_a_control_group_that_cannot_be_made_names_the_role(monkeypatch):
    """Before any process is started, and nothing is left."""
    use_no_control_groups(monkeypatch)
    with pytest.raises(SpecError) as caught:
        Supervisor.start(name="job", roles=roles_of(store=None, web="cgroup"), logs_specs=NO_FILES)
    assert str(caught.value).startswith("role 'web': containment='cgroup' needs a cgroup v2 tree that can be written: ")
    with pytest.raises(SpecError, match=r"^containment='cgroup' needs"):
        Supervisor.start(name="job", entrypoint="true", args={0: ()}, containment="cgroup", logs_specs=NO_FILES)


def test_a_full_tree_of_control_groups_names_the_role(system_call):
    """The kernel limits their number (cgroup.max.descendants)."""
    need_cgroup()

    def refuse(_real: object, path: str, *, exist_ok: bool) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable", path)

    system_call("makedirs", refuse)
    with pytest.raises(SpecError, match=r"^role 'web': containment='cgroup': .*/rank-1 cannot be made: Resource"):
        Supervisor.start(name="job", roles=roles_of(store=None, web="cgroup"), logs_specs=NO_FILES)


def test_a_gang_uses_each_mechanism_only_where_a_role_has_it(monkeypatch):
    """A role that is switched off needs no control group."""
    use_no_control_groups(monkeypatch)
    off = Role(name="off", entrypoint="true", args={}, containment="cgroup")
    gang = Supervisor.start(name="job", roles=[off, *roles_of(on="sweep")], logs_specs=NO_FILES, containment="cgroup")
    gang.stop(timeout=PATIENCE_S)


@pytest.mark.parametrize("value", ["none", "", 3])
def test_a_containment_of_a_role_that_is_not_valid(value: Any):
    with pytest.raises(SpecError) as caught:
        roles_of(web=value)
    assert str(caught.value) == f"role 'web': containment is {value!r}; it is one of group, cgroup, sweep"
