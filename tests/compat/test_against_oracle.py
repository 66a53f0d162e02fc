"""What is observed of us is what was observed of PyTorch: of a sample of the cases, and in the stress run of each."""

import sys

import pytest

from tests.compat import oracle
from tests.compat.case import all_cases

GROUPS = [group for group in oracle.groups() if group != "differences"]
PRODUCTS = {"function-fork", "function-spawn", "binary"}
"""Groups with rows of streams for each outcome. Every third case of them has each outcome."""
FORKED = {"function-fork", "function-forkserver"}
"""Groups that only the stress run compares; the default run has those of spawn and of programs."""
pytestmark = pytest.mark.timeout(400)  # up to 200 gangs


def _compare(group, ids, seen):
    """Each difference, of all cases of a group; see `observe.py` for what is observed."""
    ours, theirs = oracle.run(sys.executable, "supervise", ids, seen), oracle.load(group)
    assert ids
    assert sorted(ours) == sorted(ids)
    assert [f"{name}{line}" for name in ids for line in oracle.differences(theirs[name], ours[name])] == []


@pytest.mark.parametrize("group", [pytest.param(g, marks=pytest.mark.stress) if g in FORKED else g for g in GROUPS])
def test_the_same_is_observed(group, tmp_path):
    """Of each outcome, with some of the streams."""
    whole, cases = oracle.groups()[group], all_cases()
    ids = whole[::3] if group in PRODUCTS else whole
    assert group == "families" or {cases[name].family for name in ids} == {cases[name].family for name in whole}
    _compare(group, ids, tmp_path / "seen.json")


@pytest.mark.stress
@pytest.mark.parametrize("group", sorted(PRODUCTS))
def test_the_same_is_observed_of_every_case(group, tmp_path):
    """Of each outcome, with each row of streams."""
    _compare(group, oracle.groups()[group], tmp_path / "seen.json")


def test_the_oracle_is_of_the_cases_that_there_are():
    """A case that was added, renamed or dropped needs ``python -m tests.compat.make_oracle``."""
    for group, ids in oracle.groups().items():
        assert sorted(oracle.load(group)) == sorted(ids), group


def test_the_oracle_is_of_one_version():
    """All of it was observed of the same PyTorch."""
    assert {oracle.version(group).split()[0].split("+")[0] for group in oracle.groups()} == {"2.13.0"}
