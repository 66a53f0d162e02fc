"""The syntax of probes, by which supervise tests from outside whether a rank is ready or alive."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from supervise._record import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_KINDS = ("tcp", "unix", "http", "https", "file", "log", "exec")
"""The kinds of probes. `Try` in `_gang/probing.py` has a method for each."""
_VARIABLE = re.compile(r"\$\{([^}]*)\}")


class Probe(NamedTuple):
    """A probe of one rank."""

    kind: str
    text: str
    """The probe for messages. Its variables are replaced, except those of a command, which may be secrets."""
    target: Any
    """What is probed: host and port, a path, the parts of a URL, a compiled pattern, or the words of a command."""


def parse(text: str, variables: Mapping[str, str] | None = None) -> Probe:
    """Return the probe that a text describes.

    Args:
        text: The probe.
        variables: The variables of the rank: name to value. None: check only the syntax.

    Raises:
        ValueError: The text is not a probe, or names an unknown variable; the text has the reason and the remedy.
    """
    kind, _, rest = text.partition(":")

    def value(found: re.Match[str]) -> str:
        if variables is not None and found[1] not in variables:
            raise ValueError(f"{found[1]} is not a variable of the rank; set it, or write its value")
        known = "1" if variables is None else variables[found[1]]
        return re.escape(known) if kind == "log" else known

    if kind not in _KINDS or not rest.strip():
        forms = "tcp:[HOST:]PORT, unix:PATH, http[s]://HOST/PATH, file:PATH, exec:COMMAND, or for ready log:REGEX"
        raise ValueError(f"a probe is {forms}")
    if kind == "exec":
        try:
            words = shlex.split(rest)
        except ValueError as error:
            raise ValueError(f"{error}; close each quotation, and double a backslash at the end") from None
        return Probe(kind, text, tuple(_VARIABLE.sub(value, word) for word in words))
    rest = _VARIABLE.sub(value, rest)
    return Probe(kind, f"{kind}:{rest}", _target(kind, rest))


def _target(kind: str, rest: str) -> Any:
    match kind:
        case "tcp":
            host, _, port = rest.rpartition(":")
            if not (port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
                raise ValueError(f"{port!r} is not a port; give a number from 1 to 65535")
            if "/" in host or "," in host or " " in host:
                raise ValueError(
                    f"{host!r} is not a host; give tcp:HOST:PORT, such as tcp:127.0.0.1:8000, and each probe separately"
                )
            return host.removeprefix("[").removesuffix("]") or "localhost", int(port)
        case "http" | "https":
            try:
                found = urlsplit(f"{kind}:{rest}")
                sendable = rest.isascii() and " " not in rest and "@" not in found.netloc  # no name and password
                valid = found.hostname and sendable and found.port != 0
            except ValueError:  # a port above 65535, or a bracket without its pair
                valid = False
            if not valid:
                raise ValueError(
                    "give a URL, such as http://127.0.0.1:8000/health, with a port from 1 to 65535, without a password"
                )
            return found
        case "log":
            try:
                return re.compile(rest)
            except re.error as error:
                raise ValueError(f"its pattern is not a regular expression: {error}") from None
        case _:
            return rest
