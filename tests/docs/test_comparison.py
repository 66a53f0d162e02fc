"""The table of the comparison page is made from the committed figures."""

import json
from pathlib import Path

from tests.benchmarks.launchers import table

ROOT = Path(__file__).parents[2]


def test_the_table_of_launchers_has_the_committed_figures():
    """Cells are not written by hand."""
    page = (ROOT / "docs/explanation/comparison.md").read_text()
    shown = page.split("<!-- launchers -->\n")[1].split("\n<!-- end launchers -->")[0]
    (figures,) = (ROOT / "tests/benchmarks/results").glob("launchers-*.json")
    assert shown.splitlines() == table(json.loads(figures.read_text()))
