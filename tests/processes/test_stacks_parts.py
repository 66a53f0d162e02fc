"""The parts of stacks: the summary, what ranks and the kernel write, and a py-spy or a file system that blocks."""

import os
import select
import signal
import subprocess
import threading
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from supervise import RankStacks, StackFrame, Stacks, SuperviseError, ThreadStack, group_stacks
from supervise._process.stacks import gather, gather as runs
from supervise._process.stacks.gather import Gather, parsed, with_states
from tests.patience import PATIENCE_S
from tests.processes.gangs import Fifo, faulty
from tests.processes.test_unreapable import traced

WAITS = "say('runs')\nwait_for_word()"


@pytest.fixture
def py_spy_starts(monkeypatch):
    """Start py-spy by another function, and nothing else."""

    def by(start):
        names = {name: getattr(subprocess, name) for name in ("DEVNULL", "PIPE", "TimeoutExpired")}
        monkeypatch.setattr(runs, "subprocess", SimpleNamespace(Popen=start, **names))

    return by


@pytest.fixture
def patient(collecting_takes):
    """Let a run of py-spy take long."""
    collecting_takes("one run of py-spy", PATIENCE_S)
    collecting_takes("py-spy", PATIENCE_S)


@pytest.fixture
def blocked(tmp_path, py_spy, py_spy_starts, collecting_takes):
    """A running gang of one rank. The start of py-spy blocks until `answers` is set."""
    collecting_takes("kernel", PATIENCE_S)
    collecting_takes("py-spy", PATIENCE_S)
    begun, answers = threading.Event(), threading.Event()

    def start(*args, **kwargs):
        begun.set()
        assert answers.wait(PATIENCE_S)
        return subprocess.Popen(*args, **kwargs)

    py_spy("exit 1")
    py_spy_starts(start)
    with faulty(tmp_path, "binary", [WAITS]) as gang:
        gang.hear()
        gang.answers = answers
        gang.reply = gang.supervisor.ask(Stacks(), block=False)
        assert begun.wait(PATIENCE_S)
        yield gang
        answers.set()
        for thread in collecting():  # it starts py-spy only now, and reaps it
            thread.join(PATIENCE_S)


def collecting():
    return [thread for thread in threading.enumerate() if thread.name == "supervise-stacks"]


def test_a_blocked_collection_is_answered_with_what_it_has_found(blocked):
    """Later ones leave py-spy out until the thread has ended."""
    found = blocked.reply.get(timeout=PATIENCE_S)
    assert (found[0].source, found[0].notes) == ("kernel", ())
    assert found[0].threads[0].state
    (thread,) = collecting()
    second = blocked.ask(Stacks())
    assert second[0].notes[0] == "py-spy is not run: an earlier collection of stacks is still blocked"
    assert second[0].source == "kernel"
    blocked.answers.set()
    thread.join(PATIENCE_S)
    assert not blocked.ask(Stacks())[0].notes[0].startswith("py-spy is not run")


def test_a_stop_does_not_wait_for_a_blocked_collection(blocked):
    blocked.tell(0)
    blocked.wait()
    blocked.supervisor.stop(timeout=PATIENCE_S)
    assert not blocked.answers.is_set()
    with pytest.raises(SuperviseError, match="stopped while it collected stacks"):
        blocked.reply.get(timeout=PATIENCE_S)


def test_a_run_that_leaves_its_pipes_open_is_given_up(tmp_path, collecting_takes):
    """Its child has them after it was killed."""
    collecting_takes("one run of py-spy", 3.0)
    collecting_takes("py-spy", PATIENCE_S)
    ear, gate = Fifo(tmp_path / "ear"), Fifo(tmp_path / "gate")
    program = tmp_path / "py-spy"
    child = f"(echo begun > {ear.path}; read word < {gate.path}; echo ended > {ear.path})"
    program.write_text(f"#!/bin/sh\n{child} &\nwait\n")
    program.chmod(0o755)
    said = SimpleQueue()

    def run():
        said.put(collection()._run_once(str(program), os.getpid()))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert said.get(timeout=PATIENCE_S / 2) == "py-spy took too long"
    finally:
        gate.tell()
        thread.join(PATIENCE_S)
        if ear.hear() == "begun":
            ear.hear()
        ear.close()
        gate.close()


def collection():
    """Return a collection that has just begun."""
    return Gather({0: os.getpid()}, lambda *_: SimpleQueue())


def test_a_killed_run_that_ends_late_holds_up_no_cancel(py_spy_starts, patient):
    """A tracer delays the reap, as a file system may. The collecting thread reaps the run later."""
    spy, started, said = collection(), SimpleQueue(), SimpleQueue()

    def start(*_, **pipes):
        started.put(process := subprocess.Popen(["sleep", "1000"], **pipes))
        return process

    py_spy_starts(start)
    thread = threading.Thread(target=lambda: said.put(spy._run_once("sleep", os.getpid())))
    thread.start()
    process = started.get(timeout=PATIENCE_S)
    with traced(process.pid):
        while process not in spy._runs:
            select.select([], [], [], 0.01)
        spy.cancel(0.1)
        assert process.returncode is None
    thread.join(PATIENCE_S)
    assert (said.get_nowait(), process.returncode) == ("py-spy: no output", -signal.SIGKILL)


def test_a_run_that_starts_after_the_cancel_is_killed(py_spy_starts, patient):
    spy = collection()

    def start(*_, **pipes):
        spy.cancel()
        return subprocess.Popen(["sleep", "1000"], **pipes)

    py_spy_starts(start)
    assert spy._run_once("sleep", os.getpid()) == "py-spy: no output"
    assert spy._run_once("sleep", os.getpid()) == "the request was canceled"


PID = 7


def rank(*calls, source="py-spy", **more):
    """A rank whose main thread has these calls, the innermost first: (function, file, line)."""
    frames = tuple(StackFrame(function=name, file=file, line=line) for name, file, line in calls)
    return RankStacks(pid=PID, source=source, threads=(ThreadStack(tid=PID, frames=frames, **more),))


REDUCE = rank(("all_reduce", "/home/you/train.py", 88), ("main", "/home/you/train.py", 9))
LOAD = rank(("load_batch", "/home/you/data.py", 41))


def test_equal_places_are_one_line_and_the_odd_one_is_first():
    found = {number: LOAD if number == 3 else REDUCE for number in range(8)}
    assert group_stacks(found) == ["rank 3: load_batch (data.py:41)", "ranks 0-2, 4-7: all_reduce (train.py:88)"]
    assert group_stacks({}) == []


def test_equal_places_with_different_callers_are_different_stacks():
    """Two loops that wait in one function: each line says which it is; calls of libraries do not count."""
    other = rank(("all_reduce", "/home/you/train.py", 88), ("validate", "/home/you/train.py", 41))
    library = rank(
        *[(each.function, each.file, each.line) for each in REDUCE.threads[0].frames],
        ("run", "/x/lib/python3.11/runpy.py", 1),
    )
    assert group_stacks({0: REDUCE, 1: other, 2: library, 3: LOAD}) == [
        "rank 1: all_reduce (train.py:88), called by validate (train.py:41)",
        "rank 3: load_batch (data.py:41)",
        "ranks 0, 2: all_reduce (train.py:88), called by main (train.py:9)",
    ]
    outermost = rank(("all_reduce", "/home/you/train.py", 88))
    assert group_stacks({0: REDUCE, 1: outermost})[1] == "rank 1: all_reduce (train.py:88), the outermost call"


def test_groups_of_one_size_are_in_the_order_of_ranks():
    assert [line[:6] for line in group_stacks({1: LOAD, 0: REDUCE})] == ["rank 0", "rank 1"]


def test_a_call_of_a_library_follows_that_of_the_user():
    waits = rank(("Event.wait", "/usr/lib/python3.11/threading.py", 327), ("load_batch", "data.py", 41))
    assert group_stacks({0: waits}) == ["rank 0: load_batch (data.py:41), in wait (threading.py:327)"]
    alone = rank(("wait", "/usr/lib/python3.11/threading.py", 327))
    assert group_stacks({0: alone}) == ["rank 0: wait (threading.py:327)"]


def test_sources_that_name_a_method_differently_are_one_group():
    method = rank(("Trainer.step", "train.py", 3))
    assert group_stacks({0: method, 1: rank(("step", "train.py", 3), source="faulthandler")}) == [
        "ranks 0-1: step (train.py:3)"
    ]


def test_the_kernels_word_is_shown_where_there_are_no_frames():
    asleep = rank(source="kernel", state="S", syscall="poll", wchan="do_sys_poll")
    assert group_stacks({0: asleep}) == ["rank 0: no Python frames; the kernel: poll, do_sys_poll (state S)"]
    assert group_stacks({0: rank(source="kernel", state="T")}) == [
        "rank 0: no Python frames; the kernel: unknown (state T), suspended"
    ]
    assert group_stacks({0: RankStacks(pid=PID, source="kernel")}) == [
        "rank 0: no Python frames; the kernel: unknown (state unknown)"
    ]


OLD = """Thread 0x00007f01 (most recent call first):
  File "/a/data.py", line 41 in load_batch
  File "/usr/lib/python3.11/threading.py", line 975 in run

Current thread 0x00007f02 (most recent call first):
  File "/a/train.py", line 88 in all_reduce
  File "/a/train.py", line ??? in <module>
"""
NEW = """Thread 0x00007f01 [loader] (most recent call first):
  File "/a/data.py", line 41 in load_batch

Current thread 0x00007f02 [python] (most recent call first):
  <no Python frame>
"""


def test_the_output_of_faulthandler_is_read():
    main, other = parsed(OLD, PID)
    assert (main.name, main.tid, [(frame.function, frame.line) for frame in main.frames]) == (
        "MainThread",
        PID,
        [("all_reduce", 88), ("<module>", 0)],
    )
    assert (other.name, other.tid, [frame.function for frame in other.frames]) == ("", None, ["load_batch", "run"])
    assert [(thread.name, len(thread.frames)) for thread in parsed(NEW, PID)] == [("MainThread", 0), ("loader", 1)]
    (main,) = parsed('Stack (most recent call first):\n  File "a.py", line 1 in f\n', PID)
    assert main.frames == (StackFrame(function="f", file="a.py", line=1),)


@given(st.text())
def test_any_other_output_is_no_thread_or_a_thread(text):
    assert all(isinstance(thread, ThreadStack) for thread in parsed(text, PID))
    assert parsed(OLD + text, PID)


def test_threads_of_python_and_of_the_kernel_are_joined_by_number():
    kernel = {PID: ThreadStack(name="python", tid=PID, state="S"), 8: ThreadStack(name="native", tid=8, state="R")}
    main, native = with_states([ThreadStack(name="MainThread", tid=PID)], kernel)
    assert (main.name, main.state, native.name) == ("MainThread", "S", "native")


@pytest.mark.parametrize(
    ("line", "name"), [("running", ""), ("", ""), ("-1 0x7ff 0x7ff", ""), ("9999 0x1", "system call 9999")]
)
def test_a_line_of_a_system_call_has_a_name_or_a_number(line, name):
    assert gather.name_of(line) == name


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86_64")
def test_a_known_system_call_has_its_name():
    assert gather.name_of("202 0x1 0x2") == "futex"


def test_this_process_is_seen_by_the_kernel_and_a_gone_one_is_not():
    view = gather.kernel_view(os.getpid())
    assert next(iter(view)) == os.getpid()
    assert view[os.getpid()].state not in ("T", "t")
    assert gather.kernel_view(5_000_000) is None
    assert gather.signal_state(5_000_000, 61) is None
