"""A release says the same of itself in each of its files."""

import itertools
import re
import tomllib
from pathlib import Path

import supervise

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITED = (ROOT / "CITATION.cff").read_text()


def fields() -> dict[str, str]:
    """Return the fields of the citation that have one line."""
    return dict(re.findall(r'^([a-z-]+): "?(\S[^"\n]*)"?$', CITED, re.MULTILINE))


def test_the_citation_describes_the_project():
    """License, authors and keywords are those of the package."""
    assert (fields()["cff-version"], fields()["type"], fields()["title"]) == ("1.2.0", "software", "supervise")
    assert fields()["license"] == PROJECT["license"]
    assert fields()["abstract"] == PROJECT["description"]
    assert re.findall(r"^  - (\w+)$", CITED, re.MULTILINE) == PROJECT["keywords"]
    assert re.findall(r"^  - name: (.+)$", CITED, re.MULTILINE) == [author["name"] for author in PROJECT["authors"]]


def test_version_and_date_are_the_same_everywhere():
    """In the project, the installed package, the citation, and the newest release of the changelog."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    version, date = re.findall(r"^## \[([\d.]+)\] - ([\d-]+)$", changelog, re.MULTILINE)[0]
    assert {PROJECT["version"], supervise.__version__, fields()["version"]} == {version}
    assert fields()["date-released"] == date


def test_each_version_of_python_is_declared_and_tested():
    """The classifiers have no gap above the oldest version, and `.ci/run` runs the tests on each."""
    minors = sorted(
        int(found[1]) for name in PROJECT["classifiers"] if (found := re.fullmatch(r".* :: Python :: 3\.(\d+)", name))
    )
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    assert all(after == before + 1 for before, after in itertools.pairwise(minors))
    run = (ROOT / ".ci/run").read_text()
    assert [minor for minor in minors if f"3.{minor}" not in run] == []
    assert f"Python 3.11 to 3.{minors[-1]}" in (ROOT / "CHANGELOG.md").read_text()
