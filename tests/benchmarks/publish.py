"""`python -m tests.benchmarks.publish FIGURES.json...`: figures into the documentation, as tables and pictures.

The first file becomes a table for each scenario. Of the others, the page has the picture and the number of targets met.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.benchmarks import chart, report
from tests.benchmarks.runner import ROOT
from tests.benchmarks.targets import MORE_IS_BETTER

if TYPE_CHECKING:
    from tests.benchmarks.report import Cases
    from tests.benchmarks.runner import Taken

RESULTS = Path(__file__).parent / "results"
PAGE = ROOT / "docs" / "explanation" / "performance.md"
BEGIN, END = "<!-- figures -->", "<!-- end -->"

_COLUMNS = {"floor": "floor", "supervise": "`supervise`", "pytorch": "PyTorch", "pytorch-tuned": "... tuned"}
_UNNAMED = frozenset({*_COLUMNS, "supervise-facade", "floor-session"})
"""Contenders that are not in the last column, which has the others that are faster than supervise."""
_LEFT_OUT = frozenset({"lost_lines", "torn_lines", "peak_rss_mb", "rss_growth_mb", "host_rss_mb"})
_LEFT_OUT_OF = {"first": frozenset({"import_ms", "first_ms"})}
"""Metrics that are only in the JSON: of every scenario, and of one."""
_SPOILED = ("lost_lines", "torn_lines")
_TITLES = {
    "launch": "Launch: time until the result of programs that exit at once",
    "functions": "Functions: time until the result of functions that return at once",
    "first": "The first run of a process, and a later one",
    "command": "`supervise run` as a command",
    "failure": "Failure: time from the exit of a rank to the result",
    "last-exit": "Success: time from the last exit to the result",
    "close": "Close: time until every rank is reaped",
    "tee": "Output that is shown at full speed",
    "shown": "Lines: time from the write until they are shown",
    "stalled": "Failure while the console is not read",
    "idle": "At rest",
    "memory": "Memory of the host",
    "import": "Import",
    "return": "Return values",
}
"""Heading of each scenario on the page; the others are only in the JSON."""


def main() -> None:
    """Keep each file of figures, draw it, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.publish", description=__doc__)
    parser.add_argument("figures", type=Path, nargs="+", metavar="FIGURES.json", help="what --json has written")
    RESULTS.mkdir(exist_ok=True)
    before, _, after = parts(PAGE.read_text(encoding="utf-8"))
    kept = [_keep(source) for source in parser.parse_args().figures]
    PAGE.write_text(f"{before}{BEGIN}\n{block(kept)}{END}{after}", encoding="utf-8")
    print(f"written: {PAGE}")


def parts(page: str) -> tuple[str, str, str]:
    """Return what is before the figures of the page, the figures, and what is after them."""
    before, rest = page.split(BEGIN)
    middle, after = rest.split(END)
    return before, middle.removeprefix("\n"), after


def _keep(source: Path) -> Path:
    """Keep the figures and draw them; return where they are kept."""
    kept = RESULTS / source.name
    if source.resolve() != kept.resolve():
        shutil.copyfile(source, kept)
    whole, figures = report.read(kept)
    picture = PAGE.with_name(f"performance-{_python(whole)}.svg")
    picture.write_text(chart.draw(figures), encoding="utf-8")
    print(report.summary(figures))
    print(f"written: {kept}, {picture}")
    return kept


def block(kept: list[Path]) -> str:
    """Return the figures of the page: of the first file all tables, of the others a summary."""
    runs = [(path, *report.read(path)) for path in kept]
    tables = [
        f"#### {_TITLES[name]}\n\n{_scenario(name, cases)}"
        for name, cases in runs[0][2].items()
        if cases and name in _TITLES
    ]
    heads = [_summary(*run) for run in runs]
    return "\n" + "\n".join([heads[0], *tables, *heads[1:]]) + "\n"


def _python(whole: dict[str, Any]) -> str:
    """Return the version of Python, such as 3.11."""
    return str(whole["machine"]["interpreters"]["this"]["python"]).rpartition(".")[0]


def _summary(path: Path, whole: dict[str, Any], figures: dict[str, Cases]) -> str:
    """Return the head of one run: where it was taken, how many targets are met, and its picture."""
    machine, python = whole["machine"], _python(whole)
    absent = "".join(f" Not there: {name} ({why})." for name, why in whole["absent"].items())
    found = [(report.said(verdict.target), verdict.met) for _, _, verdict in report.verdicts(figures)]
    own, general = [met for said, met in found if said], [met for said, met in found if not said]
    raw = f"../../{path.relative_to(ROOT).as_posix()}"
    of_processes = "1 process" if machine["rounds"] == 1 else f"{machine['rounds']} processes"
    return (
        f"### Python {python}\n\n"
        f"{machine['at'][:10]}, {machine['system']}, {machine['processor']}, {machine['processors']} processors, load "
        f"{machine['load_average'][0]:.1f} at the beginning. Each tool ran each case in {of_processes}. "
        f"[All figures, with versions]({raw}).{absent}\n\n"
        f"supervise meets **{sum(own)}** of its **{len(own)}** targets, and is not slower than PyTorch, with its "
        f"defaults or tuned, in **{sum(general)} of {len(general)}** comparisons.\n\n"
        f"![{_ALT}](performance-{python}.svg)\n"
    )


_ALT = "Times the floor"


def _scenario(name: str, cases: Cases) -> str:
    """Return the table of a scenario, without columns that are empty, and what was lost on the way."""
    left_out = _LEFT_OUT | _LEFT_OUT_OF.get(name, frozenset())
    shown = [(case, metric, taken) for case, taken in cases for metric in case.metrics if metric not in left_out]
    units = {unit(metric) for _, metric, _ in shown}
    rows = [
        _row(case.label if len(units) == 1 else f"{case.label}: {unit(metric)}", metric, taken)
        for case, metric, taken in shown
    ]
    rows = [row for row in rows if any(row[1:])]
    head = [units.pop() if len(units) == 1 else "", *_COLUMNS.values(), "faster"]
    used = [column for column in range(len(head)) if not column or any(row[column] for row in rows)]
    lines = [head, ["---"] * len(head), *rows]
    table = "\n".join(f"| {' | '.join(line[column] for column in used)} |" for line in lines) + "\n"
    return table.replace("| --- ", "|---").replace("--- |", "---|") + _spoiled(cases)


def _spoiled(cases: Cases) -> str:
    """Return a sentence about lost and torn lines, if a scenario counts them."""
    counted = [(metric, taken) for case, taken in cases for metric in case.metrics if metric in _SPOILED]
    worst = {who: max(_middle(taken, who, metric) or 0 for metric, taken in counted) for who in _COLUMNS if counted}
    if not worst:
        return ""
    told = ", ".join(f"{shown} {_figure(worst[who])}" for who, shown in _COLUMNS.items())
    return f"\nLost or torn lines in the worst case: {told}.\n"


def _row(label: str, metric: str, taken: dict[str, Taken]) -> list[str]:
    """Return a row: what, the columns, what is faster. A figure is bold if it is better than that of supervise."""
    middles = {who: value for who in taken if (value := _middle(taken, who, metric)) is not None}
    floor, ours = middles.get("floor"), middles.get("supervise")

    def cell(who: str) -> str:
        value = middles.get(who)
        if value is None:
            return ""
        if who == "supervise":
            return f"{_figure(value)} ({value / floor:.2f})" if floor else _figure(value)
        better = ours is not None and (value > ours if metric in MORE_IS_BETTER else value < ours)
        return f"**{_figure(value)}**" if better and who != "floor" else _figure(value)

    faster = ", ".join(f"{who} {shown}" for who in middles if who not in _UNNAMED and (shown := cell(who))[0] == "*")
    return [label, *(cell(who) for who in _COLUMNS), faster]


def _middle(taken: dict[str, Taken], who: str, metric: str) -> float | None:
    values = taken[who].values(metric) if who in taken else []
    return median(values) if values else None


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def unit(metric: str) -> str:
    """Return a metric's name as people write it."""
    words = metric.replace("_per_", "/").split("_")
    spoken = {
        "ms": "ms",
        "mb/s": "MB/s",
        "kb/rank": "KB a rank",
        "mb": "MB",
        "s/gb": "s/GB",
        "cpu": "CPU",
        "rss": "RSS",
    }
    return " ".join(spoken.get(word, word) for word in words)


if __name__ == "__main__":
    main()
