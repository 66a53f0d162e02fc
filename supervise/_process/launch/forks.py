"""Start of a function by a fork of the host, together with the other ranks of its launch window.

After a fork, the host copies each page of memory to which it writes. The child copies each page to which it writes or
whose objects it uses. So the ranks of a window are forked one directly after the other, and all other work comes before
the first fork or after the last one.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

import supervise._process.launch.multiprocessing  # noqa: F401 - otherwise each child would import it
from supervise._process.launch import bootstrap, dispositions, program
from supervise._process.launch.return_value import OutcomeFile
from supervise._process.launch.settings import Plain, Settings
from supervise._record import field, record
from supervise._runtime.descriptors import close

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# Fork of a host that has other threads, as in `multiprocessing`


def fork() -> int:
    """Fork; return 0 in the child, and the pid of the child in the parent.

    The child keeps the host's resource tracker. If it had a tracker of its own, that tracker would unlink the host's
    `SharedMemory` at the exit of the child. From Python 3.14 on, a child loses the host's tracker unless the forking
    thread sets `preserve_fd`.
    """
    if sys.version_info < (3, 14):
        return os.fork()
    from multiprocessing import resource_tracker

    intent: Any = resource_tracker._fork_intent  # noqa: SLF001 - there is no public way
    with _without_warning():
        intent.preserve_fd = True
        try:
            return os.fork()
        finally:
            intent.preserve_fd = False


@contextlib.contextmanager
def _without_warning() -> Iterator[None]:
    """Ignore Python's warning about a fork in a process with threads.

    From Python 3.15 on, the warning comes after the fork. If warnings are errors, the parent would get an exception
    instead of the child's pid. This function adds and removes only one filter, because other threads may change the
    list of filters, too.
    """
    if sys.version_info < (3, 15):
        yield
        return
    import warnings

    message = r"This process \(pid=\d+\) is multi-threaded, use of fork"
    warnings.filterwarnings("ignore", message=message, category=DeprecationWarning)
    ours = warnings.filters[0]
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # another thread has restored an earlier list of filters
            warnings.filters.remove(ours)


class Row:
    """Row of the ranks whose launches are ordered and whose processes are not forked yet."""

    def __init__(self) -> None:
        """Make an empty row."""
        self._ordered: list[ForkLauncher] = []

    def order(self, launcher: object) -> None:
        """Put a rank into the row, whose ranks are forked together when one is launched.

        The caller must launch each of them.
        """
        if isinstance(launcher, ForkLauncher):  # not one that is bound to CPUs
            self._ordered.append(launcher)

    def fork_all(self, first: ForkLauncher) -> None:
        """Fork all ranks of the row; fork only `first` if it is not in the row."""
        row = [first]
        if first in self._ordered:
            row, self._ordered = self._ordered, []
        for launcher in row:
            launcher.prepare()
        mask = dispositions.block()  # until each child has reset the host's handlers
        try:
            for launcher in row:
                launcher.fork()
        finally:
            dispositions.unblock(mask)


@record(frozen=False, eq=False)
class ForkLauncher:
    """Launcher of one rank's function. It does not wait for the child."""

    local_rank: int
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    how: program.LaunchSpec
    row: Row
    plain: Plain | None = None
    """Settings of a function whose return value is ignored; None if the host reads the value."""
    _changes: dict[str, str | None] = field(default_factory=dict, init=False)
    _forked: program.Launched | Exception | None = field(default=None, init=False)

    def __call__(self) -> program.Launched:
        """Return the process. It is forked now, or was forked at the launch of another rank of the row.

        Raises:
            OSError: The process could not be started; none is left.
        """
        if self._forked is None:
            self.row.fork_all(self)
        forked, self._forked = self._forked, None
        if not isinstance(forked, program.Launched):
            assert forked is not None  # noqa: S101 - the row has forked this rank, too
            raise forked
        return forked

    def prepare(self) -> None:
        """Do all work that needs no descriptor. It runs before the first fork of the row."""
        self._changes = bootstrap.changes(self.how.env)

    def fork(self) -> None:
        """Fork. Keep the process, or the error, until the launch returns or raises it."""
        try:
            self._forked = program.with_channel(self.how, OutcomeFile(holds=self.how.holds), self._child)
        except Exception as error:
            self._forked = error

    def _child(self, outcome: OutcomeFile, read_end: int) -> program.Launched:
        out, err = self.how.streams.open()
        try:
            settings = Settings(
                local_rank=self.local_rank,
                method="fork",
                host_pid=os.getpid(),
                address=outcome.address,
                line=read_end,
                channel=outcome.fd,
                stdio=(None, out, err),
                env=self._changes,
                cwd=self.how.cwd,
                plain=self.plain,
                enter=self.how.enter,
                hold=None if outcome.hold is None else outcome.hold.rank_end,
                call=(self.fn, self.args),
            )
            gated = dispositions.others_may_reap()  # then the child must not exit before its pidfd is open
            with program.closed_gate() if gated else contextlib.nullcontext() as gate:
                pid = fork()
                if pid == 0:
                    if gate is not None:
                        os.read(gate, 1)  # until the host opens the gate, or dies
                        os.close(gate)
                    bootstrap.forked(settings)  # never returns
                return program.Launched(process=program.hold(pid, execs=False))
        finally:
            close(out, err)
