"""The files of the ranks, as a `LogsSpecs` has decided on them."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["LogsDest"]


@dataclass
class LogsDest:
    """The files of one attempt. Every mapping is local rank to path; ``""`` is a stream that is not redirected."""

    stdouts: dict[int, str] = field(default_factory=dict)
    """Every rank's stdout."""
    stderrs: dict[int, str] = field(default_factory=dict)
    """Every rank's stderr."""
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    """The part of `stdouts` that is also shown."""
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    """The part of `stderrs` that is also shown."""
    error_files: dict[int, str] = field(default_factory=dict)
    """Every rank's error file."""
    filtered_stdout: str = field(default_factory=str)
    """Gets the lines of all shown stdouts that match a filter."""
    filtered_stderr: str = field(default_factory=str)
    """Gets the lines of all shown stderrs that match a filter."""
