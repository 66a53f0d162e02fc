"""Write the tables of settings in the reference: ``python -m tests.docs.make_reference``.

They are blocks between two comments on the pages of ``docs/reference``. A test compares them with the
table of settings.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from supervise import _settings
from supervise._settings import ADDRESSES, CHOICE, FLAG, NAMES, PROBE, READINESS, REQUIRED, SIGNAL, TIMES, Setting
from supervise.cli.options import parts, values

PAGES = Path(__file__).parents[2] / "docs/reference"
BLOCK = re.compile(r"(?<=^<!-- settings: )([\w-]+) -->\n(.*?)(?=^<!-- end -->$)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"--[a-z][a-z-]+|filtered_\w+\.log|READY=1|supervise\.notify|systemd-notify")


def blocks() -> dict[str, str]:
    """Return the name of each block to its text."""
    return {
        "options": _table(("option", "meaning"), map(_option, _settings.with_options())),
        "roles": _table(("key", "value"), (_role(key, row) for key, row in parts.role_settings().items())),
        "gang": _api(row for row in _settings.GANG.values() if row.name not in ("stop_signal", "reload_signal")),
        "policy": _api(_settings.POLICY.values()),
        "watchdog": _api(_settings.WATCHDOG.values()),
        "of-roles": _api(_settings.OF_ROLES.values()),
    }


def pages() -> Iterator[tuple[Path, str, str]]:
    """Yield each page with blocks, its text, and the text that it must have."""
    made = blocks()
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if BLOCK.search(text):
            yield page, text, BLOCK.sub(lambda found: f"{found[1]} -->\n{made[found[1]]}", text)


def _option(row: Setting) -> tuple[str, ...]:
    usual = f" ({row.usual})" if row.usual else ""
    return f"`{row.option}`{_placeholder(row)}", f"{_marked(row, row.sentence)}{usual}"


def _placeholder(row: Setting) -> str:
    if row.kind is FLAG:
        return ""
    return f" {', '.join(row.choices)}" if row.kind is CHOICE else f" {row.metavar or values.OF_KIND[row.kind][0]}"


def _role(key: str, row: Setting) -> tuple[str, ...]:
    words = ", ".join(f"`{choice}`" for choice in row.choices)
    probe = 'a [probe](#probes), such as `"tcp:8000"`'
    kinds = {
        FLAG: "`true` or `false`",
        CHOICE: words,
        READINESS: f"{words}, {probe}, or a list",
        PROBE: probe,
        TIMES: "number",
        ADDRESSES: "list",
        NAMES: 'list, such as `["store"]`',
        SIGNAL: 'signal, such as `"INT"`',
    }
    value = kinds.get(row.kind) or 'duration, such as `"90s"`'
    own = row.role == "own" or row in _settings.OF_ROLES.values()
    usual = f" ({row.usual})" if row.usual and own else ""
    return f"`{key}`", f"{value}: {_marked(row, row.sentence)}{usual}"


def _api(rows: Iterable[Setting]) -> str:
    return _table(("name", "type", "default", "option, or meaning"), map(_argument, rows))


def _argument(row: Setting) -> tuple[str, ...]:
    kind = ", ".join(f"`{choice!r}`" for choice in row.choices if row.kind is CHOICE) or row.kind.type
    unit = {"s": " (seconds)", "bytes": " (bytes)", "": ""}[row.kind.unit]
    default = "" if row.default is REQUIRED else f"`{_default(row.default)}`"
    return (
        f"`{row.name}`",
        f"{kind}{unit}",
        default,
        f"`{row.option}`" if row.option else _marked(row, row.sentence),
    )


def _default(value: object) -> str:
    if isinstance(value, frozenset):
        return f"{{{', '.join(map(str, sorted(value)))}}}" if value else "set()"
    return repr(value)


def _marked(row: Setting, text: str) -> str:
    """Return a text in Markdown, with options, choices and names between backquotes."""
    for choice in row.choices:
        text = re.sub(rf"(?<![\w`]){choice}(?=: )", f"`{choice}`", text)
    return _CODE.sub(r"`\g<0>`", text)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- ", "|---").replace("--- |", "---|")


if __name__ == "__main__":
    for page, _, text in pages():
        page.write_text(text, encoding="utf-8")
