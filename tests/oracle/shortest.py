"""The shortest history with a difference, in a second: Hypothesis takes minutes to shrink hundreds of choices."""

from collections.abc import Callable, Iterator

from tests.oracle.histories import KINDS, Attempt


def shortest(plan: Attempt, differs: Callable[[Attempt], object]) -> Attempt:
    """Return a smaller plan that still `differs`: fewer choices, simpler choices, a simpler gang."""
    size = len(plan.choices) + 1
    while size > len(plan.choices):
        size = len(plan.choices)
        for simpler in _with_simpler_gang(plan):
            if differs(simpler):
                plan = simpler
                break
        plan = _with_fewer_choices(plan, differs)
        plan = _with_simpler_choices(plan, differs)
    return plan


def _with_simpler_gang(plan: Attempt) -> Iterator[Attempt]:
    for spec in (plan.spec._replace(policy=None), plan.spec):
        for nprocs in range(1, plan.spec.nprocs + 1):
            smaller = plan._replace(spec=spec._replace(nprocs=nprocs, window=min(spec.window, nprocs)), calm=0)
            for tails in range(plan.tails + 1):
                yield smaller._replace(tails=tails, values=False)
                yield smaller._replace(tails=tails)
            yield smaller._replace(calm=plan.calm)


def _with_fewer_choices(plan: Attempt, differs: Callable[[Attempt], object]) -> Attempt:
    size = len(plan.choices) // 2
    while size:
        at = 0
        while at < len(plan.choices):
            fewer = plan._replace(choices=[*plan.choices[:at], *plan.choices[at + size :]])
            if differs(fewer):
                plan = fewer
            else:
                at += size
        size //= 2
    return plan


def _with_simpler_choices(plan: Attempt, differs: Callable[[Attempt], object]) -> Attempt:
    for at, number in enumerate(plan.choices):
        simpler = plan._replace(choices=[*plan.choices[:at], number % KINDS, *plan.choices[at + 1 :]])
        if number >= KINDS and differs(simpler):
            plan = simpler
    return plan
