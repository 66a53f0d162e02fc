"""`python -m tests.benchmarks.publish FIGURES.json...`: figures into the documentation, as tables and pictures."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.benchmarks import chart, report
from tests.benchmarks.runner import ROOT
from tests.benchmarks.targets import judge

if TYPE_CHECKING:
    from tests.benchmarks.report import Cases
    from tests.benchmarks.runner import Taken
    from tests.benchmarks.scenarios import Case
    from tests.benchmarks.targets import Verdict

RESULTS = Path(__file__).parent / "results"
PAGE = ROOT / "docs" / "explanation" / "performance.md"
BEGIN, END = "<!-- figures -->", "<!-- end -->"

_COLUMNS = ("floor", "supervise", "supervise-facade", "pytorch", "pytorch-tuned")
_HOW_TO_READ = (
    "A cell is the median, and in brackets the ratio to the floor. *Missed* names the contender that misses the\n"
    "target, and its ratio or figure. Every metric has two targets more: no slower than PyTorch with its\n"
    "defaults, and no slower than PyTorch tuned.\n"
)
_HEAD = (
    "| what | floor | `supervise` | its façade | PyTorch | ... tuned | others | target |\n"
    "|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    """Keep each file of figures, draw it, and put it into the page, under the Python that it was taken on."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.publish", description=__doc__)
    parser.add_argument("figures", type=Path, nargs="+", metavar="FIGURES.json", help="what --json has written")
    RESULTS.mkdir(exist_ok=True)
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    middle = "\n".join(_keep(source) for source in parser.parse_args().figures)
    PAGE.write_text(f"{before}{BEGIN}\n\n{_HOW_TO_READ}\n{middle}\n{END}{after}", encoding="utf-8")
    print(f"written: {PAGE}")


def _keep(source: Path) -> str:
    """Keep the figures and draw them; return their part of the page."""
    kept = RESULTS / source.name
    if source.resolve() != kept.resolve():
        shutil.copyfile(source, kept)
    whole, figures = report.read(kept)
    python = whole["machine"]["interpreters"]["this"]["python"].rpartition(".")[0]
    picture = PAGE.with_name(f"performance-{python}.svg")
    picture.write_text(chart.draw(figures), encoding="utf-8")
    print(report.summary(figures))
    print(f"written: {kept}, {picture}")
    return render(whole, figures, python, f"../../{kept.relative_to(ROOT).as_posix()}")


def render(whole: dict[str, Any], figures: dict[str, Cases], python: str, raw: str) -> str:
    """Return the part of one run.

    Args:
        whole: All of the JSON.
        figures: Its figures.
        python: The version of Python, such as 3.11.
        raw: A link to the JSON.
    """
    head = f"### On Python {python}\n\n{_provenance(whole, raw)}![{_ALT}](performance-{python}.svg)\n"
    parts = [head, _verdicts(figures)]
    parts += [f"#### Python {python}: {name}\n\n{_scenario(cases)}" for name, cases in figures.items() if cases]
    return "\n".join(parts)


def _provenance(whole: dict[str, Any], raw: str) -> str:
    machine = whole["machine"]
    versions = {name: version for found in machine["interpreters"].values() for name, version in found.items()}
    used = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()) if name != "python")
    called = {name: found["python"] for name, found in machine["interpreters"].items()}
    pythons = ", ".join(python if name == "this" else f"{python} {name}" for name, python in called.items())
    absent = "".join(f" Not there: {name} ({why})." for name, why in whole["absent"].items())
    return (
        f"Taken {machine['at'][:10]} on {machine['system']}, {machine['processor']}, {machine['processors']} "
        f"processors, load {machine['load_average'][0]:.1f} at the beginning; Python {pythons}; {used}. "
        f"{machine['rounds']} process(es) per contender and case; {machine['took_s'] / 60:.0f} minutes in all. "
        f"[All figures]({raw}).{absent}\n\n"
    )


_ALT = "Times the floor, on a logarithmic scale, for each scenario and contender"


def _verdicts(figures: dict[str, Cases]) -> str:
    found = [(report.said(verdict.target), verdict) for _, _, verdict in report.verdicts(figures)]
    own = [verdict for said, verdict in found if said]
    never = [verdict for said, verdict in found if not said]
    return (
        f"**{sum(verdict.met for verdict in own)} of {len(own)}** targets are met, and "
        f"**{sum(verdict.met for verdict in never)} of {len(never)}** comparisons show a metric no worse than "
        "PyTorch's, with its defaults or tuned (the actor and the façade are compared separately).\n"
    )


def _scenario(cases: Cases) -> str:
    rows, notes = [_HEAD], []
    for case, taken in cases:
        verdicts = list(judge(case, taken, cases))
        rows += [_line(case, metric, taken, verdicts) for metric in case.metrics if _has(taken, metric)]
        notes += [f"- {case.label}, {name}: {text}" for name, text in report.remarks(taken)]
    return "\n".join(rows) + "\n" + ("\n" + "\n".join(notes) + "\n" if notes else "")


def _has(taken: dict[str, Taken], metric: str) -> bool:
    return any(what.values(metric) for what in taken.values())


def _line(case: Case, metric: str, taken: dict[str, Taken], verdicts: list[Verdict]) -> str:
    middles = {name: median(values) for name, what in taken.items() if (values := what.values(metric))}
    floor = middles.get("floor")
    cells = [_cell(middles.get(name), None if name == "floor" else floor) for name in _COLUMNS]
    others = ", ".join(f"{name} {_figure(value)}" for name, value in middles.items() if name not in _COLUMNS)
    mine = [verdict for verdict in verdicts if verdict.target.metric == metric]
    return f"| {case.label}: {unit(metric)} | {' | '.join(cells)} | {others} | {_judged(mine)} |"


def _judged(verdicts: list[Verdict]) -> str:
    """Return each target once, with who misses it; of the general one only that."""
    parts = []
    for target in dict.fromkeys(verdict.target for verdict in verdicts):
        missing = [
            f"{verdict.contender} {verdict.value:.3g}"
            for verdict in verdicts
            if verdict.target == target and not verdict.met
        ]
        text = str(target) if report.said(target) else f"slower than {target.to}"
        if missing:
            parts.append(f"{text}: **missed** ({', '.join(missing)})")
        elif report.said(target):
            parts.append(f"{text}: met")
    return "; ".join(parts)


def _cell(value: float | None, floor: float | None) -> str:
    if value is None:
        return ""
    return f"{_figure(value)} ({_ratio(value / floor)})" if floor else _figure(value)


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else _figure(value)


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
