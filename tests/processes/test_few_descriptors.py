"""A host that runs out of descriptors while its gang runs or ends: nothing is lost, nothing survives, nothing leaks."""

import os
import re
import resource
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

import psutil
import pytest

from supervise import Close, DefaultLogsSpecs, RestartPolicy, SpecError, Start, Status, Std, Supervisor
from supervise._process.containment.groups import members
from supervise._process.launch.fork_server import check_room
from supervise.events import EventLog
from tests.patience import PATIENCE_S
from tests.processes.gangs import each_kind, faulty
from tests.processes.hosts import pids_of, watched
from tests.processes.test_containment import DEAF_FORKED

ROOT = Path(__file__).parents[2]


def open_fds() -> set[int]:
    return {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Leave this process so many descriptors and no more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        if not count:  # nor those that are given back meanwhile
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
            yield
            return
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_fds()) + 20, before[1]))
        with suppress(OSError):  # too many open files, at last
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for fd in taken[:count]:
            os.close(fd)
        del taken[:count]
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


LEAVES_DEAF_CHILD = """
pid = os.fork()
if not pid:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(str(os.getpid()))
    while True: signal.pause()
wait_for_word()
os._exit(3)
"""


@each_kind
def test_s3_a_close_without_descriptors_waits_for_who_is_left_of_a_group(tmp_path, kind):
    """Who that is cannot be found out at first; it is not taken for nobody, and the gang does not crash."""
    with faulty(tmp_path, kind, [LEAVES_DEAF_CHILD], grace=60.0) as gang:
        child = psutil.Process(int(gang.hear()[0]))
        gang.tell(0)
        gang.wait()
        with descriptors_left(0):
            closing = gang.supervisor.ask(Close(timeout=0.2), block=False)
            assert gang.ask(Status()).leftovers == {0}
            gang.await_event("supervise.process.signaled", signal="SIGKILL")
        assert closing.get(timeout=30).failures[0].exitcode == 3
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_s4_a_sweep_without_descriptors_looks_again_and_takes_nobody_for_gone(tmp_path, breaking):
    """It cannot look at first; as soon as it can, the daemon is found and ended."""
    looks: SimpleQueue[None] = SimpleQueue()

    def look(real, *what, **how):
        try:
            return real(*what, **how)
        finally:
            looks.put(None)

    breaking.instead("look for escaped processes", look)
    with faulty(tmp_path, "binary", [DEAF_FORKED + "sys.exit(3)"], grace=60.0, containment="sweep") as gang:
        (daemon,) = pids_of(gang.hear())
        gang.wait()
        with watched([daemon]) as watch:
            with descriptors_left(0):
                closing = gang.supervisor.ask(Close(timeout=0.0), block=False)
                for _ in range(2):
                    looks.get(timeout=30)
                assert watch.survivors(0) == {daemon}
            closing.get(timeout=30)
            assert watch.survivors(0) == set()
        leaked = gang.await_event("supervise.process.leaked")
        assert (leaked["descendants"], leaked["ended"]) == ([daemon], True)


def test_who_is_in_a_group_is_an_error_where_it_cannot_be_found_out():
    with descriptors_left(0), pytest.raises(OSError, match="Too many open files"):
        members(os.getpgid(0))
    for member in members(os.getpgid(0)):
        member.close()


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_fork_server_is_not_asked_where_descriptors_lack_and_none_leaks(count):
    before = open_fds()
    with descriptors_left(count), pytest.raises(OSError, match="Too many open files"):
        check_room()
    assert len(open_fds()) == len(before)


@pytest.mark.parametrize("module", [None, types.ModuleType("structlog")], ids=["none", "half of it"])
def test_an_event_needs_no_structlog(monkeypatch, caplog, module):
    """Half a module is what another thread leaves while it imports; the loop of a gang never waits for that."""
    monkeypatch.setitem(sys.modules, "structlog", module)
    monkeypatch.delitem(sys.modules, "structlog.contextvars", raising=False)
    with caplog.at_level("INFO", logger="supervise"):
        EventLog({"gang": "x"}).emit("supervise.gang.starting")
    assert [record.supervise["gang"] for record in caplog.records] == ["x"]


@pytest.mark.parametrize("count", range(16))
def test_s9_a_start_with_few_descriptors_fails_whole_and_keeps_none(tmp_path, count, breaking):
    """Whichever part of it is the first to get none, when another thread took them after we had counted."""
    breaking.instead("check of open files", lambda *_, **__: 0)
    specs = DefaultLogsSpecs(str(tmp_path), tee=Std.ALL)
    gang = Supervisor.start(
        name="few",
        entrypoint="/bin/sh",
        args=dict.fromkeys(range(2), ("-c", "echo out; echo err >&2")),
        logs_specs=specs,
        duplicate_stdout_filters=["out"],
        duplicate_stderr_filters=["err"],
    )
    try:
        with descriptors_left(count), suppress(OSError, SpecError):
            gang.ask(Start(), timeout=30)
        with suppress(OSError):
            gang.ask(Close(timeout=1), timeout=30)
    finally:
        gang.stop(timeout=30)


@each_kind
def test_r6_a_restart_without_descriptors_is_tried_again_until_there_are_some(tmp_path, kind):
    """Each attempt is a failure of the rank that could not be launched; the gang goes on once descriptors are free."""
    source = "say(os.environ['TORCHELASTIC_RESTART_COUNT']); wait_for_word(); sys.exit(3 if ATTEMPT == '0' else 0)"
    source = source.replace("ATTEMPT", "os.environ['TORCHELASTIC_RESTART_COUNT']")
    policy = RestartPolicy(max_restarts=10_000, backoff=0.05, within_s=0.01)
    with faulty(tmp_path, kind, [source] * 2, restart_policy=policy) as gang:
        gang.hear(2)
        with descriptors_left(0):
            gang.tell(0)
            gang.await_event("supervise.gang.restarting", attempt=3)
        attempts = gang.hear(2)
        assert attempts[0] == attempts[1]
        gang.tell(0)
        gang.tell(1)
        result = gang.wait()
    assert result.outcome == "succeeded"
    assert {each.end.pid for each in result.restarts if each.attempt in (1, 2)} == {None}


LIMITED = """
import re, resource
import supervise

def work():
    return 1

if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (WANTED, hard))
    try:
        print(len(supervise.run(work, n=12)))
    except supervise.SpecError as error:
        print(re.search("ulimit -n (.*)", str(error))[1])
"""


@pytest.mark.parametrize("limit", [60, 64])
def test_the_advised_limit_is_enough_for_a_call(tmp_path, limit):
    """Whichever check refuses the start: the first, before any file is made, or the last."""
    script = tmp_path / "script.py"
    for expected in ("advice", "12"):
        script.write_text(LIMITED.replace("WANTED", str(limit)))
        said = in_a_process([sys.executable, str(script)])
        if expected == "advice":
            assert int(said) > limit
            limit = int(said)
        else:
            assert said.strip() == "12"


@pytest.mark.parametrize("limit", [50, 60, 85])
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--stdin", "all"),
        ("--duplicate-stdout-filters", "a", "--duplicate-stderr-filters", "b", "--output-timeout", "100", "-t", "3"),
    ],
    ids=["usual", "stdin", "filters"],
)
def test_the_advised_limit_is_enough_for_a_command(tmp_path, limit, words):
    """As with the call."""
    command = [sys.executable, "-m", "supervise", "run", "-q", "--log-dir", str(tmp_path), "-n", "24", *words, "true"]
    refused = in_a_process(["sh", "-c", f'ulimit -S -n {limit}; exec "$@" 2>&1', "sh", *command])
    found = re.search("ulimit -n (.*)", refused)
    assert found is not None
    assert in_a_process(["sh", "-c", f'ulimit -S -n {found[1]}; exec "$@" 2>&1', "sh", *command]) == ""


def in_a_process(command: list[str]) -> str:
    """Return the output of a command."""
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=PATIENCE_S,
        text=True,
        check=False,
    )
    return done.stdout
