"""The files that a run writes at its end: ``result.json``, and the file of ``--metrics``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise.cli.complaint import complaint
from supervise.cli.run_directory import write_result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervise._views.story import Story
    from supervise.cli.options import Options
    from supervise.result import RunProcsResult


def keep_result(
    options: Options,
    story: Story,
    *,
    run_id: str,
    exit_code: int,
    result: RunProcsResult | None,
    error: str | None,
    report: list[str],
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
        duration_s: Seconds from the start of `run`.
    """
    if options.metrics is not None:
        from supervise.cli.summary import write_metrics

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
            result=result,
            error=error,
            report=report,
        )
    except OSError as e:
        yield f"no result.json: {complaint(e)}"
