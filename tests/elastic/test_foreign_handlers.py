"""A `SubprocessHandler` that is not ours: contexts start, poll and close their ranks by it, as PyTorch's do."""

import os
import signal
import subprocess

import pytest

from supervise import RestartPolicy, SpecError
from supervise.elastic import DefaultLogsSpecs, LogsDest, LogsSpecs, Std, SubprocessContext, api, start_processes
from supervise.elastic.subprocess_handler import SubprocessHandler, handlers
from tests.patience import PATIENCE_S
from tests.processes.gangs import Fifo

PIPE = "a mark that stands for a pipe"


class Piped(SubprocessHandler):
    """Gives a rank a pipe where the path of its stdout is a mark."""

    def __init__(self, entrypoint, args, env, stdout, stderr, local_rank_id, numa_options=None):  # noqa: PLR0917
        self.pipe = stdout == PIPE
        super().__init__(entrypoint, args, env, "" if self.pipe else stdout, stderr, local_rank_id, numa_options)

    def _popen(self, args, env):
        out = subprocess.PIPE if self.pipe else self._stdout
        return subprocess.Popen(args=args, env=env, stdout=out, stderr=self._stderr, start_new_session=True)


class PipedWithoutOurs(SubprocessHandler):
    """Does without our constructor."""

    def __init__(self, entrypoint, args, env, stdout, stderr, local_rank_id, numa_options=None):  # noqa: PLR0917
        self._stdout = subprocess.PIPE if stdout == PIPE else None
        self._stderr = None
        self.local_rank_id = local_rank_id
        self.proc = self._popen((entrypoint, *map(str, args)), os.environ | env)


class Marks(LogsSpecs):
    """Sends stdout to a pipe of the handler's, and puts that handler in place as late as can be."""

    def __init__(self, get=None):
        super().__init__()
        self._get = get

    @property
    def root_log_dir(self):
        return os.devnull

    def reify(self, envs):
        if self._get is not None:
            api.get_subprocess_handler = self._get
        return LogsDest(stdouts=dict.fromkeys(envs, PIPE), stderrs=dict.fromkeys(envs, ""))


@pytest.fixture(autouse=True)
def restored(monkeypatch, tmp_path):
    """Put back what a test replaces; a file with the mark's name would lie in the working directory."""
    for module, name in ((api, "get_subprocess_handler"), (handlers, "SubprocessHandler")):
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def ear(tmp_path):
    ear = Fifo(tmp_path / "ear")
    yield ear
    ear.close()


def read(context):
    """Return what each rank has written to its pipe; close the pipe."""
    said = {}
    for rank, handler in context.subprocess_handlers.items():
        with handler.proc.stdout as pipe:
            said[rank] = pipe.read()
    return said


def codes(result):
    return {rank: failure.exitcode for rank, failure in result.failures.items()}


def shells(scripts, **more):
    args = {rank: ("-c", script) for rank, script in enumerate(scripts)}
    return start_processes("n", "/bin/sh", args, {rank: {} for rank in args}, **more)


@pytest.mark.parametrize("cls", [Piped, PipedWithoutOurs])
def test_a_handler_that_is_put_in_place_while_the_specs_are_reified_has_its_pipes(tmp_path, cls):
    context = shells(["echo hello $0", "echo $RANK there"], logs_specs=Marks(cls))
    assert {type(handler) for handler in context.subprocess_handlers.values()} == {cls}
    assert context.pids() == {rank: handler.proc.pid for rank, handler in context.subprocess_handlers.items()}
    assert read(context) == {0: b"hello /bin/sh\n", 1: b"there\n"}
    result = context.wait(PATIENCE_S, 0.01)
    assert (result.outcome, result.is_failed(), result.return_values) == ("succeeded", False, {0: None, 1: None})
    context.close()
    assert context.wait(0) is result
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_a_failure_ends_the_others_by_their_handlers(ear):
    """At the poll, as with PyTorch; the ranks that we end are no failures."""
    context = shells([f"echo $$ > {ear.path}; exec sleep 600", "exit 3"], logs_specs=Marks(Piped))
    pid = int(ear.hear())
    assert pid == context.pids()[0]
    result = context.wait(-1, 0.01)
    assert (result.outcome, codes(result), result.root_cause) == ("failed", {1: 3}, 1)
    assert context.subprocess_handlers[0].proc.returncode == -signal.SIGTERM
    assert context.wait(0) is result
    assert read(context) == {0: b"", 1: b""}


@pytest.mark.parametrize("clean", [False, True])
def test_close_ends_deaf_ranks_by_sigkill_and_a_clean_exit_is_no_failure(ear, clean):
    trap = "exit 0" if clean else ""
    script = f"trap '{trap}' TERM; echo ready > {ear.path}; while :; do sleep 0.05; done"
    context = shells([script, "exit 0"], logs_specs=Marks(Piped))
    assert ear.hear() == "ready"
    context.subprocess_handlers[1].proc.wait(PATIENCE_S)
    assert context.wait(0) is None
    context.close(signal.SIGTERM, PATIENCE_S if clean else 0.2)
    result = context.wait(0)
    assert (result.outcome, codes(result)) == ("stopped", {} if clean else {0: -signal.SIGKILL})
    assert result.return_values == ({0: None, 1: None} if clean else {})
    read(context)


def test_the_class_may_be_replaced_where_pytorch_looks_for_it(monkeypatch, tmp_path):
    monkeypatch.setattr(handlers, "SubprocessHandler", Piped)
    logs = DefaultLogsSpecs(str(tmp_path / "logs"), tee=Std.OUT)
    context = shells(["echo hello"], logs_specs=logs)
    assert type(context.subprocess_handlers[0]) is Piped
    result = context.wait(-1, 0.01)
    with open(result.stdouts[0]) as file:  # noqa: PTH123
        assert file.read() == "hello\n"


def test_the_method_of_the_class_may_be_replaced(monkeypatch):
    """A descriptor of the host's is handed on to every rank."""
    popen, seen = SubprocessHandler._popen, []

    def handing_on(self, args, env):
        seen.append(args)
        return popen(self, args, env)

    monkeypatch.setattr(SubprocessHandler, "_popen", handing_on)
    assert shells(["exit 0"]).wait(-1, 0.01).return_values == {0: None}
    assert seen == [("/bin/sh", "-c", "exit 0")]


def test_without_a_replacement_the_ranks_are_ours():
    context = shells(["exit 0"])
    assert context._supervisor is not None
    context.wait(PATIENCE_S)


def test_a_handler_that_cannot_start_a_rank_leaves_none_running(ear):
    started = []

    def second_fails(**given):
        if given["local_rank_id"] == 1:
            raise OSError("no more of these")
        started.append(Piped(**given))
        return started[0]

    script = f"echo ready > {ear.path}; exec sleep 600"
    with pytest.raises(OSError, match="no more of these"):
        shells([script, script], logs_specs=Marks(second_fails))
    assert started[0].proc.returncode is not None
    started[0].proc.stdout.close()


def test_what_only_we_can_do_is_refused():
    with pytest.raises(SpecError, match="restart_policy is not supported with a replaced get_subprocess_handler"):
        shells(["exit 0"], logs_specs=Marks(Piped), restart_policy=RestartPolicy(max_restarts=1))


def test_a_context_of_a_replaced_handler_starts_once():
    context = SubprocessContext("n", "true", {0: ()}, {0: {}}, Marks(Piped))
    context.start()
    with pytest.raises(ValueError, match="already initialized"):
        context.start()
    assert context.wait(-1, 0.01).return_values == {0: None}
    read(context)


def test_a_signal_reaches_the_caller_while_such_a_gang_is_waited_for(ear):
    before = signal.getsignal(signal.SIGTERM)
    script = f"echo ready > {ear.path}; exec sleep 600"
    context = shells([script], logs_specs=Marks(Piped))
    assert ear.hear() == "ready"
    with pytest.raises(api.SignalException) as caught:
        signal.raise_signal(signal.SIGTERM)
    context.close(caught.value.sigval, PATIENCE_S)
    assert codes(context.wait(0)) == {0: -signal.SIGTERM}
    assert signal.getsignal(signal.SIGTERM) == before
    read(context)
