"""The pictures of results and gangs in notebooks: well-formed, escaped, bounded, and never an error."""

import os
import xml.etree.ElementTree as ET
from typing import Any

from supervise import (
    DefaultLogsSpecs,
    ProcessFailure,
    RankEnd,
    RankRestart,
    RunProcsResult,
    Start,
    Supervisor,
    Wait,
    start_processes,
)
from tests.patience import PATIENCE_S

NO_FILES = DefaultLogsSpecs(os.devnull)
S = 1_000_000_000


def end(rank: int, role: Any, exitcode: int | None = 0, at_s: float = 1.0, **more: Any) -> RankEnd:
    started, ended = int(at_s * S), int((at_s + 1) * S)
    return RankEnd(
        local_rank=rank, pid=100 + rank, exitcode=exitcode, role=role, started_ns=started, ended_ns=ended, **more
    )


def drawn(html: str) -> tuple[list[str], list[ET.Element]]:
    """Return the texts and the bars of a picture."""
    tree = ET.fromstring(html)
    return ["".join(each.itertext()) for each in tree.iter("text")], list(tree.iter("rect"))


def result_of(*ends: RankEnd, **more: Any) -> RunProcsResult:
    return RunProcsResult(ends={each.local_rank: each for each in ends}, **more)


def test_a_failure_is_first_with_its_lives():
    """The bars of two lives are side by side on one axis; the title is the first line of the report."""
    ends = (end(0, "finished"), end(1, "root_cause", 3, at_s=3.0), end(2, "bystander", -15))
    first = RankRestart(local_rank=1, attempt=0, end=end(1, "root_cause", 3), at_ns=3 * S, counted=True)
    failures = {1: ProcessFailure(1, 101, 3, "/nowhere/error.json")}
    result = result_of(*ends, outcome="failed", failures=failures, restarts=[first])
    html = result._repr_html_()
    texts, bars = drawn(html)
    assert texts[::2] == ["rank 1", "rank 0", "rank 2"]
    assert texts[1::2] == ["root cause: exit code 3, 1 restart", "finished", "stopped, SIGTERM"]
    assert [(float(bar.attrib["x"]), float(bar.attrib["width"])) for bar in bars[:2]] == [(80.0, 120.0), (320.0, 120.0)]
    assert "rank 1 of 3 failed: exit code 3 (host " in html


def test_many_ranks_are_cut():
    result = result_of(*(end(rank, "finished") for rank in range(1000)))
    html = result._repr_html_()
    assert len(drawn(html)[1]) == 32
    assert "succeeded: 1000 ranks, 1 s" in html
    assert "and 968 more ranks" in html
    assert len(html) < 20_000


def test_results_with_little_in_them_are_shown():
    """By hand, without times, of several hosts, stopped before a start."""
    for result in (
        RunProcsResult(),
        RunProcsResult(outcome="stopped"),
        RunProcsResult(outcome="timed_out", stdouts={0: ""}),
        result_of(RankEnd(local_rank=0, pid=None, exitcode=None, role="lost", started_ns=0, ended_ns=0)),
        result_of(end(0, "finished", host="a"), end(1, "terminated", -9, host="b")),
    ):
        assert drawn(result._repr_html_())[1] == []


def test_a_rank_without_an_exit_status_has_the_words_of_its_role():
    """It was lost with its host, or it survived SIGKILL."""
    html = result_of(end(0, "lost", None, host="a"), end(1, "unkillable", None))._repr_html_()
    assert ">lost with its host<" in html
    assert ">survived SIGKILL, exit status lost<" in html


def test_a_gang_is_shown_in_every_phase():
    """Its name and the status texts of ranks are escaped."""
    with start_processes("<b>", "sleep", {0: ("3600",)}, logs_specs=NO_FILES) as context:
        html: str = context._repr_html_()
        assert "&lt;b&gt;: running" in html
        assert len(drawn(html)[1]) == 1
    assert "stopped" in context._repr_html_() or "not running" in context._repr_html_()
    gang = Supervisor.start(name="ref", entrypoint="true", args={0: ()}, logs_specs=NO_FILES)
    assert "gang: new" in gang._repr_html_()
    gang.ask(Start(), timeout=PATIENCE_S)
    gang.ask(Wait(), timeout=PATIENCE_S)
    assert "succeeded: 1 rank" in gang._repr_html_()
    gang.stop()
    assert "gang: not running" in gang._repr_html_()
