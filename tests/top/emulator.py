"""The few escape sequences of a terminal that the live table uses; any other one is an error."""

import re
import unicodedata

_TOKEN = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|([^\x00-\x1f\x7f-\x9f])|([\r\n])|(.)", re.DOTALL)


class Emulator:
    """A screen of cells, and what was written outside of the alternate screen."""

    def __init__(self, columns: int, rows: int) -> None:
        self.main = ""
        self.alternate = False
        self.cursor_shown = True
        self.wraps = True
        self.entered = 0
        self._rest = ""
        self.resize(columns, rows)
        self._outdated = False

    def resize(self, columns: int, rows: int) -> None:
        """Change the size; the content is lost, as in the worst terminal.

        What is drawn until the screen is cleared is for the old size: the program has not seen the new one.
        """
        self._outdated = True
        self.columns, self.rows = columns, rows
        self._cells = [[" "] * columns for _ in range(rows)]
        self._row = self._column = 0

    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._cells]

    def feed(self, text: str) -> None:
        text, self._rest = self._rest + text, ""
        cut = text.rfind("\x1b")
        if cut >= 0 and not re.match(r"\x1b\[[?0-9;]*[A-Za-z]", text[cut:]):
            text, self._rest = text[:cut], text[cut:]
        for numbers, command, character, newline, other in _TOKEN.findall(text):
            assert not other, f"{other!r} in {text!r}"
            if command:
                self._command(numbers, command)
            elif not self.alternate:
                self.main += character or newline
            else:
                assert character, f"{newline!r} in a picture"
                self._put(character)

    def _command(self, numbers: str, command: str) -> None:
        if self._outdated and command in "HK":
            return
        match command:
            case "H":
                row, column = map(int, numbers.split(";"))
                assert 1 <= row <= self.rows
                assert 1 <= column <= self.columns
                self._row, self._column = row - 1, column - 1
            case "K":
                self._cells[self._row][self._column :] = [" "] * (self.columns - self._column)
            case "J":
                assert numbers == "2"
                self._outdated = False
                self._cells = [[" "] * self.columns for _ in range(self.rows)]
            case "m":
                pass
            case "h" | "l":
                on = command == "h"
                if numbers == "?1049":
                    self.alternate = on
                    self.entered += on
                elif numbers == "?25":
                    self.cursor_shown = on
                else:
                    assert numbers == "?7"
                    self.wraps = on
            case _:
                raise AssertionError(numbers + command)

    def _put(self, character: str) -> None:
        if unicodedata.combining(character) or self._outdated:
            return
        width = 2 if unicodedata.east_asian_width(character) in "WF" else 1
        assert self._column + width <= self.columns, f"{character!r} goes beyond the last column"
        cells = self._cells[self._row]
        cells[self._column : self._column + width] = [character] + [""] * (width - 1)
        self._column += width
