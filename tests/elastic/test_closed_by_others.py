"""A `close` that is not ours: `wait` calls it, as PyTorch's does, and ranks live on where it does nothing."""

import os
import signal
import threading
import time
import types
from contextlib import ExitStack, contextmanager

import pytest

import supervise
from supervise.elastic import DefaultLogsSpecs, MultiprocessContext, Std, SubprocessContext, start_processes
from tests.patience import PATIENCE_S
from tests.processes.gangs import Fifo
from tests.processes.hosts import watched

FAILS_WHEN_TOLD = "read word < $GATE; exit 3"
STAYS = "exec sleep 600"


def specs():
    return DefaultLogsSpecs(os.devnull)


@contextmanager
def close_does_nothing(context):
    """What an agent does that decides by itself when the healthy ranks are ended."""
    original = context.close
    context.close = types.MethodType(lambda *_, **__: None, context)
    try:
        yield
    finally:
        context.close = original


def until(context, condition):
    """Wait as that agent does, until a result fulfills the condition."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        with close_does_nothing(context):
            result = context.wait(0)
        if result is not None and condition(result):
            return result
        threading.Event().wait(0.01)
    raise AssertionError("no such result")


def codes(result):
    return {rank: failure.exitcode for rank, failure in result.failures.items()}


@pytest.fixture
def programs(tmp_path):
    """Return what starts shell scripts, and what lets one go on that reads from its gate."""
    with ExitStack() as stack:

        def start(scripts, by=start_processes, logs_specs=None):
            gates = {rank: Fifo(tmp_path / f"gate{rank}") for rank in scripts}
            for gate in gates.values():
                stack.callback(gate.close)
            envs = {rank: {"GATE": gate.path} for rank, gate in gates.items()}
            args = {rank: ("-c", script) for rank, script in scripts.items()}
            context = by("n", "/bin/sh", args, envs, logs_specs or specs())
            stack.callback(context.close, signal.SIGKILL)
            return context, lambda rank: gates[rank].tell()

        yield start


@pytest.mark.parametrize("moment", ["before the first wait", "between two waits"])
def test_healthy_programs_live_on_where_close_does_nothing_during_the_wait(programs, moment):
    scripts = {0: STAYS, 1: FAILS_WHEN_TOLD, 2: FAILS_WHEN_TOLD}
    context, tell = programs(scripts)
    pids = context.pids()
    with watched(list(pids.values())) as watch:
        if moment == "between two waits":
            with close_does_nothing(context):
                assert context.wait(0) is None
        tell(1)
        context.subprocess_handlers[1].proc.wait(PATIENCE_S)
        first = until(context, lambda result: result.failures)
        assert (first.is_failed(), codes(first), first.root_cause) == (True, {1: 3}, 1)
        assert watch.survivors(0) == {pids[0], pids[2]}
        tell(2)
        second = until(context, lambda result: len(result.failures) == 2)
        assert (codes(second), second.root_cause) == ({1: 3, 2: 3}, 1)
        assert watch.survivors(0) == {pids[0]}
        assert context.pids() == pids
        context.close(signal.SIGINT, PATIENCE_S)
        assert watch.survivors(0) == set()
    last = context.wait(0)
    assert (codes(last), last.root_cause, last.ends[0].exitcode) == ({1: 3, 2: 3}, 1, -signal.SIGINT)


def test_a_wait_with_our_own_close_ends_those_that_lived_on(programs):
    """It returns the result, as with PyTorch: the agent knows of the failure, and asks once more."""
    context, tell = programs({0: STAYS, 1: FAILS_WHEN_TOLD})
    with watched(list(context.pids().values())) as watch:
        tell(1)
        until(context, lambda result: result.failures)
        result = context.wait(0)
        assert (codes(result), result.ends[0].role) == ({1: 3}, "bystander")
        assert watch.survivors(0) == set()
    context.close()


def test_all_programs_end_while_close_does_nothing(programs, tmp_path):
    """The result is the last one, and nothing needs to be closed."""
    logs = DefaultLogsSpecs(str(tmp_path / "logs"), tee=Std.OUT)
    context, tell = programs({0: "exit 0", 1: FAILS_WHEN_TOLD}, logs_specs=logs)
    with close_does_nothing(context):
        assert context.wait(0) is None
    tell(1)
    result = until(context, lambda result: 0 in result.ends and 1 in result.ends)
    assert (codes(result), result.ends[0].role) == ({1: 3}, "finished")
    assert until(context, lambda _: context._tail_logs[0].stopped()).outcome == "failed"


@pytest.mark.parametrize("start", [start_processes, supervise.start_processes], ids=["elastic", "ours"])
def test_where_close_is_ours_a_failure_stops_the_others_while_nobody_asks(programs, start):
    """By PyTorch's import path, from the first wait on."""
    context, tell = programs({0: STAYS, 1: FAILS_WHEN_TOLD}, start)
    if start is start_processes:
        assert context.wait(0) is None
    tell(1)
    assert context.subprocess_handlers[0].proc.wait(PATIENCE_S) == -signal.SIGTERM
    assert codes(context.wait(PATIENCE_S)) == {1: 3}
    context.close()


def test_a_failure_before_the_first_wait_stops_the_others_at_that_wait(programs):
    context, tell = programs({0: STAYS, 1: FAILS_WHEN_TOLD})
    tell(1)
    context.subprocess_handlers[1].proc.wait(PATIENCE_S)
    result = context.wait(PATIENCE_S)
    assert (codes(result), result.ends[0].exitcode) == ({1: 3}, -signal.SIGTERM)


class ClosesInItsOwnWay(SubprocessContext):
    """Ends its ranks by another signal."""

    closes = 0

    def close(self, death_sig=None, timeout=30):
        self.closes += 1
        super().close(death_sig or signal.SIGINT, timeout)


class EndsInItsOwnWay(SubprocessContext):
    """The same with the inner method."""

    closes = 0

    def _close(self, death_sig, timeout=30):
        self.closes += 1
        super()._close(signal.SIGINT, timeout)


@pytest.mark.parametrize("cls", [ClosesInItsOwnWay, EndsInItsOwnWay])
@pytest.mark.parametrize("code", [0, 3])
def test_a_wait_goes_through_the_close_of_a_subclass(programs, cls, code):
    ends = f"read word < $GATE; exit {code}"
    context, tell = programs({0: ends, 1: STAYS if code else ends}, cls)
    context.start()
    with watched(list(context.pids().values())) as watch:
        tell(0)
        tell(1)
        result = context.wait(-1, 0.01)
        assert context.closes == 1
        assert watch.survivors(0) == set()
    assert (codes(result), result.ends[1].exitcode) == ({0: 3} if code else {}, -signal.SIGINT if code else 0)
    assert result.return_values == ({} if code else {0: None, 1: None})


class ClosesFunctions(MultiprocessContext):
    """Counts."""

    closes = 0

    def close(self, death_sig=None, timeout=30):
        self.closes += 1
        super().close(death_sig, timeout)


def test_a_wait_for_functions_goes_through_the_close_of_a_subclass():
    context = ClosesFunctions("n", os._exit, {0: (3,), 1: (3,)}, {0: {}, 1: {}}, "spawn", specs())
    context.start()
    result = context.wait(-1, 0.01)
    assert (result.is_failed(), context.closes) == (True, 1)


class Tolerant(SubprocessContext):
    """Has a poll of its own, to which a failure is none of the others' business."""

    def _poll(self):
        done = {rank: handler.proc.poll() for rank, handler in self.subprocess_handlers.items()}
        return None if None in done.values() else super()._poll()


def test_a_failure_stops_nobody_before_the_poll_of_a_subclass_asks_ours(programs):
    context, tell = programs({0: FAILS_WHEN_TOLD, 1: FAILS_WHEN_TOLD}, Tolerant)
    context.start()
    tell(0)
    context.subprocess_handlers[0].proc.wait(PATIENCE_S)
    assert context.wait(0.01, 0.001) is None
    assert context.subprocess_handlers[1].proc.poll() is None
    tell(1)
    result = context.wait(PATIENCE_S, 0.001)
    assert (codes(result), result.root_cause) == ({0: 3, 1: 3}, 0)
