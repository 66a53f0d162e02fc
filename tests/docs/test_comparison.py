"""Tables that compare supervise with other tools are made from the committed figures."""

import json
import re
import subprocess
from pathlib import Path

from tests.benchmarks import launchers, publish, rank_tests

ROOT = Path(__file__).parents[2]


def test_the_table_of_launchers_has_the_committed_figures():
    """Cells are not written by hand."""
    page = (ROOT / "docs/explanation/comparison.md").read_text()
    shown = page.split("<!-- launchers -->\n")[1].split("\n<!-- end launchers -->")[0]
    (figures,) = (ROOT / "tests/benchmarks/results").glob("launchers-*.json")
    assert shown.splitlines() == launchers.table(json.loads(figures.read_text()))


def test_the_table_of_tests_with_ranks_has_the_committed_figures():
    """The same of the page about tests."""
    page = (ROOT / "docs/how-to/test-with-ranks.md").read_text()
    shown = page.split("<!-- rank tests -->\n")[1].split("\n<!-- end rank tests -->")[0]
    (figures,) = (ROOT / "tests/benchmarks/results").glob("rank-tests-*.json")
    assert shown.splitlines() == rank_tests.table(json.loads(figures.read_text()), 1)


def test_the_page_of_performance_has_the_committed_figures():
    """Of the files that it links; ``python -m tests.benchmarks.publish`` writes it."""
    before, shown, after = publish.parts(publish.PAGE.read_text(encoding="utf-8"))
    linked = re.findall(r"\[All figures, with versions\]\(\.\./\.\./(\S+\.json)\)", shown)
    assert linked
    assert shown == publish.block([ROOT / name for name in linked])
    assert publish.BEGIN not in before + after


def test_a_process_that_is_not_reaped_is_not_alive():
    """An orphan stays a zombie until PID 1 reaps it; the table says what still runs."""
    orphan = "sleep 0.2 & echo $!; exec sleep 600"  # the second sleep does not reap the first
    with subprocess.Popen(["sh", "-c", orphan], stdout=subprocess.PIPE, text=True) as parent:
        try:
            pid = int(parent.stdout.readline())
            assert launchers.alive([pid]) == 0
        finally:
            parent.kill()
