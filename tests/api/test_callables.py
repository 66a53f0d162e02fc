"""What `supervise.run` runs: functions, and whatever else can be called; what it refuses."""

import asyncio
import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from supervise import SpecError, run


def doubled(fn: Callable[[int], int]) -> Callable[[int], int]:
    @functools.wraps(fn)
    def inner(number: int) -> int:
        return 2 * fn(number)

    return inner


async def later():
    return 1


def numbers(count: int = 3):
    yield from range(count)


class Later:
    async def __call__(self):
        return 1

    async def method(self):
        return 1


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (later, "an async function, whose call runs nothing yet; give a function that runs it to its end, such as"),
        (partial(later), "an async function"),
        (Later(), "an async function"),
        (Later().method, "an async function"),
        (numbers, "a generator function"),
        (partial(numbers, 3), "a generator function"),
        (abs(1), "fn is 1; give a function (not what its call returns)"),
        (None, "fn is None; give a function"),
        (["sleep", "1"], "fn is ['sleep', '1']; give a function"),
    ],
    ids=["function", "partial", "object", "method", "generator", "partial generator", "number", "none", "list"],
)
def test_what_is_not_a_function_to_run_is_refused(fn: Any, text: str):
    """An async function would fail in each rank, with a coroutine that is not awaited and cannot be pickled."""
    with pytest.raises(SpecError) as caught:
        run(fn, n=1)
    assert text in str(caught.value)


class Scale:
    def __init__(self, factor: int):
        self.factor = factor

    def __call__(self, number: int) -> int:
        return self.factor * number

    def method(self, number: int) -> int:
        return self(number)

    @classmethod
    def named(cls, number: int) -> tuple[str, int]:
        return cls.__name__, number


@doubled
def wrapped(number: int) -> int:
    return number


def in_a_loop(number: int) -> int:
    async def main() -> int:
        await asyncio.sleep(0)
        return number

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("fn", "value"),
    [
        (partial(Scale(3), 2), 6),
        (Scale(3), 12),
        (Scale(3).method, 12),
        (Scale.named, ("Scale", 4)),
        (wrapped, 8),
        (in_a_loop, 4),
        (abs, 4),
    ],
    ids=["partial", "object", "method", "class method", "wrapped", "own loop", "builtin"],
)
def test_any_callable_runs(fn: Any, value: Any):
    """Also those that are not plain functions."""
    assert run(fn, n=1, args=() if isinstance(fn, partial) else (4,)) == [value]


def test_a_call_in_a_coroutine_blocks_its_loop_and_returns_the_values():
    """It is an ordinary call there; `supervise.aio` has the one that does not block."""

    async def main() -> list[int]:
        return run(abs, n=2, args=(-3,))

    assert asyncio.run(main()) == [3, 3]
