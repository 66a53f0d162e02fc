"""A sample of the corpus of hangs; `python -m tests.health` runs all of it."""

import re
from pathlib import Path

import pytest

from tests.health.corpus import Case, cases, run
from tests.health.hangs import SEEN, UNSEEN

PERIOD_S = 5.0
"""Longer than a process of a busy machine stands still."""
SAMPLE = (
    Case("two_locks", "heartbeat", "barrier", 4, 2, 3),
    Case("loop_in_c", "output", "barrier", 2, 0, 3),
    Case("silent_server", "heartbeat", "chain", 3, 1, 3),
)


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.how)
def test_w1_the_rank_at_fault_is_named(tmp_path, case):
    assert run(case, tmp_path, PERIOD_S).named == case.culprit


@pytest.mark.parametrize(("how", "tier"), [("livelock", "heartbeat"), ("says_that_it_stops", "output")])
def test_w4_who_gives_signs_or_is_about_to_end_is_not_reported(tmp_path, how, tier):
    assert run(Case(how, tier, "alone", 2, 1, 3), tmp_path, PERIOD_S).named is None


def test_the_corpus_has_at_least_sixty_cases_and_all_sizes():
    corpus = cases()
    assert len(set(corpus)) == len(corpus) >= 60
    assert {case.ranks for case in corpus} == {2, 3, 4, 8, 16}
    assert {case.tier for case in corpus} == {"heartbeat", "output"}


def test_the_table_of_the_guide_is_the_corpus():
    guide = Path(__file__).parents[2] / "docs" / "how-to" / "detect-hangs.md"
    rows = re.findall(r"\| `(\w+)` \| (yes|no) \| (yes|no) \|", guide.read_text())
    assert rows == [*((how, "yes", "yes") for how in SEEN), *((how, "no", "no") for how in UNSEEN)]
