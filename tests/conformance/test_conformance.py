"""Every engine gives the same observations of the same gangs: outcome, values, root cause, codes, logs, events.

`local` runs in the process of the tests. The other engines run in a program each, by this Python or by the one that
`SUPERVISE_RAY_PYTHON` or `SUPERVISE_TORCH_PYTHON` names.
"""

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.cases import CASES
from tests.conformance.engines import ENGINES, NEEDS, python_of
from tests.conformance.on_engine import MISSING, SIGTERM, signaled

ROOT = Path(__file__).parents[2]
PROGRAM_S = 280
OTHERS = sorted(ENGINES.keys() - {"local"})
UNSUPPORTED = {
    ("torchelastic", "close"): "its users have no message for a close",
    ("torchelastic", "deaf"): "as above",
    ("torchelastic", "signal"): "its users have no message for a signal",
    ("torchelastic", "timeout"): "it has no time limit",
    ("torchelastic", "program"): "every exit code but 0 is a failure",
}
"""(engine, case) to why it does not run there."""
NOT_REPORTED = {
    "local": set(),
    "ray": set(),
    "torchelastic": {"codes", "roles", "restarts", "rank events", "gang events"},
}
"""Engine to the parts of an observation that its API does not have."""
DIFFERENT = {
    ("*", "simultaneous", "root cause"): "either rank may be the first; with several hosts, that of the first report",
    ("*", "simultaneous", "message"): "that of the root cause",
    ("*", "simultaneous", "roles"): "as the root cause",
    ("*", "simultaneous", "codes"): "the other rank may be stopped before its own exit",
    ("*", "simultaneous", "failures"): "as above",
    ("*", "simultaneous", "exit codes of failures"): "as above",
    ("*", "simultaneous", "rank events"): "as above",
    ("*", "timeout", "shown"): "the start counts, so that a rank may not have begun",
    ("*", "timeout", "stdout logs"): "as above",
    ("ray", "*", "gang events"): "the driver reports the stop when it asks the hosts for it",
}
"""(engine, case, part of its observation) to why it may be another than on one host; ``*`` is any."""


def is_different(engine: str, case: str, part: str) -> bool:
    return any((e, c, part) in DIFFERENT for e in ("*", engine) for c in ("*", case))


def supported(engine: str) -> list[str]:
    return [case for case in [*CASES, SIGTERM] if (engine, case) not in UNSUPPORTED]


@functools.cache
def program(engine: str) -> Any:
    """Run all cases on an engine; return what was observed, by case, or why it cannot run here."""
    done = subprocess.run(
        [python_of(engine), "-m", "tests.conformance.on_engine", engine, *supported(engine)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    if done.returncode == MISSING:
        return done.stdout.strip()
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row.pop("name"): row for row in rows}


@functools.cache
def local(case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(ENGINES["local"].run(CASES[case])))
    return found


@pytest.fixture(scope="module", params=OTHERS)
def other(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """An engine, and what was observed on it; skipped if it is missing, unless a variable says that it is needed."""
    found = program(request.param)
    if isinstance(found, str):
        reason = f"{request.param} cannot run with {python_of(request.param)}: {found}"
        if os.environ.get(NEEDS[request.param]) == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return request.param, found


def check_expected(engine: str, case: str, observed: dict[str, Any]) -> None:
    expected = json.loads(json.dumps(CASES[case].expected))
    wrong = {
        part: (observed.get(part), value)
        for part, value in expected.items()
        if observed.get(part) != value and part not in NOT_REPORTED[engine] and not is_different(engine, case, part)
    }
    assert not wrong, (wrong, observed)


@pytest.mark.parametrize("case", CASES)
def test_a_gang_of_one_host_gives_the_stated_result(case: str):
    check_expected("local", case, local(case))


@pytest.mark.timeout(PROGRAM_S + 60)
@pytest.mark.parametrize("case", CASES)
def test_an_engine_gives_what_one_host_gives(case: str, other: tuple[str, dict[str, Any]]):
    """But for the table of differences."""
    engine, observed = other
    if (engine, case) in UNSUPPORTED:
        pytest.skip(f"{engine} does not have it: {UNSUPPORTED[engine, case]}")
    here, there = local(case), observed[case]
    check_expected(engine, case, there)
    not_reported = NOT_REPORTED[engine] if "error" not in here else set()
    assert here.keys() - not_reported == there.keys()
    wrong = {p: (here[p], there[p]) for p in there if here[p] != there[p] and not is_different(engine, case, p)}
    assert not wrong


@pytest.mark.timeout(PROGRAM_S + 60)
def test_of_simultaneous_failures_one_is_the_root_cause(other: tuple[str, dict[str, Any]]):
    for seen in (local("simultaneous"), other[1]["simultaneous"]):
        assert seen["root cause"] in (0, 3)
        assert {seen["root cause"]} <= set(seen["failures"]) <= {0, 3}


TERMINATED = {"raised": "SignalException", "signal": "SIGTERM", "ranks left": [], "code": 0}


def test_sigterm_for_the_driver_is_an_exception_and_ends_the_ranks():
    assert signaled("local") == TERMINATED


@pytest.mark.timeout(PROGRAM_S + 60)
def test_sigterm_for_the_driver_of_another_engine(other: tuple[str, dict[str, Any]]):
    assert other[1][SIGTERM] == TERMINATED


def test_each_difference_names_a_case_and_a_part_that_exist():
    parts = local("values").keys()
    assert {c for _, c, _ in DIFFERENT} <= {"*", *CASES}
    assert {p for _, _, p in DIFFERENT} <= parts
    assert set().union(*NOT_REPORTED.values()) <= parts
