"""A marked test in the host, which is pytest itself. In place of the call, the host runs a gang, and reports on it."""

from __future__ import annotations

import bdb
import contextlib
import contextvars
import fcntl
import functools
import pkgutil
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from supervise._files import closing
from supervise._printable import ranks_as_text
from supervise.pytest_plugin import _coverage, _gather, _mark, _rank, _verdict
from supervise.pytest_plugin._gather import Folder, Plan
from supervise.pytest_plugin._mark import MarkError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from supervise.pytest_plugin._gang import Gang, Record


# The option ``ranks_budget``: how many ranks run at once, over all workers of pytest-xdist
#
# A slot is a locked file in the base folder of the run. The host and its ranks hold the lock. The kernel releases it
# when the last of them has ended.


@contextlib.contextmanager
def slots(folder: Path, budget: int, wanted: int) -> Iterator[None]:
    """Hold `wanted` of `budget` slots in the block; wait for them.

    Args:
        folder: The folder of the slots, which all workers share.
        budget: How many slots there are; 0 for no limit.
        wanted: How many to hold.

    Raises:
        MarkError: The budget is smaller than `wanted`.
    """
    if not budget:
        yield
        return
    if wanted > budget:
        raise MarkError(f"ranks({wanted}) needs {wanted} processes, and the option ranks_budget allows {budget}")
    folder.mkdir(mode=0o700, exist_ok=True)
    with contextlib.ExitStack() as held:
        # Only the worker that has the turn takes slots: two workers that each hold a part would wait for each other
        with open(folder / "turn", "ab") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            left = wanted
            busy = []
            for number in range(budget):
                if left:
                    slot = held.enter_context(open(folder / f"slot-{number}", "ab"))
                    try:
                        fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        left -= 1
                    except BlockingIOError:
                        busy.append(slot)
            for slot in busy[:left]:
                fcntl.flock(slot, fcntl.LOCK_EX)
        yield


# The output of the ranks, as sections of a report, and their warnings


_MOST_BYTES = 1 << 20
"""A section shows at most this many bytes of one stream in one phase, the last ones."""
_STREAMS = ("stdout", "stderr")
_CAPTURED = "Captured "
"""How pytest begins the titles of output and logs."""


def add_sections(
    item: pytest.Item, gang: Gang, order: Iterable[int], reports: dict[int, list[pytest.TestReport]]
) -> None:
    """Add the output and the logs of ranks to the test, as sections such as ``Captured stdout call [rank 2]``.

    Args:
        item: The test. Its later reports have these sections, too, like the sections of pytest's own capture.
        gang: The gang, whose output is left out if it was shown at once.
        order: The ranks in the order to show.
        reports: Rank to the reports of its phases.
    """
    for rank in order:
        for when, name, text in () if gang.live else _written(gang.plan.folder, rank, gang.records[rank]):
            item.add_report_section(f"{when} [rank {rank}]", name, text)
        for title, text in _sections(reports[rank]):
            if title.startswith(_CAPTURED):
                name, _, when = title.removeprefix(_CAPTURED).rpartition(" ")
                item.add_report_section(f"{when} [rank {rank}]", name, text)


def _sections(reports: list[pytest.TestReport]) -> list[tuple[str, str]]:
    return reports[-1].sections if reports else []


def _written(folder: Folder, rank: int, record: Record) -> Iterator[tuple[str, str, str]]:
    """Yield phase, stream and text. Output after the last line of the journal belongs to the next phase."""
    begin = dict.fromkeys(_STREAMS, 0)
    ends: list[tuple[str, dict[str, int | None]]] = [(entry["when"], entry["sizes"]) for entry in record.entries]
    ends.append((record.phase, dict.fromkeys(_STREAMS)))
    for when, sizes in ends:
        for name in _STREAMS:
            text, begin[name] = _read(folder.stream(rank, name), begin[name], sizes[name])
            if text:
                yield when, name, text


def _read(path: str, begin: int, end: int | None) -> tuple[str, int]:
    """Return the text of a file from `begin` to `end` (None: the end of the file), and the position after the text."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, 2) if end is None else end
            first = max(begin, end - _MOST_BYTES)
            file.seek(first)
            text = file.read(max(0, end - first)).decode(errors="replace")
    except FileNotFoundError:  # the rank writes to the terminal
        return "", begin
    return (f"[{first - begin} earlier bytes left out]\n" if first > begin and text else "") + text, max(begin, end)


def replay_warnings(records: dict[int, Record]) -> None:
    """Show the warnings of all ranks in this process, equal ones once."""
    seen = set()
    for record in records.values():
        for each in record.entries[-1]["warnings"] if record.entries else ():
            if tuple(each) not in seen:
                seen.add(tuple(each))
                module, name, message, file, line = each
                warnings.showwarning(message, _category(module, name), file, line)


def _category(module: str, name: str) -> type[Warning]:
    try:
        found = pkgutil.resolve_name(f"{module}:{name}")
    except (ImportError, AttributeError, ValueError):  # the last one is for a class of a function
        return UserWarning
    return found if isinstance(found, type) and issubclass(found, Warning) else UserWarning


_SLOTS = "ranks-slots"
_HOOKS = "supervise-ranks"


class RanksError(bdb.BdbQuit):
    """A test has failed in a rank. The report of the test shows the report of the rank.

    pytest does not open its debugger (``--pdb``) for a `bdb.BdbQuit`. The frames of the failure are in the rank.
    """


_VERDICT = pytest.StashKey[_verdict.Verdict]()


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
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Hide a test from hypothesis, whose plugin would set up the fixtures of the ranks in the host."""
        __tracebackhide__ = True
        if "runtest" not in vars(item) or not getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            return (yield)  # an ordinary test, or in a rank
        function: Any = item
        item.stash[_rank.FUNCTION], function.obj = function.obj, _run
        try:
            return (yield)
        finally:
            function.obj = item.stash[_rank.FUNCTION]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put the reports of the ranks into the report of the call."""
        report = yield
        if call.when == "call" and _gather.here is None:
            verdict = item.stash.get(_VERDICT, None)
            if verdict is not None:
                del item.stash[_VERDICT]
                _tell(report, verdict)
                # pytest shows the output of ranks in their teardown with the report of the teardown
                report.sections = [each for each in report.sections if " teardown [rank " not in each[0]]
        return report


def prepare(item: pytest.Item, kept_modules: Callable[[], AbstractContextManager[None]]) -> None:
    """Make a marked test start a gang, in a block of `kept_modules`.

    Raises:
        UsageError: The mark is not valid.
    """
    if _gather.here is not None:
        return  # a spawned rank: the test runs here
    try:
        settings = _mark.of_item(item)
        _mark.budget(item.config)
    except _mark.MarkError as error:
        text = f"{item.nodeid}: {error}"
        if hasattr(item.config, "workerinput"):  # an error here would end a worker of pytest-xdist without the text
            vars(item)["setup"] = functools.partial(pytest.fail, text, pytrace=False)
            return
        raise pytest.UsageError(text) from None
    manager = item.config.pluginmanager
    if not manager.has_plugin(_HOOKS):
        manager.register(Hooks(), _HOOKS)
    vars(item)["setup"] = functools.partial(_set_up, item, settings)
    vars(item)["runtest"] = functools.partial(_run, item, settings, kept_modules)
    vars(item)["teardown"] = lambda: None  # `_set_up` has not set up the test itself


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


def _run(item: pytest.Item, settings: _mark.Settings, kept_modules: Callable[[], AbstractContextManager[None]]) -> None:
    """Run the test in its ranks."""
    __tracebackhide__ = True
    (world_size,) = settings.counts
    try:
        factory: pytest.TempPathFactory | None = getattr(item.config, "_tmp_path_factory", None)
        if factory is None:
            raise MarkError("tests with ranks need tmp_path; omit -p no:tmpdir")
        base = factory.getbasetemp()
        shared_base = base.parent if hasattr(item.config, "workerinput") else base  # all xdist workers share it
        budget = _mark.budget(item.config)
        debugged = _rank.chosen(item.config, world_size, settings.start_method)
        opened = contextlib.nullcontext() if debugged is None else closing(_rank.opened(debugged))
        with opened as terminal, slots(shared_base / _SLOTS, budget, world_size), kept_modules():
            folder = Folder(factory.mktemp(f"{item.name[:30]}-ranks".replace("/", "-").replace("[", "-")))
            folder.make(world_size)
            _conduct(item, _gang(item, settings, folder, debugged, terminal))
    except _mark.MarkError as error:
        item.stash[_VERDICT] = _verdict.Verdict(outcome="failed", longrepr=str(error))
        raise RanksError(str(error)) from None


def _gang(
    item: pytest.Item, settings: _mark.Settings, folder: Folder, debugged: int | None, terminal: int | None
) -> Gang:
    """Return the gang of a test, which is not started yet."""
    from supervise.pytest_plugin._gang import Gang, Record

    (world_size,) = settings.counts
    plan = Plan(
        folder=folder,
        world_size=world_size,
        timeout_s=settings.timeout_s if debugged is None else None,
        debugged=debugged,
        terminal=terminal,
        measurement=_coverage.of_host(item.config, folder.root),
    )
    entrypoint: Callable[..., None]
    if settings.start_method == "fork":
        entrypoint = _rank.run_forked
        hooks: Any = item.config.pluginmanager.get_plugin(_HOOKS)
        context = contextvars.copy_context()
        args: dict[int, tuple[Any, ...]] = {
            rank: (item, hooks.fixtures, plan, rank, context) for rank in range(world_size)
        }
    else:
        entrypoint = _rank.run
        session = _rank.session_of(item)
        args = {rank: (session, plan, rank) for rank in range(world_size)}
    return Gang(
        plan=plan,
        entrypoint=entrypoint,
        args=args,
        start_method=settings.start_method,
        grace_s=settings.grace_s if debugged is None else None,
        records={rank: Record() for rank in range(world_size)},
        live=item.config.getoption("capture", "fd") in ("no", "tee-sys"),
    )


def _conduct(item: pytest.Item, gang: Gang) -> None:
    """Run a gang; keep the facts for the report of the test, and raise the exception of the test's call, if any."""
    __tracebackhide__ = True
    try:
        try:
            gang.run()
        except BaseException:
            _conclude(item, gang, interrupted=True)
            raise
        _raise(gang, _conclude(item, gang, interrupted=False))
    finally:
        gang.plan.folder.clean(gang.plan.world_size)


def _conclude(item: pytest.Item, gang: Gang, *, interrupted: bool) -> _verdict.Verdict:
    """Read the files of the ranks, and keep the verdict for the report."""
    config, place = item.config, str(item.path)
    reports = {
        rank: [
            config.hook.pytest_report_from_serializable(config=config, data=entry["report"]) for entry in record.entries
        ]
        for rank, record in gang.records.items()
    }
    replay_warnings(gang.records)
    ranks = [_verdict.judge_rank(rank, record, reports[rank]) for rank, record in gang.records.items()]
    # The failed ranks in the order of their failures, then the others
    order = [each.rank for each in sorted(ranks, key=lambda each: (each.at_ns or float("inf"), each.rank))]
    add_sections(item, gang, order, reports)
    for each in reports.values():
        for name, value in each[-1].user_properties if each else ():
            if (name, value) not in item.user_properties:
                item.user_properties.append((name, value))
    if interrupted:
        stopped = [each for each in ranks if each.outcome == "stopped"]
        verdict = _verdict.Verdict(outcome="interrupted", notes=_verdict.stopped_notes(stopped, gang, place))
    else:
        verdict = _verdict.judge(ranks, gang, place)
        verdict.notes += _rank.hint(config, ranks)
    verdict.sections = [
        (f"{title} [rank {rank}]", text)
        for rank in order
        for title, text in _sections(reports[rank])
        if not title.startswith(_CAPTURED)
    ]
    item.stash[_VERDICT] = verdict
    return verdict


def _raise(gang: Gang, verdict: _verdict.Verdict) -> None:
    """Raise the exception that fits the verdict. Other plugins then see the outcome of the test in its call."""
    __tracebackhide__ = True
    exits = [
        (entry["at_ns"], rank, *entry["exit"])
        for rank, record in gang.records.items()
        for entry in record.entries
        if entry["exit"] is not None
    ]
    if exits:
        _, _, reason, returncode = min(exits)
        ranks = ranks_as_text(rank for _, rank, *rest in exits if rest == [reason, returncode])
        pytest.exit(f"{ranks}: {reason}", returncode)
    if verdict.wasxfail is not None and verdict.outcome == "skipped":
        pytest.xfail(verdict.wasxfail)
    if verdict.outcome == "skipped":
        pytest.skip(verdict.summary)
    if verdict.outcome == "failed":
        raise RanksError(verdict.summary)


def _tell(report: pytest.TestReport, verdict: _verdict.Verdict) -> None:
    """Put the verdict into the report."""
    report.sections += verdict.sections
    if verdict.outcome == "interrupted":
        if report.failed:
            report.longrepr = _verdict.with_notes(report.longrepr, verdict.notes)
        return
    report.outcome = verdict.outcome
    report.longrepr = _verdict.with_notes(verdict.longrepr, verdict.notes)
    vars(report).pop("wasxfail", None)
    if verdict.wasxfail is not None:
        report.wasxfail = verdict.wasxfail
