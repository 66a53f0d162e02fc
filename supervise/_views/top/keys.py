"""Keys, from the bytes that a terminal sends."""

from __future__ import annotations

_SEQUENCES = {
    b"[A": "up",
    b"[B": "down",
    b"[C": "right",
    b"[D": "left",
    b"OA": "up",
    b"OB": "down",
    b"OC": "right",
    b"OD": "left",
    b"[5~": "page up",
    b"[6~": "page down",
    b"[H": "home",
    b"[F": "end",
    b"OH": "home",
    b"OF": "end",
    b"[1~": "home",
    b"[4~": "end",
    b"[7~": "home",
    b"[8~": "end",
}
_CONTROLS = {
    0x09: "tab",
    0x0A: "enter",
    0x0C: "redraw",
    0x0D: "enter",
    0x02: "page up",
    0x06: "page down",
    0x7F: "backspace",
    0x08: "backspace",
}
_LONGEST = 32
"""A longer sequence is not a key."""


class Keys:
    """Splits input into keys: a character, or a word such as ``up``."""

    def __init__(self) -> None:
        """Begin without input."""
        self._rest = b""

    @property
    def waits(self) -> bool:
        """Whether the input ends in an escape character that may be the Esc key, or the start of a sequence."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[str]:
        """Return the keys of new input."""
        data, self._rest = self._rest + data, b""
        found = []
        while data:
            length, key = _first(data)
            if not length:
                self._rest = data
                break
            data = data[length:]
            if key:
                found.append(key)
        return found

    def timed_out(self) -> list[str]:
        """Return the keys of the rest after a time without further input: Esc, if the rest is an escape character."""
        rest, self._rest = self._rest, b""
        return ["escape"] if rest == b"\x1b" else []


def _first(data: bytes) -> tuple[int, str]:
    """Return the length of the first key in bytes (0: more bytes are needed), and its name ("": not a known key)."""
    if data[0] == 0x1B:
        return _escape(data)
    if data[0] in _CONTROLS:
        return 1, _CONTROLS[data[0]]
    if data[0] < 0x20:
        return 1, ""
    length = 1 if data[0] < 0xC2 or data[0] > 0xF4 else 2 if data[0] < 0xE0 else 3 if data[0] < 0xF0 else 4
    if len(data) < length:
        return 0, ""
    try:
        text = data[:length].decode()
    except UnicodeDecodeError:
        return 1, ""
    return length, text if text.isprintable() else ""


def _escape(data: bytes) -> tuple[int, str]:
    if len(data) == 1:
        return 0, ""
    if data[1] not in b"[O":  # Esc was pressed, and another key soon after it
        return 1, "escape"
    for end in range(2, min(len(data), _LONGEST)):
        if 0x40 <= data[end] <= 0x7E:
            return end + 1, _SEQUENCES.get(data[1 : end + 1], "")
    return (2, "") if len(data) >= _LONGEST else (0, "")
