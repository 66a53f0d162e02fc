"""The time at which a rank recorded an exception, from its error file."""

from __future__ import annotations

import os
import stat
import time

from supervise._opening import is_mark


def recorded_ns(error_file: str) -> int | None:
    """Return the monotonic ns at which `error_file` recorded its exception; None if the file has no exception."""
    if not error_file or not os.access(error_file, os.F_OK):  # the common case; unlike lstat, it raises no exception
        return None
    try:
        found = os.lstat(error_file)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode) or not (found.st_size or is_mark(found)):
        return None
    return found.st_mtime_ns - _epoch_ns()


def _epoch_ns() -> int:
    """Return the difference between wall clock and monotonic clock in ns, from the shortest of three readings."""
    readings = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(3)]
    before, wall, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return wall - (before + after) // 2
