"""A driver whose functions and classes no host can import: ``python tests/ray/own_main.py``, with `RAY_ADDRESS`.

Prints a line of JSON: for each kind of function, the values of two ranks or the failure.
"""

import json
import os
import threading
from typing import Any

from supervise import SpecError
from supervise.ray import RayGang


class Point:
    """An argument and a value."""

    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y


class NotFoundAtAllError(Exception):
    """An exception of a rank."""


class OnlyOnHosts:
    """A value that can be loaded in ranks only."""

    def __reduce__(self) -> Any:
        return load_in_rank, ()


def load_in_rank() -> str:
    return os.environ["RANK"]


def rank() -> int:
    return int(os.environ["RANK"])


def scaled(by: Point) -> Point:
    return Point(rank() * by.x, rank() * by.y)


def raising(_by: Point) -> None:
    raise NotFoundAtAllError("there is nothing")


class Adder:
    """A function that is an object."""

    def __call__(self, by: Point) -> Point:
        return Point(by.x + rank(), by.y + rank())


def maker(factor: int) -> Any:
    def scale(by: Point) -> Point:
        return Point(by.x * factor, rank())

    return scale


FUNCTIONS = {
    "function": scaled,
    "lambda": lambda by: Point(by.y, rank()),
    "closure": maker(7),
    "object": Adder(),
    "method": Adder().__call__,
    "exception": raising,
    "value that cannot be loaded": lambda _by: OnlyOnHosts(),
    "value that cannot be pickled": lambda _by: threading.Lock(),
}


def run(entrypoint: Any) -> Any:
    with RayGang("m", entrypoint, nnodes=2, nproc_per_node=1, args=(Point(2, 3),)) as gang:
        result = gang.wait()
    assert result is not None
    if result.outcome == "succeeded":
        return [[value.x, value.y] for value in result.return_values.values()]
    message: Any = result.failures[result.root_cause].message if result.root_cause is not None else None
    return {"outcome": result.outcome, "message": message["message"] if isinstance(message, dict) else message}


def refused(**settings: Any) -> str:
    try:
        RayGang(**{"name": "m", "entrypoint": scaled, "nnodes": 2, "nproc_per_node": 1, **settings})
    except SpecError as error:
        return str(error)
    return "it was accepted"


if __name__ == "__main__":
    found = {name: run(function) for name, function in FUNCTIONS.items()}
    found["args"] = refused(args={0: (1,), 1: (threading.Lock(),)})
    lock = threading.Lock()
    found["entrypoint"] = refused(entrypoint=lambda: lock)
    print(json.dumps(found), flush=True)
