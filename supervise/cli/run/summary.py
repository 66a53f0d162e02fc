"""The numbers of a run at its end: a table for people, and a file for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._exits import ending
from supervise._story.wording import columns, size
from supervise.cli.run import directory
from supervise.cli.run.directory import write_result
from supervise.cli.streams import complaint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervise._story.failure_report import Story
    from supervise.cli.options.options import Options
    from supervise.result import RankEnd, RunProcsResult


def table(result: RunProcsResult, titles: Sequence[str] = ()) -> list[str]:
    """Return a table with a line for each rank: how it ended, its time, CPU time and peak memory.

    Args:
        result: The result of the gang.
        titles: Role and role rank of each rank; empty if all have the same role.
    """
    rows = [("rank", "role", "pid", "end", "time", "cpu", "memory")]
    for rank, end in sorted(result.ends.items()):
        how = "not started" if end.pid is None else ending(end.exitcode, core_dumped=end.core_dumped)
        cpu = "-" if end.cpu_time_s is None else f"{end.cpu_time_s:.2f} s"
        role = titles[rank] if titles else ""
        rows.append((str(rank), role, str(end.pid or "-"), how, f"{_time_s(end):.2f} s", cpu, size(end.max_rss_bytes)))
    if titles:
        return columns(rows, right={0, 2, 4, 5, 6})
    return columns([(row[0], *row[2:]) for row in rows], right={0, 1, 3, 4, 5})


def _time_s(end: RankEnd) -> float:
    return 0.0 if end.pid is None else (end.ended_ns - end.started_ns) / 1e9


def write_metrics(
    path: str, result: RunProcsResult | None, *, run_id: str, exit_code: int, restarts: int, duration_s: float
) -> None:
    """Write the numbers in the text format of Prometheus. node_exporter's textfile collector needs a write in one step.

    Args:
        path: The file, as for `directory.write_output`.
        result: The result of the gang; None if there is none.
        run_id: The run ID, a label of each number.
        exit_code: Exit code of `run`.
        restarts: Number of restarts of all ranks.
        duration_s: Seconds from the start of `run`.

    Raises:
        OSError: The file cannot be written.
    """
    run = f'run_id="{_escaped(run_id)}"'
    lines = [
        *_family("run_exit_code", "Exit code of supervise run.", [(run, exit_code)]),
        *_family("run_restarts_total", "Restarts of all ranks.", [(run, restarts)], "counter"),
        *_family("run_duration_seconds", "Time from the start to the end of the run.", [(run, round(duration_s, 6))]),
    ]
    ends = [(f'{run},local_rank="{rank}"', end) for rank, end in sorted(result.ends.items())] if result else []
    codes = [(who, end.exitcode) for who, end in ends if end.exitcode is not None]
    peaks = [(who, end.max_rss_bytes) for who, end in ends if end.max_rss_bytes is not None]
    cpu = [(who, round(end.cpu_time_s, 6)) for who, end in ends if end.cpu_time_s is not None]
    lines += _family("rank_exit_code", "Exit code of a rank, -N for signal N.", codes)
    lines += _family(
        "rank_duration_seconds", "Time that a rank ran.", [(who, round(_time_s(end), 6)) for who, end in ends]
    )
    lines += _family("rank_max_rss_bytes", "Peak memory of a rank.", peaks)
    lines += _family("rank_cpu_seconds_total", "CPU time of a rank.", cpu, "counter")
    directory.write_output(path, ("\n".join(lines) + "\n").encode(), mode=0o666)


def _family(
    name: str, text: str, values: list[tuple[str, int]] | list[tuple[str, float]], kind: str = "gauge"
) -> list[str]:
    name = f"supervise_{name}"
    head = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    return head + [f"{name}{{{labels}}} {value}" for labels, value in values] if values else []


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


# The files that a run writes at its end: ``result.json``, and the file of ``--metrics``


def keep_result(
    options: Options,
    story: Story,
    *,
    run_id: str,
    exit_code: int,
    result: RunProcsResult | None,
    error: str | None,
    report: list[str],
    restarts: int,
    duration_s: float,
) -> Iterator[str]:
    """Write both files; yield a complaint about each that cannot be written.

    Args:
        options: The validated options.
        story: Further facts: the run directory, and the number of restarts.
        run_id: The run ID.
        exit_code: Exit code of `run`.
        result: The result of the gang; None if there is none.
        error: Why there is no result.
        report: The lines of the report on the failure; empty after a success.
        restarts: Number of restarts, of all ranks or of single ranks.
        duration_s: Seconds from the start of `run`.
    """
    if options.metrics is not None:
        try:
            write_metrics(
                options.metrics,
                result,
                run_id=run_id,
                exit_code=exit_code,
                restarts=story.restarts,
                duration_s=duration_s,
            )
        except OSError as e:
            yield f"no metrics: {complaint(e)}"
    if story.directory is None:
        return
    try:
        write_result(
            story.directory,
            options,
            run_id=run_id,
            exit_code=exit_code,
            attempts=story.restarts + 1,
            restarts=restarts,
            result=result,
            error=error,
            report=report,
        )
    except OSError as e:
        yield f"no result.json: {complaint(e)}"
