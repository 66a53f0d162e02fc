"""What a gang is made of: its settings, and below the Supervisor the later lives of single ranks."""

import ast
import dataclasses
import fcntl
import inspect
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO

import pykka
import pytest

import supervise
from supervise import (
    DefaultLogsSpecs,
    LogsSpecs,
    RestartPolicy,
    Role,
    SpecError,
    Std,
    Supervisor,
    Watchdog,
    messages as say,
    start_processes,
)
from supervise._core import steps
from supervise._gang.attempt import _KEPT_LIVES, Attempt, first_attempt
from supervise._gang.describe import EventEmitter
from supervise._gang.rank_spec import RankSpec
from supervise._gang.ranks import RankActors
from supervise._gang.spec import INTERNAL, GangSpec
from supervise._process.exits.leader import Process
from supervise._process.launch.program import Stdin
from supervise._runtime.loop import Loop
from supervise._settings import GANG, OF_ROLES, POLICY, REQUIRED, WATCHDOG, Setting
from supervise.testing import FakeProcess
from tests.patience import PATIENCE_S
from tests.processes.gangs import FUNCTIONS, KINDS
from tests.processes.work import Unspeakable

COUNT = "TORCHELASTIC_RESTART_COUNT"
SAYS = ("-c", f'echo "${{{COUNT}:-none}}"; echo "error ${{{COUNT}:-none}}" >&2')


class Owner(pykka.ThreadingActor):
    """Stands for the Supervisor: puts every message into a queue."""

    def __init__(self, told: "SimpleQueue[Any]") -> None:
        super().__init__()
        self._told = told

    def on_receive(self, message: Any) -> None:
        self._told.put(message)


class Ranks:
    """The actors of a gang on a loop, without a Supervisor."""

    def __init__(self, stdout: TextIO | None = None, **settings: Any) -> None:
        with redirect_stdout(stdout or sys.stdout):
            self.attempt = first_attempt(**{"name": "lives"} | settings)
        self._loop = Loop("test-lives", lost=print)
        self._loop.start()
        self._told: SimpleQueue[Any] = SimpleQueue()
        self._owner = Owner.start(self._told)
        self._tails_ended = 0
        self.actors = RankActors(self.attempt, self._loop, self._owner, EventEmitter(self.attempt))
        self._tails = self.call(self.actors.assemble).tails
        self._ends: dict[int, say.WorkerExited] = {}

    def call(self, act: Callable[..., Any], *args: Any) -> Any:
        """Call `act` on the loop; return its result or raise its exception."""
        done: SimpleQueue[Any] = SimpleQueue()

        def work() -> None:
            try:
                done.put((act(*args), None))
            except BaseException as error:
                done.put((None, error))

        self._loop.post(work)
        value, error = done.get(timeout=PATIENCE_S)
        if error is not None:
            raise error
        return value

    def hear(self, kind: type) -> Any:
        """Return the next message of this kind."""
        while True:
            message = self._told.get(timeout=PATIENCE_S)
            if isinstance(message, steps.TailEnded):
                self._tails_ended += 1
            if isinstance(message, kind):
                return message

    def run(self, rank: int) -> say.WorkerExited:
        """Launch a rank; return its end."""
        self.call(self.actors.launch, rank)
        end = self.hear(say.WorkerExited)
        self._ends[rank] = end
        return end

    def again(self, rank: int, life: int) -> say.WorkerExited:
        """Run a later life of a rank; return its end."""
        self.call(self.actors.renew, rank, life)
        return self.run(rank)

    def drain(self) -> None:
        """Let the Tails show the rest."""
        self.call(self.actors.drain, list(self._ends.values()))
        while self._tails_ended < self._tails:
            self.hear(steps.TailEnded)

    def close(self) -> None:
        self.call(self.actors.abandon_tails)
        while self._tails_ended < self._tails:
            self.hear(steps.TailEnded)
        self.call(self.actors.dismiss)
        self.call(self.attempt.close)
        self._loop.post(self._loop.end)
        self._loop.join(PATIENCE_S)
        self._owner.stop(timeout=PATIENCE_S)


@pytest.fixture
def lives() -> Iterator[Callable[..., Ranks]]:
    made: list[Ranks] = []

    def make(**settings: Any) -> Ranks:
        made.append(Ranks(**settings))
        return made[-1]

    yield make
    for ranks in made:
        ranks.close()


def programs(folder: Path, **more: Any) -> dict[str, Any]:
    logs = DefaultLogsSpecs(str(folder), redirects=Std.ALL)
    return {"entrypoint": "sh", "args": {0: SAYS, 1: SAYS}, "logs_specs": logs} | more


def paths_of(attempt: Attempt, rank: int) -> list[str]:
    dest = attempt.dest
    return [dest.stdouts[rank], dest.stderrs[rank], dest.error_files[rank]]


# Files and environments


def test_each_life_has_its_own_files_and_number(lives, tmp_path):
    ranks = lives(**programs(tmp_path))
    first = paths_of(ranks.attempt, 0), paths_of(ranks.attempt, 1)
    assert ranks.run(0).attempt == ranks.run(1).attempt == 0
    assert [ranks.again(0, life).attempt for life in (1, 2)] == [1, 2]
    assert paths_of(ranks.attempt, 1) == first[1]
    assert paths_of(ranks.attempt, 0) == [path.replace("attempt_0", "attempt_2") for path in first[0]]
    for life, said in ((0, "none"), (1, "1"), (2, "2")):
        out, err, _ = (path.replace("attempt_0", f"attempt_{life}") for path in first[0])
        assert (Path(out).read_text(), Path(err).read_text()) == (f"{said}\n", f"error {said}\n")


def test_the_number_of_a_life_counts_from_the_caller_s_and_the_policy_s_maximum_is_passed(lives, tmp_path):
    script = ("-c", f'echo "${COUNT} $TORCHELASTIC_MAX_RESTARTS"')
    more = {"args": {0: script}, "envs": {0: {COUNT: "5"}}, "restart_policy": RestartPolicy(max_restarts=7)}
    ranks = lives(**programs(tmp_path, **more))
    ranks.again(0, 3)
    assert Path(ranks.attempt.dest.stdouts[0]).read_text() == "8 7\n"


class Counting(LogsSpecs):
    """Counts the calls, and fails on demand."""

    def __init__(self, inner: DefaultLogsSpecs) -> None:
        super().__init__()
        self._inner = inner
        self.seen: list[set[str | None]] = []
        self.error: Exception | None = None

    def reify(self, envs: dict[int, dict[str, str]]) -> Any:
        if self.error is not None:
            raise self.error
        self.seen.append({env.get(COUNT) for env in envs.values()})
        return self._inner.reify(envs)

    @property
    def root_log_dir(self) -> str:
        return self._inner.root_log_dir


def test_the_ranks_that_reach_a_life_share_one_reify_with_all_environments(lives, tmp_path):
    logs = Counting(DefaultLogsSpecs(str(tmp_path), redirects=Std.ALL))
    ranks = lives(**programs(tmp_path, logs_specs=logs))
    for rank, life in ((0, 1), (1, 1), (0, 2), (1, 2), (1, 3)):
        ranks.again(rank, life)
    assert logs.seen == [{None}, {"1"}, {"2"}, {"3"}]


def test_a_rank_that_lives_again_forever_needs_no_more_memory(tmp_path):
    attempt = first_attempt(name="lives", **programs(tmp_path))
    try:
        for life in range(1, 100):
            attempt.renew(0, life)
        assert len(attempt.lives) == _KEPT_LIVES
        attempt.renew(1, 1)  # the paths of this life are not kept any more, and are the same
        assert attempt.dest.stdouts[1] == attempt.dest.stdouts[0].replace("_99/0/", "_1/1/")
    finally:
        attempt.close()


def test_the_files_of_an_earlier_life_at_the_same_path_are_moved_aside(lives, tmp_path):
    class Same(DefaultLogsSpecs):
        def reify(self, envs: dict[int, dict[str, str]]) -> Any:
            numbers = {rank: env.pop(COUNT, None) for rank, env in envs.items()}
            dest = super().reify(envs)
            for rank, number in numbers.items():
                if number is not None:
                    envs[rank][COUNT] = number
            return dest

    ranks = lives(**programs(tmp_path, logs_specs=Same(str(tmp_path), redirects=Std.ALL)))
    ranks.run(0)
    ranks.again(0, 1)
    out = Path(ranks.attempt.dest.stdouts[0])
    assert (out.read_text(), Path(f"{out}.1").read_text()) == ("1\n", "none\n")


# A life that cannot be made


def snapshot(attempt: Attempt) -> tuple[Any, ...]:
    return paths_of(attempt, 0), attempt.envs[0], attempt.launchers[0]


def test_a_failed_reify_changes_nothing_and_a_later_life_is_made(lives, tmp_path):
    logs = Counting(DefaultLogsSpecs(str(tmp_path), redirects=Std.ALL))
    ranks = lives(**programs(tmp_path, logs_specs=logs))
    ranks.run(0)
    before = snapshot(ranks.attempt)
    logs.error = OSError(28, "No space left on device")
    with pytest.raises(OSError, match="No space"):
        ranks.call(ranks.actors.renew, 0, 1)
    assert snapshot(ranks.attempt) == before
    logs.error = None
    assert ranks.again(0, 2).exitcode == 0
    assert Path(ranks.attempt.dest.stdouts[0]).read_text() == "2\n"


def test_a_reify_that_raises_without_a_text_is_named(lives, tmp_path):
    logs = Counting(DefaultLogsSpecs(str(tmp_path), redirects=Std.ALL))
    ranks = lives(**programs(tmp_path, logs_specs=logs))
    ranks.run(0)
    logs.error = Unspeakable()
    with pytest.raises(SpecError, match=r"Counting.reify raised Unspeakable: <exception str\(\) failed>"):
        ranks.call(ranks.actors.renew, 0, 1)


def test_a_log_that_cannot_be_made_changes_nothing(lives, tmp_path):
    ranks = lives(**programs(tmp_path))
    ranks.run(0)
    before = snapshot(ranks.attempt)
    taken = Path(ranks.attempt.dest.stdouts[0].replace("attempt_0", "attempt_1"))
    taken.parent.mkdir(parents=True)
    taken.mkdir()
    with pytest.raises(OSError, match=r"stdout\.log"):
        ranks.call(ranks.actors.renew, 0, 1)
    assert snapshot(ranks.attempt) == before
    assert ranks.again(0, 2).exitcode == 0


class Moody:
    """Refuses to be pickled on demand."""

    refuses = False

    def __reduce__(self) -> Any:
        if Moody.refuses:
            raise TypeError("not now")
        return Moody, ()


def life_of(_: object) -> str:
    """The function of a rank."""
    return os.environ.get(COUNT, "none")


@pytest.mark.parametrize("kind", ["spawn", "forkserver"])
def test_a_call_that_cannot_be_pickled_any_more_changes_nothing(lives, tmp_path, kind):
    logs = DefaultLogsSpecs(str(tmp_path))
    ranks = lives(entrypoint=life_of, args={0: (Moody(),)}, start_method=kind, logs_specs=logs)
    ranks.run(0)
    before = snapshot(ranks.attempt)
    Moody.refuses = True
    try:
        with pytest.raises(SpecError, match=r"rank 0: .*not now"):
            ranks.call(ranks.actors.renew, 0, 1)
    finally:
        Moody.refuses = False
    assert snapshot(ranks.attempt) == before
    assert ranks.again(0, 2).exitcode == 0


# Functions


@pytest.mark.parametrize("policy", [None, RestartPolicy()], ids=["no_policy", "policy"])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_function_lives_again_and_only_the_last_value_is_held(lives, tmp_path, kind, policy):
    ranks = lives(
        entrypoint=life_of,
        args={0: (1,), 1: (1,)},
        start_method=kind,
        restart_policy=policy,
        logs_specs=DefaultLogsSpecs(str(tmp_path)),
    )
    ranks.run(0)
    ranks.run(1)
    outcomes = ranks.actors.slots.outcomes
    for life in (1, 2, 3):
        past = outcomes[0]
        assert ranks.again(0, life).has_value
        assert past.fd == -1
        assert outcomes[0].load() == str(life)
    assert outcomes[1].load() == ("none" if policy is None else "0")
    assert sorted(outcomes) == [0, 1]


def test_without_a_policy_the_descriptors_of_a_call_are_closed_with_its_launch(lives, tmp_path):
    """As in a gang without lives; the relaunch copies them anew."""
    from multiprocessing import Pipe

    ours, theirs = Pipe()
    with ours, theirs:
        ranks = lives(
            entrypoint=life_of, args={0: (theirs,)}, start_method="spawn", logs_specs=DefaultLogsSpecs(str(tmp_path))
        )
        pipe = str(Path(f"/proc/self/fd/{theirs.fileno()}").readlink())

        def copies() -> int:
            found = 0
            for link in Path("/proc/self/fd").iterdir():
                try:
                    found += str(link.readlink()) == pipe
                except OSError:
                    continue
            return found

        assert copies() == 2
        ranks.run(0)
        assert (copies(), ranks.attempt.spec.pickled) == (1, {})
        assert ranks.again(0, 1).exitcode == 0
        assert (copies(), ranks.attempt.spec.pickled) == (1, {})


# Descriptors and actors


def _held():
    """Return the number of descriptors and of actors, once threads have closed their copies.

    A thread of a request to the fork server has copies, and, without pidfds, a thread that waits for a process.
    """
    for thread in threading.enumerate():
        if thread.name.startswith(("supervise-forkserver", "supervise-wait-")):
            thread.join(PATIENCE_S)
    return len([*Path("/proc/self/fd").iterdir()]), len(pykka.ActorRegistry.get_all())


@pytest.mark.parametrize("kind", KINDS)
def test_many_lives_leave_no_descriptor_and_no_actor(lives, tmp_path, kind):
    settings = programs(tmp_path) if kind == "binary" else {"entrypoint": life_of, "start_method": kind}
    settings["args"] = {0: SAYS if kind == "binary" else (1,)}
    ranks = lives(**settings | {"logs_specs": DefaultLogsSpecs(str(tmp_path), tee=Std.ALL)})
    ranks.run(0)
    ranks.again(0, 1)
    before = _held()
    for life in range(2, 202 if kind == "binary" else 7):
        ranks.again(0, life)
    ranks.drain()  # the watching thread ends, so there are fewer
    after = _held()
    assert after[0] <= before[0]
    assert after[1] <= before[1]


class Console:
    """A standard output that is a pipe."""

    def __init__(self) -> None:
        read, write = os.pipe()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
        self.reader = os.fdopen(read, "rb")
        self.stream = os.fdopen(write, "w")

    def await_full(self) -> None:
        """Wait until a Tail has begun to write what the pipe does not hold: it has opened what it needs by then."""
        deadline_s, pause = time.monotonic() + PATIENCE_S, threading.Event()
        while select.select([], [self.stream], [], 0)[1]:
            assert time.monotonic() < deadline_s
            pause.wait(0.001)

    def close(self) -> None:
        self.reader.close()
        self.stream.close()


@pytest.fixture
def console() -> Iterator[Console]:
    made = Console()
    yield made
    made.close()


WRITES = ("-c", "printf '%06000d\\n' 1; printf '%06000d\\n' 2")


@pytest.mark.parametrize("state", ["blocked", "closed"])
def test_lives_whose_console_takes_nothing_hold_no_more_descriptors(lives, tmp_path, console, state):
    logs = DefaultLogsSpecs(str(tmp_path), tee=Std.OUT)
    ranks = lives(stdout=console.stream, entrypoint="sh", args={0: WRITES}, logs_specs=logs)
    if state == "closed":
        console.reader.close()
    ranks.run(0)
    for life in range(1, 4):
        ranks.again(0, life)
    if state == "closed":
        while not ranks._tails_ended:
            ranks.hear(steps.TailEnded)
        ranks.again(0, 4)
    else:
        console.await_full()
    before = _held()[0]
    for life in range(5, 35):
        ranks.again(0, life)
    assert _held()[0] <= before


def test_the_lives_are_shown_on_the_console_in_order(lives, tmp_path, console):
    logs = DefaultLogsSpecs(str(tmp_path), tee=Std.OUT)
    ranks = lives(stdout=console.stream, entrypoint="sh", args={0: SAYS}, logs_specs=logs)
    ranks.run(0)
    for life in range(1, 20):
        ranks.again(0, life)
    ranks.drain()
    console.stream.close()
    assert console.reader.read().decode().split() == ["[lives0]:none", *(f"[lives0]:{life}" for life in range(1, 20))]


ENVIRONMENT: dict[str, Any] = {"grace": None}
"""None is what the environment says, for the calls with PyTorch's arguments."""


@pytest.mark.parametrize(
    ("function", "other", "left_out"),
    [
        (Supervisor.__init__, {}, set()),
        (start_processes, ENVIRONMENT, {"event_sink", "log_max_bytes"}),
    ],
)
def test_a_public_signature_shows_the_names_and_defaults_of_the_table(
    function: Callable[..., Any], other: dict[str, Any], left_out: set[str]
):
    shown = {each.name: each.default for each in inspect.signature(function).parameters.values() if each.name != "self"}
    of_torch = {"numa_options"} & shown.keys()
    table = {row.name: row.default for row in GANG.values() if row.argument or row.name in of_torch}
    assert {name: inspect.Parameter.empty if value is REQUIRED else value for name, value in table.items()} | other == {
        **shown,
        **{name: table[name] for name in left_out},
    }


@pytest.mark.parametrize(
    ("record", "rows"),
    [
        (Role, {**OF_ROLES, **{row.name: row for row in GANG.values() if row.role == "own"}}),
        (RestartPolicy, POLICY),
        (Watchdog, WATCHDOG),
    ],
)
def test_a_public_record_shows_the_defaults_of_the_table(record: type, rows: dict[str, Setting]):
    defaults = {field.name: field.default for field in dataclasses.fields(record)}
    required = {"entrypoint", "args"}
    assert {name: defaults[name] for name in rows.keys() - required} == {
        name: row.default for name, row in rows.items() if name not in required
    }
    assert record is Role or defaults.keys() == rows.keys()


def _keys(*classes: str) -> Iterator[str]:
    """Yield the keys of `TypedDict` classes, which exist only for type checkers."""
    for path in ("_gang/spec.py", "_api/run.py"):
        for node in ast.walk(ast.parse((Path(supervise.__file__).parent / path).read_text())):
            if isinstance(node, ast.ClassDef) and node.name in classes:
                yield from (ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign))


def test_the_types_of_the_settings_have_the_names_of_the_table():
    """For type checkers; the table is what the program reads."""
    assert set(_keys("GangSettings", "SupervisorSettings", "SharedSettings")) == GANG.keys() | set(INTERNAL)
    kept = {row.field for row in GANG.values()} - {"numa_options", "rank_variables"} | set(INTERNAL)
    assert {*GangSpec.__annotations__, *RankSpec._fields} >= kept
    absent = {"entrypoint", "args", "envs", "roles", "stop_signal", "reload_signal"}
    assert set(_keys("RunSettings", "SharedSettings")) == GANG.keys() - absent


def test_a_setting_that_is_none_is_a_type_error():
    with pytest.raises(TypeError, match="a gang has no argument 'grace_s'"):
        first_attempt(name="a", entrypoint="true", args={0: ()}, grace_s=1.0)


def test_what_an_attempt_is_made_from_cannot_be_changed():
    """A restart makes the next attempt from the same settings."""
    args = {0: ["a"]}
    attempt = first_attempt(name="a", entrypoint="true", args=args, logs_specs=DefaultLogsSpecs(os.devnull))
    attempt.close()
    args[0].append("b")
    assert attempt.spec.args == {0: ("a",)}
    with pytest.raises(AttributeError, match="the settings of a gang do not change"):
        attempt.spec.grace_s = 1.0


@pytest.mark.parametrize(
    ("start", "window"),
    [
        ({"entrypoint": "true"}, 1),
        ({"entrypoint": os.getcwd}, 1),
        ({"entrypoint": os.getcwd, "start_method": "fork"}, 8),
        ({"entrypoint": os.getcwd, "start_method": "forkserver"}, 32),
    ],
)
def test_forks_are_launched_in_a_row(start, window):
    """Not programs and spawned functions: the next launch of those waits for the process of the one before."""
    attempt = first_attempt(name="a", args={0: ()}, logs_specs=DefaultLogsSpecs(os.devnull), **start)
    attempt.close()
    assert attempt.window == window


@pytest.mark.parametrize(("entrypoint", "gate"), [(print, False), ("true", True)])
def test_the_library_refuses_a_stdin_that_it_cannot_pass_on(entrypoint: object, gate: bool):
    """Functions have the stdin of their start method, and a gated program waits on its own."""
    with pytest.raises(SpecError, match="rank 0: "):
        first_attempt(name="g", entrypoint=entrypoint, args={0: ()}, stdin={0: Stdin(0)}, gate=gate)


def test_the_types_of_a_supervisor_s_arguments_are_complete():
    """What type checkers accept is what `Supervisor` takes."""
    assert set(_keys("SupervisorSettings", "SharedSettings")) == set(
        inspect.signature(Supervisor.__init__).parameters
    ) - {"self"}


def test_a_fake_process_has_every_method_of_a_process():
    """The Worker of a `FakeGang` calls them; no type checker compares the two classes."""
    wanted = {name for name in vars(Process) if not name.startswith("_")}
    assert wanted <= set(dir(FakeProcess)), wanted - set(dir(FakeProcess))
    assert {"reap", "signal_group", "stopped_by"} <= wanted
