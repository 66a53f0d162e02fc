"""What a function returns or raises comes home whole, or is a failure that says why not."""

import os
import re
import signal

import pytest

from supervise import SpecError
from tests.patience import PATIENCE_S
from tests.processes import work
from tests.processes.gangs import Stopwatch, each_function, faulty, launched


def told(failure):
    """The recorded message of a failure."""
    return failure.message["message"] if isinstance(failure.message, dict) else failure.message


def run(folder, kind, function, *args):
    """Run one rank to its end."""
    with launched(folder, function, {0: args}, start_method=kind) as gang:
        return gang.start().wait()


@pytest.mark.stress
def test_o6_a_value_of_one_gibibyte_arrives_whole(tmp_path):
    """There is no pipe that it could fill."""
    result = run(tmp_path, "spawn", work.bytes_of, 1 << 30)
    assert (result.outcome, len(result.return_values[0])) == ("succeeded", 1 << 30)


@each_function
def test_o6_values_of_many_ranks_arrive_beside_each_other(tmp_path, kind):
    """Larger than any pipe, from several ranks, none of which is read before its end."""
    with launched(tmp_path, work.bytes_of, {r: (r << 20,) for r in range(4)}, start_method=kind) as gang:
        result = gang.start().wait()
    assert {r: len(value) for r, value in result.return_values.items()} == {r: r << 20 for r in range(4)}


@each_function
def test_o6_a_value_that_cannot_be_pickled_is_a_failure_that_names_its_type(tmp_path, kind):
    result = run(tmp_path, kind, work.return_unpicklable)
    assert (result.failures[0].exitcode, result.return_values) == (1, {})
    assert "tests.processes.work.Unpicklable" in told(result.failures[0])


@each_function
def test_o6_a_value_that_cannot_be_unpickled_is_a_failure_too(tmp_path, kind):
    """The worker did all it could, yet the gang did not succeed."""
    result = run(tmp_path, kind, work.return_fragile)
    assert (result.outcome, result.return_values) == ("failed", {})
    assert "LookupError: broken on arrival" in told(result.failures[0])


def test_o6_a_value_whose_unpickling_raises_without_a_text_is_a_failure_too(tmp_path):
    """Its `__str__` raises as well."""
    result = run(tmp_path, "spawn", work.return_speechless)
    assert (result.outcome, result.return_values) == ("failed", {})
    assert "could not be unpickled here: Speechless: <exception str() failed>" in told(result.failures[0])


@each_function
def test_o6_an_exception_that_cannot_be_pickled_is_told(tmp_path, kind):
    """Exceptions travel as text."""
    result = run(tmp_path, kind, work.raise_unpicklable)
    assert result.failures[0].exitcode == 1
    assert told(result.failures[0]).startswith("UnpicklableError: ")


@each_function
def test_o6_a_traceback_of_one_mebibyte_is_told_whole(tmp_path, kind):
    result = run(tmp_path, kind, work.raise_deep, 1 << 20)
    assert told(result.failures[0]) == "ValueError: " + "x" * (1 << 20)
    assert len(result.failures[0].message["extraInfo"]["py_callstack"]) > 1 << 20


@each_function
@pytest.mark.parametrize("char", ["\n", "\0", "é", "\N{GRINNING FACE}"], ids=ascii)
def test_o6_a_text_that_json_makes_long_is_told_in_part(tmp_path, kind, char):
    """Its beginning, its end, and how much is left out; the type is never lost."""
    result = run(tmp_path, kind, work.raise_text, char, 1 << 20)
    text = told(result.failures[0])
    assert text.startswith(f"ValueError: {char * 1000}")
    assert text.endswith(char * 1000)
    assert re.search(r"\n\[\.\.\. \d+ characters left out \.\.\.\]\n", text)
    assert "Traceback (most recent call last)" in result.failures[0].message["extraInfo"]["py_callstack"]


@each_function
def test_o6_an_exception_that_a_limit_of_file_sizes_keeps_from_its_file_says_so(tmp_path, kind):
    """The text has no file, but the time of the exception and the reason are kept."""
    result = run(tmp_path, kind, work.raise_with_no_file_size)
    assert result.failures[0].exitcode in (1, 120)  # 120: Python could not write its last output either
    assert "in the quota, or within the limit of file sizes (RLIMIT_FSIZE)" in told(result.failures[0])


@each_function
@pytest.mark.parametrize("value", [42, None])
@pytest.mark.parametrize("what", ["root", "descriptors"])
def test_o6_a_value_arrives_although_nothing_can_be_imported_after_the_function(tmp_path, kind, what, value):
    if what == "descriptors":
        result = run(tmp_path, kind, work.leave_no_descriptor, value)
    elif os.getuid():
        pytest.skip("only root may change its root folder")
    else:
        result = run(tmp_path, kind, work.change_root_folder, str(tmp_path), value)
    assert (result.failures, result.return_values) == ({}, {0: value})


@each_function
def test_o6_a_connection_is_no_value(tmp_path, kind):
    """Its number is that of another file of the host, which the end of the connection would close."""
    result = run(tmp_path, kind, work.return_a_connection)
    assert "a connection cannot be returned, because its descriptor ends with the rank" in told(result.failures[0])


@each_function
def test_o6_a_value_beyond_the_limit_of_file_sizes_says_so(tmp_path, kind):
    result = run(tmp_path, kind, work.return_more_than_a_file_may_hold)
    assert "File too large: the limit of file sizes (RLIMIT_FSIZE, ulimit -f) holds for arguments and return" in told(
        result.failures[0]
    )


@each_function
def test_o6_an_unpicklable_value_is_not_hidden_by_an_earlier_record(tmp_path, kind):
    """An exception that the function recorded and survived is not what its rank died of."""
    source = (
        "from supervise.recording import record\n"
        "try: record(lambda: 1 / 0)()\n"
        "except ZeroDivisionError: value = __import__('threading').Lock()"
    )
    with faulty(tmp_path, kind, [source]) as gang:
        result = gang.wait()
    assert "of type _thread.lock" in told(result.failures[0])


@pytest.mark.parametrize("kind", ["spawn", "forkserver"])
def test_o6_arguments_that_cannot_be_pickled_are_refused_before_any_start(tmp_path, kind):
    """The error names the rank; no process was made."""
    args = {0: (1,), 1: (work.Unpicklable(),)}
    with pytest.raises(SpecError, match=r"rank 1: double .*Unpicklable.*cannot be pickled"):
        launched(tmp_path, work.double, args, start_method=kind).__enter__()


@pytest.mark.parametrize("kind", ["spawn", "forkserver"])
def test_o6_arguments_whose_pickle_raises_without_a_text_are_refused_by_rank(tmp_path, kind):
    args = {0: (1,), 1: (work.UnspeakableValue(),)}
    with pytest.raises(
        SpecError, match=r"rank 1: double .*UnspeakableValue.*: Unspeakable: <exception str\(\) failed>"
    ):
        launched(tmp_path, work.double, args, start_method=kind).__enter__()


@each_function
def test_o6_a_value_whose_pickle_raises_without_a_text_is_named(tmp_path, kind):
    result = run(tmp_path, kind, work.return_unspeakable)
    name = "the return value, of type tests.processes.work.UnspeakableValue"
    assert f"{name}, cannot be pickled: Unspeakable: <exception str() failed>" in told(result.failures[0])


@each_function
def test_o6_a_value_whose_pickle_exits_is_named(tmp_path, kind):
    result = run(tmp_path, kind, work.return_what_exits)
    name = "the return value, of type tests.processes.work.ExitingValue"
    assert f"{name}, cannot be pickled: SystemExit: 0" in told(result.failures[0])


@each_function
def test_o7_sigkill_while_a_value_is_being_written_leaves_no_part_of_it(tmp_path, kind):
    """The first mebibyte is in the file already when the rank is killed."""
    with launched(tmp_path, work.return_endless, {0: ()}, start_method=kind) as gang:
        gang.start().hear()
        with Stopwatch() as watch:
            os.kill(gang.pids[0], signal.SIGKILL)
            result = gang.wait()
    assert watch.seconds < PATIENCE_S / 2
    assert ({r: f.exitcode for r, f in result.failures.items()}, result.return_values) == ({0: -9}, {})


@each_function
def test_o7_exit_0_while_a_value_is_being_written_leaves_no_part_of_it(tmp_path, kind):
    """An exit code of 0 does not make a value whole."""
    source = (
        "class Cut:\n    def __reduce__(self):\n        import os\n        os._exit(0)\nvalue = (bytes(1 << 20), Cut())"
    )
    with faulty(tmp_path, kind, [source]) as gang:
        result = gang.wait()
    assert (result.failures[0].exitcode, result.return_values) == (0, {})
    assert "without a return value" in told(result.failures[0])


@each_function
@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt: "),
        ("os.kill(os.getpid(), signal.SIGINT); signal.pause()", 130, "KeyboardInterrupt: "),
        ("raise GeneratorExit('odd')", 1, "GeneratorExit: odd"),
        ("raise type('Mine', (BaseException,), {})('own')", 1, "Mine: own"),
    ],
)
def test_o8_a_base_exception_is_a_failure(tmp_path, kind, fault, code, words):
    """130 for KeyboardInterrupt, 1 for others, and on record in each case."""
    with faulty(tmp_path, kind, [fault, work.BLOCK]) as gang:
        result = gang.wait()
    assert {r: f.exitcode for r, f in result.failures.items()} == {0: code}
    assert told(result.failures[0]) == words


@each_function
def test_o8_an_interrupt_that_is_our_close_blames_nobody(tmp_path, kind):
    """With SIGINT as the polite signal, KeyboardInterrupt is how a worker obeys."""
    with faulty(tmp_path, kind, [f"say('ready'); {work.BLOCK}"]) as gang:
        gang.hear()
        result = gang.close(death_sig=signal.SIGINT)
    assert (result.outcome, result.ends[0].role, result.ends[0].exitcode) == ("stopped", "bystander", 130)


@each_function
@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("reopen", [False, True])
def test_o13_a_worker_that_closes_our_channel_is_told_so(tmp_path, kind, first, reopen):
    """Closed, or replaced by a file of the worker's own: a failure, and nothing of ours in that file."""
    own = tmp_path / "own"
    own.touch()
    result = run(tmp_path, kind, work.close_everything, first, str(own) if reopen else "")
    assert (result.failures[0].exitcode, result.return_values) == (1, {})
    assert "result channel closed by the worker" in told(result.failures[0])
    assert own.read_bytes() == b""


@each_function
@pytest.mark.parametrize("code", [None, 0])
def test_o13_a_process_that_the_function_forked_does_not_answer_for_the_rank(tmp_path, kind, code):
    """It returns from the function as well, and its value is not the rank's."""
    with launched(tmp_path, work.fork_and_return, {0: (code,)}, start_method=kind) as gang:
        pids = gang.start().pids
        result = gang.wait()
    if code is None:
        assert result.return_values == pids
    else:
        assert "without a return value" in told(result.failures[0])


@each_function
def test_o7_a_value_that_is_shorter_than_its_header_says_is_none(tmp_path, kind):
    """What is there could be read, and would be believed: its end is missing."""
    source = """
import pickle, struct
whole = pickle.dumps("half of it")
header = struct.pack("<8scQQ", b"supervis", b"v", 0, 25 + len(whole) + 4096)
for name in os.listdir("/proc/self/fd"):
    try:
        if "supervise-outcome" in os.readlink(f"/proc/self/fd/{name}"):
            os.pwrite(int(name), header + whole, 0)
            found = True
    except FileNotFoundError:
        pass
assert found
os._exit(0)
"""
    with faulty(tmp_path, kind, [source]) as gang:
        result = gang.wait()
    assert result.outcome == "failed"
    assert "exited with code 0 without a return value" in told(result.failures[0])


@pytest.mark.parametrize(("at_ns", "end"), [(0, 0), (2**64 - 1, 25), (2**63, 40), (1, 2**20)])
def test_o13_a_false_record_of_an_exception_harms_no_one(tmp_path, at_ns, end):
    """Of any time, of any size, with any content."""
    source = f"""
import struct
header = struct.pack("<8scQQ", b"supervis", b"r", {at_ns}, {end})
for name in os.listdir("/proc/self/fd"):
    try:
        if "supervise-outcome" in os.readlink(f"/proc/self/fd/{{name}}"):
            os.pwrite(int(name), header + b"{{" * {end}, 0)
    except FileNotFoundError:
        pass
os.kill(os.getpid(), signal.SIGKILL)
"""
    with faulty(tmp_path, "fork", [source, work.BLOCK]) as gang:
        result = gang.wait()
    assert (result.outcome, result.root_cause, result.failures[0].exitcode) == ("failed", 0, -9)


def test_o6_none_is_a_value_that_nobody_has_to_read(tmp_path, breaking):
    """Most functions return it: it arrives beside other values, and where there are no others no thread begins."""
    with faulty(tmp_path, "fork", ["", "value = 'text'"]) as gang:
        assert gang.wait().return_values == {0: None, 1: "text"}
    breaking.never("values")
    with faulty(tmp_path, "fork", ["", ""]) as gang:
        assert gang.wait().return_values == {0: None, 1: None}
