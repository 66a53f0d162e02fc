"""A plugin of pytest: a run of all tests takes a part of the cases and of the long tests, each Python another part.

A test with many parameters has a case for each combination of them, and hundreds of tests have. A run of all tests has
at least one case of every test that is not long; the quarters of four successive versions of Python have every case
together, and so has ``python -m pytest --cases all``. A run of named files, folders or tests has all their cases.

The tests in `long_tests.txt` take two thirds of the processor time of all cases, and what they prove depends little on
the version of Python. A run of all tests has only a third of them, unless it has ``--cases all``; the thirds of three
successive versions, which ``.ci/run`` tests, have all.

Each worker of xdist begins with tests that may take long, so that no worker runs one when all others are done.
"""

from __future__ import annotations

import sys
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

PARTS = 4
THIRDS = 3
LONG_TESTS = Path(__file__).with_name("long_tests.txt")
"""Names of tests, without cases; ``python -m tests.make_long_tests`` makes it."""
Case = TypeVar("Case")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--cases``."""
    parser.addoption(
        "--cases",
        choices=["all", "quarter"],
        help="run all cases of each test, or a quarter of them and a third of the long tests, which depend on the "
        "version of Python; the default is a quarter if all tests are run, and otherwise all",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose the default, which the workers of xdist inherit with the options."""
    if config.option.cases is None:
        named = config.args_source.name != "TESTPATHS" or config.option.keyword
        config.option.cases = "all" if named else "quarter"


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say which cases are run."""
    if config.option.cases == "all":
        return None
    return (
        f"cases: quarter {_part()} of 0 to {PARTS - 1}; long tests: third {_part(THIRDS)} of 0 to {THIRDS - 1}; by the"
        " version of Python; --cases all runs all"
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None]:
    """Keep a part of the cases of each test, and at least one, before pytest makes an item of each: it takes 0.2 ms."""
    yield
    cases = metafunc._calls  # there is no public way
    if len(cases) > 1 and metafunc.config.option.cases == "quarter":
        kept = part_of(metafunc.definition.nodeid, sorted(case.id for case in cases), _part())
        cases[:] = [case for case in cases if case.id in kept]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a third of the long tests. Then deal the files with a limit of time above the usual, and divide the rest.

    Of the files, those with the highest limit come first. The tests of a file stay side by side, because fixtures may
    be made once a file.
    """
    if config.option.cases == "quarter":
        config.hook.pytest_deselected(items=[item for item in items if _is_of_another_third(item)])
        items[:] = [item for item in items if not _is_of_another_third(item)]
    usual_s, longest_s = float(config.getini("timeout") or 0), dict[Path, float]()
    for item in items:
        mark = item.get_closest_marker("timeout")
        longest_s[item.path] = max(longest_s.get(item.path, 0.0), float(mark.args[0]) if mark else usual_s)
    files = sorted((path for path, limit_s in longest_s.items() if limit_s > usual_s), key=longest_s.get, reverse=True)
    rest = [item for item in items if longest_s[item.path] <= usual_s]
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    shares = [len(rest) * worker // workers for worker in range(workers + 1)]
    items[:] = [
        item
        for worker in range(workers)
        for item in (
            *(item for path in files[worker::workers] for item in items if item.path == path),
            *rest[shares[worker] : shares[worker + 1]],
        )
    ]


def part_of(test: str, cases: list[Case], part: int) -> list[Case]:
    """Return a part of the cases of a test.

    Args:
        test: The name of the test. Tests with equally many cases do not all begin with the same one.
        cases: All its cases, in the same order on every Python.
        part: Which part, from 0.
    """
    begin = (zlib.crc32(test.encode()) + part) % min(len(cases), PARTS)
    return cases[begin::PARTS]


def _part(parts: int = PARTS) -> int:
    return sys.version_info.minor % parts


def _is_of_another_third(item: pytest.Item) -> bool:
    """Return whether a test is long, and in the third of another version of Python.

    A stress test never is: ``.ci/run`` runs these on one version only.
    """
    name = item.nodeid.partition("[")[0]
    if name not in _long_tests() or item.get_closest_marker("stress") is not None:
        return False
    return zlib.crc32(name.encode()) % THIRDS != _part(THIRDS)


@cache
def _long_tests() -> frozenset[str]:
    return frozenset(LONG_TESTS.read_text().splitlines())
