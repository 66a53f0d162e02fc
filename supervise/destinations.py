"""The paths of the ranks' log and error files, as a `LogsSpecs` returns them."""

from __future__ import annotations

from supervise._record import field, record

__all__ = ["LogsDest"]


@record(kw_only=False, frozen=False)
class LogsDest:
    """The paths of one attempt. Every mapping is local rank to path; ``""`` means that the stream is not redirected."""

    stdouts: dict[int, str] = field(default_factory=dict)
    """Every rank's stdout."""
    stderrs: dict[int, str] = field(default_factory=dict)
    """Every rank's stderr. If stdout has the same path, the file is opened once; list it in `tee_stdouts` only."""
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    """The part of `stdouts` that is also shown."""
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    """The part of `stderrs` that is also shown."""
    error_files: dict[int, str] = field(default_factory=dict)
    """Every rank's error file."""
    filtered_stdout: str = field(default_factory=str)
    """The file with the lines of all shown stdouts that match a filter."""
    filtered_stderr: str = field(default_factory=str)
    """The file with the lines of all shown stderrs that match a filter."""
