"""Large buffers of a return value arrive in the file that the worker wrote, without a copy; or not at all."""

import gc
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.processes import arrays, work
from tests.processes.gangs import each_function, launched
from tests.processes.hosts import Host

np = pytest.importorskip("numpy", reason="needs NumPy's arrays")
MEBI = 1 << 20


def run(folder, kind, function, *args):
    """Return what one rank returned."""
    with launched(folder, function, {0: args}, start_method=kind) as gang:
        result = gang.start().wait()
    assert result.outcome == "succeeded", result.failures
    return result.return_values[0]


def is_mapped(array):
    """Whether the array's memory is the worker's file, not a copy."""
    where = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= where < last:
            return "supervise-outcome" in line
    return False


@each_function
def test_arrays_of_all_kinds_arrive_as_they_were(tmp_path, kind):
    """Order, type, shape, flags; one object that occurs twice is one object."""
    came, sent = run(tmp_path, kind, arrays.zoo), arrays.zoo()
    for name, array in sent.items():
        np.testing.assert_array_equal(came[name], array)
        assert (came[name].dtype, came[name].flags.writeable) == (array.dtype, array.flags.writeable), name
    assert came["fortran"].flags.f_contiguous
    assert came["again"] is came["grid"]
    mapped = {name for name, array in came.items() if is_mapped(array)}
    assert mapped == {
        "grid",
        "fortran",
        "frozen",
        "record",
        "again",
    }  # NumPy itself copies one that is not in one piece


def mapped() -> int:
    """How many values of ranks this process maps."""
    return Path("/proc/self/maps").read_text().count("supervise-outcome")


def test_a_large_array_is_not_copied_can_be_written_and_outlives_its_gang(tmp_path):
    """Writing copies a page, and changes nothing of anybody else's; the memory goes with the last view."""
    before = mapped()
    array = run(tmp_path, "spawn", arrays.numbers, MEBI)
    assert is_mapped(array)
    assert array.ctypes.data % os.sysconf("SC_PAGESIZE") == 0
    array[7] = -1
    tail = array[-3:]
    del array
    gc.collect()
    assert tail.tolist() == [MEBI - 3, MEBI - 2, MEBI - 1]
    assert is_mapped(tail)
    del tail
    deadline_s = time.monotonic() + PATIENCE_S
    while mapped() > before and time.monotonic() < deadline_s:  # the gang's thread ends after the reply
        gc.collect()
        threading.Event().wait(0.01)
    assert mapped() <= before


def test_a_frozen_array_stays_frozen(tmp_path):
    frozen = run(tmp_path, "fork", arrays.zoo)["frozen"]
    with pytest.raises(ValueError, match="read-only"):
        frozen[0] = 1


def test_many_small_arrays_travel_within_the_pickle(tmp_path):
    came = run(tmp_path, "fork", arrays.many_small, 2000)
    assert not any(map(is_mapped, came))
    assert [int(array[-1]) for array in came] == [n % 251 for n in range(2000)]


@pytest.mark.parametrize("size", [100, MEBI])
def test_objects_with_views_of_their_memory(tmp_path, size):
    """A large view arrives as a memoryview, which can be written to exactly if its owner's could."""
    pair = run(tmp_path, "fork", arrays.Pair.of, size)
    assert (bytes(pair.left.memory), bytes(pair.right.memory), pair.name) == (b"l" * size, b"r" * size, "pair")
    assert [memoryview(side.memory).readonly for side in (pair.left, pair.right)] == [False, True]


@each_function
@pytest.mark.parametrize("handled", [True, False])
def test_a_buffer_that_is_cut_off_leaves_nothing(tmp_path, kind, handled):
    """Half of it is in the file when there is no room for more: an error that says so, or death on the spot."""
    with launched(tmp_path, arrays.cut_off, {0: (handled,)}, start_method=kind) as gang:
        result = gang.start().wait()
    assert (result.failures[0].exitcode, result.return_values) == (1 if handled else -signal.SIGXFSZ, {})
    assert ("File too large" in str(result.failures[0].message)) is handled


@each_function
def test_sigkill_before_the_header_is_written_leaves_nothing(tmp_path, kind):
    """All buffers are in the file."""
    with launched(tmp_path, arrays.killed_in_the_table, {0: ()}, start_method=kind) as gang:
        gang.start().hear()
        os.kill(gang.pids[0], signal.SIGKILL)
        result = gang.wait()
    assert (result.failures[0].exitcode, result.return_values) == (-9, {})


@pytest.mark.parametrize("shared", [True, False])
def test_a_process_left_behind_that_maps_the_file_cannot_change_the_value(tmp_path, shared):
    """Where its mapping forbids the seal, the value is copied."""
    with launched(tmp_path, arrays.kept_mapped, {0: (MEBI, shared)}, start_method="fork") as gang:
        array = gang.start().wait().return_values[0]
        gang.tell(0)
        assert gang.hear() == ["overwritten"]
    assert is_mapped(array) is not shared
    np.testing.assert_array_equal(array, arrays.numbers(MEBI))


LOADS = """
from tests.processes import arrays, work
from supervise import Supervisor, Start, Wait
from tests.processes.hosts import NO_FILES
fn, size = {what}
gang = Supervisor.start(name="big", entrypoint=fn, args={{0: (size,)}}, logs_specs=NO_FILES)
gang.ask(Start(), timeout=30)
before = arrays.peak_kib()
value = gang.ask(Wait(), timeout=30).return_values[0]
print(arrays.peak_kib() - before, len(value))
gang.stop()
"""


@pytest.mark.parametrize(
    ("what", "least", "most"),
    [
        pytest.param("arrays.numbers, 32 << 20", 0, 32, id="array"),
        pytest.param("work.bytes_of, 256 << 20", 256, 288, id="bytes"),
    ],
)
def test_memory_of_the_host_while_it_loads_256_mebibytes(what, least, most):
    """No copy of an array; one of bytes, which Python keeps in an object of their own."""
    with Host(LOADS.format(what=what), "spawn") as host:
        grown, length = map(int, host.hear().split())
        assert host.exit_code() == 0
    assert least <= grown / 1024 <= most
    assert length in (32 << 20, 256 << 20)


def test_an_array_within_an_unpicklable_value(tmp_path):
    """Nothing of it arrives."""
    with launched(
        tmp_path, work.run_source, {0: ("value = bytes(1 << 20), __import__('threading').Lock()",)}, start_method="fork"
    ) as gang:
        result = gang.start().wait()
    assert (result.outcome, result.return_values) == ("failed", {})
