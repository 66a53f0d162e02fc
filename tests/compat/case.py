"""The cases: which gang is started, and how it ends. Each has a stable id.

The full product has many thousands of combinations that cannot differ; what is here has every outcome with a row of
streams, every pair of redirect and tee with three outcomes, and each start method with each outcome.
"""

from dataclasses import dataclass, field
from functools import cache

STREAMS = ("none", "out", "err", "all", "map")
"""What `redirects` or `tee` is; "map" is one choice a rank."""
ROW = (
    ("none", "none"),
    ("all", "none"),
    ("none", "all"),
    ("out", "err"),
    ("err", "out"),
    ("map", "none"),
    ("all", "map"),
    ("map", "map"),
)
"""Pairs of redirect and tee that each outcome is tried with."""
FUNCTION_OUTCOMES = (
    "value",
    "none",
    "raises",
    "raises-group",
    "exit3",
    "exit0",
    "exit138",
    "hard5",
    "kill",
    "segv",
    "abort",
    "timeout",
    "close",
    "close-kill",
)
BINARY_OUTCOMES = ("value", "code7", "kill", "segv", "hup", "timeout", "close", "close-int", "close-kill")
RECORDED_OUTCOMES = ("value", "raises", "exit0", "exit3", "kill")
BLOCKED_OUTCOMES = ("raises", "exit3", "hard5", "kill")
"""Failures of functions that are also tried while the other ranks run on."""
EXTRAS = ("prefixes", "filters", "ranks", "devnull", "attempt", "shared")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One gang."""

    kind: str
    """``function``, ``binary`` (a shell script) or ``recorded`` (a Python program under ``@record``)."""
    outcome: str
    start_method: str = "none"
    redirect: str = "none"
    tee: str = "none"
    nprocs: int = 1
    extra: str = ""
    """``blocked``: the others run on when the last rank fails; or one of `EXTRAS`."""
    id: str = field(init=False)

    def __post_init__(self) -> None:
        parts = [self.kind, self.start_method, self.outcome, f"r_{self.redirect}", f"t_{self.tee}", f"n{self.nprocs}"]
        object.__setattr__(self, "id", ".".join([*parts, self.extra] if self.extra else parts))

    @property
    def everybody(self) -> bool:
        """Whether all ranks do the same, rather than the last one failing."""
        return self.outcome in {"value", "none", "exit0", "timeout"} or self.outcome.startswith("close")

    @property
    def family(self) -> str:
        """The cases that a defect would turn red together."""
        return f"{self.kind}.{self.outcome}"


@cache
def all_cases() -> dict[str, Case]:
    """Return id to case."""
    found = [*_forked(), *_slow_methods(), *_binaries(), *_recorded(), *_extras()]
    return {case.id: case for case in found}


def _forked() -> list[Case]:
    cases = [
        Case(kind="function", start_method="fork", outcome=outcome, redirect=redirect, tee=tee, nprocs=2)
        for outcome in ("value", "raises", "exit3")
        for redirect in STREAMS
        for tee in STREAMS
    ]
    for index, outcome in enumerate(FUNCTION_OUTCOMES):
        cases += [
            Case(kind="function", start_method="fork", outcome=outcome, redirect=r, tee=t, nprocs=(index + at) % 3 + 1)
            for at, (r, t) in enumerate(ROW)
        ]
    cases += [
        Case(kind="function", start_method="fork", outcome=outcome, redirect=r, tee=t, nprocs=n, extra="blocked")
        for outcome in BLOCKED_OUTCOMES
        for r, t, n in (("all", "none", 2), ("none", "all", 3))
    ]
    return cases


def _slow_methods() -> list[Case]:
    """The methods whose ranks import the library anew: with PyTorch that takes seconds."""
    cases = []
    for index, outcome in enumerate(FUNCTION_OUTCOMES):
        for at, method in enumerate(("spawn", "forkserver")):
            rows = [ROW[(2 * index + at + step) % len(ROW)] for step in ((0, 3, 5) if method == "spawn" else (0,))]
            cases += [
                Case(
                    kind="function", start_method=method, outcome=outcome, redirect=r, tee=t, nprocs=1 + (index + i) % 2
                )
                for i, (r, t) in enumerate(rows)
            ]
    return cases


def _binaries() -> list[Case]:
    cases = [
        Case(kind="binary", outcome=outcome, redirect=redirect, tee=tee, nprocs=2)
        for outcome in ("value", "code7")
        for redirect in STREAMS
        for tee in STREAMS
    ]
    for index, outcome in enumerate(BINARY_OUTCOMES):
        cases += [
            Case(kind="binary", outcome=outcome, redirect=r, tee=t, nprocs=(index + at) % 3 + 1)
            for at, (r, t) in enumerate(ROW)
        ]
    return cases


def _recorded() -> list[Case]:
    return [
        Case(kind="recorded", outcome=outcome, redirect=r, tee=t, nprocs=n)
        for outcome in RECORDED_OUTCOMES
        for r, t, n in (("all", "none", 1), ("none", "all", 2), ("map", "map", 1))
    ]


def _extras() -> list[Case]:
    return [
        Case(kind=kind, start_method=method, outcome=outcome, redirect=r, tee="all", nprocs=3, extra=extra)
        for kind, method, outcomes in (
            ("function", "fork", ("value", "raises")),
            ("binary", "none", ("value", "code7")),
        )
        for outcome in outcomes
        for extra in EXTRAS
        for r in ("none", "all")
        if (outcome, extra) != ("raises", "devnull")  # test_differences.py
    ]
