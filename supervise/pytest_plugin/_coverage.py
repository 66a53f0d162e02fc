"""Coverage of ranks, by coverage.py or pytest-cov: every rank writes a data file of its own.

pytest-cov and ``coverage combine`` find these files beside that of the host. ``coverage run`` without its option
``parallel`` reads a single file; there, the host adds the data of the ranks to its own.
"""

from __future__ import annotations

import contextlib
import glob
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_OPTIONS = ("branch", "concurrency", "context", "cover_pylib", "include", "omit", "source", "source_pkgs", "timid")
_SILENT = ["already-imported", "module-not-imported", "module-not-measured", "no-data-collected"]
"""Warnings about files that other ranks or the host may measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """How the ranks of a test are measured."""

    data_file: str
    """Path of the data files without their suffixes."""
    config_file: str | bool
    options: dict[str, Any]
    is_added: bool
    """Whether the host adds the data of the ranks to its own."""
    by_phase: bool
    """Whether the data have the test and its phase as their context (``--cov-context=test``)."""


def of_host(config: pytest.Config, folder: Path) -> Measurement | None:
    """Return how the ranks of a test are measured; None if coverage.py does not measure this process."""
    current = _current()
    if current is None:
        return None
    is_added = _has_plain_name(current)
    return Measurement(
        data_file=str(folder / "coverage") if is_added else current._data.base_filename(),  # noqa: SLF001
        config_file=current.config.config_file or False,
        options={name: current.get_option(f"run:{name}") for name in _OPTIONS},
        is_added=is_added,
        by_phase=config.getoption("cov_context", None) == "test",
    )


def start(measurement: Measurement | None) -> None:
    """Measure this rank. A fork goes on with the measurement that it inherits if its data file gets a new name."""
    if measurement is None:
        return
    import coverage

    current = _current()
    if current is not None:
        # With ``concurrency = multiprocessing``, coverage.py itself has begun to measure this process, without the
        # options of the command line. The host could not combine such data with its own.
        automatic = bool(current._auto_load)  # noqa: SLF001
        if not automatic and not _has_plain_name(current):
            return
        current.stop()
        if automatic:
            current._collector.reset()  # noqa: SLF001 - so that it writes no file when this process ends
    new = coverage.Coverage(
        data_file=measurement.data_file,
        data_suffix=True,
        config_file=measurement.config_file,
        **measurement.options,
    )
    new.set_option("run:disable_warnings", [*(new.get_option("run:disable_warnings") or ()), *_SILENT])  # type: ignore[misc]
    new.start()


def save() -> None:
    """Write the data of this rank."""
    current = _current()
    if current is not None:
        current.stop()
        current.save()


def add_data(measurement: Measurement | None) -> None:
    """Add the data of the ranks to those of this process, the host, if no other process does."""
    current = _current()
    if measurement is None or not measurement.is_added or current is None:
        return
    import coverage

    for path in glob.glob(f"{glob.escape(measurement.data_file)}.*"):
        with contextlib.suppress(coverage.CoverageException):  # the rank was killed while it wrote the file
            data = coverage.CoverageData(path)
            data.read()
            current._data.update(data)  # noqa: SLF001 - get_data() warns of modules that a later test imports


def name_context(measurement: Measurement | None, nodeid: str, when: str) -> None:
    """Name the context of the data for ``--cov-context=test``, as pytest-cov does in the host.

    A spawned rank cannot load pytest-cov: it would erase other data. A test with the mark ``no_cover`` is not measured
    in spawned ranks, because pytest-cov pauses the host meanwhile.
    """
    current = _current()
    if measurement is not None and measurement.by_phase and current is not None:
        current.switch_context(f"{nodeid}|{'run' if when == 'call' else when}")


def _current() -> Any:
    """Return the `coverage.Coverage` that measures this process; None if there is none."""
    coverage: Any = sys.modules.get("coverage")
    return coverage.Coverage.current() if coverage is not None else None


def _has_plain_name(current: Any) -> bool:
    """Return whether the data file has no suffix, so that a fork would overwrite it."""
    data = current._data  # noqa: SLF001 - get_data() warns of modules that a later test imports
    return bool(data.data_filename() == data.base_filename())
