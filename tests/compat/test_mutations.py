"""The suite sees defects: each of `mutations.py` turns the cases red that it concerns."""

import sys

import pytest

from tests.compat import mutations, oracle
from tests.compat.case import all_cases

pytestmark = pytest.mark.timeout(200)


@pytest.mark.stress
@pytest.mark.parametrize("name", sorted(mutations.DEFECTS))
def test_a_defect_turns_its_cases_red(name, tmp_path):
    """None of them may pass by not looking."""
    ids = mutations.ids(name)
    seen = oracle.run(sys.executable, "supervise", ids, tmp_path / "seen.json", mutation=name)
    theirs = {key: what for group in oracle.groups() for key, what in oracle.load(group).items()}
    assert ids
    assert not [each for each in ids if seen[each] == theirs[each]]


def test_every_family_is_turned_red_by_some_defect():
    """No family is there that no defect concerns."""
    cases = all_cases()
    red = {each for name in mutations.DEFECTS for each in mutations.ids(name)}
    assert {cases[each].family for each in red & cases.keys()} == {case.family for case in cases.values()}
    assert red - cases.keys() == set(oracle.groups()["families"])
