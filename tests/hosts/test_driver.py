"""The driver of a gang over several hosts, with simulated hosts: its messages, its settings, and its result."""

import errno
import gc
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM, SIGUSR1
from types import SimpleNamespace
from typing import Any, cast

import pykka
import pytest

from supervise import (
    Close,
    GangFinished,
    GangRestarting,
    GangStarted,
    Pids,
    Poll,
    RestartPolicy,
    RestartRanks,
    Signal,
    SpawnError,
    SpecError,
    Start,
    Status,
    Subscribe,
    SuperviseError,
    SupervisorCrashed,
    Wait,
)
from supervise._hosts.host import Host, NewsQueue
from supervise._hosts.link import HostDead, HostLink, HostUnavailable
from supervise._hosts.plan import HostAddress, HostEnd, News, make_plan
from supervise._hosts.supervisor import HostsSupervisor, StreamsShown
from supervise._printable import LOST_CODE
from supervise.messages import GangStatus, RankStatus, WorkerExited
from supervise.result import ProcessFailure, RankEnd, RunProcsResult
from tests.patience import PATIENCE_S
from tests.processes.work import Unspeakable

NODES, RANKS = 2, 2


class SimulatedHost:
    """A host that does what the test says. Its calls are those of `supervise._hosts.host.Host`."""

    def __init__(self, engine: "SimulatedEngine", order: Any) -> None:
        self.order = order
        self.engine = engine
        self.address = HostAddress(
            host_name=f"h{order.number}",
            node_id=f"node{order.number}",
            ip="127.0.0.1",
            port=5,
            pid=1,
            keeper_port=engine.keeper_port,
        )
        self.envs: dict[int, dict[str, str]] = {}
        self.news: list[News] = []
        self.count = 0
        self.done: Any = None
        """The callback of the poll that waits for news. The driver's loop sets it, and the test calls it."""
        self._lock = threading.Lock()
        self.over = False
        self.seen: list[tuple[Any, ...]] = []
        """All calls: method and arguments."""
        self.trouble: BaseException | None = None
        """The error of all calls, until it is None again."""
        self.status: Any = None

    def call(self, method: str, *args: Any, done: Any) -> None:
        self.seen.append((method, *args))
        if self.over:
            done(None, HostDead("it was killed by the test"))
        elif self.trouble is not None:
            done(None, self.trouble)
        elif method == "news_after":
            with self._lock:
                self.done = done
            self.tell()
        elif method == "launch":
            self.engine.launched(self, args[0], done)
        elif method == "status":
            done(self.status, None)
        else:
            if method not in ("renew", "leave"):
                self.engine.calls.put((self.order.number, method, *args))
            done(1, None)
            if method == "stop" and self.engine.obedient:
                self.ends("stopped", (-15, -15))

    def tell(self, *news: tuple[Any, Any]) -> None:
        with self._lock:
            for kind, what in news:
                self.count += 1
                self.news.append(News(self.count, kind, what))
            if not self.news or self.done is None:
                return
            done, self.done = self.done, None
            found, self.news = self.news, []
        done(found, None)

    def dies(self, why: str = "it was killed by the test") -> None:
        """End the poll that waits for news with the error of a dead host; each later call finds the host dead."""
        with self._lock:
            self.over = True
            done, self.done = self.done, None
        if done is not None:
            done(None, HostDead(why))

    def ends(self, outcome: Any, codes: tuple[int, ...]) -> None:
        result = RunProcsResult(outcome=outcome)
        for rank, code in enumerate(codes):
            role: Any = "root_cause" if outcome == "failed" and code > 0 else "finished" if code == 0 else "bystander"
            result.ends[rank] = RankEnd(
                local_rank=rank, pid=10 + rank, exitcode=code, role=role, started_ns=1, ended_ns=2
            )
            result.stdouts[rank] = f"/logs/{rank}"
            if code:
                result.failures[rank] = ProcessFailure.of(rank, 10 + rank, code, "", message="")
        if outcome == "failed":
            result.failures = {rank: each for rank, each in result.failures.items() if each.exitcode > 0}
        if outcome == "succeeded":
            result.return_values = {rank: (self.order.number, rank) for rank in range(RANKS)}
        exits = [WorkerExited(local_rank=r, pid=10 + r, exitcode=c, ended_ns=2) for r, c in enumerate(codes)]
        self.tell(*(("worker", each) for each in exits), ("ended", HostEnd(result=result)))


class SimulatedEngine:
    """Places the hosts at once."""

    def __init__(self) -> None:
        self.hosts: list[SimulatedHost] = []
        self.calls: queue.Queue[Any] = queue.Queue()
        self.released: list[int] = []
        self.room: BaseException | None = None
        self.start_error: dict[int, BaseException] = {}
        self.keeper_port = 0
        """The port of each host's keeper; 0: none."""
        self.obedient = False
        """Whether hosts end when they are asked to stop."""

    def place(self, orders: Any, done: Any) -> None:
        self.hosts = [SimulatedHost(self, order) for order in orders]
        done(None if self.room else self.hosts, self.room)

    def launched(self, host: SimulatedHost, envs: Any, done: Any) -> None:
        host.envs = envs
        error = self.start_error.get(host.order.number)
        done(None if error else {0: 10, 1: 11}, error)

    def release(self, epoch: int) -> None:
        self.released.append(epoch)

    def close(self, done: Any) -> None:
        done()

    def stops(self, count: int) -> list[Any]:
        return sorted(self.calls.get(timeout=PATIENCE_S) for _ in range(count))


def failed(local_rank: int, code: int = 3) -> tuple[str, WorkerExited]:
    """Return the news of the failure of a rank."""
    return "worker", WorkerExited(local_rank=local_rank, pid=10 + local_rank, exitcode=code, ended_ns=2)


class Shown:
    def __init__(self) -> None:
        self.out: list[tuple[int, str, bytes]] = []

    def write(self, host: int, stream: str, data: bytes, _stop: object) -> None:
        self.out.append((host, stream, data))

    def finish(self, host: int, _stop: object) -> None:
        self.out.append((host, "end", b""))


@pytest.fixture
def engine() -> SimulatedEngine:
    return SimulatedEngine()


@pytest.fixture
def make(engine: SimulatedEngine) -> Iterator[Any]:
    refs = []

    def start(shown: Any = None, load: Any = lambda value: value, **settings: Any) -> Any:
        plan = make_plan(name="g", entrypoint="true", nnodes=NODES, nproc_per_node=RANKS, **settings)
        refs.append(HostsSupervisor.start(plan, engine, load=load, shown=shown or Shown()))
        return refs[-1]

    yield start
    engine.obedient = True
    for ref in refs:
        if ref.is_alive():
            ref.stop(timeout=PATIENCE_S)


def test_success_has_the_values_and_paths_of_all_ranks(make: Any, engine: SimulatedEngine):
    gang = make()
    assert gang.ask(Start(), timeout=PATIENCE_S) == {0: 10, 1: 11, 2: 10, 3: 11}
    assert gang.ask(Poll(), timeout=PATIENCE_S) is None
    for host in engine.hosts:
        host.ends("succeeded", (0, 0))
    result = gang.ask(Wait(), timeout=PATIENCE_S)
    assert result.outcome == "succeeded"
    assert result.return_values == {0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (1, 1)}
    assert sorted(result.stdouts) == [0, 1, 2, 3]
    assert {rank: (end.host, end.local_rank) for rank, end in result.ends.items()} == {
        0: ("h0", 0),
        1: ("h0", 1),
        2: ("h1", 0),
        3: ("h1", 1),
    }
    assert result.cause_order == "receipt"
    assert engine.released == [0]


@pytest.mark.parametrize(
    ("error", "text"), [(Unspeakable(), "Unspeakable: <exception str() failed>"), (SystemExit(3), "SystemExit: 3")]
)
def test_a_value_whose_load_raises_is_the_failure_of_its_rank(
    make: Any, engine: SimulatedEngine, error: BaseException, text: str
):
    def load(value: Any) -> Any:
        if value == (1, 0):
            raise error
        return value

    gang = make(load=load)
    gang.ask(Start(), timeout=PATIENCE_S)
    for host in engine.hosts:
        host.ends("succeeded", (0, 0))
    result = gang.ask(Wait(), timeout=PATIENCE_S)
    assert (result.outcome, result.root_cause) == ("failed", 2)
    assert result.failures[2].message == f"its return value could not be unpickled here: {text}"


def test_a_close_keeps_the_values_that_have_arrived_and_can_be_loaded(make: Any, engine: SimulatedEngine):
    gang = make(load=lambda value: {(0, 0): "early"}[value])
    gang.ask(Start(), timeout=PATIENCE_S)
    engine.hosts[0].ends("succeeded", (0, 0))
    closed = gang.ask(Close(), block=False)
    engine.stops(1)
    engine.hosts[1].ends("stopped", (-15, -15))
    result = closed.get(timeout=PATIENCE_S)
    assert (result.outcome, result.return_values, sorted(result.failures)) == ("stopped", {0: "early"}, [2, 3])


def test_a_driver_that_raises_without_a_text_replies_with_a_crash(make: Any, monkeypatch: pytest.MonkeyPatch):
    gang = make()
    gang.ask(Start(), timeout=PATIENCE_S)
    waiting = gang.ask(Wait(), block=False)

    def status(_: Any) -> Any:
        raise Unspeakable

    monkeypatch.setattr(HostsSupervisor, "status", status)
    gang.tell(Status())
    with pytest.raises(SupervisorCrashed, match=r"the driver raised <Unspeakable: repr\(\) failed>"):
        waiting.get(timeout=PATIENCE_S)


@pytest.mark.parametrize("what", ["output", "hosts", "news"])
def test_k3_whatever_raises_on_the_driver_s_loop_is_a_crash_and_no_hang(make: Any, engine: SimulatedEngine, what: str):
    shown = Shown()
    shown.out = cast("Any", None) if what == "output" else []
    gang = make(shown)
    waiting = gang.ask(Wait(), block=False)
    if what == "hosts":
        engine.place = lambda orders, done: done([None for _ in orders], None)  # type: ignore[method-assign]
        gang.tell(Start())
    else:
        gang.ask(Start(), timeout=PATIENCE_S)
        engine.hosts[0].tell(("stdout", b"hi\n"), ("worker", None))
    with pytest.raises(SupervisorCrashed, match=r"the driver raised AttributeError"):
        waiting.get(timeout=PATIENCE_S)
    gang.stop(timeout=PATIENCE_S)


def test_without_a_descriptor_for_the_keeper_the_gang_starts(
    make: Any, engine: SimulatedEngine, monkeypatch: pytest.MonkeyPatch
):
    """Its word about a dead host would only be faster than the end of the lease."""

    def refused(*_: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    engine.keeper_port = 1
    monkeypatch.setattr(socket, "socket", refused)
    assert make().ask(Start(), timeout=PATIENCE_S) == {0: 10, 1: 11, 2: 10, 3: 11}


def test_a_message_about_single_ranks_is_refused_and_not_recommended(make: Any):
    with pytest.raises(
        SpecError,
        match=r"a gang of several hosts does not accept RestartRanks\(.*; send it Start.*Signal\(...\), Subscribe",
    ):
        make().ask(RestartRanks(ranks=frozenset({0})), timeout=PATIENCE_S)


def test_ranks_get_the_variables_of_torchrun_and_the_epoch(make: Any, engine: SimulatedEngine):
    make().ask(Start(), timeout=PATIENCE_S)
    env = engine.hosts[1].envs[1]
    wanted = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "GROUP_RANK": "1", "MASTER_PORT": "5"}
    assert wanted.items() <= env.items()
    assert env["SUPERVISE_EPOCH"] == "0"


def test_a_failure_stops_the_other_host_and_is_the_root_cause(make: Any, engine: SimulatedEngine):
    gang = make()
    gang.ask(Start(), timeout=PATIENCE_S)
    engine.hosts[1].tell(failed(0))
    assert engine.stops(2) == [(0, "stop", None, None), (1, "stop", None, None)]
    engine.hosts[0].ends("stopped", (-15, -15))
    engine.hosts[1].ends("failed", (3, -15))
    result = gang.ask(Wait(), timeout=PATIENCE_S)
    assert (result.outcome, result.root_cause, list(result.failures)) == ("failed", 2, [2])
    assert [end.role for end in result.ends.values()] == ["bystander", "bystander", "root_cause", "bystander"]


def test_a_failure_on_the_other_host_before_its_stop_is_listed(make: Any, engine: SimulatedEngine):
    gang = make()
    gang.ask(Start(), timeout=PATIENCE_S)
    engine.hosts[1].ends("failed", (3, -15))
    engine.hosts[0].ends("failed", (-15, 4))
    result = gang.ask(Wait(), timeout=PATIENCE_S)
    assert (result.root_cause, list(result.failures)) == (2, [2, 1])
    assert result.ends[1].role == "concurrent_failure"


def test_a_dead_host_is_the_cause_and_the_result_waits_for_its_lease(make: Any, engine: SimulatedEngine):
    gang = make(lease_s=5.0)
    gang.ask(Start(), timeout=PATIENCE_S)
    engine.hosts[1].over = True  # the next renewal finds it dead
    assert engine.stops(1) == [(0, "stop", None, None)]
    engine.hosts[0].ends("stopped", (-15, -15))
    result = gang.ask(Wait(), timeout=PATIENCE_S)
    assert result.root_cause == 2
    assert [end.role for end in result.ends.values()] == ["bystander", "bystander", "root_cause", "lost"]
    first, *rest = result.failures[2].message.split("\n")
    host, _, lost = first.partition(": lost since ")
    assert host == "host 1 (h1, 127.0.0.1, node node1)"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: it was killed by the test", lost)
    assert rest == ["its output is not in log files"]


UNSENT = replace(failed(1, 0)[1], complaint="its return value could not be sent")
LOSSES = {
    "one has lost its value": ([("worker", UNSENT)], (3, 0, ["lost", "root_cause"])),
    "one has failed": ([failed(1)], (3, 3, ["lost", "root_cause"])),
    "its neighbor was stopped": ([failed(1), failed(0, -15)], (3, 3, ["bystander", "root_cause"])),
    "one has finished": ([failed(0, 0)], (3, LOST_CODE, ["finished", "root_cause"])),
    "all have finished": ([failed(0, 0), failed(1, 0)], (2, LOST_CODE, ["root_cause", "finished"])),
}


@pytest.mark.parametrize("before", LOSSES)
def test_a_rank_that_had_ended_before_the_loss_of_its_host_keeps_its_end(
    make: Any, engine: SimulatedEngine, before: str
):
    """The root cause is the rank that failed before, or else one that still ran."""
    ends, (root, code, roles) = LOSSES[before]
    gang = make(lease_s=1.0)
    gang.ask(Start(), timeout=PATIENCE_S)
    engine.hosts[1].tell(*ends)
    engine.hosts[1].dies()
    while engine.calls.get(timeout=PATIENCE_S)[:2] != (0, "stop"):
        pass
    engine.hosts[0].ends("stopped", (-15, -15))
    result = gang.ask(Wait(), timeout=PATIENCE_S)
    assert (result.root_cause, next(iter(result.failures)), result.failures[root].exitcode) == (root, root, code)
    assert [result.ends[rank].role for rank in (2, 3)] == roles
    assert result.failures[root].pid == 10 + root - 2
    if before == "one has lost its value":
        assert result.failures[root].message == UNSENT.complaint
    known = {2: None, 3: None} | {2 + end.local_rank: end.exitcode for _, end in ends}
    assert {rank: result.ends[rank].exitcode for rank in (2, 3)} == known


def test_ranks_are_launched_only_when_the_end_of_the_lease_is_known(make: Any, engine: SimulatedEngine):
    """The first renewal fetches a token, the second one extends the lease by it."""
    make().ask(Start(), timeout=PATIENCE_S)
    for host in engine.hosts:
        calls = [call[:2] for call in host.seen if call[0] in ("renew", "launch")]
        assert calls[:2] == [("renew", 0), ("renew", 1)]
        assert [method for method, _ in calls].index("launch") == 2


def test_news_that_come_again_are_shown_once(make: Any, engine: SimulatedEngine):
    """The reply to a poll may be lost, so that the next one has the same news again."""
    shown = Shown()
    gang = make(shown)
    gang.ask(Start(), timeout=PATIENCE_S)
    host = engine.hosts[0]
    host.tell(("stdout", b"first\n"))
    gang.ask(Status(), timeout=PATIENCE_S)  # behind the news
    host.news = [News(1, "stdout", b"first\n"), News(2, "stdout", b"second\n")]
    host.count = 2
    host.tell()
    for each in engine.hosts:
        each.ends("succeeded", (0, 0))
    assert gang.ask(Wait(), timeout=PATIENCE_S).outcome == "succeeded"
    assert [data for number, stream, data in shown.out if stream == "stdout"] == [b"first\n", b"second\n"]


def test_a_second_failure_on_the_host_of_the_cause_keeps_its_role(make: Any, engine: SimulatedEngine):
    gang = make()
    gang.ask(Start(), timeout=PATIENCE_S)
    engine.obedient = True
    host = engine.hosts[1]
    result = RunProcsResult(outcome="failed")
    for rank, role in enumerate(("root_cause", "concurrent_failure")):
        given: Any = role
        result.ends[rank] = RankEnd(local_rank=rank, pid=9, exitcode=3, role=given, started_ns=1, ended_ns=2)
        result.failures[rank] = ProcessFailure.of(rank, 9, 3, "", message="")
    host.tell(("ended", HostEnd(result=result)))
    roles = [end.role for end in gang.ask(Wait(), timeout=PATIENCE_S).ends.values()]
    assert roles == ["bystander", "bystander", "root_cause", "concurrent_failure"]


def test_a_rank_that_was_suspended_and_has_ended_is_not_suspended(make: Any, engine: SimulatedEngine):
    """Its host has reported the suspension before the end."""
    gang = make()
    gang.ask(Start(), timeout=PATIENCE_S)
    rows = {rank: RankStatus(pid=10 + rank, state="suspended", attempt=0, restarts=0) for rank in range(RANKS)}
    for host in engine.hosts:
        host.status = GangStatus(
            phase="running", pids={}, running=frozenset(rows), leftovers=frozenset(), waiters=0, ranks=rows
        )
    assert {row.state for row in gang.ask(Status(), timeout=PATIENCE_S).ranks.values()} == {"suspended"}
    host = engine.hosts[0]
    host.tell(("worker", WorkerExited(local_rank=0, pid=10, exitcode=0, ended_ns=2)))
    states = [row.state for row in gang.ask(Status(), timeout=PATIENCE_S).ranks.values()]
    assert states == ["finished", "suspended", "suspended", "suspended"]


class Clock:
    """A loop that only notes when a call is due."""

    def __init__(self) -> None:
        self.due: list[float] = []

    def call_at(self, at_s: float, _: Any) -> None:
        self.due.append(at_s)

    def post(self, *_: Any) -> None:
        """Drop the reply to the renewal: it was lost."""


def test_a_lost_host_counts_as_dead_only_when_its_keeper_has_had_time_for_the_kill(engine: SimulatedEngine):
    clock, ignore = Clock(), lambda *_: None
    host: Any = SimulatedHost(engine, SimpleNamespace(number=0))
    link = HostLink(cast("Any", clock), host, epoch=0, number=0, lease_s=5.0, step=ignore, receive=ignore, is_full=bool)
    before_s = time.monotonic()
    link._send_renewal()
    link.await_lease(lambda: None)
    [due_s] = clock.due
    assert due_s >= before_s + 5.0 + 1.0


@pytest.mark.parametrize("late", ["Ray: the actor is dead", ""])
def test_the_engine_is_quoted_about_a_host_whose_keeper_was_faster(make: Any, engine: SimulatedEngine, late: str):
    """Up to the result, and without an earlier trouble that has passed."""
    with socket.create_server(("127.0.0.1", 0)) as keeper:
        engine.keeper_port = keeper.getsockname()[1]
        gang = make()
        gang.ask(Start(), timeout=PATIENCE_S)
        keepers = [keeper.accept()[0] for _ in engine.hosts]
        try:
            host = engine.hosts[1]
            host.trouble = HostUnavailable("the network is slow")
            gang.ask(Status(), timeout=PATIENCE_S)
            host.trouble = None
            gang.ask(Status(), timeout=PATIENCE_S)
            for each in keepers:
                with suppress(OSError):
                    each.sendall(b"gone its process has ended\n" if each is keepers[-1] else b"")
            [lost] = {number for number, *_ in engine.stops(1)}
            dead = engine.hosts[1 - lost]
            if late:
                done, dead.done = dead.done, None
                done(None, HostDead(late))
            engine.hosts[lost].ends("stopped", (-15, -15))
            result = gang.ask(Wait(), timeout=PATIENCE_S)
        finally:
            for each in keepers:
                each.close()
    first, second, _ = result.failures[result.root_cause].message.split("\n")
    assert first.endswith(": the keeper of its lease reports: its process has ended")
    assert second == (late or "the engine has not reported the loss")


class SlowShown(Shown):
    """Its reader reads only when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = threading.Event()

    def write(self, host: int, stream: str, data: bytes, stop: object) -> None:
        assert self.reads.wait(PATIENCE_S)
        super().write(host, stream, data, stop)


def polls(host: SimulatedHost, until: int) -> list[Any]:
    """Return which polls have asked for no output, once there are as many polls."""
    while len(found := [call[2] for call in list(host.seen) if call[0] == "news_after"]) < until:
        pass
    return found


def test_a_reader_of_the_output_that_stops_reading_stops_the_output_and_nothing_else(
    make: Any, engine: SimulatedEngine
):
    """The loop renews leases and hears of failures meanwhile; the last output is shown before the end."""
    shown = SlowShown()
    gang = make(shown)
    gang.ask(Start(), timeout=PATIENCE_S)
    host, lines = engine.hosts[1], b"x" * (3 << 20) + b"\n"
    for number in range(2):
        host.tell(("stdout", lines))
        polls(host, 2 + number)
    assert polls(host, 3) == [False, False, True]
    host.tell(failed(0))
    assert engine.stops(2) == [(0, "stop", None, None), (1, "stop", None, None)]
    shown.reads.set()
    assert polls(host, 5) == [False, False, True, True, False]
    for each in engine.hosts:
        each.tell(("stdout", lines))
    engine.hosts[0].ends("stopped", (-15, -15))
    host.ends("failed", (3, -15))
    assert gang.ask(Wait(), timeout=PATIENCE_S).root_cause == 2
    assert [each for each in shown.out if each[1] == "stdout"][2:] == [(0, "stdout", lines), (1, "stdout", lines)]


def test_a_host_sends_no_output_while_the_driver_has_enough_to_show():
    """It sends other news, and the output when the driver asks again."""
    news = NewsQueue()
    earlier = news.after(0, True)
    writer = threading.Thread(target=news.add, args=("stdout", b"x"), daemon=True)
    writer.start()
    news.add("worker", 0)
    assert [each.kind for each in earlier.get(timeout=PATIENCE_S)] == ["worker"]
    assert [each.kind for each in news.after(1, False).get(timeout=PATIENCE_S)] == ["stdout"]
    writer.join(PATIENCE_S)


@pytest.mark.parametrize("first", ["close", "end"])
def test_a_close_does_not_wait_for_a_reader_that_has_stopped_reading(
    make: Any, engine: SimulatedEngine, monkeypatch: pytest.MonkeyPatch, first: str
):
    """Whether the ranks end before the close or after it. On one host, the close waits as long for the output."""
    source, target = os.pipe()
    with os.fdopen(source), os.fdopen(target, "w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        gang = make(StreamsShown())
        gang.ask(Start(), timeout=PATIENCE_S)
        engine.hosts[0].tell(("stdout", b"a line\n" * 50_000))
        if first == "end":
            for host in engine.hosts:
                host.ends("succeeded", (0, 0))
            while not engine.released:
                assert gang.ask(Poll(), timeout=PATIENCE_S) is None
        else:
            engine.obedient = True
        result = gang.ask(Close(timeout=0.0), timeout=PATIENCE_S)
        monkeypatch.undo()
    assert result.outcome == ("succeeded" if first == "end" else "stopped")


def test_the_time_limit_bounds_the_output_of_ranks_that_have_ended(
    make: Any, engine: SimulatedEngine, monkeypatch: pytest.MonkeyPatch
):
    """As on one host; nobody closes the gang."""
    source, target = os.pipe()
    with os.fdopen(source), os.fdopen(target, "w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        gang = make(StreamsShown(), timeout=3.0, settings={"grace": 0.1})
        gang.ask(Start(), timeout=PATIENCE_S)
        engine.hosts[0].tell(("stdout", b"a line\n" * 50_000))
        for host in engine.hosts:
            host.ends("succeeded", (0, 0))
        assert gang.ask(Wait(), timeout=PATIENCE_S).outcome in ("succeeded", "timed_out")
        monkeypatch.undo()


def test_a_host_answers_its_launch_whatever_python_collects_meanwhile(tmp_path: Path):
    """The answer comes when the ranks are ready, and until then only this host holds it."""
    settings = {"ready": f"file:{tmp_path / 'ready'}"}
    plan = make_plan(name="g", entrypoint="sleep", args=("600",), nnodes=1, nproc_per_node=1, settings=settings)
    host = Host(plan.orders(0)[0])
    try:
        host.renew(host.renew(0))
        address = host.address(node_id="node", ip="127.0.0.1")
        reply = host.launch(plan.environments(0, 0, address, "run"))
        status = host.status()
        assert status is not None
        assert status.get(timeout=PATIENCE_S).phase == "starting"
        gc.collect()
        (tmp_path / "ready").touch()
        assert reply.get(timeout=PATIENCE_S).keys() == {0}
    finally:
        host.stop(SIGKILL, 0.0)
        while host.news_after(0, False).get(timeout=PATIENCE_S)[-1].kind != "ended":
            pass
        host.leave()


def test_output_that_was_read_makes_room_for_more():
    """A host holds a bounded amount of unread output, not of output in all."""
    news, read = NewsQueue(), 0
    writer = threading.Thread(target=lambda: [news.add("stdout", bytes(1 << 20)) for _ in range(12)], daemon=True)
    writer.start()
    last = 0
    while read < 12 << 20:
        for each in news.after(last).get(timeout=PATIENCE_S):
            last, read = each.number, read + len(each.what)
    writer.join(PATIENCE_S)
    assert not writer.is_alive()


def test_a_restart_tells_subscribers_and_counts_for_the_whole_gang(make: Any, engine: SimulatedEngine):
    told: queue.Queue[Any] = queue.Queue()

    class Listener(pykka.ThreadingActor):
        def on_receive(self, message: Any) -> None:
            told.put(message)

    listener = Listener.start()
    gang = make(restart_policy=RestartPolicy(max_restarts=1, backoff=0.0))
    gang.ask(Subscribe(ref=listener), timeout=PATIENCE_S)
    gang.ask(Start(), timeout=PATIENCE_S)
    first = list(engine.hosts)
    first[0].ends("failed", (1, -15))
    engine.stops(1)
    first[1].ends("stopped", (-15, -15))
    seen: list[Any] = []
    while not [each for each in seen if isinstance(each, GangStarted)][1:]:
        seen.append(told.get(timeout=PATIENCE_S))
    assert [each.attempt for each in seen if isinstance(each, GangRestarting)] == [1]
    assert engine.hosts[0].order.epoch == 1
    assert engine.hosts[0].envs[0]["SUPERVISE_EPOCH"] == "1"
    for host in engine.hosts:
        host.ends("succeeded", (0, 0))
    result = gang.ask(Wait(), timeout=PATIENCE_S)
    assert result.outcome == "succeeded"
    assert [(each.local_rank, each.counted) for each in result.restarts] == [
        (0, True),
        (1, False),
        (2, False),
        (3, False),
    ]
    while not isinstance(last := told.get(timeout=PATIENCE_S), GangFinished):
        pass
    assert last.result is result
    listener.stop()


def test_news_of_an_earlier_attempt_are_ignored(make: Any, engine: SimulatedEngine):
    shown = Shown()
    gang = make(shown, restart_policy=RestartPolicy(max_restarts=1, backoff=0.0))
    gang.ask(Start(), timeout=PATIENCE_S)
    first = list(engine.hosts)
    first[0].ends("failed", (1, -15))
    engine.stops(1)
    first[1].ends("stopped", (-15, -15))
    while gang.ask(Status(), timeout=PATIENCE_S).phase != "running" or engine.hosts[0] is first[0]:
        pass
    first[0].tell(("stdout", b"a late line\n"), failed(0))
    assert gang.ask(Status(), timeout=PATIENCE_S).phase == "running"
    assert not [each for each in shown.out if b"late" in each[2]]


def test_a_close_stops_all_hosts_with_its_signal_and_timeout(make: Any, engine: SimulatedEngine):
    gang = make()
    gang.ask(Start(), timeout=PATIENCE_S)
    closed = gang.ask(Close(death_sig=SIGUSR1, timeout=2.0), block=False)
    assert engine.stops(2) == [(0, "stop", SIGUSR1, 2.0), (1, "stop", SIGUSR1, 2.0)]
    for host in engine.hosts:
        host.ends("stopped", (-15, -15))
    result = closed.get(timeout=PATIENCE_S)
    assert (result.outcome, sorted(result.failures)) == ("stopped", [0, 1, 2, 3])


def test_the_time_limit_holds_while_the_cluster_has_no_room(make: Any, engine: SimulatedEngine):
    engine.place = lambda _orders, _done: None  # type: ignore[method-assign]
    gang = make(timeout=0.05)
    start = gang.ask(Start(), block=False)
    assert gang.ask(Wait(), timeout=PATIENCE_S).outcome == "timed_out"
    with pytest.raises(SuperviseError, match="exceeded its time limit before its start"):
        start.get(timeout=PATIENCE_S)


def test_an_error_of_a_start_names_the_global_rank_and_the_host(make: Any, engine: SimulatedEngine):
    engine.start_error[1] = SpawnError("it ended", local_rank=1, exitcode=4)
    gang = make()
    start = gang.ask(Start(), block=False)
    engine.stops(1)
    engine.hosts[0].ends("stopped", (-15, -15))
    with pytest.raises(SpawnError, match=r"rank 3 did not start: it ended \(local rank 1 of host 1 \(h1\)\)") as found:
        start.get(timeout=PATIENCE_S)
    assert (found.value.local_rank, found.value.exitcode) == (3, 4)


def test_the_failure_of_a_rank_before_all_hosts_have_started_names_the_global_rank_and_the_host(
    make: Any, engine: SimulatedEngine
):
    engine.launched = lambda host, _envs, done: None if host.order.number == 0 else done({0: 10, 1: 11}, None)  # type: ignore[method-assign]
    gang = make(settings={"ready": "notify"})
    start = gang.ask(Start(), block=False)
    while len(engine.hosts) < NODES or ("launch",) not in [call[:1] for call in list(engine.hosts[1].seen)]:
        gang.ask(Status(), timeout=PATIENCE_S)
    engine.hosts[1].ends("failed", (9, -15))
    engine.stops(1)
    engine.hosts[0].ends("stopped", (-15, -15))
    text = r"rank 2 failed before all hosts had started: exit code 9 \(local rank 0 of host 1 \(h1\)\)"
    with pytest.raises(SpawnError, match=text) as found:
        start.get(timeout=PATIENCE_S)
    assert (found.value.local_rank, found.value.exitcode) == (2, 9)


def test_no_room_is_the_error_of_the_start(make: Any, engine: SimulatedEngine):
    engine.room = SuperviseError("no room for 2 hosts")
    with pytest.raises(SuperviseError, match="no room for 2 hosts"):
        make().ask(Start(), timeout=PATIENCE_S)


def test_status_pids_and_signals_are_by_global_rank(make: Any, engine: SimulatedEngine):
    gang = make()
    assert gang.ask(Status(), timeout=PATIENCE_S).phase == "new"
    gang.ask(Start(), timeout=PATIENCE_S)
    assert gang.ask(Pids(), timeout=PATIENCE_S) == {0: 10, 1: 11, 2: 10, 3: 11}
    exited = WorkerExited(local_rank=0, pid=10, exitcode=0, ended_ns=2)
    engine.hosts[1].tell(("worker", exited))
    status = gang.ask(Status(), timeout=PATIENCE_S)
    assert {rank: row.state for rank, row in status.ranks.items()} == {
        0: "ready",
        1: "ready",
        2: "finished",
        3: "ready",
    }
    assert gang.ask(Signal(sig=SIGUSR1, ranks=frozenset({1, 2, 3})), timeout=PATIENCE_S) == {1, 3}
    assert engine.stops(2) == [(0, "signal", SIGUSR1, {1}, False), (1, "signal", SIGUSR1, {1}, False)]


def test_output_is_shown_and_ends_before_the_result(make: Any, engine: SimulatedEngine):
    shown = Shown()
    gang = make(shown)
    gang.ask(Start(), timeout=PATIENCE_S)
    engine.hosts[0].tell(("stdout", b"a line\n"))
    for host in engine.hosts:
        host.ends("succeeded", (0, 0))
    gang.ask(Wait(), timeout=PATIENCE_S)
    assert sorted(shown.out) == [(0, "end", b""), (0, "stdout", b"a line\n"), (1, "end", b"")]
    assert shown.out.index((0, "stdout", b"a line\n")) < shown.out.index((0, "end", b""))


def test_the_output_of_a_lost_host_ends_with_it(make: Any, engine: SimulatedEngine):
    """Otherwise its unfinished line would be joined to the first one of the next attempt."""
    shown = Shown()
    gang = make(shown, lease_s=5.0)
    gang.ask(Start(), timeout=PATIENCE_S)
    engine.hosts[1].tell(("stdout", b"half"))
    while not shown.out:
        gang.ask(Status(), timeout=PATIENCE_S)
    engine.hosts[1].dies()
    assert engine.stops(1) == [(0, "stop", None, None)]
    while not shown.out[1:]:
        gang.ask(Status(), timeout=PATIENCE_S)
    assert shown.out == [(1, "stdout", b"half"), (1, "end", b"")]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"nnodes": 0}, "nnodes is 0; give the number of hosts"),
        ({"nproc_per_node": True}, "nproc_per_node is True; give the number of ranks"),
        ({"args": "x"}, "args is 'x'; give a tuple for all ranks, or a mapping of global rank"),
        ({"args": {0: ()}}, "args has nothing for rank 1"),
        ({"args": {7: ()}}, "args has the rank 7; the global ranks are 0 to 3"),
        ({"envs": {4: {}}}, "envs has the rank 4; the global ranks are 0 to 3"),
        ({"lease_s": 0.1}, "lease_s is 0.1; give at least 1 s"),
        ({"timeout": -1}, "timeout"),
        ({"event_sink": 3}, "event_sink is 3; give a function"),
        ({"log_line_prefixes": 3}, "log_line_prefixes is 3; give a mapping"),
        ({"log_line_prefixes": {0: 5}}, "rank 0: its log_line_prefixes is 5; give a text"),
        ({"restart_policy": 3}, "restart_policy is 3; give a RestartPolicy, such as RestartPolicy"),
        ({"restart_policy": RestartPolicy(restart="permanent")}, "restart='permanent'"),
        ({"settings": {"grace": -1}}, r"host 0 \(its rank 0 is the global rank 0\): grace"),
        ({"settings": {"nonsense": 1}}, "unknown setting: nonsense; a gang over several hosts has alive, "),
        ({"settings": {"control": "a.sock"}}, "unknown setting: control"),
        ({"settings": {"strategy": "one_for_one"}}, "strategy is 'one_for_one'; .* is all or nothing"),
        ({"entrypoint": 3}, "entrypoint"),
    ],
)
def test_a_setting_that_is_not_valid_is_refused_by_name(settings: dict[str, Any], text: str):
    plain: dict[str, Any] = {"name": "g", "entrypoint": "true", "nnodes": 2, "nproc_per_node": 2}
    with pytest.raises(SpecError, match=text):
        make_plan(**plain | settings)


def test_a_stop_sends_sigterm_by_default(make: Any, engine: SimulatedEngine):
    """None is the first signal of each host's Supervisor."""
    gang = make()
    gang.ask(Start(), timeout=PATIENCE_S)
    stopped = gang.stop(block=False)
    assert engine.stops(2) == [(0, "stop", None, None), (1, "stop", None, None)]
    for host in engine.hosts:
        host.ends("stopped", (-SIGTERM, -SIGTERM))
    assert stopped.get(timeout=PATIENCE_S)
