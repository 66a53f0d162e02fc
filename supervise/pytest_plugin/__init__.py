"""A pytest plugin: tests marked with ``ranks`` run in every rank of a gang. pytest loads it by the entry point.

Every pytest run on a machine with supervise imports this module, so it imports only pytest itself. The rest is imported
when the first marked test is collected.
"""

from __future__ import annotations

import contextlib
import sys

import pytest

TYPE_CHECKING = False  # without an import of typing
if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path
    from types import ModuleType

    from supervise.pytest_plugin._gather import RankGather

_MARKER = (
    "ranks(counts, *, timeout_s=None, grace_s=None, start_method='fork'): run the test in every rank of a gang of"
    " processes; a list of counts runs it once for each (plugin of supervise)"
)


_modules: dict[str, ModuleType] = {}
"""The modules of `kept_modules`, by name."""


@contextlib.contextmanager
def kept_modules() -> Generator[None]:
    """Keep the modules that supervise imports in the block, and restore those of earlier blocks.

    pytester and `mock.patch.dict` remove modules that were first imported meanwhile. If only some modules of supervise
    were imported again, their classes would not be those that the others know.
    """
    sys.modules.update({**_modules, **sys.modules})
    try:
        yield
    finally:
        _modules.update(each for each in sys.modules.copy().items() if each[0].startswith(("supervise.", "pykka")))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    group = parser.getgroup("supervise", "tests in several ranks (supervise)")
    group.addoption(
        "--ranks-pdb",
        metavar="RANK",
        type=int,
        default=None,
        help="give this rank the terminal, for breakpoint() and for a debugger where it fails; without timeouts",
    )
    parser.addini("ranks_timeout", "seconds after which a test with ranks is ended; 0 for no limit", default="60")
    parser.addini("ranks_grace", "seconds that the other ranks get after the first has failed", default="1")
    parser.addini(
        "ranks_budget",
        "how many ranks may run at once, over all workers of pytest-xdist; 0 for no limit",
        default="0",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.hookimpl(trylast=True)  # the number of ranks is the last part of a test's ID
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Check the mark of a test; if it has a list of counts, make one test for each."""
    mark = metafunc.definition.get_closest_marker("ranks")
    if mark is not None:
        from supervise.pytest_plugin import _mark

        _mark.generate(metafunc, mark)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # a conftest.py may mark tests by this hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Prepare the marked tests."""
    yield
    marked = [item for item in items if item.get_closest_marker("ranks") is not None]
    if marked:
        with kept_modules():
            from supervise.pytest_plugin import _host

            for item in marked:
                _host.prepare(item, kept_modules)


def _here(fixture: str) -> RankGather:
    from supervise.pytest_plugin import _gather

    if _gather.here is None:
        pytest.fail(f"the fixture {fixture!r} needs a test that is marked with pytest.mark.ranks", pytrace=False)
    return _gather.here


@pytest.fixture
def rank() -> int:
    """The number of the rank in which the test runs, from 0."""
    return _here("rank").rank


@pytest.fixture
def world_size() -> int:
    """The number of ranks in which the test runs."""
    return _here("world_size").world_size


@pytest.fixture
def gang_tmp_path() -> Path:
    """A new folder, the same one in every rank of the test."""
    return _here("gang_tmp_path").folder.shared


@pytest.fixture
def rank_gather() -> RankGather:
    """A function that every rank calls with a value, and that returns the list of the values of all ranks."""
    return _here("rank_gather")
