"""The output of the ranks, as sections of a report, and their warnings."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pytest

    from supervise.pytest_plugin._folder import Folder
    from supervise.pytest_plugin._gang import Record

_MOST_BYTES = 1 << 20
"""A section shows at most this many bytes of one stream in one phase, the last ones."""
_STREAMS = ("stdout", "stderr")


def add_sections(
    item: pytest.Item,
    folder: Folder,
    order: Iterable[int],
    records: dict[int, Record],
    reports: dict[int, list[pytest.TestReport]],
) -> None:
    """Add the output and the logs of ranks to the test, as sections such as ``Captured stdout call [rank 2]``.

    Args:
        item: The test. Its later reports have these sections, too, like the sections of pytest's own capture.
        folder: The folder of the gang.
        order: The ranks in the order to show.
        records: Rank to the known facts about it.
        reports: Rank to the reports of its phases.
    """
    for rank in order:
        for when, name, text in _written(folder, rank, records[rank]):
            item.add_report_section(f"{when} [rank {rank}]", name, text)
        for title, text in reports[rank][-1].sections if reports[rank] else []:
            name, _, when = title.removeprefix("Captured ").rpartition(" ")
            item.add_report_section(f"{when} [rank {rank}]", name, text)


def is_of_teardown(title: str) -> bool:
    """Return whether the section with this title has the output of a rank in its teardown."""
    return " teardown [rank " in title


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
                category = _category(module, name)
                warnings.showwarning(message, category, file, line)


def _category(module: str, name: str) -> type[Warning]:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return UserWarning
    return found if isinstance(found, type) and issubclass(found, Warning) else UserWarning
