"""Every case: what is observed of us is what was observed of PyTorch."""

import pytest

from tests.compat import oracle

CASES = [(group, name) for group, ids in oracle.groups().items() if group != "differences" for name in ids]
pytestmark = pytest.mark.timeout(400)  # the first test of a group runs the group


@pytest.mark.parametrize(("group", "name"), CASES, ids=[name for _, name in CASES])
def test_the_same_is_observed(group, name, ours):
    """See `observe.py` for what is observed."""
    found = oracle.differences(oracle.load(group)[name], ours(group)[name])
    assert not found, f"{name}\n" + "\n".join(found)


def test_the_oracle_is_of_the_cases_that_there_are():
    """A case that was added, renamed or dropped needs ``python -m tests.compat.make_oracle``."""
    for group, ids in oracle.groups().items():
        assert sorted(oracle.load(group)) == sorted(ids), group


def test_the_oracle_is_of_one_version():
    """All of it was observed of the same PyTorch."""
    assert {oracle.version(group).split()[0].split("+")[0] for group in oracle.groups()} == {"2.13.0"}
