"""The control protocol: one JSON object per line in each direction. `docs/reference/control-socket.md` describes it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, NoReturn

VERSION = 1
MOST_LINE_BYTES = 64 << 10
"""The longest request, with its newline."""
_LONGEST_ID = 200
_LONGEST_SHOWN = 100
_OWN = frozenset({"version", "id", "request"})


class Refusal(Exception):  # noqa: N818 - becomes a reply, not a failure of this process
    """A request that is answered by an error.

    Args:
        code: The kind of error, a word of the protocol.
        message: What is wrong, and what is accepted.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.id: Any = None
        """The ``id`` of the request, if it could be read."""


class Request(NamedTuple):
    """A request whose frame is valid; its arguments are not checked yet."""

    name: str
    id: str | int | None
    arguments: dict[str, Any]


def parse(line: bytes) -> Request:
    """Return the request of a line.

    Raises:
        Refusal: It is not a request of this version.
    """
    try:
        found = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Refusal("bad-request", "the line is not JSON; send one JSON object a line") from None
    if not isinstance(found, dict):
        raise Refusal("bad-request", "the line is not a JSON object")
    ident = found.get("id")
    if not (ident is None or _is_integer(ident) or (isinstance(ident, str) and len(ident) <= _LONGEST_ID)):
        raise Refusal("bad-request", f"'id' is not a string of at most {_LONGEST_ID} characters, or an integer")
    try:
        if found.get("version") != VERSION or not _is_integer(found["version"]):
            raise Refusal("version", f"'version' is {shown(found.get('version'))}; this server speaks {VERSION}")  # noqa: TRY301
        name = found.get("request")
        if not isinstance(name, str):
            raise Refusal("bad-request", "'request' is missing, or is not a string")  # noqa: TRY301
    except Refusal as refusal:
        refusal.id = ident
        raise
    return Request(name, ident, {key: value for key, value in found.items() if key not in _OWN})


def request_line(name: str, ident: str | int | None, arguments: dict[str, Any]) -> bytes:
    """Return the line of a request."""
    return json.dumps({"version": VERSION, "id": ident, "request": name, **arguments}).encode() + b"\n"


def answer_line(ident: str | int | None, result: dict[str, Any]) -> bytes:
    """Return the line of an answer. Encodes in parts, so that no call of the encoder blocks other threads for long."""
    return b"".join([*_parts({"version": VERSION, "id": ident, "ok": True, "result": result}, 3), b"\n"])


def error_line(refusal: Refusal) -> bytes:
    """Return the line of an error."""
    error = {"code": refusal.code, "message": str(refusal)}
    return json.dumps({"version": VERSION, "id": refusal.id, "ok": False, "error": error}).encode() + b"\n"


def shown(value: object) -> str:
    """Return a value of a request for an error message, cut to 100 characters."""
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _parts(value: object, depth: int) -> list[bytes]:
    if not depth or not isinstance(value, dict):
        return [json.dumps(value).encode()]
    parts = [b"{"]
    for number, (key, each) in enumerate(value.items()):
        parts += [b", " if number else b"", json.dumps(str(key)).encode(), b": ", *_parts(each, depth - 1)]
    return [*parts, b"}"]


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)
