"""A rank in a new interpreter. There, pytest collects the test again, and runs it.

The rank gets the options of the host, as a worker of pytest-xdist does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from supervise.pytest_plugin import _rank

if TYPE_CHECKING:
    from supervise.pytest_plugin._rank import Plan

_SIMPLE = (str, int, float, bool, type(None))
_OFF: dict[str, Any] = {
    "dist": "no",
    "numprocesses": None,
    "tx": [],
    "usepdb": False,
    "basetemp": None,
    "capture": "no",
}
"""Options that differ in a rank: the rank has no workers, writes its output to files, and does not report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSession:
    """The facts that a rank needs to collect the test."""

    nodeid: str
    args: list[str]
    options: dict[str, Any]
    cwd: str


def session_of(item: pytest.Item) -> HostSession:
    """Return the facts that the ranks of `item` need to collect it."""
    config = item.config
    options: dict[str, Any] = {name: value for name, value in vars(config.option).items() if _travels(value)}
    options.pop("file_or_dir", None)
    options["plugins"] = [*options.get("plugins", ()), "no:terminal"]
    rootpath = str(config.rootpath)
    path = item.nodeid.partition("::")[0]
    args = [os.path.join(rootpath, path) + item.nodeid[len(path) :]]
    return HostSession(nodeid=item.nodeid, args=args, options=options | _OFF, cwd=str(config.invocation_params.dir))


def _travels(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_travels(each) for each in value)
    return isinstance(value, _SIMPLE)


class _OneTest:
    """A plugin of the rank's own pytest, which runs one test and reports nothing."""

    def __init__(self, session: HostSession, plan: Plan, rank: int) -> None:
        self._session, self._plan, self._rank = session, plan, rank
        self.found = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the test."""
        if not session.testsfailed:
            for item in session.items:
                if item.nodeid == self._session.nodeid:
                    self.found = True
                    _rank.run_phases(item, self._plan, self._rank)
        return True


def run(session: HostSession, plan: Plan, rank: int) -> None:
    """Run the test in this process, which is a new interpreter.

    Raises:
        SystemExit: The test was not found; the output of the rank says why.
    """
    from _pytest.config import Config

    _rank.settle(plan, rank)
    os.chdir(session.cwd)
    config = Config.fromdictargs(session.options, list(session.args))
    plugin = _OneTest(session, plan, rank)
    config.pluginmanager.register(plugin, "supervise-rank")
    code = config.hook.pytest_cmdline_main(config=config)
    if not plugin.found:
        raise SystemExit(f"pytest in rank {rank} did not find {session.nodeid} (exit code {code})")
