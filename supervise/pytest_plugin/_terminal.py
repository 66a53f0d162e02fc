"""The option ``--ranks-pdb``: one rank reads from and writes to the terminal of pytest."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from supervise.pytest_plugin._mark import MarkError

if TYPE_CHECKING:
    import pytest

    from supervise.pytest_plugin._verdict import RankVerdict


def chosen(config: pytest.Config, world_size: int, start_method: str) -> int | None:
    """Return the rank of the option if the test has it.

    Raises:
        MarkError: The option cannot be used here.
    """
    rank: int | None = config.getoption("ranks_pdb", None)
    if rank is None:
        return None
    if rank < 0:
        raise MarkError(f"--ranks-pdb {rank} is not the number of a rank; ranks begin at 0")
    if rank >= world_size:
        return None
    if start_method != "fork":
        raise MarkError(f"--ranks-pdb {rank} needs start_method='fork', not {start_method!r}")
    return rank


def hint(config: pytest.Config, ranks: list[RankVerdict]) -> list[str]:
    """Return a line about the debugger if ``--pdb`` was given and a rank has failed."""
    failed = [each for each in ranks if each.outcome == "failed"]
    if not failed or not config.getoption("usepdb", False) or config.getoption("ranks_pdb", None) is not None:
        return []
    first = min(failed, key=lambda each: (each.at_ns, each.rank))
    return [f"--pdb does not open a debugger in ranks; use --ranks-pdb {first.rank}"]


def opened(rank: int) -> int:
    """Return a new descriptor of the terminal of this process.

    Raises:
        MarkError: There is no terminal.
    """
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        hint = "run pytest in a terminal, without pytest-xdist (-n 0)"
        raise MarkError(f"--ranks-pdb {rank} needs a terminal ({error}); {hint}") from None


def take(terminal: int) -> None:
    """Make the terminal the stdin, stdout and stderr of this process."""
    for number in (0, 1, 2):
        os.dup2(terminal, number)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = open(number, "w", closefd=False, buffering=1)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def examine(item: pytest.Item, call: pytest.CallInfo[Any], report: pytest.TestReport) -> None:
    """Open pytest's debugger where the test has failed. A debugger that the user has quit does not open again."""
    import bdb

    from _pytest.debugging import PdbInvoke

    if call.excinfo is None or isinstance(call.excinfo.value, (bdb.BdbQuit, SystemExit)):
        return
    import pytest

    if isinstance(call.excinfo.value, pytest.exit.Exception):
        return
    try:
        PdbInvoke().pytest_exception_interact(item, call, report)
    except pytest.exit.Exception:  # `q` in the debugger: the report of the failure must still be written
        return
