"""The test in one rank: its phases, as pytest runs them, and the line in the journal about each phase."""

from __future__ import annotations

import bdb
import contextlib
import faulthandler
import functools
import logging
import os
import pickle
import signal
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest
from _pytest._code.code import ExceptionRepr
from _pytest.capture import CaptureManager, MultiCapture
from _pytest.runner import CallInfo

from supervise.pytest_plugin import _coverage, _gather
from supervise.pytest_plugin._gather import RankGather, Unpatched
from supervise.pytest_plugin._mark import MarkError
from supervise.recording import text_of

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable, Iterable

    from pluggy import HookCaller

    from supervise.pytest_plugin._gather import Plan
    from supervise.pytest_plugin._verdict import RankVerdict


# The option ``--ranks-pdb``: one rank reads from and writes to the terminal of pytest


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
    """Return a line about the debugger if ``--pdb`` or ``--trace`` was given and a rank has failed."""
    failed = [each for each in ranks if each.outcome == "failed"]
    given = [option for option, name in (("--pdb", "usepdb"), ("--trace", "trace")) if config.getoption(name, False)]
    if not failed or not given or config.getoption("ranks_pdb", None) is not None:
        return []
    first = min(failed, key=lambda each: (each.at_ns, each.rank))
    return [f"{given[0]} does not open a debugger in ranks; use --ranks-pdb {first.rank}"]


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
    if call.excinfo is None or isinstance(call.excinfo.value, (bdb.BdbQuit, SystemExit, pytest.exit.Exception)):
        return
    from _pytest.debugging import PdbInvoke  # lazy: few tests are debugged

    try:
        PdbInvoke().pytest_exception_interact(item, call, report)
    except pytest.exit.Exception:  # `q` in the debugger: the report of the failure must still be written
        return


# Subtests in a rank, of the fixture ``subtests`` or of unittest: one that fails makes the test fail in the rank


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
            self._failed.append((Unpatched.monotonic_ns(), report))
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


if TYPE_CHECKING:
    When = Literal["setup", "call", "teardown"]

_HOST_METHODS = ("setup", "runtest", "teardown")
"""Attributes of a test by which the host starts a gang instead of the test."""
FUNCTION = pytest.StashKey[Any]()
"""The function of a test of hypothesis, which the host replaces while it runs the gang."""
_inherited: list[object] = []
"""References to streams and finalizers of the host. If a rank garbage-collected them, the rank would close or flush
files of the host, or run the cleanup of a fixture, whose generator Python closes.
"""


class Stopped(BaseException):
    """Raised in the test when the host stops the rank, so that fixtures are torn down."""


def settle(plan: Plan, rank: int) -> None:
    """Make this process the rank `rank` of the plan."""
    plan.folder.hold(rank)
    _gather.here = RankGather(plan.folder, rank, plan.world_size, plan.timeout_s)
    logging.getLogger("supervise").disabled = False  # the host logs nothing about this gang, but a test may log
    if plan.debugged not in {None, rank}:
        sys.breakpointhook = lambda *_args, **_keywords: None  # another rank has the terminal
    if plan.terminal is not None and rank == plan.debugged:
        take(plan.terminal)
    elif faulthandler.is_enabled():
        faulthandler.enable(2)  # so that the captured output of this rank shows a crash


def run_forked(
    item: pytest.Item, fixtures: Iterable[pytest.FixtureDef[Any]], plan: Plan, rank: int, context: contextvars.Context
) -> None:
    """Run the test in a fork of the host.

    Args:
        item: The test.
        fixtures: All fixtures that the host has set up.
        plan: What all ranks need.
        rank: The rank.
        context: The context variables of the host's thread: the thread of the gang forks, and has none of them.
    """
    __tracebackhide__ = True
    settle(plan, rank)
    _coverage.start(plan.measurement)
    capture = item.config.pluginmanager.getplugin("capturemanager")
    if isinstance(capture, CaptureManager):  # the output of this process already goes to files of its own
        _inherited.append(capture._global_capturing)  # noqa: SLF001 - pytest has no public way
        capture._global_capturing = MultiCapture(in_=None, out=None, err=None)  # noqa: SLF001
    _renew_log_file(item.config)
    for name in ("pdbinvoke", "pdbtrace"):  # the options --pdb and --trace; a rank has no terminal
        item.config.pluginmanager.unregister(name=name)
    for name in _HOST_METHODS:
        vars(item).pop(name)
    if FUNCTION in item.stash:
        item.obj = item.stash[FUNCTION]  # type: ignore[attr-defined]
    _disown_fixtures(item, fixtures)
    context.run(run_phases, item, plan, rank)


def _renew_log_file(config: pytest.Config) -> None:
    """Give the log file a new stream at the same offset. At the fork, a thread may have held the lock of the old."""
    handler: Any = getattr(config.pluginmanager.getplugin("logging-plugin"), "log_file_handler", None)
    try:
        fd = os.dup(handler.stream.fileno())
    except (AttributeError, OSError, ValueError):  # the stream is None, closed, or not a file
        return
    _inherited.append(handler.stream)
    handler.stream = open(fd, "w", encoding=handler.encoding, errors=handler.errors)  # noqa: SIM115


def _disown_fixtures(item: pytest.Item, fixtures: Iterable[pytest.FixtureDef[Any]]) -> None:
    """Remove the finalizers of the nodes and fixtures that the host has set up, because the host tears them down."""
    session: Any = item.session
    stack = session._setupstate.stack  # noqa: SLF001
    _inherited.append(stack.pop(item))  # it is set up again here
    of_nodes = [finalizers for finalizers, _ in stack.values()]
    # Both kinds: pytest-rerunfailures has copies of those of the nodes
    for finalizers in (*of_nodes, *(each._finalizers for each in fixtures)):  # noqa: SLF001
        _inherited.append(finalizers.copy())
        finalizers.clear()


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
        # No lambda: in a traceback it would be a frame in front of those of the user
        hook, partial = item.ihook, functools.partial
        if phases.run("setup", partial(hook.pytest_runtest_setup, item=item)):
            phases.run("call", partial(hook.pytest_runtest_call, item=item))
        phases.run("teardown", partial(hook.pytest_runtest_teardown, item=item, nextitem=None))
    _coverage.save()


class _Phases:
    """The phases of a test in this rank."""

    def __init__(self, item: pytest.Item, plan: Plan, rank: int, subtests: Subtests) -> None:
        self._item, self._plan, self._rank, self._subtests = item, plan, rank, subtests
        self._pid = Unpatched.getpid()
        self._interruptible = self._stopped = False
        self.warnings: list[warnings.WarningMessage] | None = None

    def stop(self, number: int, _frame: object) -> None:
        """Handle SIGTERM: raise `Stopped`, once and only during a phase."""
        __tracebackhide__ = True
        if Unpatched.getpid() != self._pid:  # a process that the test has forked
            signal.signal(number, signal.SIG_DFL)
            os.kill(Unpatched.getpid(), number)
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
        _coverage.name_context(self._plan.measurement, self._item.nodeid, when)
        call = CallInfo.from_call(functools.partial(self._guarded, phase), when=when)
        if Unpatched.getpid() != self._pid:  # the test has forked, and the child has returned from it
            os._exit(0 if call.excinfo is None else 1)
        ended_ns = Unpatched.monotonic_ns()
        item, config = self._item, self._item.config
        report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
        at_ns = self._subtests.decide(report, ended_ns)
        if call.excinfo is not None and report.failed and self._rank == self._plan.debugged and not self._stopped:
            examine(item, call, report)
        raised = call.excinfo.value if call.excinfo is not None else None
        exiting = raised if isinstance(raised, pytest.exit.Exception) else None
        self._plan.folder.append(
            self._rank,
            {
                "when": when,
                "at_ns": at_ns,
                "report": config.hook.pytest_report_to_serializable(config=config, report=report),
                "sizes": self._sizes(),
                "warnings": [_as_data(each) for each in self.warnings or ()],
                "exit": [str(exiting), exiting.returncode] if exiting is not None else None,
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
                sizes[name] = Unpatched.stat(self._plan.folder.stream(self._rank, name)).st_size
            except (AttributeError, OSError, ValueError):  # the test has closed or replaced the stream
                sizes[name] = 0
        return sizes


def _as_data(warning: warnings.WarningMessage) -> list[Any]:
    category = warning.category
    where = [str(warning.filename), warning.lineno]
    return [category.__module__, category.__qualname__, text_of(warning.message), *where]


# A rank in a new interpreter. There, pytest collects the test again, and runs it
#
# The rank gets the options of the host, as a worker of pytest-xdist does.


_OFF: dict[str, Any] = {
    "dist": "no",
    "numprocesses": None,
    "tx": [],
    "usepdb": False,
    "trace": False,
    "allure_report_dir": None,
    "basetemp": None,
    "capture": "no",
    "cacheclear": False,
    "cov_source": [],
    "log_file": os.devnull,
    "report_log": None,
    "setuponly": False,
    "setupplan": False,
    "setupshow": False,
    "stepwise": False,
    "stepwise_skip": False,
    "stepwise_reset": False,
    "xmlpath": None,
}
"""Options that differ in a rank: the rank has no workers, writes its output to files, does not report, and does not
erase or overwrite a file of the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSession:
    """The facts that a rank needs to collect the test."""

    nodeid: str
    arg: str
    """The argument of pytest that selects the test."""
    args: list[str]
    """Those of the host that decide its first plugins, its rootdir, its configuration and its first conftest files."""
    options: dict[str, Any]
    pickled: dict[str, bytes]
    """Values of other types: a conftest.py, which the rank imports later, may define their classes."""
    cwd: str
    workerinput: dict[str, Any] | None
    """What pytest-xdist tells its worker; None without workers."""


def session_of(item: pytest.Item) -> HostSession:
    """Return the facts that the ranks of `item` need to collect it."""
    config = item.config
    given = vars(config.option).copy()
    args: list[str] = given.pop("file_or_dir")
    options: dict[str, Any] = {name: value for name, value in given.items() if _travels(value)}
    options["plugins"] = [*options.get("plugins", ()), "no:terminal"]
    pickled = {}
    for name in given.keys() - options.keys() - _OFF.keys():
        with contextlib.suppress(Exception):
            pickled[name] = pickle.dumps(given[name])
    return HostSession(
        nodeid=item.nodeid,
        arg=str(item.path) + item.nodeid[len(item.nodeid.partition("::")[0]) :],
        args=[*(f"-p{name}" for name in given["plugins"]), *args],
        options=options | _OFF,
        pickled=pickled,
        cwd=str(config.invocation_params.dir),
        workerinput=getattr(config, "workerinput", None),
    )


def _travels(value: object) -> bool:
    if type(value) in (list, tuple):
        return all(map(_travels, cast("list[object]", value)))
    return type(value) in (str, int, float, bool, type(None))


class _OneTest:
    """A plugin of the rank's own pytest, which runs one test and reports nothing."""

    def __init__(self, session: HostSession, plan: Plan, rank: int) -> None:
        self._session, self._plan, self._rank = session, plan, rank
        self._item: pytest.Item | None = None
        self.found = False

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Note the test, before hooks remove tests by their index, of which there is only one here."""
        # The file of a test outside of the rootdir is named by the arguments, and so has another name here
        if item.nodeid.partition("::")[2] == self._session.nodeid.partition("::")[2]:
            self._item = item

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the test."""
        if self._item is not None and not session.testsfailed:
            self.found = True
            session.config.hook.pytest_runtest_protocol(item=self._item, nextitem=None)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        """Run the test within the wrappers of this hook: filters of warnings, and the texts of compared values."""
        run_phases(item, self._plan, self._rank)
        return True

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self) -> bool:
        """Set no timer of pytest-timeout: that of the host ends the ranks."""
        return True


def run(session: HostSession, plan: Plan, rank: int) -> None:
    """Run the test in this process, which is a new interpreter.

    Raises:
        SystemExit: The test was not found; the output of the rank says why.
    """
    from _pytest.config import Config

    settle(plan, rank)
    os.chdir(session.cwd)
    _coverage.start(plan.measurement)
    config = Config.fromdictargs(session.options, session.args)
    config.args = [session.arg]
    for name, value in session.pickled.items():
        with contextlib.suppress(Exception):  # only a later hook, which sets the option again, may import its class
            setattr(config.option, name, pickle.loads(value))
    if session.workerinput is not None:
        vars(config).update(workerinput=session.workerinput, workeroutput={})
    plugin = _OneTest(session, plan, rank)
    config.pluginmanager.register(plugin, "supervise-rank")
    code = config.hook.pytest_cmdline_main(config=config)
    if not plugin.found:
        raise SystemExit(f"pytest in rank {rank} did not find {session.nodeid} (exit code {code})")
