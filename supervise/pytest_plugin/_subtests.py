"""Subtests in a rank, of the fixture ``subtests`` or of unittest: one that fails makes the test fail in the rank."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from _pytest._code.code import ExceptionRepr

if TYPE_CHECKING:
    import pytest
    from pluggy import HookCaller

_TITLE = "failed subtests"
_STREAMS = {"Captured stdout call": "stdout", "Captured stderr call": "stderr"}
"""Sections of the report of a subtest. Its log is also part of the log of the test."""


class Subtests:
    """A plugin of a rank that gets the reports of subtests, which pytest emits while the test runs."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._failed: list[tuple[int, Any]] = []
        """When each report of a failed subtest came, in monotonic nanoseconds, and the report."""
        self._sections: list[tuple[str, str]] = []
        """The output of subtests, with the titles of pytest."""

    def replace_others(self) -> None:
        """Become the only plugin that gets reports in this process.

        The others would write to the terminal of the host, or into the connection of a worker of pytest-xdist.
        """
        hook: HookCaller = self._item.config.hook.pytest_runtest_logreport
        for each in list(hook.get_hookimpls()):
            hook._remove_plugin(each.plugin)  # noqa: SLF001 - pluggy can only remove a plugin from all hooks
        self._item.config.pluginmanager.register(self, "supervise-ranks-subtests")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the report of a subtest if it has failed, and its output, which pytest has captured for it alone."""
        if report.failed:
            self._failed.append((time.monotonic_ns(), report))
        of_the_test = len(self._item._report_sections)  # noqa: SLF001 - pytest has no public way
        self._sections += [(title, text) for title, text in report.sections[of_the_test:] if title in _STREAMS]

    def decide(self, report: pytest.TestReport, at_ns: int) -> int:
        """Make the report of a phase that has ended at `at_ns` a failure if a subtest has failed.

        Returns:
            When the phase has failed first, in monotonic nanoseconds; else `at_ns`.
        """
        for title, text in self._sections:
            self._item.add_report_section("call", _STREAMS[title], text)
        self._sections.clear()
        failed, self._failed = self._failed, []
        if not failed:
            return at_ns
        first_ns, first = failed[0]
        if not report.failed:
            report.outcome, report.longrepr = "failed", first.longrepr
            vars(report).pop("wasxfail", None)
        lines = [_line(each) for _, each in failed]
        if isinstance(report.longrepr, ExceptionRepr):
            report.longrepr.addsection(_TITLE, "\n".join(lines), "-")
        else:
            report.longrepr = "\n".join([str(report.longrepr), f"{_TITLE}:", *lines])
        return first_ns


def _line(report: Any) -> str:
    """Return the name of a subtest, and the first line of its failure."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return f"{report.head_line}: {text.partition(chr(10))[0]}"
