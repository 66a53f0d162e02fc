"""Ranks that have returned and are held: their processes serve the others until all have returned."""

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

import supervise
import supervise.elastic
import supervise.multiprocessing
from supervise import RestartPolicy, Role, SpawnError, SpecError, Status, TerminateRanks, Wait, Watchdog
from tests.patience import PATIENCE_S
from tests.processes import work
from tests.processes.gangs import FUNCTIONS, Fifo, Stopwatch, each_function, faulty, launched, prepared
from tests.processes.hosts import NO_FILES, ROOT, Host, pids_of, watched
from tests.processes.test_readiness import row

HELD = "value = 'early'"
WAITS = "value = wait_for_word()"
FAILS = "wait_for_word(); raise LookupError('the 7th shard is empty')"
FLAG = "signal.signal(signal.SIGTERM, lambda *_: None)\n"
"""A handler that only sets a flag, as those for a preemption do: it does not end a read that is blocked."""


def serve(path):
    """Answer each connection from a thread that ends with the process; return at once."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()

    def answer():
        while True:
            with server.accept()[0] as client:
                client.sendall(b"here")

    threading.Thread(target=answer, daemon=True).start()
    return "served"


def ask_late(path):
    """Ask the server when the test tells it to."""
    with Path(os.environ["GATE"]).open() as gate:
        gate.readline()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        return client.recv(4)


def await_exit(pid):
    """Wait until a process has exited, which it may have done already."""
    try:
        with watched([pid]) as watch:
            assert not watch.survivors()
    except ProcessLookupError:
        return


def serve_or_ask(path):
    return serve(path) if os.environ["LOCAL_RANK"] == "0" else ask_late(path)


@pytest.fixture
def path(tmp_path_factory):
    """The path of a socket, short enough for its address."""
    return str(tmp_path_factory.mktemp("s") / "server")


@each_function
def test_a_rank_that_has_returned_serves_the_others_until_they_have_returned(tmp_path, kind, path):
    """Its status says that it has returned, and it ends as if it had just returned."""
    both = {0: (path,), 1: (path,)}
    with launched(tmp_path, serve_or_ask, both, hold_returned=True, start_method=kind) as gang:
        gang.start()
        row(gang, 0, "returned")
        assert gang.ask(Status()).running == {0, 1}
        gang.tell(1)
        result = gang.wait()
    assert result.return_values == {0: "served", 1: b"here"}
    assert {rank: (end.role, end.exitcode) for rank, end in result.ends.items()} == dict.fromkeys(
        (0, 1), ("finished", 0)
    )


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("library", ["elastic", "context", "ours"])
def test_only_calls_of_pytorch_hold_unless_they_are_asked(tmp_path, kind, library, path):
    """`supervise.start_processes` lets a rank exit at once, and the late peer finds no server."""
    gate = Fifo(tmp_path / "gate")
    envs = {rank: {"GATE": gate.path, "LOCAL_RANK": str(rank)} for rank in (0, 1)}
    both = {0: (path,), 1: (path,)}
    with contextlib.ExitStack() as stack:
        stack.callback(gate.close)
        if library == "context":
            context = supervise.elastic.MultiprocessContext(
                "held", serve_or_ask, both, envs, start_method=kind, logs_specs=NO_FILES
            )
            context.start()
        else:
            start = supervise.elastic.start_processes if library == "elastic" else supervise.start_processes
            context = start("held", serve_or_ask, both, envs, logs_specs=NO_FILES, start_method=kind)
        stack.callback(context.close)
        if library == "ours":
            await_exit(context.pids()[0])
        else:
            while (status := context.status()) and status.ranks[0].state != "returned":
                assert status.phase in ("starting", "running")
        gate.tell()
        result = context.wait(PATIENCE_S)
    assert result.outcome == ("failed" if library == "ours" else "succeeded")


def test_functions_of_spawn_are_not_held(tmp_path):
    """As with PyTorch: a process of `torch.multiprocessing.spawn` exits when its function returns."""
    gate = Fifo(tmp_path / "gate")
    program = f"import os\nif os.environ['RANK_OF_TEST'] == '1': open({gate.path!r}).readline()"
    context = supervise.multiprocessing.spawn(_by_number, (program,), nprocs=2, join=False)
    try:
        await_exit(context.pids()[0])
        gate.tell()
        while not context.join(PATIENCE_S):
            pass
    finally:
        gate.close()


def _by_number(number, program):
    os.environ["RANK_OF_TEST"] = str(number)
    exec(program, {})


@each_function
def test_exit_functions_run_after_the_release_and_sys_exit_0_is_a_return(tmp_path, kind):
    """As with PyTorch: the rank waits within its call, so threads and exit functions see a rank that still runs."""
    early = (
        "import multiprocessing.util\nmultiprocessing.util.Finalize(None, say, ('bye',), exitpriority=0)\nsys.exit(0)"
    )
    late = WAITS + "\nsay('last')"
    with faulty(tmp_path, kind, [early, late], hold_returned=True) as gang:
        row(gang, 0, "returned")
        gang.tell(1)
        assert gang.hear(2) == ["last", "bye"]
        result = gang.wait()
    assert result.return_values == {0: None, 1: "go"}


@each_function
def test_a_rank_that_exits_with_a_code_fails_and_is_not_held(tmp_path, kind):
    with faulty(tmp_path, kind, ["sys.exit(3)", WAITS], hold_returned=True, grace=60) as gang:
        result = gang.wait()
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {0: 3}


@each_function
@pytest.mark.parametrize("handler", ["", FLAG])
def test_a_failure_ends_the_held_ranks(tmp_path, kind, handler):
    """By the signal, as it ends any rank; one whose handler goes on returns from the hold, long before SIGKILL."""
    with Stopwatch() as watch, faulty(tmp_path, kind, [handler + HELD, FAILS], hold_returned=True, grace=300) as gang:
        row(gang, 0, "returned")
        gang.tell(1)
        result = gang.wait()
    assert (result.outcome, list(result.failures)) == ("failed", [1])
    assert result.ends[0].exitcode == (0 if handler else -signal.SIGTERM)
    assert result.ends[0].role == "bystander"
    assert watch.seconds < 300


@each_function
def test_a_rank_that_returns_after_the_signal_of_a_stop_is_not_held(tmp_path, kind):
    """Its function ends because of the signal, and so does its process."""
    polite = "def leave(*_):\n    raise StopIteration\nsignal.signal(signal.SIGTERM, leave)\nsay('ready')\n"
    polite += f"try:\n    while True: {work.LOOK}\nexcept StopIteration:\n    value = 'saved'"
    with Stopwatch() as watch, faulty(tmp_path, kind, [polite, FAILS], hold_returned=True, grace=300) as gang:
        gang.hear()
        gang.tell(1)
        result = gang.wait()
    assert (result.ends[0].exitcode, list(result.failures)) == (0, [1])
    assert watch.seconds < 300


@each_function
def test_a_close_ends_the_held_ranks(tmp_path, kind):
    with Stopwatch() as watch, faulty(tmp_path, kind, [HELD, work.BLOCK], hold_returned=True, grace=300) as gang:
        row(gang, 0, "returned")
        result = gang.close()
    assert result.outcome == "stopped"
    assert {rank: end.exitcode for rank, end in result.ends.items()} == dict.fromkeys((0, 1), -signal.SIGTERM)
    assert watch.seconds < 300


@each_function
def test_the_timeout_of_the_gang_ends_the_held_ranks(tmp_path, kind):
    with faulty(tmp_path, kind, [HELD, work.BLOCK], hold_returned=True, timeout=15.0) as gang:
        row(gang, 0, "returned")
        result = gang.wait()
    assert result.outcome == "timed_out"
    assert result.ends[0].exitcode == -signal.SIGTERM


@each_function
def test_held_ranks_die_with_a_killed_host(tmp_path, kind):
    program = """
    held = "value = say(f'ready {os.getpid()}')"
    gang = start_gang(kind, [held, held + "\\nsignal.pause()"], hold_returned=True)
    while gang.ask(Status()).ranks[0].state != "returned":
        pass
    print("held", flush=True)
    signal.pause()
    """
    ear = Fifo(tmp_path / "ear")
    try:
        with Host(program, kind, ear.path) as host:
            pids = pids_of([ear.hear() for _ in range(2)])
            assert host.hear() == "held"
            with watched(pids) as watch:
                host.kill()
                assert watch.survivors() == set()
    finally:
        ear.close()


@each_function
def test_a_held_rank_that_dies_has_failed(tmp_path, kind):
    """Its value has arrived, but what it served is gone."""
    with faulty(tmp_path, kind, [HELD, WAITS], hold_returned=True) as gang:
        row(gang, 0, "returned")
        os.kill(gang.pids[0], signal.SIGKILL)
        result = gang.wait()
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {0: -signal.SIGKILL}


@each_function
def test_an_exception_of_a_signal_handler_of_a_held_rank_is_its_failure(tmp_path, kind):
    fails = "    signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n    raise LookupError('while held')\n"
    raises = f"def fail(*_):\n{fails}signal.signal(signal.SIGUSR1, fail)\n{HELD}"
    give_up_s = time.monotonic() + PATIENCE_S
    with faulty(tmp_path, kind, [raises, WAITS], hold_returned=True) as gang:
        row(gang, 0, "returned")
        # Python calls the handler at a signal that comes just before the read only when another one interrupts the read
        while (result := gang.ask(Wait(timeout=0.2))) is None and time.monotonic() < give_up_s:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and the other rank is being stopped
                os.kill(gang.pids[0], signal.SIGUSR1)
    assert result is not None
    assert list(result.failures) == [0]
    assert result.failures[0].message["message"] == "LookupError: while held"


ONCE = (
    "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    wait_for_word()\n    os._exit(3)\nvalue = wait_for_word()"
)


@each_function
def test_a_restart_of_all_ranks_starts_a_held_rank_again(tmp_path, kind):
    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    with faulty(tmp_path, kind, [HELD, ONCE], hold_returned=True, restart_policy=policy) as gang:
        row(gang, 0, "returned")
        first = gang.pids[0]
        gang.tell(1)
        while row(gang, 0, "returned").attempt == 0:
            pass
        gang.tell(1)
        assert gang.wait().return_values == {0: "early", 1: "go"}
        assert gang.pids[0] != first


@each_function
def test_a_restart_of_one_rank_leaves_a_held_rank_alone(tmp_path, kind):
    """The others get no signal, and the held rank waits for the next life of the one that failed."""
    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    with faulty(
        tmp_path, kind, [HELD, ONCE], hold_returned=True, restart_policy=policy, strategy="one_for_one"
    ) as gang:
        first = row(gang, 0, "returned").pid
        gang.tell(1)
        while row(gang, 1, "ready").attempt == 0:
            pass
        assert (gang.ask(Status()).ranks[0].state, gang.pids[0]) == ("returned", first)
        gang.tell(1)
        result = gang.wait()
    assert result.return_values == {0: "early", 1: "go"}
    assert result.ends[0].pid == first


def test_a_permanent_rank_is_restarted_and_not_held(tmp_path):
    policy = RestartPolicy(max_restarts=1, backoff=0.0, restart="permanent")
    source = "say('runs')\n" + HELD
    with faulty(
        tmp_path, "fork", [source, work.BLOCK], hold_returned=True, restart_policy=policy, strategy="one_for_one"
    ) as gang:
        assert gang.hear(2) == ["runs", "runs"]
        assert gang.wait().root_cause == 0


def test_the_end_of_a_terminated_rank_releases_the_held_ones(tmp_path):
    with faulty(tmp_path, "fork", [HELD, work.BLOCK], hold_returned=True) as gang:
        row(gang, 0, "returned")
        gang.ask(TerminateRanks(ranks=frozenset([1])))
        result = gang.wait()
    assert (result.outcome, result.ends[0].exitcode, result.ends[0].role) == ("succeeded", 0, "finished")


def test_services_are_not_waited_for(tmp_path):
    """A service runs until the others have ended, which are released when all of them have returned."""
    roles = [
        Role(name="store", entrypoint=work.run_source, args={0: (work.BLOCK,)}, start_method="fork", service=True),
        Role(name="trainer", entrypoint=work.run_source, args={0: (HELD,), 1: (WAITS,)}, start_method="fork"),
    ]
    with launched(tmp_path, None, dict.fromkeys(range(3), ()), roles=roles, hold_returned=True) as gang:
        gang.start()
        row(gang, 1, "returned")
        gang.tell(2)
        assert gang.wait().outcome == "succeeded"


def test_a_rank_that_returns_before_it_is_ready_fails_the_start(tmp_path):
    """At once, not when the time to be ready is over."""
    with (
        prepared(
            tmp_path, "fork", [HELD, work.BLOCK], hold_returned=True, ready="notify", ready_timeout_s=300.0
        ) as gang,
        pytest.raises(SpawnError, match="ended before it was ready"),
    ):
        gang.start()


def test_a_child_that_the_host_has_forked_does_not_keep_a_rank(tmp_path):
    """It has a copy of the host's end of the connection, so a close of that end would not release the rank."""
    with faulty(tmp_path, "spawn", [HELD, WAITS], hold_returned=True) as gang:
        row(gang, 0, "returned")
        pid = os.fork()
        if not pid:
            signal.pause()
        try:
            gang.tell(1)
            assert gang.wait().return_values == {0: "early", 1: "go"}
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


BEATS = f"""
import select
sys.path.insert(0, {ROOT!r})
from supervise import notify
for number in range(20):
    notify(heartbeat=True)
    select.select([], [], [], 0.25)
value = "beaten"
"""


@pytest.mark.parametrize("action", ["report", "fail"])
def test_a_held_rank_is_not_hung(tmp_path, action):
    """It sends no heartbeats; after the release, its exit has a full period."""
    exits_late = "import select\nfrom multiprocessing import util\n"
    exits_late += "util.Finalize(None, select.select, ([], [], [], 1.0), exitpriority=0)\n"
    early = exits_late + BEATS.replace("range(20)", "range(1)")
    with faulty(tmp_path, "spawn", [early, BEATS], hold_returned=True, watchdog=Watchdog(4.0, action=action)) as gang:
        result = gang.wait()
        assert not [event for event in _drained(gang) if event["event"] == "supervise.process.hung"]
    assert result.return_values == {0: "beaten", 1: "beaten"}


def _drained(gang):
    events = []
    while not gang._events.empty():
        events.append(gang._events.get())
    return events


def test_a_function_that_closes_its_descriptors_does_not_hang_the_gang(tmp_path):
    """A rank without its result channel fails, as ever."""
    with faulty(tmp_path, "spawn", ["os.closerange(3, 1000)", WAITS], hold_returned=True, grace=60) as gang:
        assert gang.wait().root_cause == 0


def test_programs_are_not_held(tmp_path):
    with faulty(tmp_path, "binary", ["say('ends')", WAITS], hold_returned=True) as gang:
        gang.hear()
        await_exit(gang.pids[0])
        gang.tell(1)
        assert gang.wait().outcome == "succeeded"


def test_a_setting_that_is_not_a_bool_is_refused(tmp_path):
    with pytest.raises(SpecError, match="hold_returned is 1; give True or False"):
        supervise.start_processes("x", work.double, {0: (1,)}, logs_specs=NO_FILES, hold_returned=1)
