"""A rank that cannot start takes the start down: the error names it, the others are reaped, nothing is left open."""

import contextlib
import errno
import os
import threading
from collections.abc import Callable

import psutil
import pytest

from supervise import DefaultLogsSpecs, SpawnError, SpecError, Start, Std, Supervisor
from tests.patience import PATIENCE_S
from tests.processes import work
from tests.processes.gangs import each_kind
from tests.processes.hosts import NO_FILES, Host, make_gang
from tests.processes.stubborn import DEAF

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

LAUNCHES = {"binary": "spawn of a program", "spawn": "spawn of a program", "forkserver": "request to the fork server"}
"""What each kind calls once a rank."""


def open_fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - an iterator would hold one of its own


def children() -> set[psutil.Process]:
    return set(psutil.Process().children())


def is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name() == "worker"
    return False


@pytest.fixture
def _nothing_stays():
    """Processes and descriptors are the same afterwards, as soon as the thread of the gang has ended."""
    before = children(), open_fds()
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("supervise-"):
            thread.join(PATIENCE_S)
    assert (children() - before[0], open_fds() - before[1]) == (set(), set())


@pytest.mark.usefixtures("_nothing_stays")
@pytest.mark.parametrize(
    ("place", "number"), [("nowhere", errno.ENOENT), ("unreadable", errno.EACCES)], ids=["ENOENT", "EACCES"]
)
def test_s9_a_program_that_rank_5_cannot_find_or_execute(tmp_path, place, number):
    """The OSError is the one that starting it alone would raise, and says which rank."""
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "worker").symlink_to("/bin/sleep")
    (tmp_path / "nowhere").mkdir()
    (tmp_path / "unreadable").mkdir()
    (tmp_path / "unreadable" / "worker").touch(0o600)
    envs = {rank: {"PATH": str(tmp_path / (place if rank == 5 else "good"))} for rank in range(8)}
    args = dict.fromkeys(range(8), ("1000",))
    gang = Supervisor.start(name="s9", entrypoint="worker", args=args, envs=envs, logs_specs=NO_FILES)
    with pytest.raises(OSError, match="rank 5 could not be started") as caught:
        gang.ask(Start(), timeout=PATIENCE_S)
    assert (type(caught.value), caught.value.errno, caught.value.filename) == (
        type(OSError(number, "")),
        number,
        "worker",
    )
    assert not any(map(is_worker, children()))
    gang.stop(timeout=PATIENCE_S)


FAULTS = (
    OSError(errno.ENOENT, "No such file or directory", "a file"),
    OSError(errno.EACCES, "Permission denied", "a file"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.EAGAIN, "Resource temporarily unavailable"),
    RuntimeError("can't start new thread"),
)


@pytest.mark.usefixtures("_nothing_stays")
@each_kind
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_s9_the_call_that_starts_rank_5_fails(breaking, system_call, tmp_path, kind, fault):
    """Five deaf ranks run by then, or will: they are killed and reaped, and their descriptors closed."""
    calls, pids = [], []
    logs = DefaultLogsSpecs(str(tmp_path), redirects=Std.ALL)
    ear = tmp_path / "ear"
    ear.touch()

    def fail_sixth(call: Callable[..., object], *args: object, **kwargs: object) -> object:
        if threading.current_thread().name != "supervise-host":
            return call(*args, **kwargs)
        calls.append(args)
        if len(calls) == 6:
            raise fault
        return call(*args, **kwargs)

    events: list[dict[str, object]] = []
    envs = {rank: {"EAR": str(ear)} for rank in range(8)}
    gang = make_gang(kind, [DEAF] * 8, grace=0.2, logs_specs=logs, envs=envs, event_sink=events.append)
    system_call("fork", fail_sixth) if kind == "fork" else breaking.instead(LAUNCHES[kind], fail_sixth)
    with pytest.raises((OSError, SpawnError), match="rank 5 ") as caught:
        gang.ask(Start(), timeout=PATIENCE_S)
    if isinstance(fault, OSError):
        found = caught.value
        assert (type(found), found.errno, found.filename) == (type(fault), fault.errno, fault.filename)
    else:
        assert caught.value.local_rank == 5
    assert caught.value.__cause__ is fault
    pids = [event["pid"] for event in events if event["event"] == "supervise.process.started"]
    assert len(pids) >= 5
    assert kind == "forkserver" or not any(map(psutil.pid_exists, pids))
    gang.stop(timeout=PATIENCE_S)


@pytest.mark.usefixtures("_nothing_stays")
@pytest.mark.parametrize("kind", ["spawn", "forkserver"])
def test_s9_an_argument_of_rank_5_that_cannot_be_pickled(kind):
    """Found before any process starts."""
    args = {rank: (threading.Lock() if rank == 5 else 1,) for rank in range(8)}
    with pytest.raises(SpecError, match=r"rank 5: double or one of its arguments .lock. cannot be pickled"):
        Supervisor.start(name="s9", entrypoint=work.double, args=args, start_method=kind, logs_specs=NO_FILES)


OUT_OF_FILES = """
import errno, gc, resource
from supervise._process.launch import limits
from supervise._runtime.wakeup import bell_for_this_thread

def fds():
    for thread in threading.enumerate():
        if thread.name.startswith("supervise-"):
            thread.join(20)
    gc.collect()
    return set(os.listdir("/proc/self/fd"))

start_gang(kind, ["pass"]).stop(timeout=40)  # what a first gang starts for good
assert bell_for_this_thread()  # and so does the first wait, which that gang may have been too fast for
limits.check_open_files = lambda *args, **kwargs: 0  # which would refuse most of them
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
before, full, ended = fds(), 0, 0
for spare in range({most}):
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + spare, hard))
    gang = None
    try:
        gang = make_gang(kind, ["signal.pause()"] * 4)
        gang.ask(Start(), timeout=40)
        ended += 1
    except OSError as error:
        assert error.errno == errno.EMFILE, error
        assert gang is None or "rank " in str(error), error
        full += 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        if gang is not None:
            gang.stop(timeout=40)
    assert fds() <= before, (spare, [(fd, os.readlink(f"/proc/self/fd/{{fd}}")) for fd in fds() - before])
    children = open(f"/proc/self/task/{{os.getpid()}}/children").read().split()
    assert kind == "forkserver" or not [pid for pid in children if "pause" in open(f"/proc/{{pid}}/cmdline").read()]
print(full > 3, ended > 0, flush=True)
"""


@pytest.mark.parametrize("kind", ["binary", "spawn", "fork"])  # Python's fork server dies of a request cut short
def test_s9_the_limit_of_open_files_is_reached(kind):
    """Wherever in a start it is reached: the error is EMFILE and names a rank; nothing stays open or running."""
    with Host(OUT_OF_FILES.format(most=36), kind, os.devnull) as host:
        assert host.hear() == "True True"
        assert host.exit_code() == 0
