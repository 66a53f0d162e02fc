"""Writes `long_tests.txt`, the tests of which a run of all tests has a third; see `tests/parts.py`.

``python -m tests.make_long_tests`` runs all tests and takes a quarter of an hour. As a plugin of pytest, this module
measures the processor time of each test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import pytest

from tests.parts import LONG_TESTS

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

SHARE = 2 / 3
"""The part of the processor time of all tests that the long ones take together, on a machine of any speed."""
ALWAYS = ("tests/docs/", "tests/test_")
"""Where no test is long: what these prove of pages, words and examples is changed by any change."""
_TIMES = "LONG_TESTS_TIMES"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Add a line to the file of times; the time includes that of the processes which the test has reaped."""
    before = os.times()
    result = yield
    used_s = sum(os.times()[:4]) - sum(before[:4])
    with Path(os.environ[_TIMES]).open("a") as file:
        file.write(f"{used_s:.3f}\t{item.nodeid}\n")
    return result


def long_tests(lines: Iterable[str]) -> list[str]:
    """Return the names of the long tests; a test with several cases is as long as the mean of them."""
    times_s: dict[str, list[float]] = {}
    for line in lines:
        used_s, _, nodeid = line.rstrip("\n").partition("\t")
        times_s.setdefault(nodeid.partition("[")[0], []).append(float(used_s))
    left_s = SHARE * sum(map(sum, times_s.values()))
    long = []
    for name in sorted(times_s, key=lambda name: fmean(times_s[name]), reverse=True):
        if left_s > 0 and not name.startswith(ALWAYS):
            long.append(name)
            left_s -= sum(times_s[name])
    return sorted(long)


def main() -> int:
    """Measure all tests and write the list, unless a test fails."""
    with tempfile.NamedTemporaryFile("r+") as file:
        words = ["-p", "tests.make_long_tests", "--cases", "all"]
        code = subprocess.call([sys.executable, "-m", "pytest", *words], env={**os.environ, _TIMES: file.name})
        if code == 0:
            LONG_TESTS.write_text("".join(f"{name}\n" for name in long_tests(file)))
    return code


if __name__ == "__main__":
    sys.exit(main())
