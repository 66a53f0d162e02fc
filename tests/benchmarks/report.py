"""Figures as a table and as JSON, and back from JSON."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.benchmarks.runner import Taken
from tests.benchmarks.scenarios import Case
from tests.benchmarks.targets import NEVER_SLOWER_THAN, Target, Verdict, judge

if TYPE_CHECKING:
    from pathlib import Path

    from tests.benchmarks.runner import Runner

Cases = list[tuple[Case, dict[str, Taken]]]
"""Of a scenario: each with what was measured, by contender."""

_HEAD = f"{'':32}{'contender':18}{'median':>11}{'min':>11}{'first':>11}{'x floor':>9}  target"
_PROBLEMS = ("left_alive",)
_DIGITS = 4


def title(scenario: str) -> str:
    """Return the head of a scenario's table."""
    return f"\n{scenario}\n{_HEAD}"


def table(case: Case, taken: dict[str, Taken], others: Cases) -> str:
    """Return a case's rows: a block for each metric, a line for each contender.

    Args:
        case: The case.
        taken: What was measured, by contender.
        others: The cases of the same scenario that are done, for targets that compare two.
    """
    verdicts = list(judge(case, taken, others))
    lines = [line for metric in case.metrics for line in _block(case, metric, taken, verdicts)]
    return "\n".join(lines + [f"  {name}: {text}" for name, text in remarks(taken)])


def remarks(taken: dict[str, Taken]) -> list[tuple[str, str]]:
    """Return what else is to be said of contenders: why one is missing, what it left behind."""
    found = []
    for name, what in taken.items():
        if what.why_not:
            found.append((name, what.why_not))
        for problem in _PROBLEMS:
            worst = max(what.values(problem) + what.values(problem, first=True), default=0)
            if worst:
                found.append((name, f"{problem.replace('_', ' ')}: {worst:g}"))
    return found


def _block(case: Case, metric: str, taken: dict[str, Taken], verdicts: list[Verdict]) -> list[str]:
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
        held = held_against(verdicts, name, metric)
        lines.append(f"{head:32}{name:18}{middle:11.4g}{min(values):11.4g}{cold}{ratio}  {held}".rstrip())
    return lines + (heads if len(heads) == 1 else [])


def held_against(verdicts: list[Verdict], name: str, metric: str) -> str:
    """Return the targets of a contender's metric, each with its verdict; being no slower is said only if missed."""
    return "; ".join(
        f"{verdict.target}: {'met' if verdict.met else 'MISSED'}"
        for verdict in verdicts
        if verdict.contender == name and verdict.target.metric == metric and (said(verdict.target) or not verdict.met)
    )


def said(target: Target) -> bool:
    """Whether a case declares the target, rather than sharing the general one."""
    return target.to not in NEVER_SLOWER_THAN or target.bound != 1.0


def verdicts(figures: dict[str, Cases]) -> list[tuple[str, Case, Verdict]]:
    """Return every verdict, with its scenario and case."""
    return [
        (name, case, verdict)
        for name, cases in figures.items()
        for case, taken in cases
        for verdict in judge(case, taken, cases)
    ]


def summary(figures: dict[str, Cases]) -> str:
    """Return how many targets are met, and which are not."""
    found = verdicts(figures)
    lines = []
    for general in (False, True):
        of_kind = [entry for entry in found if said(entry[2].target) is not general]
        met = sum(verdict.met for _, _, verdict in of_kind)
        lines.append(f"{'never slower than PyTorch' if general else 'targets'}: {met} of {len(of_kind)} met")
        lines += [
            f"  MISSED {scenario}, {case.label}: {verdict.contender}: {verdict.target.metric} {verdict.target}"
            f" (is {verdict.value:.3g})"
            for scenario, case, verdict in of_kind
            if not verdict.met
        ]
    return "\n" + "\n".join(lines)


def write(path: Path, machine: dict[str, Any], runner: Runner, figures: dict[str, Cases]) -> None:
    """Write everything as JSON: ``scenarios`` is name to a list of cases, each with every figure of every contender."""
    whole = {
        "machine": machine,
        "interpreter_of": {who: runner.names[python] for who, python in runner.pythons.items()},
        "absent": runner.absent,
        "scenarios": {
            name: [
                {"case": asdict(case), "contenders": {who: _columns(what) for who, what in taken.items()}}
                for case, taken in cases
            ]
            for name, cases in figures.items()
        },
    }
    text = json.dumps(whole, indent=1)
    flat = re.sub(r"\[[-+\d.eE,\s]+\]", lambda found: " ".join(found[0].split()), text)
    path.write_text(flat + "\n", encoding="utf-8")


def _columns(what: Taken) -> dict[str, Any]:
    """Return lists of figures by metric, which are shorter than a mapping a run."""
    found: dict[str, Any] = {"why_not": what.why_not} if what.why_not else {}
    for part, runs in (("first", what.first), ("again", what.again)):
        metrics = dict.fromkeys(metric for run in runs for metric in run)
        if metrics:
            found[part] = {name: [float(f"{run[name]:.{_DIGITS}g}") for run in runs if name in run] for name in metrics}
    return found


def read(path: Path) -> tuple[dict[str, Any], dict[str, Cases]]:
    """Return all that `write` wrote, and of it the figures as they were."""
    whole: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    figures = {
        name: [
            (_case(entry["case"]), {who: _taken(what) for who, what in entry["contenders"].items()})
            for entry in entries
        ]
        for name, entries in whole["scenarios"].items()
    }
    return whole, figures


def _case(found: dict[str, Any]) -> Case:
    targets = tuple(Target(**target) for target in found["targets"])
    return Case(**{**found, "targets": targets, "metrics": tuple(found["metrics"])})


def _taken(found: dict[str, Any]) -> Taken:
    runs = {
        part: [{name: value} for name, values in found.get(part, {}).items() for value in values]
        for part in ("first", "again")
    }
    return Taken(**runs, why_not=found.get("why_not", ""))
