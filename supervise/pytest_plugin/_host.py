"""A marked test in the host, which is pytest itself. In place of the call, the host runs a gang, and reports on it."""

from __future__ import annotations

import bdb
import functools
import os
from typing import TYPE_CHECKING, Any

import pytest

from supervise.pytest_plugin import _mark, _output, _place, _rank, _terminal, _verdict
from supervise.pytest_plugin._budget import slots
from supervise.pytest_plugin._folder import Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from supervise.pytest_plugin._gang import Course, Gang

_SLOTS = "ranks-slots"
_HOOKS = "supervise-ranks"


class RanksError(bdb.BdbQuit):
    """A test has failed in a rank. The report of the test shows the report of the rank.

    pytest does not open its debugger (``--pdb``) for a `bdb.BdbQuit`. The frames of the failure are in the rank.
    """


class _Story:
    """The part of a test's report that comes from its gang, besides sections and properties."""

    def __init__(self, verdict: _verdict.Verdict | None = None) -> None:
        self.verdict = verdict
        """None if the host was interrupted."""
        self.notes: list[str] = []
        """Lines about the ranks, if the host was interrupted."""


_STORY = pytest.StashKey[_Story]()


class Hooks:
    """Hooks that pytest gets when the first marked test is collected."""

    def __init__(self) -> None:
        self.fixtures: set[pytest.FixtureDef[Any]] = set()
        """The fixtures that are set up in this process."""

    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """Note a fixture."""
        self.fixtures.add(fixturedef)

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """Forget a fixture."""
        self.fixtures.discard(fixturedef)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put the reports of the ranks into the report of the call."""
        report = yield
        if call.when == "call" and _place.here is None:
            story = item.stash.get(_STORY, None)
            if story is not None:
                del item.stash[_STORY]
                _tell(report, story)
                # pytest shows these with the report of the teardown
                report.sections = [each for each in report.sections if not _output.is_of_teardown(each[0])]
        return report


def prepare(item: pytest.Item) -> None:
    """Make a marked test start a gang.

    Raises:
        UsageError: The mark is not valid.
    """
    if _place.here is not None:
        return  # a spawned rank: the test runs here
    try:
        settings = _mark.of_item(item)
        _mark.budget(item.config)
    except _mark.MarkError as error:
        raise pytest.UsageError(f"{item.nodeid}: {error}") from None
    manager = item.config.pluginmanager
    if not manager.has_plugin(_HOOKS):
        manager.register(Hooks(), _HOOKS)
    vars(item)["setup"] = functools.partial(_set_up, item, settings)
    vars(item)["runtest"] = functools.partial(_run, item, settings)
    vars(item)["teardown"] = _tear_down


def _tear_down() -> None:
    """Tear down nothing: `_set_up` has not set up the test itself."""


def _set_up(item: pytest.Item, settings: _mark.Settings) -> None:
    """Set up the fixtures that outlive the test. A fork inherits them; a spawned rank has its own."""
    __tracebackhide__ = True
    info, request = getattr(item, "_fixtureinfo", None), getattr(item, "_request", None)
    if settings.start_method != "fork" or info is None or request is None:
        return
    funcargs: dict[str, object] = item.funcargs  # type: ignore[attr-defined]
    for name in item.fixturenames:  # type: ignore[attr-defined]
        definitions = info.name2fixturedefs.get(name)
        if definitions and definitions[-1].scope != "function":
            funcargs[name] = request.getfixturevalue(name)


def _run(item: pytest.Item, settings: _mark.Settings) -> None:
    """Run the test in its ranks."""
    __tracebackhide__ = True
    (world_size,) = settings.counts
    factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]  # noqa: SLF001
    base = factory.getbasetemp()
    shared_base = base.parent if hasattr(item.config, "workerinput") else base  # all workers of pytest-xdist share it
    try:
        budget = _mark.budget(item.config)
        with_terminal = _terminal.chosen(item.config, world_size, settings.start_method)
        terminal = None if with_terminal is None else _terminal.opened(with_terminal)
        try:
            with slots(shared_base / _SLOTS, budget, world_size):
                folder = Folder(factory.mktemp(f"{item.name[:30]}-ranks".replace("/", "-").replace("[", "-")))
                folder.make(world_size)
                gang = _gang(item, settings, folder, with_terminal, terminal)
                _conduct(item, gang)
        finally:
            if terminal is not None:
                os.close(terminal)
    except _mark.MarkError as error:
        verdict = _verdict.Verdict(outcome="failed", longrepr=str(error))
        item.stash[_STORY] = _Story(verdict)
        raise RanksError(str(error)) from None


def _gang(
    item: pytest.Item, settings: _mark.Settings, folder: Folder, with_terminal: int | None, terminal: int | None
) -> Gang:
    """Return the gang of a test, which is not started yet."""
    from supervise.pytest_plugin._gang import Gang

    (world_size,) = settings.counts
    debugged = with_terminal is not None
    timeout_s = None if debugged else settings.timeout_s
    plan = {
        rank: _rank.Plan(
            folder=folder,
            world_size=world_size,
            timeout_s=timeout_s,
            terminal=terminal if rank == with_terminal else None,
        )
        for rank in range(world_size)
    }
    entrypoint: Callable[..., None]
    if settings.start_method == "fork":
        entrypoint = _rank.run_forked
        hooks: Any = item.config.pluginmanager.get_plugin(_HOOKS)
        args: dict[int, tuple[Any, ...]] = {rank: (item, hooks.fixtures, plan[rank], rank) for rank in plan}
    else:
        from supervise.pytest_plugin import _spawned

        entrypoint = _spawned.run
        session = _spawned.session_of(item)
        args = {rank: (session, plan[rank], rank) for rank in plan}
    return Gang(
        folder=folder,
        world_size=world_size,
        entrypoint=entrypoint,
        args=args,
        start_method=settings.start_method,
        timeout_s=timeout_s,
        grace_s=None if debugged else settings.grace_s,
        live=_is_live(item.config),
        bare=with_terminal,
    )


def _is_live(config: pytest.Config) -> bool:
    """Return whether pytest shows the output of tests at once."""
    return config.getoption("capture", "fd") in ("no", "tee-sys")


def _conduct(item: pytest.Item, gang: Gang) -> None:
    """Run a gang; keep the facts for the report of the test, and raise the exception of the test's call, if any."""
    __tracebackhide__ = True
    story = None
    try:
        gang.run()
    except BaseException:
        story = _story(item, gang)
        stopped = [rank for rank in _ranks(gang, story[1]) if rank.outcome == "stopped"]
        story[0].notes = _verdict.stopped_notes(stopped, gang.course, str(item.path))
        raise
    else:
        story = _story(item, gang)
        ranks = _ranks(gang, story[1])
        story[0].verdict = verdict = _verdict.judge(ranks, gang.course, str(item.path))
        verdict.notes += _terminal.hint(item.config, ranks)
        _raise(gang.course, verdict)
    finally:
        gang.folder.clean(gang.world_size)


def _story(item: pytest.Item, gang: Gang) -> tuple[_Story, dict[int, list[pytest.TestReport]]]:
    """Read the files of the ranks, and keep the results for the report."""
    config, records = item.config, gang.course.records
    reports = {
        rank: [
            config.hook.pytest_report_from_serializable(config=config, data=entry["report"]) for entry in record.entries
        ]
        for rank, record in records.items()
    }
    _output.replay_warnings(records)
    if not gang.live:
        _output.add_sections(item, gang.folder, _order(gang, reports), records, reports)
    for each in reports.values():
        for name, value in each[-1].user_properties if each else ():
            if (name, value) not in item.user_properties:
                item.user_properties.append((name, value))
    story = item.stash[_STORY] = _Story()
    return story, reports


def _ranks(gang: Gang, reports: dict[int, list[pytest.TestReport]]) -> list[_verdict.RankVerdict]:
    return [_verdict.judge_rank(rank, record, reports[rank]) for rank, record in gang.course.records.items()]


def _order(gang: Gang, reports: dict[int, list[pytest.TestReport]]) -> list[int]:
    """Return the ranks: the failed ones in the order of their failures, then the others."""
    verdicts = {each.rank: each for each in _ranks(gang, reports)}
    return sorted(verdicts, key=lambda rank: (verdicts[rank].at_ns or float("inf"), rank))


def _raise(course: Course, verdict: _verdict.Verdict) -> None:
    """Raise the exception that fits the verdict. Other plugins then see the outcome of the test in its call."""
    __tracebackhide__ = True
    for record in course.records.values():
        for entry in record.entries:
            if entry["exit"] is not None:
                pytest.exit(entry["exit"])
    if verdict.wasxfail is not None and verdict.outcome == "skipped":
        raise RanksError(verdict.wasxfail)
    if verdict.outcome == "skipped":
        pytest.skip(verdict.summary)
    if verdict.outcome == "failed":
        raise RanksError(verdict.summary)


def _tell(report: pytest.TestReport, story: _Story) -> None:
    """Put the verdict into the report."""
    verdict = story.verdict
    if verdict is None:
        if report.failed:
            report.longrepr = _verdict.with_notes(report.longrepr, story.notes)
        return
    report.outcome = verdict.outcome
    report.longrepr = _verdict.with_notes(verdict.longrepr, verdict.notes)
    vars(report).pop("wasxfail", None)
    if verdict.wasxfail is not None:
        report.wasxfail = verdict.wasxfail
