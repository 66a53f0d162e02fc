"""The log layout of `supervise run`."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from supervise._folders import not_a_folder
from supervise.cli.runs_dir import make_runs_dir
from supervise.logs import DefaultLogsSpecs

if TYPE_CHECKING:
    from supervise.cli.options import Options
    from supervise.destinations import LogsDest


class MergedLogsSpecs(DefaultLogsSpecs):
    """PyTorch's log layout, except that both streams of a rank go to the file of its stdout."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the file paths of one attempt, as `DefaultLogsSpecs.reify` does."""
        dest = super().reify(envs)
        dest.stderrs = dict(dest.stdouts)
        dest.tee_stderrs = {}
        return dest


def of(options: Options) -> DefaultLogsSpecs:
    """Return the layout that the options describe.

    Raises:
        OSError: The log directory cannot be used.
    """
    layout = MergedLogsSpecs if options.output.merge else DefaultLogsSpecs
    return layout(options.log_dir or make_runs_dir(), options.redirects, options.tee, set(options.ranks_shown) or None)


def check(options: Options) -> None:
    """Check that the log directory can be used or made, and make nothing.

    Raises:
        OSError: It cannot.
    """
    if not (path := options.log_dir) or path == os.devnull:
        return
    nearest = os.path.abspath(path)
    while not os.path.lexists(nearest):
        nearest = os.path.dirname(nearest)
    if not os.path.isdir(nearest):
        raise not_a_folder(nearest)
    if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, "log_dir cannot be written to", path)
