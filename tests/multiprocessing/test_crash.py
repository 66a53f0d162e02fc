"""What goes wrong on the host's side still ends every process, and is told."""

import _thread
import multiprocessing
import threading

import pykka
import pytest

from supervise import Supervisor, multiprocessing as mp
from tests.breaking import crash
from tests.multiprocessing import work
from tests.multiprocessing.test_join import finish, sources
from tests.patience import PATIENCE_S


def test_a_crash_of_the_supervisor_is_told_by_the_join():
    context = mp.spawn(work.run, sources("block()", "block()"), 2, join=False)
    crash(context.processes[0]._gang, LookupError("injected"))
    with pytest.raises(mp.ProcessExitedException, match=r"terminated with exit code 255 \(.*injected"):
        finish(context)
    assert not any(process.is_alive() for process in context.processes)


def test_stopping_all_actors_stops_the_processes():
    context = mp.spawn(work.run, sources("block()", "block()"), 2, join=False)
    pykka.ActorRegistry.stop_all()
    with pytest.raises(mp.ProcessExitedException, match="terminated with signal SIGTERM"):
        finish(context)


def test_a_start_that_fails_raises_and_leaves_nothing(tmp_path):
    before = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable(str(tmp_path / "missing"))
    try:
        with pytest.raises(FileNotFoundError, match="rank 0 could not be started"):
            mp.spawn(work.return_lambda, nprocs=2)
    finally:
        multiprocessing.set_executable(before)


@pytest.mark.parametrize("early", [True, False])
def test_an_interrupt_during_the_start_leaves_nothing(breaking, early):
    begun = threading.Event()

    def interrupting(begin, supervisor):
        begun.set()
        if not early:
            _thread.interrupt_main()
        begin(supervisor)

    def interrupting_early(start, *args, **more):
        if early:
            _thread.interrupt_main()
        return start(*args, **more)

    breaking.instead("start of a gang's actor", interrupting_early)
    breaking.instead("run of a gang on a thread of its own", interrupting)
    with pytest.raises(KeyboardInterrupt):
        mp.spawn(work.run, sources("block()"))
    assert begun.wait(PATIENCE_S)
    for gang in pykka.ActorRegistry.get_by_class(Supervisor):
        assert gang.actor_stopped.wait(PATIENCE_S)


def test_an_interrupt_right_behind_the_first_thread_of_a_start_leaves_nothing(monkeypatch, breaking):
    start, begun = _thread.start_new_thread, threading.Event()

    def interrupted(function, args):
        start(function, args)
        raise KeyboardInterrupt

    breaking.instead("run of a gang on a thread of its own", lambda begin, gang: (begun.set(), begin(gang)))
    monkeypatch.setattr(_thread, "start_new_thread", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mp.spawn(work.run, sources("block()"))
    assert begun.wait(PATIENCE_S)
    for gang in pykka.ActorRegistry.get_by_class(Supervisor):
        assert gang.actor_stopped.wait(PATIENCE_S)


@pytest.mark.parametrize("join", [True, False])
def test_an_interrupt_right_behind_a_start_leaves_nothing(monkeypatch, join):
    """The caller has no context yet, with which the processes could be stopped."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(mp.ProcessContext, "__init__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mp.spawn(work.run, sources("block()"), join=join)
    for gang in pykka.ActorRegistry.get_by_class(Supervisor):
        assert gang.actor_stopped.wait(PATIENCE_S)


def test_a_memory_file_that_the_rank_overwrote_is_no_trace():
    """The exit code is told all the same."""
    overwrite = (
        "for fd in range(3, 64):\n"
        "    try: name = os.readlink(f'/proc/self/fd/{fd}')\n"
        "    except OSError: continue\n"
        "    if 'supervise-outcome' in name:\n"
        "        os.pwrite(fd, b'supervisv' + (4).to_bytes(8, sys.byteorder) + b'junk', 0)\n"
        "sys.exit(5)"
    )
    with pytest.raises(mp.ProcessExitedException, match=r"^process 0 terminated with exit code 5$"):
        mp.spawn(work.run, sources(overwrite))
