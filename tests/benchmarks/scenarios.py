"""What is measured, of whom, how often, and which target it has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tests.benchmarks.targets import Target, figures, floors
from tests.benchmarks.tasks.features import FEATURES

Reader = Literal["", "checked", "stalled", "pipe", "terminal"]

_OURS = ("floor", "supervise", "supervise-facade")
_TORCH = ("pytorch", "pytorch-tuned")
_PROGRAMS = (*_OURS, *_TORCH)
EVERY_OTHER_ROUND = frozenset({"pytorch", "torch-mp", "honcho", "circus", "loky"})
"""No target refers to them, and they take most of the time."""
_NOTHING_LOST = figures(lost_lines=0, torn_lines=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of a scenario: a task with its parameters."""

    label: str
    task: str
    params: dict[str, Any] = field(default_factory=dict)
    contenders: tuple[str, ...] = _PROGRAMS
    metrics: tuple[str, ...]
    """What the table shows; their names end in their units. The JSON holds everything."""
    targets: tuple[Target, ...] = ()
    again: int = 0
    """How often the task is repeated in its process; the first run there is the cold one."""
    budget_s: float = 3.0
    """No second repetition begins later than this after the first run."""
    once: tuple[str, ...] = ()
    """Contenders that take part in the first round only, since they take minutes."""
    reader: Reader = ""
    """What is at the other end of the driver's stdout: nothing; a pipe whose lines are counted and checked, either
    read at once or (stalled) only when the driver says so; a pipe or a terminal whose lines are timed."""


def _like_64(metric: str) -> Target:
    return Target(metric=metric, bound=1.2, case="64 programs", per_rank=True)


def _launch(nprocs: int, again: int, bound: float) -> Case:
    others = ("psutil", "honcho", "circus") if nprocs <= 256 else ("psutil",)
    return Case(
        label=f"{nprocs} program{'s' if nprocs > 1 else ''}",
        task="launch",
        params={"nprocs": nprocs},
        contenders=("floor", "floor-session", *_PROGRAMS[1:], *others),
        metrics=("result_ms",),
        targets=(*floors(result_ms=bound), *([_like_64("result_ms")] if nprocs == 1000 else [])),
        again=again,
    )


_TAKE_MINUTES = {("spawn", 32): (*_TORCH, "torch-mp"), ("forkserver", 32): ("pytorch", "torch-mp")}
"""By start method and ranks: who imports PyTorch in each of them."""


def _functions(nprocs: int, method: str, again: int, bound: float) -> Case:
    return Case(
        label=f"{nprocs} function{'s' if nprocs > 1 else ''}, {method}",
        task="launch",
        params={"nprocs": nprocs, "method": method},
        contenders=(*_PROGRAMS, "torch-mp", "futures", *(("loky",) if method == "spawn" else ())),
        metrics=("result_ms",),
        targets=(*floors(result_ms=bound), Target(metric="result_ms", bound=1.0, to="futures")),
        again=again,
        once=_TAKE_MINUTES.get((method, nprocs), ()),
    )


def _first(what: str, method: str, *others: str) -> Case:
    return Case(
        label=what,
        task="first",
        params={"nprocs": 1, "method": method},
        contenders=(*_PROGRAMS, *others),
        metrics=("first_with_import_ms", "import_ms", "first_ms", "later_ms"),
    )


def _command(label: str, *more: str) -> Case:
    return Case(
        label=label,
        task="command",
        params={"nprocs": 4, "more": more},
        contenders=("floor", "supervise"),
        metrics=("result_ms",),
        targets=floors(result_ms=2.5),
        again=9,
    )


def _feature(what: str) -> Case:
    return Case(
        label=what,
        task="feature",
        params={"nprocs": 8, "what": what},
        contenders=("supervise",),
        metrics=("result_ms",),
        again=19,
    )


def _failure(nprocs: int, *, method: str = "", tee: bool = False) -> Case:
    what = f"functions, {method}" if method else "programs"
    others = ("torch-mp",) if method else () if tee else ("psutil", "honcho", "circus")
    return Case(
        label=f"{nprocs} {what}{', tee' if tee else ''}",
        task="failure",
        params={"nprocs": nprocs, "method": method, "tee": tee},
        contenders=(*_PROGRAMS, *(who for who in others if nprocs <= 64 or who == "psutil")),
        metrics=("latency_ms",),
        targets=(_like_64("latency_ms"),) if nprocs == 1000 else floors(latency_ms=1.3 if nprocs == 64 else 1.5),
        again=2 if nprocs <= 8 else 1,
    )


def _close(nprocs: int) -> Case:
    return Case(
        label=f"{nprocs} programs",
        task="close",
        params={"nprocs": nprocs},
        contenders=(*_PROGRAMS, "psutil", *(("circus",) if nprocs <= 64 else ())),
        metrics=("close_ms",),
        targets=(_like_64("close_ms"),) if nprocs == 1000 else floors(close_ms=1.3),
        again=1 if nprocs == 1000 else 3,
    )


def _returned(mib: int, what: str, *targets: Target) -> Case:
    return Case(
        label=f"{mib} MiB of {what}",
        task="returned",
        params={"mib": mib, "what": what},
        contenders=(*_PROGRAMS, "futures"),
        metrics=("result_ms", "host_rss_mb"),
        targets=targets,
        again=0 if mib >= 1000 else 3,
    )


def _tee(nprocs: int) -> Case:
    return Case(
        label=f"{nprocs} rank{'s' if nprocs > 1 else ''}",
        task="tee",
        params={"nprocs": nprocs, "megabytes": 200},
        metrics=("mb_per_s", "cpu_s_per_gb", "lost_lines", "torn_lines"),
        targets=(*floors(mb_per_s=0.8, cpu_s_per_gb=1.2), *_NOTHING_LOST),
        again=2,
        reader="checked",
    )


def _shown(nprocs: int, reader: Reader, p50_ms: float, p99_ms: float) -> Case:
    return Case(
        label=f"{nprocs} ranks, 50 Hz, to a {reader}",
        task="shown",
        params={"nprocs": nprocs, "lines": 100, "gap_s": 0.02},
        metrics=("shown_p50_ms", "shown_p99_ms", "lost_lines", "torn_lines"),
        targets=(*figures(shown_p50_ms=p50_ms, shown_p99_ms=p99_ms), *_NOTHING_LOST),
        reader=reader,
    )


def _flooded(label: str, *, stalled: bool, targets: tuple[Target, ...] = ()) -> Case:
    return Case(
        label=label,
        task="flooded",
        params={"nprocs": 8, "megabytes": 80, "stalled": stalled},
        contenders=_PROGRAMS[1:] if stalled else _PROGRAMS,
        metrics=("latency_ms", "rss_growth_mb", "lost_lines", "torn_lines"),
        targets=(*targets, *_NOTHING_LOST),
        reader="stalled" if stalled else "checked",
    )


def _idle(nprocs: int, window_s: float, contenders: tuple[str, ...]) -> Case:
    return Case(
        label=f"{nprocs} ranks, tee",
        task="idle",
        params={"nprocs": nprocs, "window_s": window_s},
        contenders=contenders,
        metrics=("cpu_ms_per_min", "wakeups_per_s", "threads"),
        targets=figures(cpu_ms_per_min=0, wakeups_per_s=0, threads=6),
    )


def _memory(nprocs: int, contenders: tuple[str, ...]) -> Case:
    return Case(
        label=f"each of {nprocs} ranks, tee",
        task="memory",
        params={"nprocs": nprocs},
        contenders=contenders,
        metrics=("rss_kb_per_rank",),
        targets=figures(rss_kb_per_rank=20),
    )


SCENARIOS: dict[str, tuple[Case, ...]] = {
    "launch": (
        _launch(1, 20, 2.0),
        _launch(8, 10, 1.2),
        _launch(64, 5, 0.95),
        _launch(256, 3, 0.95),
        _launch(1000, 1, 0.95),
    ),
    "functions": tuple(
        _functions(nprocs, method, again, bound)
        for method, bound in (("spawn", 1.05), ("fork", 1.5), ("forkserver", 1.1))
        for nprocs, again in ((1, 5), (8, 3), (32, 1))
    ),
    "first": (
        _first("1 program", "", "psutil"),
        _first("1 function, spawn", "spawn", "torch-mp", "futures", "loky"),
        _first("1 function, fork", "fork", "torch-mp", "futures"),
    ),
    "command": (_command("4 programs"), _command("4 programs, metrics", "--metrics", "metrics.prom")),
    "features": tuple(_feature(what) for what in FEATURES),
    "failure": (
        _failure(8),
        _failure(64),
        _failure(1000),
        _failure(8, tee=True),
        _failure(64, tee=True),
        _failure(8, method="fork"),
    ),
    "last-exit": (
        Case(
            label="8 programs",
            task="last_exit",
            params={"nprocs": 8},
            contenders=(*_PROGRAMS, "psutil", "circus"),
            metrics=("latency_ms",),
            targets=floors(latency_ms=2.0),
            again=3,
        ),
    ),
    "close": (
        _close(64),
        _close(1000),
        Case(
            label="8 that ignore TERM",
            task="close_stubborn",
            params={"nprocs": 8, "grace_s": 1},
            contenders=(*_PROGRAMS, "psutil", "circus"),
            metrics=("late_ms",),
            targets=figures(late_ms=5),
            again=1,
        ),
    ),
    "tee": (
        _tee(1),
        _tee(8),
        Case(
            label="8 ranks, paced",
            task="tee",
            params={"nprocs": 8, "megabytes": 16, "pause_s": 0.002},
            metrics=("lost_lines", "torn_lines"),
            targets=_NOTHING_LOST,
            reader="checked",
        ),
    ),
    "shown": (_shown(8, "pipe", 1, 5), _shown(8, "terminal", 1, 5), _shown(128, "pipe", 2, 20)),
    "stalled": (
        _flooded("8 ranks, console read", stalled=False),
        _flooded(
            "8 ranks, reader stopped",
            stalled=True,
            targets=(
                Target(metric="latency_ms", bound=1.5, case="8 ranks, console read"),
                *figures(rss_growth_mb=8),
            ),
        ),
    ),
    "idle": (_idle(64, 5.0, _PROGRAMS), _idle(1000, 5.0, _OURS)),
    "memory": (_memory(128, _PROGRAMS), _memory(1000, _OURS)),
    "import": (
        Case(
            label="package, with interpreter",
            task="imported",
            params={"package": True},
            contenders=("floor", "supervise"),
            metrics=("import_ms", "peak_rss_mb"),
            targets=figures(import_ms=60),
            again=9,
        ),
        Case(
            label="what a user imports",
            task="imported",
            contenders=(*_PROGRAMS, "torch-mp", "futures", "loky", "psutil", "honcho", "circus"),
            metrics=("import_ms", "peak_rss_mb"),
            targets=figures(import_ms=60),
            again=4,
        ),
    ),
    "return": (
        _returned(1, "bytes", *floors(result_ms=1.1)),
        _returned(100, "bytes", *floors(result_ms=1.1)),
        _returned(100, "numpy", *floors(result_ms=0.5)),
        _returned(1024, "bytes", Target(metric="result_ms", bound=0.5, to="pytorch-tuned")),
        _returned(1024, "numpy", Target(metric="result_ms", bound=0.5, to="pytorch-tuned"), *figures(host_rss_mb=64)),
    ),
}
