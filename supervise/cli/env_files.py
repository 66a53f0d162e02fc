"""Files of environment variables, as docker compose reads them: one ``NAME=VALUE`` per line."""

from __future__ import annotations

import argparse
import re

from supervise.cli import given_file

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z_0-9]*)\s*=\s*(.*)")
_QUOTED = re.compile(r"""(?:'([^']*)'|"((?:[^"\\]|\\.)*)")\s*(?:#.*)?""")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_LARGEST_BYTES = 1 << 20


def read(path: str) -> dict[str, str]:
    r"""Return the variables of a file: name to value.

    Empty lines and lines that begin with ``#`` are skipped. The word ``export`` before a name is skipped, too. Quotes
    around a value are removed; in double quotes ``\n`` is a newline. Text after `` #`` is a comment. ``$`` has no
    special meaning.

    Raises:
        argparse.ArgumentTypeError: The file cannot be read, or has a line of another form; the text names both.
    """
    try:
        content = given_file.read(path, _LARGEST_BYTES)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path!r}: {error.strerror}") from None
    if len(content) > _LARGEST_BYTES:
        raise argparse.ArgumentTypeError(f"{path!r} is larger than {_LARGEST_BYTES >> 20} MiB")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise argparse.ArgumentTypeError(f"{path!r} is not text in UTF-8") from None
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        parts = _LINE.fullmatch(stripped)
        value = None if parts is None else _value(parts[2])
        if parts is None or value is None or "\0" in value:
            raise argparse.ArgumentTypeError(f"{path!r}, line {number}: {line[:80]!r} is not NAME=VALUE")
        found[parts[1]] = value
    return found


def _value(text: str) -> str | None:
    """Return a value without quotes and comment; None if a quote is not closed."""
    if text[:1] not in ("'", '"'):
        return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
    parts = _QUOTED.fullmatch(text)
    if parts is None:
        return None
    if parts[1] is not None:
        return parts[1]
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), parts[2])
