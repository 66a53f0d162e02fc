"""The test in one rank: its phases, as pytest runs them, and the line in the journal about each phase."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pytest
from _pytest.capture import CaptureManager, MultiCapture
from _pytest.runner import CallInfo

from supervise.pytest_plugin import _place, _terminal
from supervise.pytest_plugin._gather import RankGather
from supervise.pytest_plugin._subtests import Subtests
from supervise.recording import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from supervise.pytest_plugin._folder import Folder

    When = Literal["setup", "call", "teardown"]

_HOST_METHODS = ("setup", "runtest", "teardown")
"""Attributes of a test by which the host starts a gang instead of the test."""
_inherited: list[object] = []
"""References to the host's capture. If a rank garbage-collected it, the rank would close files of the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The facts that all ranks of a test need."""

    folder: Folder
    world_size: int
    timeout_s: float | None
    terminal: int | None = None
    """Descriptor of the terminal for the rank that gets it."""


class Stopped(BaseException):
    """Raised in the test when the host stops the rank, so that fixtures are torn down."""


def settle(plan: Plan, rank: int) -> None:
    """Make this process the rank `rank` of the plan."""
    gather = RankGather(plan.folder, rank, plan.world_size, plan.timeout_s)
    _place.here = _place.Place(rank=rank, world_size=plan.world_size, shared=plan.folder.shared, gather=gather)
    logging.getLogger("supervise").disabled = False  # the host logs nothing about this gang, but a test may log
    if plan.terminal is not None:
        _terminal.take(plan.terminal)
    elif faulthandler.is_enabled():
        faulthandler.enable(2)  # so that the captured output of this rank shows a crash


def run_forked(item: pytest.Item, fixtures: Iterable[pytest.FixtureDef[Any]], plan: Plan, rank: int) -> None:
    """Run the test in a fork of the host.

    Args:
        item: The test.
        fixtures: All fixtures that the host has set up.
        plan: What all ranks need.
        rank: The rank.
    """
    __tracebackhide__ = True
    settle(plan, rank)
    capture = item.config.pluginmanager.getplugin("capturemanager")
    if isinstance(capture, CaptureManager):  # the output of this process already goes to files of its own
        _inherited.append(capture._global_capturing)  # noqa: SLF001 - pytest has no public way
        capture._global_capturing = MultiCapture(in_=None, out=None, err=None)  # noqa: SLF001
    item.config.pluginmanager.unregister(name="pdbinvoke")  # the option --pdb; a rank has no terminal
    for name in _HOST_METHODS:
        vars(item).pop(name)
    _disown_fixtures(item, fixtures)
    run_phases(item, plan, rank)


def _disown_fixtures(item: pytest.Item, fixtures: Iterable[pytest.FixtureDef[Any]]) -> None:
    """Remove the finalizers of the nodes and fixtures that the host has set up, because the host tears them down."""
    session: Any = item.session
    session._setupstate.stack.pop(item)  # noqa: SLF001 - it is set up again here
    for finalizers, _ in session._setupstate.stack.values():  # noqa: SLF001
        finalizers.clear()
    for definition in fixtures:
        definition._finalizers.clear()  # noqa: SLF001 - pytest-rerunfailures has copies of those of the nodes


def run_phases(item: pytest.Item, plan: Plan, rank: int) -> None:
    """Set up, call and tear down the test; write each phase into the journal."""
    __tracebackhide__ = True
    own = plan.folder.own(rank)
    own.mkdir(mode=0o700)
    factory: Any = getattr(item.config, "_tmp_path_factory", None)
    if factory is not None:
        factory._basetemp = own  # noqa: SLF001 - ranks that make numbered folders in one folder compete for the numbers
    item._report_sections = []  # noqa: SLF001 - those of the host
    subtests = Subtests(item)
    subtests.replace_others()
    phases = _Phases(item, plan, rank, subtests)
    signal.signal(signal.SIGTERM, phases.stop)
    with warnings.catch_warnings(record=True) as phases.warnings:
        if phases.run("setup", lambda: item.ihook.pytest_runtest_setup(item=item)):
            phases.run("call", lambda: item.ihook.pytest_runtest_call(item=item))
        phases.run("teardown", lambda: item.ihook.pytest_runtest_teardown(item=item, nextitem=None))
    _save_coverage()


class _Phases:
    """The phases of a test in this rank."""

    def __init__(self, item: pytest.Item, plan: Plan, rank: int, subtests: Subtests) -> None:
        self._item, self._plan, self._rank, self._subtests = item, plan, rank, subtests
        self._pid = os.getpid()
        self._interruptible = self._stopped = False
        self.warnings: list[warnings.WarningMessage] | None = None

    def stop(self, number: int, _frame: object) -> None:
        """Handle SIGTERM: raise `Stopped`, once and only during a phase."""
        __tracebackhide__ = True
        if os.getpid() != self._pid:  # a process that the test has forked
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self._interruptible and not self._stopped:
            self._stopped = True
            raise Stopped("the rank got SIGTERM")
        self._stopped = True

    def run(self, when: When, phase: Callable[[], object]) -> bool:
        """Run a phase and write it into the journal; return whether it passed."""
        __tracebackhide__ = True
        if self._stopped and when == "call":
            return False
        call = CallInfo.from_call(lambda: self._guarded(phase), when=when)
        if os.getpid() != self._pid:  # the test has forked, and the child has returned from it
            os._exit(0 if call.excinfo is None else 1)
        ended_ns = time.monotonic_ns()
        item, config = self._item, self._item.config
        report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
        at_ns = self._subtests.decide(report, ended_ns)
        if call.excinfo is not None and report.failed and self._plan.terminal is not None and not self._stopped:
            _terminal.examine(item, call, report)
        leaving = call.excinfo is not None and isinstance(call.excinfo.value, pytest.exit.Exception)
        self._plan.folder.append(
            self._rank,
            {
                "when": when,
                "at_ns": at_ns,
                "report": config.hook.pytest_report_to_serializable(config=config, report=report),
                "sizes": self._sizes(),
                "warnings": [_as_data(each) for each in self.warnings or ()],
                "exit": str(call.excinfo.value) if leaving and call.excinfo is not None else None,
            },
        )
        return report.passed

    def _guarded(self, phase: Callable[[], object]) -> None:
        __tracebackhide__ = True
        self._interruptible = True
        try:
            phase()
        finally:
            self._interruptible = False

    def _sizes(self) -> dict[str, int]:
        """Return how many bytes each stream has now."""
        sizes = {}
        for name in ("stdout", "stderr"):
            try:
                getattr(sys, name).flush()
                sizes[name] = os.stat(self._plan.folder.stream(self._rank, name)).st_size
            except (OSError, ValueError):  # the test has closed the stream, or the stream is not a file
                sizes[name] = 0
        return sizes


def _as_data(warning: warnings.WarningMessage) -> list[Any]:
    category = warning.category
    where = [str(warning.filename), warning.lineno]
    return [category.__module__, category.__qualname__, text_of(warning.message), *where]


def _save_coverage() -> None:
    """Write the data of coverage.py, if coverage.py measures this process."""
    coverage: Any = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    if current is not None:
        current.stop()
        current.save()
