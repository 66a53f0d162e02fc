"""What is measured, of whom, and how often."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Reader = Literal["", "checked", "pipe", "terminal"]

_OURS = ("floor", "supervise", "supervise-facade")
_TORCH = ("pytorch", "pytorch-tuned")
_PROGRAMS = (*_OURS, *_TORCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of a scenario: a task with its parameters."""

    label: str
    task: str
    params: dict[str, Any] = field(default_factory=dict)
    contenders: tuple[str, ...] = _PROGRAMS
    metrics: tuple[str, ...]
    """What the table shows; their names end in their units. The JSON holds everything."""
    again: int = 0
    """How often the task is repeated in its process; the first run there is the cold one."""
    budget_s: float = 5.0
    """No second repetition begins later than this after the first run."""
    reader: Reader = ""
    """What is at the other end of the driver's stdout: nothing, a pipe whose lines are counted and checked,
    a pipe or a terminal whose lines are timed."""


def _launch(nprocs: int, again: int) -> Case:
    others = ("psutil", "honcho") if nprocs <= 256 else ("psutil",)
    return Case(
        label=f"{nprocs} programs",
        task="launch",
        params={"nprocs": nprocs},
        contenders=("floor", "floor-session", *_PROGRAMS[1:], *others),
        metrics=("result_ms",),
        again=again,
    )


def _functions(nprocs: int, method: str, again: int) -> Case:
    return Case(
        label=f"{nprocs} functions, {method}",
        task="launch",
        params={"nprocs": nprocs, "method": method},
        contenders=(*_PROGRAMS, "torch-mp", "futures", *(("loky",) if method == "spawn" else ())),
        metrics=("result_ms",),
        again=again,
        budget_s=3.0,
    )


def _failure(nprocs: int, *, method: str = "", tee: bool = False) -> Case:
    what = f"functions, {method}" if method else "programs"
    others = ("torch-mp",) if method else () if tee else ("psutil", "honcho")
    return Case(
        label=f"{nprocs} {what}{', tee' if tee else ''}",
        task="failure",
        params={"nprocs": nprocs, "method": method, "tee": tee},
        contenders=(*_PROGRAMS, *others),
        metrics=("latency_ms",),
        again=2,
    )


def _returned(mib: int, what: str) -> Case:
    return Case(
        label=f"{mib} MiB of {what}",
        task="returned",
        params={"mib": mib, "what": what},
        contenders=(*_PROGRAMS, "futures"),
        metrics=("result_ms",),
        again=3,
    )


_PACED = Case(
    label="8 ranks, paced",
    task="tee",
    params={"nprocs": 8, "megabytes": 16, "pause_s": 0.002},
    metrics=("lost_lines", "torn_lines"),
    reader="checked",
)


def _tee(nprocs: int) -> Case:
    return Case(
        label=f"{nprocs} rank{'s' if nprocs > 1 else ''}",
        task="tee",
        params={"nprocs": nprocs, "megabytes": 200},
        metrics=("mb_per_s", "cpu_s_per_gb", "lost_lines", "torn_lines"),
        again=2,
        reader="checked",
    )


def _shown(reader: Reader) -> Case:
    return Case(
        label=f"8 ranks, to a {reader}",
        task="shown",
        params={"nprocs": 8, "lines": 100, "gap_s": 0.02},
        metrics=("shown_p50_ms", "shown_p99_ms"),
        reader=reader,
    )


SCENARIOS: dict[str, tuple[Case, ...]] = {
    "launch": (_launch(1, 20), _launch(8, 10), _launch(64, 5), _launch(256, 3), _launch(1000, 2)),
    "functions": tuple(
        _functions(nprocs, method, again)
        for method in ("spawn", "fork", "forkserver")
        for nprocs, again in ((1, 5), (8, 3), (32, 1))
    ),
    "failure": (_failure(8), _failure(64), _failure(8, tee=True), _failure(8, method="fork")),
    "last-exit": (Case(label="8 programs", task="last_exit", params={"nprocs": 8}, metrics=("latency_ms",), again=3),),
    "close": (
        Case(
            label="64 that cooperate",
            task="close",
            params={"nprocs": 64},
            contenders=(*_PROGRAMS, "psutil"),
            metrics=("close_ms",),
            again=3,
        ),
        Case(
            label="8 that ignore TERM",
            task="close_stubborn",
            params={"nprocs": 8, "grace_s": 1},
            contenders=(*_PROGRAMS, "psutil"),
            metrics=("late_ms",),
            again=1,
        ),
    ),
    "tee": (_tee(1), _tee(8), _PACED),
    "shown": (_shown("pipe"), _shown("terminal")),
    "idle": (
        Case(
            label="64 ranks, tee",
            task="idle",
            params={"nprocs": 64, "window_s": 10.0},
            metrics=("cpu_ms_per_min", "wakeups_per_s", "threads"),
        ),
    ),
    "memory": (Case(label="each of 128, tee", task="memory", params={"nprocs": 128}, metrics=("rss_kb_per_rank",)),),
    "import": (
        Case(
            label="package, with interpreter",
            task="imported",
            params={"package": True},
            contenders=("floor", "supervise"),
            metrics=("import_ms", "peak_rss_mb"),
            again=9,
            budget_s=3.0,
        ),
        Case(
            label="what a user imports",
            task="imported",
            contenders=(*_PROGRAMS, "torch-mp", "futures", "loky", "psutil", "honcho"),
            metrics=("import_ms", "peak_rss_mb"),
            again=4,
            budget_s=3.0,
        ),
    ),
    "return": (_returned(1, "bytes"), _returned(100, "bytes"), _returned(100, "numpy")),
}
