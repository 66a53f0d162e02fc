"""Contexts as PyTorch's agent, its tests and those who subclass them use them."""

import _thread
import inspect
import logging
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
from enum import IntFlag
from pathlib import Path
from types import SimpleNamespace

import machine
import pytest
import ranks

from supervise import RestartPolicy, SpecError
from supervise.elastic import (
    DefaultLogsSpecs,
    MultiprocessContext,
    PContext,
    ProcessFailure,
    RunProcsResult,
    SignalException,
    Std,
    SubprocessContext,
    start_processes,
    to_map,
)
from supervise.elastic.api import (
    _get_default_signal,
    _get_kill_signal,
    _terminate_process_handler,
    _validate_full_rank,
    _wrap,
)
from supervise.elastic.subprocess_handler import get_subprocess_handler
from tests.patience import PATIENCE_S


def specs():
    return DefaultLogsSpecs(os.devnull)


class Simple(PContext):
    """The smallest subclass: one rank that is no process at all."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.polls = 0
        self.closed_with = []

    def _start(self):
        with open(self.stdouts[0] or os.devnull, "w") as file:  # noqa: PTH123
            file.write("keep me\nshown\n")

    def _poll(self):
        self.polls += 1
        return RunProcsResult(return_values={0: 7}) if self.polls == 3 else None

    def pids(self):
        return {0: os.getpid()}

    def _close(self, death_sig, timeout=30):
        self.closed_with.append((death_sig, timeout))


# The base class


def test_the_base_class_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        PContext("n", "true", {0: ()}, {0: {}}, specs())
    assert PContext.__abstractmethods__ == {"_start", "_poll", "pids", "_close"}


def test_a_subclass_that_starts_its_own_processes_gets_logs_waiting_and_signals(tmp_path, capsys):
    before = signal.getsignal(signal.SIGTERM)
    logs = DefaultLogsSpecs(str(tmp_path), tee=Std.OUT)
    envs = {0: {}}
    context = Simple("n", "x", {0: ()}, envs, logs, {0: "> "}, ["keep"])
    assert envs[0]["TORCHELASTIC_ERROR_FILE"] == context.error_files[0]
    filtered = context.filtered_stdout.name
    context.start()
    assert signal.getsignal(signal.SIGTERM) != before
    assert context.wait(0) is None
    assert context.wait(0.01, 0.005) is None or context.polls == 3
    context.polls = 0
    assert context.wait(-1, 0.001).return_values == {0: 7}
    context.close(signal.SIGINT, 5)
    context.close()
    assert context.closed_with == [(signal.SIGINT, 5), (signal.SIGTERM, 30)]
    assert [tail.stopped() for tail in context._tail_logs] == [True] * 3
    assert signal.getsignal(signal.SIGTERM) == before
    assert capsys.readouterr().out == "> keep me\n> shown\n"
    with open(filtered) as file:  # noqa: PTH123
        assert file.read() == "> keep me\n"


def test_a_rank_that_specs_leave_out_is_an_error():
    class Broken(DefaultLogsSpecs):
        def reify(self, envs):
            dest = super().reify(envs)
            del dest.stdouts[1]
            return dest

    with pytest.raises(RuntimeError, match="stdouts, local rank mapping mismatch"):
        Simple("n", "x", {0: (), 1: ()}, {0: {}, 1: {}}, Broken(os.devnull))


# Our contexts


class WithPaths(DefaultLogsSpecs):
    """Its paths are no texts."""

    def reify(self, envs):
        dest = super().reify(envs)
        for paths in (dest.stdouts, dest.stderrs, dest.tee_stdouts, dest.tee_stderrs, dest.error_files):
            paths.update({rank: Path(path) for rank, path in paths.items()})
        return dest


@pytest.mark.parametrize("entrypoint", ["echo", print])
def test_the_paths_of_logs_may_be_objects(entrypoint, tmp_path, capfd):
    """As with PyTorch."""
    logs = WithPaths(str(tmp_path / "logs"), tee=Std.ALL)
    result = start_processes("n", entrypoint, {0: ("hello",)}, {0: {}}, logs).wait(PATIENCE_S)
    assert not result.is_failed()
    assert Path(result.stdouts[0]).read_text() == "hello\n"
    assert capfd.readouterr().out == "[n0]:hello\n"


def test_a_path_of_a_log_that_is_none_is_named(tmp_path):
    class Broken(DefaultLogsSpecs):
        def reify(self, envs):
            dest = super().reify(envs)
            dest.error_files[1] = 7.5
            return dest

    with pytest.raises(SpecError, match=r"error_files of rank 1 is 7\.5; give a path"):
        start_processes("n", "true", {0: (), 1: ()}, {0: {}, 1: {}}, Broken(str(tmp_path)))


class TheirStd(IntFlag):
    """As PyTorch's `Std`."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR


@pytest.mark.parametrize("tee", [TheirStd.ALL, {0: TheirStd.ALL}])
def test_a_std_of_pytorch_is_one(tee, tmp_path, capfd):
    """A program that is half migrated may have both."""
    assert to_map(TheirStd.OUT, 2) == {0: Std.OUT, 1: Std.OUT}
    logs = DefaultLogsSpecs(str(tmp_path / "logs"), tee=tee)
    assert not start_processes("n", "echo", {0: ("hello",)}, {0: {}}, logs).wait(PATIENCE_S).is_failed()
    assert capfd.readouterr().out == "[n0]:hello\n"


@pytest.mark.parametrize("tee", [3, 4, -1, True, "3", 1.0], ids=repr)
def test_what_is_no_std_is_refused(tee):
    with pytest.raises(SpecError, match=r"tee is .*; give a Std, such as Std\.ALL"):
        DefaultLogsSpecs(tee=tee)


@pytest.mark.parametrize("kind", ["binary", "function"])
def test_a_context_made_by_position_and_used_as_the_agent_does(kind, tmp_path):
    logs = DefaultLogsSpecs(str(tmp_path), tee=Std.ALL)
    if kind == "binary":
        context = SubprocessContext(
            "n", "sleep", {0: (60,), 1: (60,)}, {0: {}, 1: {}}, logs, {0: "a", 1: "b"}, None, ["x"]
        )
    else:
        context = MultiprocessContext(
            "n", signal.pause, {0: (), 1: ()}, {0: {}, 1: {}}, "spawn", logs, None, None, ["x"], ["y"]
        )
    assert isinstance(context, PContext)
    assert (context.name, context.nprocs, set(context.args), set(context.envs)) == ("n", 2, {0, 1}, {0, 1})
    assert context.pids() == {}
    context.start()
    pids = context.pids()
    assert set(pids) == {0, 1}
    assert context.wait(0) is None
    assert context._poll() is None
    with pytest.raises(ValueError, match="already initialized"):
        context.start()
    with pytest.raises(ValueError, match="already initialized"):
        context._start()
    assert not any(tail.stopped() for tail in context._tail_logs)
    assert len(context._tail_logs) == (3 if kind == "binary" else 4)
    context.close(signal.SIGTERM, 15)
    assert all(tail.stopped() for tail in context._tail_logs)
    assert context.pids() == pids
    for pid in pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_files_of_filtered_lines_are_open_until_the_end(tmp_path):
    logs = DefaultLogsSpecs(str(tmp_path), tee=Std.ALL)
    context = start_processes("n", "printf", {0: ("keep\nhide\n",)}, {0: {}}, logs, duplicate_stdout_filters=["keep"])
    filtered = context.filtered_stdout
    assert (filtered.closed, context.filtered_stderr) == (False, None)
    context.wait(PATIENCE_S)
    with open(filtered.name) as file:  # noqa: PTH123
        assert (filtered.closed, file.read()) == (True, "[n0]:keep\n")


def test_the_hook_closes_by_keywords_and_by_position():
    for args, kwargs in [((), {"death_sig": signal.SIGKILL, "timeout": 1}), ((signal.SIGTERM, 5), {})]:
        context = start_processes("n", "sleep", {0: (60,)}, {0: {}}, specs())
        assert context._close(*args, **kwargs) is None
        assert all(tail.stopped() for tail in context._tail_logs)
        context.close()


@pytest.mark.parametrize("ended", [True, False])
def test_a_close_leaves_no_thread_behind_even_where_that_takes_its_time(breaking, ended):
    before, returned = set(threading.enumerate()), threading.Event()
    breaking.instead("run of a loop", lambda run, loop: (run(loop), returned.wait(0.1)))
    context = start_processes("n", "sleep", {0: (0 if ended else 60,)}, {0: {}}, specs())
    if ended:
        context.wait()
    context.close()
    left = set(threading.enumerate()) - before
    returned.set()
    assert left == set()


@pytest.mark.parametrize("policy", [None, RestartPolicy(max_restarts=1, backoff=0.01)], ids=["once", "restarted"])
def test_a_listener_of_events_cannot_wait_for_its_own_gang(policy):
    """It is called in the thread that would have to answer: that is an error there, and no hang."""
    told = queue.SimpleQueue()

    class Listener(logging.Handler):
        def emit(self, record):
            if not told.qsize() and "process.exited" in record.getMessage():
                told.put((context.wait(0), context.pids()))
                for call in (context.wait, context.close):
                    with pytest.raises(RuntimeError) as caught:
                        call()
                    told.put(str(caught.value))

    logger, listener = logging.getLogger("supervise"), Listener()
    logger.addHandler(listener)
    try:
        context = SubprocessContext("n", "sleep", {0: (60,), 1: (60,)}, {0: {}, 1: {}}, specs(), restart_policy=policy)
        context.start()
        first = context.pids()
        os.kill(first[1], signal.SIGKILL)
        assert told.get(timeout=PATIENCE_S) == (None, first)
        assert told.get(timeout=PATIENCE_S).startswith("wait() on the gang's own thread")
        assert told.get(timeout=PATIENCE_S).startswith("close() on the gang's own thread")
        if policy is None:
            assert context.wait(PATIENCE_S).failures[1].exitcode == -9
        context.close()
    finally:
        logger.removeHandler(listener)


@pytest.mark.parametrize(("owner", "name"), [(threading.Thread, "start"), (_thread, "start_new_thread")])
def test_a_start_that_gets_no_thread_gives_everything_back(monkeypatch, owner, name):
    """A limit on processes counts threads as well."""

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    held = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(owner, name, refuse)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    for limit, also in ((soft, "group\\)$"), (2**45, "group\\), or the limit on memory")):  # both refuse with one error
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        try:
            with pytest.raises(BlockingIOError, match=f"no thread for the supervisor of 's': can't start .*{also}"):
                start_processes("s", "/bin/true", {0: ()}, {0: {}}, specs())
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert signal.getsignal(signal.SIGTERM) is held


@pytest.mark.parametrize("closed", [True, False])
def test_a_context_that_is_never_started_leaves_nothing(closed):
    context = SubprocessContext("n", "sleep", {0: (60,)}, {0: {}}, specs())
    if closed:
        context.close()
        context.close()


def test_the_signature_that_help_shows_is_the_present_generation():
    assert list(inspect.signature(start_processes).parameters)[:10] == [
        *("name", "entrypoint", "args", "envs", "logs_specs", "log_line_prefixes", "start_method"),
        *("numa_options", "duplicate_stdout_filters", "duplicate_stderr_filters"),
    ]


# Handlers of the ranks


def test_handlers_of_a_running_gang():
    context = start_processes("n", "sh", {0: ("-c", "exit 0"), 1: ("-c", "sleep 60")}, {0: {}, 1: {}}, specs())
    handlers = context.subprocess_handlers
    assert {rank: h.proc.pid for rank, h in handlers.items()} == context.pids()
    assert {rank: h.local_rank_id for rank, h in handlers.items()} == {0: 0, 1: 1}
    assert handlers[0].proc.wait(PATIENCE_S) == handlers[0].proc.returncode == 0
    assert handlers[1].proc.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        handlers[1].proc.wait(0.01)
    handlers[1].close(signal.SIGINT)
    handlers[1].close(signal.SIGTERM)
    assert handlers[1].proc.wait(PATIENCE_S) in {-signal.SIGINT, -signal.SIGTERM}
    result = context.wait(PATIENCE_S)
    assert set(result.failures) == {1}
    handlers[1].proc.kill()


def test_handlers_asked_for_after_the_end_know_it():
    context = start_processes("n", "sh", {0: ("-c", "exit 3")}, {0: {}}, specs())
    context.wait()
    assert context.subprocess_handlers[0].proc.poll() == 3
    assert SubprocessContext("n", "true", {0: ()}, {0: {}}, specs()).subprocess_handlers == {}


# Those who put their own methods in place of ours


class Auditing(SubprocessContext):
    """Polls by its handlers, closes by its handlers, and leaves the rest to the base."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = {}

    def _poll(self):
        for rank in self._running_local_ranks:
            code = self.subprocess_handlers[rank].proc.poll()
            if code is not None:
                self.seen[rank] = code
        self._running_local_ranks.difference_update(self.seen)
        return super()._poll()

    def _close(self, death_sig, timeout=30):
        for handler in self.subprocess_handlers.values():
            handler.close(death_sig=death_sig)
        for handler in self.subprocess_handlers.values():
            handler.proc.wait(timeout)


def test_a_subclass_that_polls_and_closes_by_handlers():
    context = Auditing("n", "sh", {0: ("-c", "exit 0"), 1: ("-c", "sleep 60")}, {0: {}, 1: {}}, specs())
    context.start()
    context.subprocess_handlers[0].proc.wait(PATIENCE_S)
    assert context.wait(0.02, 0.001) is None
    assert context.seen == {0: 0}
    context.close(signal.SIGTERM, PATIENCE_S)
    assert context.subprocess_handlers[1].proc.poll() == -signal.SIGTERM
    assert all(tail.stopped() for tail in context._tail_logs)


def test_a_poll_that_was_replaced_at_run_time_is_called(monkeypatch):
    calls = []
    ours = SubprocessContext._poll

    def audited(self):
        calls.append(dict(self.subprocess_handlers))
        return ours(self)

    monkeypatch.setattr(SubprocessContext, "_poll", audited)
    result = start_processes("n", "true", {0: ()}, {0: {}}, specs()).wait(-1, 0.001)
    assert result.return_values == {0: None}
    assert calls


class OwnProcesses(SubprocessContext):
    """Starts its processes with handlers of its own, as PyTorch's own class does."""

    def _start(self):
        self.subprocess_handlers = {
            rank: get_subprocess_handler(
                entrypoint=self.entrypoint,
                args=self.args[rank],
                env=self.envs[rank],
                stdout=self.stdouts[rank],
                stderr=self.stderrs[rank],
                local_rank_id=rank,
            )
            for rank in range(self.nprocs)
        }

    def _poll(self):
        codes = {rank: h.proc.poll() for rank, h in self.subprocess_handlers.items()}
        if None in codes.values():
            return None
        failures = {
            rank: ProcessFailure(rank, self.pids()[rank], code, self.error_files[rank])
            for rank, code in codes.items()
            if code
        }
        return RunProcsResult(failures=failures, stdouts=self.stdouts, stderrs=self.stderrs)

    def pids(self):
        return {rank: h.proc.pid for rank, h in self.subprocess_handlers.items()}

    def _close(self, death_sig, timeout=30):
        for handler in self.subprocess_handlers.values():
            handler.close(death_sig)
            handler.proc.wait(timeout)


def test_a_subclass_that_starts_its_own_processes(tmp_path, capsys):
    before = signal.getsignal(signal.SIGTERM)
    logs = DefaultLogsSpecs(str(tmp_path), tee=Std.OUT)
    context = OwnProcesses("n", "sh", {0: ("-c", "echo hello; exit 4")}, {0: {}}, logs, None, None, ["hello"])
    context.start()
    assert signal.getsignal(signal.SIGTERM) != before
    result = context.wait(PATIENCE_S, 0.01)
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {0: 4}
    context.close()
    assert capsys.readouterr().out == "[n0]:hello\n"
    assert all(tail.stopped() for tail in context._tail_logs)
    assert signal.getsignal(signal.SIGTERM) == before


# Small names


def test_signals_and_ranks():
    assert (_get_kill_signal(), _get_default_signal()) == (signal.SIGKILL, signal.SIGTERM)
    _validate_full_rank({0: "x"}, 1, "args")
    with pytest.raises(RuntimeError, match=r"args, local rank mapping mismatch, expected: \{0, 1\}, actual: \{0\}"):
        _validate_full_rank({0: "x"}, 2, "args")


def test_the_handler_raises_for_whoever_calls_or_installs_it():
    with pytest.raises(SignalException) as caught:
        _terminate_process_handler(signal.SIGTERM, None)
    assert caught.value.sigval is signal.SIGTERM
    assert str(caught.value) == f"Process {os.getpid()} got signal: {signal.Signals.SIGTERM}"
    old = signal.signal(signal.SIGUSR1, _terminate_process_handler)
    try:
        with pytest.raises(SignalException):
            signal.raise_signal(signal.SIGUSR1)
        context = start_processes("n", "sleep", {0: (60,)}, {0: {}}, specs())
        with pytest.raises(SignalException):
            signal.raise_signal(signal.SIGUSR1)
        context.close()
    finally:
        signal.signal(signal.SIGUSR1, old)


# The function that runs in a function's process


class Event:
    """Stands for multiprocessing's."""

    def __init__(self):
        self.waited = 0

    def wait(self):
        self.waited += 1


@pytest.mark.parametrize("redirected", [(), ("stdout",), ("stderr",), ("stdout", "stderr")])
def test_wrap_called_by_a_test(tmp_path, monkeypatch, redirected):
    for name in ("RANK", "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.setenv(name, "")
    files = {name: str(tmp_path / name) if name in redirected else "" for name in ("stdout", "stderr")}
    values, event = queue.SimpleQueue(), Event()
    envs = {0: {"RANK": 0}}
    _wrap(0, ranks.echo, {0: ("hello",)}, envs, {0: files["stdout"]}, {0: files["stderr"]}, {0: values}, event, None)
    assert values.get(timeout=1) == ("hello", "0")
    assert event.waited == 1
    written = {name: (tmp_path / name).read_text() for name in redirected}
    assert written == {name: {"stdout": "hello\n", "stderr": "hello-error\n"}[name] for name in redirected}


def test_wrap_records_what_the_function_raises(tmp_path, monkeypatch):
    error = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "")
    envs = {0: {"TORCHELASTIC_ERROR_FILE": str(error)}}
    with pytest.raises(ValueError, match="no luck"):
        _wrap(0, ranks.fail, {0: ()}, envs, {0: ""}, {0: ""}, {0: queue.SimpleQueue()}, Event())
    assert "ValueError: no luck" in error.read_text()
    with pytest.raises(KeyError):
        _wrap(1, ranks.fail, {0: ()}, envs, {0: ""}, {0: ""}, {0: queue.SimpleQueue()}, Event())


def test_wrap_cannot_bind_without_a_gpu(tmp_path, monkeypatch):
    machine.use(monkeypatch, tmp_path)
    options = SimpleNamespace(affinity_mode="node", should_fall_back_if_binding_fails=False)
    with pytest.raises(RuntimeError, match="no GPU with index 0"):
        _wrap(0, ranks.fail, {0: ()}, {0: {}}, {0: ""}, {0: ""}, {0: queue.SimpleQueue()}, threading.Event(), options)


def test_the_interpreter_of_these_tests_has_no_torch():
    assert "torch" not in sys.modules


def test_a_wait_without_limit_for_a_gang_that_was_not_started_says_so():
    """It would wait forever. A wait with a limit, and a poll, have no result, as before."""
    context = SubprocessContext("job", "true", {0: ()}, {0: {}}, specs())
    with pytest.raises(RuntimeError, match=r"job was not started.*call start\(\) first"):
        context.wait()
    assert context.wait(0.01) is None
    context.close()
