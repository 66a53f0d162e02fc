"""Only ever type-checked: the calls that users write, with the types they may rely on."""

from __future__ import annotations

import signal
from typing import Any, assert_type

import pykka

from supervise import (
    Close,
    DefaultLogsSpecs,
    GangFailed,
    GangFinished,
    GangStarted,
    GangStatus,
    LogsSpecs,
    Pids,
    Poll,
    ProcessFailure,
    RankEnd,
    RankStacks,
    RestartRanks,
    Role,
    RunProcsResult,
    Signal,
    SignalException,
    Stacks,
    Start,
    Status,
    Std,
    Subscribe,
    Supervisor,
    UnkillableError,
    Unsubscribe,
    Wait,
    WorkerExited,
    WorkerStarted,
    record,
    run,
    start_processes,
    to_map,
)
from supervise.testing import EventRecorder, FakeGang, FakeLauncher, FakeProcess, Recorder


@record
def train(rank: int, size: float = 1.0) -> float:
    """Stand for a worker's function; its own type survives the decorator."""
    return rank * size


def decorated() -> float | None:
    """The decorated function is called as before."""
    return train(1, size=2.0)


def sink(event: dict[str, Any]) -> None:
    """Take an event."""
    name: str = event["event"]
    del name


def facade() -> None:
    """The blocking calls."""
    specs: LogsSpecs = DefaultLogsSpecs(log_dir="/tmp/logs", redirects=Std.ALL, tee={0: Std.OUT})
    context = start_processes("trainer", train, {0: (0,), 1: (1,)}, {0: {}, 1: {}}, specs, start_method="spawn")
    pids: dict[int, int] = context.pids()
    assert_type(context.status(), GangStatus | None)
    assert_type(context.wait(), RunProcsResult)
    assert_type(context.wait(-1), RunProcsResult)
    assert_type(context.wait(timeout=5), RunProcsResult | None)
    result: RunProcsResult | None = context.wait(5, period=1)
    if result is not None:
        failed: bool = result.is_failed()
        failures: dict[int, ProcessFailure] = result.failures
        ends: dict[int, RankEnd] = result.ends
        values: dict[int, Any] = result.return_values
        root: int | None = result.root_cause
        del failed, failures, ends, values, root
    try:
        context.close(signal.SIGTERM, timeout=5)
    except SignalException as error:
        sigval: signal.Signals = error.sigval
        del sigval
    streams: dict[int, Std] = to_map(Std.OUT, 2)
    del pids, streams


def actors() -> None:
    """The same by messages; pykka's `ask` tells its reply from a future by an explicit `block`."""
    ref: pykka.ActorRef[Supervisor] = Supervisor.start(
        name="trainer", entrypoint=train, args={0: (0,)}, grace=5.0, event_sink=sink
    )
    store = Role(name="store", entrypoint="redis-server", args={0: ()}, service=True, restart="permanent")
    Supervisor.start(name="app", roles=[store, Role(name="trainer", entrypoint=train, args={0: (0,)})])
    pids: dict[int, int] = ref.ask(Start(), block=True)
    future: pykka.Future[RunProcsResult] = ref.ask(Wait(timeout=None), block=False)
    result: RunProcsResult = future.get(timeout=5)
    status: GangStatus = ref.ask(Status(), block=True)
    running: frozenset[int] = status.running
    reached: frozenset[int] = ref.ask(Signal(sig=signal.SIGUSR1, ranks=frozenset({0})), block=True)
    for message in (Poll(), Pids(), Subscribe(ref=ref), Unsubscribe(ref=ref)):
        ref.tell(message)
    try:
        ref.ask(Close(death_sig=signal.SIGINT, timeout=1.0))
    except UnkillableError as error:
        stuck: dict[int, int] = error.pids
        del stuck
    stopped: bool = ref.stop(block=True, timeout=10)
    del pids, result, running, reached, stopped


def replies() -> None:
    """The replies of a Supervisor have their types, and its reference is a context manager."""
    with Supervisor.start(name="trainer", entrypoint=train, args={0: (0,)}) as gang:
        pids = gang.ask(Start())
        assert_type(pids, dict[int, int])
        assert_type(gang.ask(Wait()), RunProcsResult)
        assert_type(gang.ask(Wait(timeout=5.0)), RunProcsResult | None)
        assert_type(gang.ask(Status()), GangStatus)
        assert_type(gang.ask(Poll()), RunProcsResult | None)
        assert_type(gang.ask(Pids(), timeout=5), dict[int, int])
        assert_type(gang.ask(Stacks()), dict[int, RankStacks])
        assert_type(gang.ask(Signal(sig=signal.SIGUSR1)), frozenset[int])
        assert_type(gang.ask(RestartRanks(frozenset({0}))), dict[int, int])
        assert_type(gang.ask(RestartRanks({0})), dict[int, int])  # any set will do
        assert_type(gang.ask(Close()), RunProcsResult | None)
        future = gang.ask(Wait(), block=False)
        assert_type(future, pykka.Future[RunProcsResult])
        assert_type(future.get().raise_if_failed(), RunProcsResult)


def shard(size: float, name: str) -> int:
    """Stand for a function with arguments."""
    return int(size) + len(name)


def nothing() -> str:
    """Stand for a function without arguments."""
    return "nothing"


def one_call() -> None:
    """The values have the type of the function's value."""
    assert_type(run(nothing, 4), list[str])
    assert_type(run(nothing, n=4, grace=5.0, envs={"DEBUG": "1"}), list[str])
    assert_type(run(shard, 4, (1.0, "a")), list[int])
    assert_type(run(shard, n=4, args=(1.0, "a"), timeout=60, start_method="fork"), list[int])
    assert_type(run(shard, args={0: (1.0, "a"), 1: (2.0, "b")}), list[int])
    assert_type(run("/bin/echo", n=2, args=("hello", 3)), list[None])
    assert_type(run("/bin/echo", args={0: ("hello",), 1: "you"}), list[None])
    assert_type(run(lambda: 1.5, n=2), list[float])
    try:
        run(nothing, 2)
    except GangFailed as error:
        assert_type(error.result, RunProcsResult)
        assert_type(error.rank_traceback, str)


async def tasks(ref: pykka.ActorRef[Supervisor]) -> RunProcsResult:
    """The same without blocking an event loop."""
    future: pykka.Future[RunProcsResult] = ref.ask(Wait(), block=False)
    return await future


class Subscriber(pykka.ThreadingActor):
    """Is told a gang's life."""

    def on_receive(self, message: object) -> None:
        """Tell the messages apart."""
        match message:
            case GangStarted(pids=pids):
                numbers: dict[int, int] = pids
                del numbers
            case WorkerStarted(local_rank=rank, pid=pid) | WorkerExited(local_rank=rank, pid=pid):
                both: tuple[int, int] = rank, pid
                del both
            case GangFinished(result=result, error=error):
                end: tuple[RunProcsResult | None, BaseException | None] = result, error
                del end
            case _:
                pass


def fakes() -> None:
    """What tests of an embedding program use."""
    launchers: dict[int, FakeLauncher] = {1: FakeLauncher(held=True, ignored=[signal.SIGTERM])}
    with FakeGang(2, launchers=launchers, grace=1.0, event_sink=sink) as gang, Recorder() as recorder:
        gang.supervisor.ask(Subscribe(ref=recorder.ref))
        process: FakeProcess = gang.processes[0]
        process.exit(3, group_left=False)
        signals: list[signal.Signals] = process.signals
        finished: GangFinished = recorder.wait_for(GangFinished, timeout=5)
        events: EventRecorder = gang.events
        exits: list[dict[str, Any]] = events.named("supervise.process.exited")
        del signals, finished, exits
