"""Functions as an engine sends them: their failures are told as those of functions on one host."""

import re
import threading

import pytest

import supervise
from supervise.ray import calls


def lock():
    return threading.Lock()


class Reduces:
    """A value whose pickling raises in user code."""

    def __reduce__(self):
        raise LookupError("the 7th shard is empty")


def raising():
    raise LookupError("the 7th shard is empty")


def report(entrypoint):
    """Return the report and the traceback of a failure, without what varies."""
    with pytest.raises(supervise.GangFailed) as raised:
        supervise.run(entrypoint, 1, name="same")
    found = f"{raised.value}\n{raised.value.rank_traceback}"
    return re.sub(r"pid \d+, after \S+ m?s|logs: .*", "", found)


def product(one, other):
    return one, other


def test_arguments_and_values_travel_as_pickles():
    """Bytes are arguments as any other; a program has no value."""
    args = calls.pack_args((b"raw", [1]))
    assert calls.load(calls.pack(product)(*args)) == (b"raw", [1])
    assert calls.load(None) is None


@pytest.mark.parametrize("function", [lock, Reduces, raising])
def test_a_failure_is_told_in_the_words_of_one_host(function):
    """Without frames of supervise and of cloudpickle, also where the value cannot be pickled."""
    assert report(calls.pack(function)) == report(function)
