"""Figures as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.benchmarks.runner import Taken
    from tests.benchmarks.scenarios import Case

_HEAD = f"{'':30}{'contender':18}{'median':>11}{'min':>11}{'first':>11}{'x floor':>9}"
_PROBLEMS = ("left_alive",)


def title(scenario: str) -> str:
    """Return the head of a scenario's table."""
    return f"\n{scenario}\n{_HEAD}"


def table(case: Case, taken: dict[str, Taken]) -> str:
    """Return a case's rows: a block for each metric, a line for each contender."""
    lines = [line for metric in case.metrics for line in _block(case, metric, taken)]
    for name, what in taken.items():
        if what.why_not:
            lines.append(f"  {name}: {what.why_not}")
        for problem in _PROBLEMS:
            worst = max(what.values(problem) + what.values(problem, first=True), default=0)
            if worst:
                lines.append(f"  {name}: {problem.replace('_', ' ')}: {worst:g}")
    return "\n".join(lines)


def _block(case: Case, metric: str, taken: dict[str, Taken]) -> list[str]:
    lines, floor = [], None
    heads = [f"  {case.label}", f"    {metric}"]
    for name, what in taken.items():
        values, first = what.values(metric), what.values(metric, first=True)
        if not values:
            continue
        middle = median(values)
        if name == "floor":
            floor = middle
        ratio = f"{middle / floor:9.2f}" if floor else f"{'-':>9}"
        cold = f"{median(first):11.4g}" if what.again else f"{'':11}"
        head = heads.pop(0) if heads else ""
        lines.append(f"{head:30}{name:18}{middle:11.4g}{min(values):11.4g}{cold}{ratio}")
    return lines + (heads if len(heads) == 1 else [])


def as_json(
    machine: dict[str, Any],
    pythons: dict[str, str],
    absent: dict[str, str],
    figures: dict[str, list[tuple[Case, dict[str, Taken]]]],
) -> dict[str, Any]:
    """Return everything: ``scenarios`` is name to a list of cases, each with every raw figure of every contender."""
    return {
        "machine": machine,
        "interpreter_of": pythons,
        "absent": absent,
        "scenarios": {
            name: [
                {"case": asdict(case), "contenders": {who: asdict(what) for who, what in taken.items()}}
                for case, taken in cases
            ]
            for name, cases in figures.items()
        },
    }
