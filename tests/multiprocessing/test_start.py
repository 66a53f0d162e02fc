"""Starts: what travels, where one may start, what a start leaves, and what its processes can be asked."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from supervise import SpecError, multiprocessing as mp
from tests.multiprocessing import work
from tests.multiprocessing.test_join import each_method, finish, sources
from tests.patience import PATIENCE_S
from tests.processes.gangs import Stopwatch


@each_method
def test_fifty_megabytes_of_arguments_travel(method, ear):
    mp.start_processes(work.measure, (ear.path, bytes(50 << 20)), 2, start_method=method)
    assert sorted(ear.hear() for _ in range(2)) == ["0 52428800", "1 52428800"]


@each_method
def test_queues_events_and_locks_are_arguments(method):
    own = mp.get_context(method)
    queue, event, lock = own.Queue(), own.Event(), own.Lock()
    context = mp.start_processes(work.put, (queue, event, lock), 3, join=False, start_method=method)
    event.set()
    assert sorted(queue.get(timeout=30) for _ in range(3)) == [0, 1, 2]
    finish(context)
    queue.close()
    queue.join_thread()


@each_method
def test_a_process_may_spawn(method, ear):
    mp.start_processes(work.nested, (ear.path,), 2, start_method=method)
    assert sorted(ear.hear() for _ in range(2)) == ["0 7", "1 7"]


@each_method
def test_a_process_waits_at_its_end_for_those_that_it_spawned(method, ear, gate):
    context = mp.start_processes(work.nested_unjoined, (ear.path, gate.path), join=False, start_method=method)
    heard = {ear.hear(), ear.hear()}
    assert "ending" in heard
    assert context.join(timeout=0) is False
    gate.tell()
    assert (context.join(timeout=PATIENCE_S), ear.hear()) == (True, "done")


def test_k2_the_end_of_the_thread_that_spawned_ends_no_process(ear, gate):
    """PyTorch's processes get a SIGINT there."""
    box = []
    thread = threading.Thread(target=lambda: box.append(mp.spawn(work.wait_and_say, (ear.path, gate.path), join=False)))
    thread.start()
    thread.join()
    ear.hear()
    gate.tell()
    assert (box[0].join(timeout=PATIENCE_S), ear.hear()) == (True, "done")


def test_spawn_joins_in_a_thread_too():
    box = []

    def work_in_thread():
        try:
            mp.spawn(work.run, sources("1 / 0"))
        except mp.ProcessRaisedException as error:
            box.append(error.error_index)

    thread = threading.Thread(target=work_in_thread)
    thread.start()
    thread.join(PATIENCE_S)
    assert box == [0]


def test_no_handler_is_installed():
    before = {sig: signal.getsignal(sig) for sig in signal.Signals}
    context = mp.spawn(work.run, sources("block()"), join=False)
    assert {sig: signal.getsignal(sig) for sig in signal.Signals} == before
    context.processes[0].kill()
    with pytest.raises(mp.ProcessExitedException, match="SIGKILL"):
        finish(context)


SAVES = """
import os, signal, sys, supervise.multiprocessing as mp

def work(rank):
    def save(*_):
        with open(f"saved {rank}", "w"):
            sys.exit(0)
    signal.signal(signal.Signals[sys.argv[1]], save)
    print("ready", flush=True)
    signal.pause()

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGHUP])
def test_ranks_save_before_a_signal_ends_their_program(tmp_path, sig):
    """It has no handler. Its ranks have sessions of their own, so that a signal to its group does not reach them."""
    (tmp_path / "program.py").write_text(SAVES)
    command = [sys.executable, "program.py", sig.name]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert [program.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        program.send_signal(sig)
        assert program.wait(PATIENCE_S) == -sig
    assert sorted(path.name for path in tmp_path.glob("saved *")) == ["saved 0", "saved 1"]


def test_environment_is_inherited_and_no_file_is_made(ear, temporary_folder, monkeypatch):
    monkeypatch.setenv("OF_THE_HOST", "inherited")
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    mp.spawn(work.tell_environment, (ear.path,))
    assert ear.hear() == "inherited False"
    with pytest.raises(mp.ProcessRaisedException):
        mp.spawn(work.run, sources("1 / 0"))
    assert list(temporary_folder.iterdir()) == []


def test_an_error_file_of_the_host_is_not_written(tmp_path, monkeypatch):
    """It is for what the host itself dies of."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    with pytest.raises(mp.ProcessRaisedException):
        mp.spawn(work.run, sources("1 / 0"))
    assert not (tmp_path / "error.json").exists()


def test_output_is_inherited(capfd):
    mp.spawn(work.run, sources("print('out', flush=True); os.system('echo err >&2')"))
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("out\n", "err\n")


def test_a_trace_that_cannot_be_sent_is_printed(capfd):
    with pytest.raises(mp.ProcessExitedException, match="exit code 1"):
        mp.spawn(work.run, sources("os.closerange(3, 4096); raise LookupError('no way home')"))
    assert "LookupError: no way home" in capfd.readouterr().err


def test_a_trace_is_sent_although_its_process_is_stopped_meanwhile():
    """As it is if several fail together."""
    text = "class Odd(Exception):\n    def __str__(self):\n        os.kill(os.getpid(), 15)\n        return 'why'\n"
    with pytest.raises(mp.ProcessRaisedException, match="Odd: why"):
        mp.spawn(work.run, sources(f"{text}raise Odd"))


def test_the_surface_of_a_process(ear, gate):
    context = mp.spawn(work.wait_and_say, (ear.path, gate.path), 1, join=False, daemon=True)
    (process,) = context.processes
    assert (str(process.pid), context.pids(), process.ident) == (ear.hear(), [process.pid], process.pid)
    assert (process.is_alive(), process.exitcode, process.daemon) == (True, None, True)
    assert context.sentinels == {process.sentinel: 0}
    assert context.error_files == [""]
    assert f"name={process.name!r} pid={process.pid}" in repr(process)
    process.join(timeout=0)
    with pytest.raises(ValueError, match="still running"):
        process.close()
    process.terminate()
    process.join(PATIENCE_S)
    assert (process.is_alive(), process.exitcode) == (False, -15)
    process.kill()
    process.close()
    with pytest.raises(mp.ProcessExitedException, match="process 0 terminated with signal SIGTERM"):
        context.join()


def test_what_cannot_be_pickled_is_refused_before_any_start():
    before = psutil.Process().children()
    with pytest.raises(SpecError, match="cannot be pickled"):
        mp.spawn(work.run, (work.Unpicklable(),))
    assert psutil.Process().children() == before


def test_a_function_is_wanted():
    with pytest.raises(TypeError, match="give a function"):
        mp.spawn("true")
    with pytest.raises(ValueError, match="cannot find context for 'thread'"):
        mp.start_processes(work.run, start_method="thread")


PROGRAM = """
import signal, sys
from supervise import multiprocessing as mp
from tests.multiprocessing import work

if __name__ == "__main__":
    how = sys.argv[3]
    context = mp.spawn(work.wait_and_say, sys.argv[1:3], join=how == "spawning", daemon=how == "daemon")
    if how == "interrupted":
        signal.raise_signal(signal.SIGINT)
    if how == "joining":
        context.join()
    if how == "joining one":
        context.processes[0].join()
    if how == "elsewhere":
        signal.pause()
"""


def program(tmp_path, ear, gate, how):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    return subprocess.Popen([sys.executable, path, ear.path, gate.path, how], env=env, stderr=subprocess.DEVNULL)


def test_the_interpreter_waits_for_its_processes_at_its_exit(tmp_path, ear, gate):
    with program(tmp_path, ear, gate, "plain") as host:
        pid = int(ear.hear())
        gate.tell()
        assert (ear.hear(), host.wait(PATIENCE_S)) == ("done", 0)
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("how", ["daemon", "interrupted"])
def test_the_interpreter_ends_daemons_and_after_an_interrupt_all(tmp_path, ear, gate, how):
    with Stopwatch() as watch, program(tmp_path, ear, gate, how) as host:
        host.wait(PATIENCE_S)
    assert watch.seconds < PATIENCE_S


@pytest.mark.parametrize("how", ["joining", "spawning", "joining one", "elsewhere"])
def test_ctrl_c_reaches_the_processes(tmp_path, ear, gate, how):
    """From a join, or at the exit of an interpreter that was elsewhere."""
    with program(tmp_path, ear, gate, how) as host:
        pid = int(ear.hear())
        host.send_signal(signal.SIGINT)
        assert host.wait(PATIENCE_S) in (-signal.SIGINT, 130)
    assert not psutil.pid_exists(pid)


@each_method
def test_the_identity_of_a_process_is_the_number_in_its_name(method, ear):
    """By which programs number their workers, and multiprocessing names the processes of each."""
    context = mp.start_processes(work.say_identity, (ear.path,), nprocs=2, join=False, start_method=method)
    heard = sorted(ear.hear() for _ in range(2))
    finish(context)
    for index, line in enumerate(heard):
        name = context.processes[index].name
        number = name.rpartition("-")[2]
        assert line == f"{index} {name} ({number},) ForkProcess-{number}:1"


def test_the_processes_are_among_the_active_children(ear, gate):
    context = mp.spawn(work.wait_and_say, (ear.path, gate.path), nprocs=2, join=False)
    heard = {ear.hear(), ear.hear()}
    assert {str(process.pid) for process in mp.active_children()} == heard
    for process in mp.active_children():
        process.kill()
    for process in context.processes:
        process.join(PATIENCE_S)
    assert mp.active_children() == []
