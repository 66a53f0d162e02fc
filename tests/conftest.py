"""After every test nothing may be left: no process, zombie, actor, thread, file descriptor or control group.

The test process is a subreaper, so an orphaned grandchild becomes our child and cannot hide. A process that we started
ourselves must be gone and reaped when the test ends. An orphan that we inherited gets a few seconds to die, and is
reaped here, as init would do. What `multiprocessing` keeps for a whole session (fork server, resource tracker) is
started before the first test and is no leak.
"""

import ctypes
import functools
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import psutil
import pykka
import pytest
from hypothesis import HealthCheck, settings

from supervise._process.launch import posix_spawn
from supervise._runtime.wakeup import bell_for_this_thread
from tests import surroundings
from tests.breaking import breaking
from tests.faults import holes, no_launch, no_threads, py_spy, scarce_pidfds, system_call, temporary_folder
from tests.kernels import own_control_groups
from tests.parts import (
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_generate_tests,
    pytest_report_header,
)
from tests.rewriting import pytest_sessionstart
from tests.times import (
    collecting_takes,
    console_ends_at_once,
    heartbeats_are_not_read,
    idle_clients_go_at_once,
    impatient_console,
    impatient_server,
    patient_console,
    patient_reports,
    patient_shutdown,
    polls_are_rare,
    reloads_may_begin_late,
    short_start_limit,
    slow_clients_go_soon,
    stacks_may_come_late,
    stuck_destination_is_given_up_soon,
    trackers_have_time,
)

__all__ = [
    "breaking",
    "collecting_takes",
    "console_ends_at_once",
    "heartbeats_are_not_read",
    "holes",
    "idle_clients_go_at_once",
    "impatient_console",
    "impatient_server",
    "no_launch",
    "no_threads",
    "patient_console",
    "patient_reports",
    "patient_shutdown",
    "polls_are_rare",
    "py_spy",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_generate_tests",
    "pytest_report_header",
    "pytest_sessionstart",
    "reloads_may_begin_late",
    "scarce_pidfds",
    "short_start_limit",
    "slow_clients_go_soon",
    "stacks_may_come_late",
    "stuck_destination_is_given_up_soon",
    "system_call",
    "temporary_folder",
    "trackers_have_time",
]

surroundings.reset()  # before the first test, and in the worker processes of xdist
# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("supervise", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("supervise")

PATIENCE_S = 20.0
"""How long orphans, ending threads and closing descriptors may take."""
STARTED_HERE: set[int] = set()
"""Pids of the processes that this process itself started during the current test."""


def _remember_children(owner: object, name: str) -> None:
    """Make ``owner.name``, which starts a process and returns its pid, or pid and pidfd, note that pid."""
    start: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(start)
    def remembering(*args: object, **kwargs: object) -> object:
        started = start(*args, **kwargs)
        STARTED_HERE.add(started[0] if isinstance(started, tuple) else started)
        return started

    setattr(owner, name, remembering)


# At import, hence before any module of ours can take the plain function with `from os import ...`.
for _module, _name in (
    (os, "fork"),
    (os, "posix_spawn"),
    (os, "posix_spawnp"),
    (posix_spawn, "spawn"),
    (subprocess, "_fork_exec"),
    (sys.modules["_posixsubprocess"], "fork_exec"),
):
    _remember_children(_module, _name)
posix_spawn._replaced = lambda: ""  # the functions above are no debugger's


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is marked ``own_pids`` by itself in a pid namespace: it has numbers used again.

    Elsewhere that would happen to whatever runs at the same time, other tests among it.
    """
    if pyfuncitem.get_closest_marker("own_pids") is None or "SUPERVISE_OWN_PIDS" in os.environ:
        return None
    apart = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False, stderr=-3).returncode:
        pytest.skip("no pid namespace can be made here, so no number can be used again")
    words = ["-q", "-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    with tempfile.TemporaryDirectory() as base:
        done = subprocess.run(
            # sh is the init of the namespace
            [*apart, "sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-m", "pytest", f"--basetemp={base}", *words],
            check=False,
            cwd=pyfuncitem.config.rootpath,
            env={**os.environ, "SUPERVISE_OWN_PIDS": "1"},
            stdout=-1,
            text=True,
            timeout=50,
        )
    assert done.returncode == 0, done.stdout
    if "1 passed" not in done.stdout:
        pytest.skip(done.stdout)
    return True


def settle_down() -> None:
    """Adopt orphans, and start what lives as long as this process."""
    pr_set_child_subreaper = 36
    assert ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0) == 0
    _keep_fork_server()
    assert bell_for_this_thread()  # what the main thread waits with stays for the life of a process


@pytest.fixture(scope="session", autouse=True)
def _one_household(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have what lives for the session; keep the runs of `supervise run`, and of pytest, in folders of this session."""
    settle_down()
    os.environ["SUPERVISE_RUNS_DIR"] = str(tmp_path_factory.mktemp("runs"))
    gc.collect()
    gc.freeze()  # a collection during a test looks at what tests made, not at every module: a tenth of a second each
    # Without a folder of its own, a pytest that a test starts removes what earlier sessions have left: up to a minute.
    # Its path is short: tests bind sockets below it. The exit of a forked child would remove a TemporaryDirectory
    os.environ["PYTEST_DEBUG_TEMPROOT"] = folder = tempfile.mkdtemp(prefix="pytests-")
    yield
    shutil.rmtree(folder, ignore_errors=True)
    forkserver._forkserver._stop()


@pytest.fixture(autouse=True)
def _no_leaks(_one_household: None) -> Iterator[None]:
    """Fail the test that leaves something behind, name it, and clear it away for the next test."""
    _keep_fork_server()
    STARTED_HERE.clear()
    processes, threads, fds = _descendants(), set(threading.enumerate()), _open_fds()
    actors, groups = set(_actors()), own_control_groups()
    yield
    _keep_fork_server()
    left = [
        *_end_actors(actors),
        *_end_threads(threads),  # one of them may reap a process
        *_end_processes(processes),
        *_await_fds(fds),
        *_remove_control_groups(groups),
    ]
    if left:
        pytest.fail("this test left behind:\n  " + "\n  ".join(left), pytrace=False)


def _keep_fork_server() -> None:
    """Have a fork server and a resource tracker, although a test may have killed one."""
    server = forkserver._forkserver
    try:
        server.ensure_running()
    except ChildProcessError:  # killed, and reaped behind its back
        os.close(server._forkserver_alive_fd)
        server._forkserver_pid = server._forkserver_alive_fd = server._forkserver_address = None
        server.ensure_running()


def _descendants() -> set[psutil.Process]:
    """Every process below this one; equality is by pid and start time, so a reused pid is another process."""
    session = {forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():  # a kernel without CONFIG_PROC_CHILDREN
        return {p for p in psutil.Process().children(recursive=True) if p.pid not in session}
    found, look = set(), [os.getpid()]
    while look:  # psutil would read the state of every process on the machine, three times a test
        for pid in _children(look.pop()):
            look.append(pid)
            if pid not in session:
                with suppress(psutil.NoSuchProcess):
                    found.add(psutil.Process(pid))
    return found


def _children(pid: int) -> Iterator[int]:
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for thread in os.listdir(folder := f"/proc/{pid}/task"):  # noqa: PTH208 - as below
            with open(f"{folder}/{thread}/children", encoding="ascii") as file:  # noqa: PTH123
                yield from map(int, file.read().split())


def _end_processes(before: set[psutil.Process]) -> list[str]:
    give_up_s = time.monotonic() + PATIENCE_S
    # Again until there is none: a process whose parent exits during the look is below neither when each is looked at
    while strays := [p for p in _descendants() - before if p.pid not in STARTED_HERE]:
        if (left_s := give_up_s - time.monotonic()) <= 0:
            break
        psutil.wait_procs(strays, timeout=left_s)  # blocks on the kernel's notice; reaps those we adopted
    left = _descendants() - before
    names = [_describe_process(p) for p in sorted(left, key=lambda p: p.pid)]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=PATIENCE_S)
    return names


def _describe_process(process: psutil.Process) -> str:
    kind = "child" if process.pid in STARTED_HERE else "stray"
    try:
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return f"zombie: {kind} pid {process.pid} ({process.name()}), never reaped"
            command = " ".join(process.cmdline()) or process.name()
            return f"process: {kind} pid {process.pid}, {process.status()}: {command[:300]}"
    except psutil.NoSuchProcess:
        return f"process: {kind} pid {process.pid}, which ended while it was being described"


def _actors() -> list[pykka.ActorRef[pykka.Actor]]:
    return pykka.ActorRegistry.get_all()


def _end_actors(before: set[pykka.ActorRef[pykka.Actor]]) -> list[str]:
    until = time.monotonic() + PATIENCE_S
    left = [ref for ref in _actors() if ref not in before]
    left = [ref for ref in left if not ref.actor_stopped.wait(max(0.0, until - time.monotonic()))]
    for ref in reversed(left):
        with suppress(pykka.Timeout, pykka.ActorDeadError):
            ref.stop(timeout=PATIENCE_S)
    return [f"actor: {ref}" for ref in left]


def _end_threads(before: set[threading.Thread]) -> list[str]:
    until = time.monotonic() + PATIENCE_S
    new, pause = set(threading.enumerate()) - before, threading.Event()
    for thread in new:
        while time.monotonic() < until:
            try:
                thread.join(max(0.0, until - time.monotonic()))
            except RuntimeError:  # it is about to begin, and cannot be joined before
                pause.wait(0.01)
            else:
                break
    return [f"thread: {t.name}{' (daemon)' if t.daemon else ''}" for t in new if t.is_alive()]


def _open_fds() -> dict[int, str]:
    """What each open descriptor of this process leads to."""
    fds = {}
    for name in os.listdir(folder := "/proc/self/fd"):  # noqa: PTH208 - a Path of each takes a millisecond a test
        with suppress(OSError):  # the directory's own descriptor is closed by now
            fds[int(name)] = os.readlink(f"{folder}/{name}")  # noqa: PTH115
    for kept in (forkserver._forkserver._forkserver_alive_fd, resource_tracker._resource_tracker._fd):
        fds.pop(kept, None)
    return fds


def _await_fds(before: dict[int, str]) -> list[str]:
    until = time.monotonic() + PATIENCE_S
    pause = threading.Event()  # the kernel tells nobody when a descriptor is closed
    while left := {fd: target for fd, target in _open_fds().items() if fd not in before}:
        gc.collect()
        if time.monotonic() >= until:
            break
        pause.wait(0.01)
    return [f"descriptor: {fd} -> {target}" for fd, target in left.items()]


def _remove_control_groups(before: set[Path]) -> list[str]:
    left = sorted(own_control_groups() - before)
    for group in left:
        for folder, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):  # a process is in it
                Path(folder).rmdir()
    return [f"control group: {group}" for group in left]
