"""What a gang says of its end is the truth, for each way in which a rank can end."""

import json
import os
import pickle
import select
import signal
import sys
from pathlib import Path

import pytest

from supervise import (
    ChildFailedError,
    Close,
    DefaultLogsSpecs,
    ProcessFailure,
    Start,
    Subscribe,
    Supervisor,
    Wait,
    WorkerExited,
)
from supervise.testing import Recorder
from tests.kernels import HAS_PIDFD
from tests.patience import PATIENCE_S
from tests.processes.gangs import Stopwatch, each_function, each_kind, faulty, launched
from tests.processes.work import BLOCK, LOOK

WAIT = f"[({LOOK}) for _ in iter(int, 1)]"
"""Source of a rank that handles signals: one that came right before a pause() would be handled behind it."""

BARE = "binary", "fork"
"""Kinds that start fast enough for every case; the others get a sample."""
CODES = (1, 2, 3, 42, 64, 126, 127, 128, 137, 139, 254, 255)
HARMLESS = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
STOPPING = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
FATAL = sorted(set(signal.Signals) - HARMLESS - STOPPING)
SAMPLE = (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGRTMIN)

ENDS = [
    *(pytest.param(kind, f"os._exit({code})", code, id=f"{kind}-{code}") for kind in BARE for code in CODES),
    *(pytest.param(kind, f"die_of({int(s)})", -s, id=f"{kind}-{s.name}") for kind in BARE for s in FATAL),
    *(
        pytest.param(kind, f"os._exit({code})", code, id=f"{kind}-{code}")
        for kind in ("spawn", "forkserver")
        for code in (1, 77, 255)
    ),
    *(
        pytest.param(kind, f"die_of({int(s)})", -s, id=f"{kind}-{s.name}")
        for kind in ("spawn", "forkserver")
        for s in SAMPLE
    ),
]


@pytest.mark.parametrize(("kind", "fault", "code"), ENDS)
def test_o1_one_failure_ends_all_with_its_exact_code(tmp_path, kind, fault, code):
    """Each rank in turn: it alone is the failure, and nobody is left."""
    rank = abs(code) % 3
    sources = [BLOCK] * 3
    sources[rank] = fault
    with faulty(tmp_path, kind, sources) as gang:
        result = gang.wait()
    assert (result.is_failed(), result.outcome, result.root_cause) == (True, "failed", rank)
    assert {r: f.exitcode for r, f in result.failures.items()} == {rank: code}
    assert {r: e.exitcode for r, e in result.ends.items() if r != rank} == dict.fromkeys({0, 1, 2} - {rank}, -15)
    if code < 0:
        name = signal.Signals(-code).name
        assert result.failures[rank].signal_name() == name
        assert name in result.failures[rank].message


@each_kind
def test_o2_an_early_return_stops_nobody(tmp_path, kind):
    """Rank 0 is gone before the others go on; all values are there in the end."""
    late = "say('ready'); wait_for_word(); value = 'late'"
    with faulty(tmp_path, kind, ["value = 'early'", late, late]) as gang:
        gang.hear(2)
        first = gang.ask(Wait(timeout=0.3))  # rank 0 is gone or going; that must not be the end
        gang.tell(1)
        gang.tell(2)
        result = gang.wait()
    assert first is None
    assert (result.outcome, result.is_failed()) == ("succeeded", False)
    none = dict.fromkeys(range(3))
    assert result.return_values == (none if kind == "binary" else {0: "early", 1: "late", 2: "late"})
    assert {e.role for e in result.ends.values()} == {"finished"}


@each_function
@pytest.mark.parametrize(
    ("leave", "code", "words"),
    [
        ("sys.exit(0)", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit(256)", 0, "SystemExit: sys.exit(256): exit code 0 without a return value, as the kernel keeps only"),
        ("sys.exit(-512)", 0, "SystemExit: sys.exit(-512): exit code 0 without a return value, as the kernel keeps"),
        ("sys.exit(10**20)", 255, ""),
        ("sys.exit(-(10**20))", 255, ""),
        ("sys.exit(2**32)", 0, "sys.exit(4294967296): exit code 0 without a return value"),
        ("sys.exit('msg')", 1, "SystemExit: msg"),
        ("os._exit(0)", 0, "without a return value"),
        ("os._exit(3)", 3, ""),
    ],
)
def test_o3_leaving_by_exit_has_a_defined_result(tmp_path, kind, leave, code, words):
    """sys.exit(0) is success with None; an end without a value is a failure that says so; nothing hangs."""
    with faulty(tmp_path, kind, [f"say('ready'); wait_for_word(); {leave}"]) as gang:
        gang.hear()
        with Stopwatch() as watch:
            gang.tell(0)
            result = gang.wait()
    assert watch.seconds < PATIENCE_S / 2
    if (code, words) == (0, ""):
        assert (result.outcome, result.return_values) == ("succeeded", {0: None})
        return
    assert (result.outcome, result.failures[0].exitcode) == ("failed", code)
    message = result.failures[0].message
    assert words in (message if isinstance(message, str) else message["message"])
    if "msg" in leave:
        assert result.ends[0].stderr_tail.splitlines()[-1] == "msg"


@each_kind
def test_o4_ranks_that_we_stopped_are_not_blamed(tmp_path, kind):
    """One dies of our signal and one exits 1 over it; both are reported, and only rank 2 is a failure."""
    polite = f"signal.signal(signal.SIGTERM, lambda *_: os._exit(1)); say('ready'); {WAIT}"
    sources = [f"say('ready'); {BLOCK}", polite, "wait_for_word(); raise ValueError('mine')"]
    with faulty(tmp_path, kind, sources) as gang:
        gang.hear(2)
        gang.tell(2)
        result = gang.wait()
    assert {r: f.exitcode for r, f in result.failures.items()} == {2: 1}
    assert {r: (e.exitcode, e.role) for r, e in result.ends.items()} == {
        0: (-15, "bystander"),
        1: (1, "bystander"),
        2: (1, "root_cause"),
    }
    assert "mine" in str(result.failures[2].message) or "mine" in result.ends[2].stderr_tail


@each_function
def test_o4_a_failure_of_children_without_a_record_is_recorded_itself(tmp_path, kind):
    """`record` copies the record of the child that failed first; here SIGKILL has left none."""
    names = "from supervise.elastic.errors import ChildFailedError, ProcessFailure"
    source = f"{names}; raise ChildFailedError('c', {{0: ProcessFailure(0, 7, -9, '')}})"
    with faulty(tmp_path, kind, [source]) as gang:
        result = gang.wait()
    assert "Signal 9 (SIGKILL) received by PID 7" in result.failures[0].message["message"]


WITH_US = {rank: {"HOST_PATH": str(Path(__file__).parents[2])} for rank in range(3)}
"""For programs that import supervise."""

RECORD_THEN_LINGER = """
sys.path.insert(0, os.environ["HOST_PATH"])
import threading
from supervise.recording import record
signal.signal(signal.SIGTERM, lambda *_: os._exit(1))

def linger():
    while not os.path.exists(os.environ["TORCHELASTIC_ERROR_FILE"]):
        threading.Event().wait(0.01)
    say("recorded")
    {then}

def main():
    raise {error}

threading.Thread(target=linger).start()
{main}()
"""
"""A rank whose exception is recorded and leaves its function, and whose thread keeps its process alive."""


def lingering(kind, *, error='ValueError("the first")', then=WAIT):
    main = "record(main)" if kind == "binary" else "main"  # supervise records what leaves a function
    return RECORD_THEN_LINGER.format(error=error, then=then, main=main)


@each_kind
def test_o4_the_first_exception_is_the_cause_though_its_rank_dies_later(tmp_path, kind):
    """Rank 1 raises and takes its time to exit; rank 2 dies of the broken connection meanwhile."""
    sources = [BLOCK, lingering(kind), "wait_for_word(); os._exit(9)"]
    with faulty(tmp_path, kind, sources, envs=WITH_US) as gang:
        assert gang.hear() == ["recorded"]
        gang.tell(2)
        result = gang.wait()
    assert result.root_cause == 1
    assert list(result.failures) == [1, 2]
    assert "the first" in str(result.failures[1].message)
    assert {r: e.role for r, e in result.ends.items()} == {0: "bystander", 1: "root_cause", 2: "concurrent_failure"}
    assert result.ends[1].ended_ns > result.ends[2].ended_ns


SLOW_TO_TELL = """
class SlowError(Exception):
    def __str__(self):
        if SLOW and not told:
            told.append(True)
            say("raised")
            wait_for_word()
        return "mine"

told = []
"""


@each_kind
def test_o4_the_moment_of_an_exception_counts_and_not_when_its_record_was_written(tmp_path, kind):
    """Rank 1 raises first, and what it raises takes its time to be printed; rank 0 raises and is recorded meanwhile."""
    slow = SLOW_TO_TELL + lingering(kind, error="SlowError", then="wait_for_word(); os._exit(1)")
    sources = [f"wait_for_word()\nSLOW = False{slow}", f"SLOW = True{slow}"]
    envs = {rank: WITH_US[rank] for rank in range(2)}
    with faulty(tmp_path, kind, sources, envs=envs) as gang:
        assert gang.hear() == ["raised"]
        gang.tell(0)
        assert gang.hear() == ["recorded"]
        gang.tell(1)
        assert gang.hear() == ["recorded"]
        gang.tell(0)
        result = gang.wait()
    assert result.root_cause == 1
    assert list(result.failures) == [1, 0]


HANDLED = """
sys.path.insert(0, os.environ["HOST_PATH"])
from supervise.recording import record

@record
def attempt():
    raise ValueError("handled")

try:
    attempt()
except ValueError:
    say("handled")
"""
BY_A_CHILD = """
import subprocess
source = "import supervise\\n@supervise.record\\ndef main(): raise ValueError('handled')\\nmain()"
env = os.environ | {"PYTHONPATH": os.environ["HOST_PATH"]}
assert subprocess.run([sys.executable, "-c", source], env=env, stderr=-3).returncode
say("handled")
"""


@pytest.mark.parametrize("source", [HANDLED, BY_A_CHILD], ids=["itself", "a child"])
@pytest.mark.parametrize("end", ["a failure", "a close"])
@each_function
def test_o12_an_exception_that_a_function_has_handled_is_no_cause(tmp_path, kind, end, source):
    """Although it has a record: its rank runs on, and is well."""
    sources = [source + BLOCK, "wait_for_word(); raise RuntimeError('the cause')"]
    with faulty(tmp_path, kind, sources, envs={rank: WITH_US[rank] for rank in range(2)}) as gang:
        assert gang.hear() == ["handled"]
        if end == "a close":
            result = gang.ask(Close())
            assert (result.outcome, result.root_cause) == ("stopped", None)
            return
        gang.tell(1)
        result = gang.wait()
    assert (result.root_cause, list(result.failures), result.ends[0].role) == (1, [1], "bystander")


LINGERS = """
import threading
ear = os.open(os.environ["EAR"], os.O_WRONLY)

def linger():
    threading.main_thread().join()
    os.write(ear, b"left\\n")
    threading.Event().wait()

threading.Thread(target=linger).start()
"""
"""Of a rank that says when its main thread has left its function, even if it can open no file then, and lives on."""
NO_RECORD = {
    "no descriptors": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
    "another user": "os.setgid(65534); os.setuid(65534)",
    "another root folder": "os.chroot('/proc/self/fdinfo')",
    "another path": "os.environ['TORCHELASTIC_ERROR_FILE'] = '/nowhere/error.json'",
}


@pytest.mark.parametrize("how", NO_RECORD)
@each_function
def test_o4_a_function_that_cannot_write_its_record_tells_the_host(tmp_path, kind, how):
    """By its result channel: what it raised, and that it was the first, although its process ends last."""
    if how in ("another user", "another root folder") and os.geteuid():
        pytest.skip("needs root")
    sources = [f"{LINGERS}{NO_RECORD[how]}; raise ValueError('the first')", "wait_for_word(); os._exit(9)"]
    with faulty(tmp_path, kind, sources) as gang:
        assert gang.hear() == ["left"]
        gang.tell(1)
        result = gang.wait()
    assert result.root_cause == 0
    assert "ValueError: the first" in result.failures[0].message["message"]


ASYNCHRONOUS = """
import asyncio
sys.path.insert(0, os.environ["HOST_PATH"])
from supervise.recording import record

@record
async def main(error):
    await asyncio.sleep(0)
    raise error

assert asyncio.run(main(SystemExit(0))) is None
asyncio.run(main(ValueError("in a coroutine")))
"""


def test_what_leaves_a_recorded_coroutine_is_recorded(tmp_path):
    """Its function only makes it."""
    with faulty(tmp_path, "binary", [ASYNCHRONOUS], envs={0: WITH_US[0]}) as gang:
        failure = gang.wait().failures[0]
    assert failure.exitcode == 1
    assert failure.message["message"] == "ValueError: in a coroutine"


class Barrier:
    """An event sink that holds the gang's thread at the first death until the other ranks are dead too, in order."""

    def __init__(self, order):
        self.order = list(order)
        self.gang = None
        self.pids = {}

    def __call__(self, event):
        if event["event"] == "supervise.process.started":
            self.pids[event["local_rank"]] = event["pid"]
        elif event["event"] == "supervise.process.exited" and self.order:
            rest, self.order = self.order[1:], []
            for rank in rest:
                self.kill(rank)

    def kill(self, rank):
        """Let a rank die, and see it dead."""
        fd = os.pidfd_open(self.pids[rank])
        self.gang.tell(rank)
        assert select.select([fd], [], [], PATIENCE_S)[0]
        os.close(fd)


@each_kind
def test_o5_three_deaths_at_one_barrier_are_ordered_by_nanoseconds(tmp_path, kind):
    """All were dead before we signalled anybody: all are failures, and the earliest death is the root cause."""
    barrier = Barrier([2, 0, 1])
    source = "say('ready'); wait_for_word(); os._exit(int(os.environ['LOCAL_RANK']) + 1)"
    with faulty(tmp_path, kind, [source] * 3, event_sink=barrier) as gang:
        barrier.gang = gang
        gang.hear(3)
        gang.tell(2)
        result = gang.wait()
    assert {r: f.exitcode for r, f in result.failures.items()} == {0: 1, 1: 2, 2: 3}
    assert result.root_cause == 2
    if HAS_PIDFD:  # threads that wait may tell of what ends in the same moment in any order
        times = [result.failures[rank].timestamp_ns for rank in (2, 0, 1)]
        assert times[0] < times[1] < times[2] < times[0] + PATIENCE_S * 1e9
        assert list(result.failures) == [2, 0, 1]


@each_kind
def test_o5_exceptions_count_from_when_they_were_recorded(tmp_path, kind):
    """The ranks raise in one order and die in another: the order of the exceptions decides."""
    barrier = Barrier([0, 1, 2])
    source = "wait_for_word()" + lingering(kind, then="wait_for_word(); os._exit(1)")
    with faulty(tmp_path, kind, [source] * 3, event_sink=barrier, envs=WITH_US) as gang:
        barrier.gang = gang
        for rank in (2, 0, 1):
            gang.tell(rank)
            gang.hear()
        gang.tell(0)
        result = gang.wait()
    assert (list(result.failures), result.root_cause) == ([2, 0, 1], 2)
    if HAS_PIDFD:  # threads that wait may tell of what ends in the same moment in any order
        assert [e.local_rank for e in sorted(result.ends.values(), key=lambda e: e.ended_ns)] == [0, 1, 2]


def test_the_error_of_the_children_names_the_root_cause_of_the_result(tmp_path):
    """The blame decides, and not the second in which a failure was noticed; without a result, the second."""
    with faulty(tmp_path, "fork", ["os._exit(7)", BLOCK]) as gang:
        result = gang.wait()
    late = ProcessFailure.of(1, 1, 1, "", message="my peer is gone", timestamp_ns=0)
    result.failures[1] = late
    for failures in (result.failures, pickle.loads(pickle.dumps(result)).failures):
        assert ChildFailedError("job", failures).get_first_failure()[0] == 0
        assert ChildFailedError("job", dict(failures)).get_first_failure() == (1, late)


@each_kind
@pytest.mark.parametrize("code", [3, -signal.SIGSEGV, -signal.SIGKILL])
def test_o9_an_undecorated_end_has_its_signal_name_and_last_words(tmp_path, kind, code):
    """The message names the signal, and the end carries the last lines of stderr."""
    die = f"os._exit({code})" if code > 0 else f"die_of({-code})"
    words = "for n in range(100): print('line', n, file=sys.stderr)\nsys.stderr.flush()\n"
    with faulty(tmp_path, kind, [BLOCK, words + die]) as gang:
        result = gang.wait()
    failure = result.failures[1]
    assert failure.exitcode == code
    if code < 0:
        name = signal.Signals(-code).name
        assert (failure.signal_name(), failure.message) == (
            name,
            f"Signal {-code} ({name}) received by PID {failure.pid}",
        )
    assert "line 99" in result.ends[1].stderr_tail
    assert "line 50\n" not in result.ends[1].stderr_tail
    assert result.ends[0].stderr_tail == ""


def raise_of(kind: str) -> None:
    raise {"BrokenPipeError": BrokenPipeError, "ValueError": ValueError}[kind]('not "here"')


@pytest.mark.parametrize("error", ["BrokenPipeError", "ValueError"])
def test_the_record_of_a_rank_says_whether_a_connection_broke(tmp_path, error):
    """The record of a function, that of a program in the format of PyTorch, and one with escapes only."""
    text = json.dumps(
        {"message": {"message": f"{error}: x", "extraInfo": {"py_callstack": "BrokenPipeError: of another"}}}
    )
    bare = text.replace(f"{error}: x", "".join(f"\\u{ord(letter):04x}" for letter in f"{error}: x"))
    writes = "import os, sys; open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write({!r}); sys.exit(1)"
    programs = [(sys.executable, {0: ("-c", writes.format(each))}) for each in (text, bare)]
    for entrypoint, args in ((raise_of, {0: (error,)}), *programs):
        with Recorder() as recorder:
            gang = Supervisor.start(
                name="lost", entrypoint=entrypoint, args=args, logs_specs=DefaultLogsSpecs(str(tmp_path))
            )
            gang.ask(Subscribe(ref=recorder.ref))
            gang.ask(Start())
            assert recorder.wait_for(WorkerExited).lost_peer == (error == "BrokenPipeError")
            gang.ask(Wait())
            gang.stop()


@pytest.mark.parametrize("fault", ["exit 3", "kill -SEGV $$", "kill -KILL $$"])
def test_o9_a_shell_script_is_reported_like_any_program(tmp_path, fault):
    """Nothing of ours runs in it, and its death is told in full."""
    with launched(tmp_path, "/bin/sh", {0: ("-c", f"ulimit -c 0; echo last words >&2; {fault}")}) as gang:
        result = gang.start().wait()
    expected = {"exit 3": (3, "<N/A>"), "kill -SEGV $$": (-11, "SIGSEGV"), "kill -KILL $$": (-9, "SIGKILL")}[fault]
    assert (result.failures[0].exitcode, result.failures[0].signal_name()) == expected
    assert result.ends[0].stderr_tail == "last words"


@each_kind
def test_o12_a_gang_closed_before_its_end_never_looks_like_success(tmp_path, kind):
    """The finished rank is finished, and its value is kept; an unfinished one is a failure with its signal."""
    values = {} if kind == "binary" else {0: 1}
    polite = f"signal.signal(signal.SIGTERM, lambda *_: os._exit(0)); say('ready'); {WAIT}"
    with faulty(tmp_path, kind, ["say('ready'); value = 1", f"say('ready'); {BLOCK}", polite]) as gang:
        gang.hear(3)
        gang.await_event("supervise.process.exited", local_rank=0)
        result = gang.close()
        assert gang.ask(Wait()) is result
    assert (result.outcome, result.is_failed(), result.return_values) == ("stopped", True, values)
    assert {r: f.exitcode for r, f in result.failures.items()} == {1: -15}
    assert result.failures[1].signal_name() == "SIGTERM"
    assert {r: e.role for r, e in result.ends.items()} == {0: "finished", 1: "bystander", 2: "bystander"}
    assert result.root_cause is None


POLITE = {
    "handler": f"signal.signal(signal.SIGTERM, lambda *_: os._exit(0)); say('ready'); {WAIT}",
    "sys.exit": f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); say('ready'); {WAIT}",
    "returns": (
        "seen = []; signal.signal(signal.SIGTERM, lambda *_: seen.append(1)); say('ready')\n"
        f"while not seen: {LOOK}\nvalue = 7"
    ),
}
"""Ranks that exit with code 0 when they are asked to."""


@each_kind
@pytest.mark.parametrize("how", [*POLITE, "all"])
def test_o15_a_clean_exit_on_our_polite_signal_is_no_failure(tmp_path, kind, how):
    """The gang was stopped, and no rank failed; neither does one that had finished before."""
    sources = list(POLITE.values()) if how == "all" else [POLITE[how]] * 2
    with faulty(tmp_path, kind, ["say('done'); value = 3", *sources]) as gang:
        gang.hear(len(sources) + 1)
        gang.await_event("supervise.process.exited", local_rank=0)
        result = gang.close()
        assert gang.ask(Wait()) is result
    assert (result.outcome, result.is_failed(), result.failures, result.root_cause) == ("stopped", False, {}, None)
    assert {r: (e.role, e.exitcode) for r, e in result.ends.items()} == {
        0: ("finished", 0),
        **dict.fromkeys(range(1, len(sources) + 1), ("bystander", 0)),
    }
    returned = [3, *(7 if "value" in source else None for source in sources)]
    values = dict.fromkeys(result.ends) if kind == "binary" else dict(enumerate(returned))
    assert result.return_values == values


@each_kind
def test_o15_a_clean_exit_after_the_gangs_timeout_is_a_failure(tmp_path, kind):
    """Nobody asked for this end: whoever looks at the failures alone must not take it for a success."""
    with faulty(tmp_path, kind, [POLITE["handler"]] * 2, timeout=6.0) as gang:
        result = gang.wait()
    assert (result.outcome, result.is_failed(), result.return_values) == ("timed_out", True, {})


@each_kind
def test_o12_a_gang_killed_by_its_user_says_sigkill(tmp_path, kind):
    """A close with SIGKILL waits for no grace."""
    stubborn = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); say('ready'); {BLOCK}"
    with faulty(tmp_path, kind, [stubborn] * 2) as gang:
        gang.hear(2)
        result = gang.close(death_sig=signal.SIGKILL)
    assert {r: f.signal_name() for r, f in result.failures.items()} == {0: "SIGKILL", 1: "SIGKILL"}
    assert result.outcome == "stopped"
