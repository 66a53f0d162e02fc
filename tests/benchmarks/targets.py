"""What we have set ourselves: bounds for metrics, and how figures are held against them."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.benchmarks.runner import Taken
    from tests.benchmarks.scenarios import Case

OURS = ("supervise", "supervise-facade")
"""Who is held against targets."""
NEVER_SLOWER_THAN = ("pytorch", "pytorch-tuned")
MORE_IS_BETTER = frozenset({"mb_per_s"})
"""Of all other metrics, less is better."""
_ABSOLUTE_ONLY = frozenset({"host_rss_mb", "rss_growth_mb"})
"""Differences of a few pages decide nothing between contenders; only a bound that is a figure may be set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A bound for the median of a metric."""

    metric: str
    bound: float
    to: str = "floor"
    """The contender whose median the bound multiplies; "" if the bound is a figure by itself."""
    case: str = ""
    """The label of another case of the same scenario, whose own median the bound multiplies instead."""
    per_rank: bool = False
    """Whether both medians of two cases are divided by the number of ranks first."""

    def __str__(self) -> str:
        sign = ">=" if self.metric in MORE_IS_BETTER else "<="
        if self.case:
            return f"{sign} {self.bound:g} x that of {self.case}{', per rank' if self.per_rank else ''}"
        return f"{sign} {self.bound:g} x {self.to}" if self.to else f"{sign} {self.bound:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A target, held against what was measured."""

    target: Target
    contender: str
    value: float
    """The ratio, or where the target is no ratio (or is one to zero), the median."""
    met: bool


def floors(**bounds: float) -> tuple[Target, ...]:
    """Return targets that are ratios to the floor."""
    return tuple(Target(metric=metric, bound=bound) for metric, bound in bounds.items())


def figures(**bounds: float) -> tuple[Target, ...]:
    """Return targets that are figures by themselves."""
    return tuple(Target(metric=metric, bound=bound, to="") for metric, bound in bounds.items())


def judge(
    case: Case, taken: Mapping[str, Taken], others: Iterable[tuple[Case, Mapping[str, Taken]]] = ()
) -> Iterator[Verdict]:
    """Hold a case against its own targets, and against being slower than PyTorch, with its defaults or tuned.

    Args:
        case: The case.
        taken: What was measured, by contender.
        others: Cases of the same scenario, for targets that compare two. What cannot be judged is left out.
    """
    never = [Target(metric=metric, bound=1.0, to=other) for metric in _compared(case) for other in NEVER_SLOWER_THAN]
    known = {other.label: (other, figures) for other, figures in others}
    for name in OURS:
        for target in (*case.targets, *never):
            ours = _middle(taken, name, target.metric)
            if target.case:
                other, before = known.get(target.case, (case, {}))
                reference = _middle(before, name, target.metric)
                scale = _ranks(case) / _ranks(other) if target.per_rank else 1.0
            else:
                reference, scale = _middle(taken, target.to, target.metric) if target.to else 1.0, 1.0
            if ours is None or reference is None:
                continue
            limit = target.bound * reference * scale
            met = ours >= limit if target.metric in MORE_IS_BETTER else ours <= limit
            value = ours / (reference * scale) if reference else ours
            yield Verdict(target=target, contender=name, value=value, met=met)


def _compared(case: Case) -> list[str]:
    return [metric for metric in case.metrics if metric not in _ABSOLUTE_ONLY]


def _middle(taken: Mapping[str, Taken], name: str, metric: str) -> float | None:
    values = taken[name].values(metric) if name in taken else []
    return median(values) if values else None


def _ranks(case: Case) -> int:
    return int(case.params.get("nprocs", 1))
