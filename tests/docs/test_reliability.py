"""The page of promises and the tests that prove them name each other."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| ([A-Z]\d+) \|", (ROOT / "docs/explanation/reliability.md").read_text(), re.MULTILINE)
PROVEN = {
    name.upper()
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^ *def test_([a-z]\d+)_", path.read_text(), re.MULTILINE)
}


def test_every_promise_of_the_page_has_a_test_named_after_it():
    assert len(ROWS) == len(set(ROWS)) > 50
    assert [row for row in ROWS if row not in PROVEN] == []


def test_every_test_named_after_a_promise_is_on_the_page():
    assert sorted(PROVEN - set(ROWS)) == []
