r"""Splitting of a byte stream into prefixed lines. Pure: no I/O, no clock.

A line ends with ``\n``. Its bytes pass unchanged in any encoding, with these exceptions:

- An unfinished line is kept until its newline or the end of the stream. At the end of the stream, a console gets a
  newline after the line, so that the next output starts at column 0. A file gets no extra byte.
- A line longer than the limit is passed on in pieces. Until the newline of the line, the destination is *reserved* for
  its stream: no other stream may write to the destination.
- On a console, a segment after ``\r`` replaces the segment before it. At its newline, such a line is shown as its last
  segment. Before the newline, its present segment is shown as a separate line, at most once per `UPDATE_INTERVAL_NS`.
  ``\r\n`` is an ordinary line end.
- A stream with prompts shows an unfinished line after `PROMPT_NS` without further bytes. If the stream has updates, it
  rewrites such a line in place. Output of another stream interrupts the line, whose rest is then shown as a separate
  line.
- On a console, a program may move the cursor up again: nested progress bars. Rows that it can reach stay unfinished,
  and are shown as lines once the cursor has left them for good; a row that was cleared is not shown. Rows above the
  highest one that the cursor has reached so far wait `SETTLE_NS`, because a further bar may be added. Without updates,
  the newline of a rewritten line also waits for such a movement. Nothing waits longer than ``SETTLE_NS[True]``. A
  stream with prompts and updates shows the row of the cursor in the place of its present line.
- A filter gets each raw line with its newline. Of a line longer than the limit, the filter gets the first bytes up to
  the limit. Its answer then holds for the whole line.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_BYTES = 64 * 1024
"""The longest unfinished line that is buffered."""

UPDATE_INTERVAL_NS = 100_000_000
r"""The shortest interval between two updates of a line that is rewritten with ``\r``."""

SETTLE_NS = {False: 100_000_000, True: 1_000_000_000}
"""Time without further bytes after which the cursor is not expected to move up. Key: whether the cursor is hidden."""

_MOST_ROWS = 30
"""The most rows below the top row to which the cursor may move."""
_MOST_WAITING = 4096
"""The most bytes that wait for a movement of the cursor."""
_CONTROL = rb"\x1b\[([0-9]{0,9})([ABEF])|\x1b\[\?25([lh])|\x1b\[2K"
"""Up or down some rows; hide or show the cursor; erase the row."""
_STYLE = rb"\x1b\[[0-9;]*[mK]"
"""A color, or the erasure of the rest of the row."""
_TORN = rb"\x1b(?:\[[0-9?]{0,9})?\Z"
_compiled = cache(re.compile)

TIME = "${time}"
"""The part of a prefix in whose place each line has the time at which it is shown."""
_ERASE_LINE = b"\r\x1b[K"
_ERASED = b"\r \r"
"""What stands for the sequence that erases a row."""
PROMPT_NS = 50_000_000
"""Time without further bytes after which a stream with prompts shows its unfinished line."""


class LineStream:
    """A stream from one source to one destination. It buffers at most the limit and one chunk."""

    # A gang has two streams for each rank; with this many attributes, a dictionary takes five times as much memory
    __slots__ = (
        *("prefix", "has_time", "reserved", "prompted", "_template", "_prompts", "_between", "_console"),
        *("_rewrites_lines", "_updates", "_again", "_limit", "_select", "_shown_ns", "_waiting", "_settle_ns"),
        *("_waits_since_ns", "_hidden", "_rows", "_at", "_depth", "_climbs", "_entered", "_text", "_due_ns", "_held"),
        *("_before", "_rewrites", "_ends_in_cr", "_update", "_prompt", "_row"),
    )

    def __init__(
        self,
        prefix: bytes,
        *,
        console: bool,
        rewrites: bool | None = None,
        updates: bool = True,
        line_filter: Callable[[bytes], bool] | None = None,
        limit_bytes: int = LIMIT_BYTES,
        prompts: bool = False,
    ) -> None:
        r"""Start at the beginning of a line.

        Args:
            prefix: Bytes that are written before each line; may be empty. If `TIME` is in it, the caller calls
                `tell_time` before each output.
            console: Whether the destination is a console. On a console, a last line without a newline gets one.
            rewrites: Whether ``\r`` rewrites the line; None: it does on a console.
            updates: Whether `feed` returns the present segments of a rewritten line before its end.
            line_filter: Returns whether to show a raw line; None: show all lines.
            limit_bytes: The longest unfinished line that is buffered.
            prompts: Whether to show an unfinished line after a short silence. Must be False with a filter.
        """
        self.prefix = prefix
        self._template = prefix
        self.has_time: bool = TIME.encode() in prefix
        """Whether the prefix has the time."""
        self._prompts = prompts
        self.reserved = False
        """Whether a part of a line was passed on. If so, no other stream may write before the end of the line."""
        self._between = b"\n" + prefix
        self._console = console
        self._rewrites_lines = console if rewrites is None else rewrites
        self._updates = updates
        self._again = _ERASE_LINE if updates else b"\n"  # before a partly shown line is shown again
        self._limit = limit_bytes
        self._select = _Selection(line_filter, limit_bytes) if line_filter is not None else None
        self._shown_ns = -UPDATE_INTERVAL_NS
        self._begin_line()
        self._waiting = b""  # bytes after a line that a movement of the cursor may still rewrite, or a torn sequence
        self._settle_ns: int | None = None
        self._waits_since_ns: int | None = None
        self._hidden = False  # whether the program has hidden the cursor
        self._leave_rows()
        self._row = b""  # the row that is shown in the place of the present line, if `prompted`

    def _leave_rows(self) -> None:
        self._rows: list[bytes] = []  # the raw content of the rows below the present line, which is the top row
        self._at = 0  # the row of the cursor
        self._depth = 0  # how far the cursor has moved up from the last row; 0: it has not
        self._climbs = False  # whether the cursor has moved up, and nothing was written since then
        self._entered = False  # whether the next text begins in column 0 of a row that had text before
        self._text = b""  # what tells whether the text since then is an ordinary line: see `_put`

    def _begin_line(self) -> None:
        self.reserved = False
        self.prompted = False
        """Whether the last output that the destination has shown is the beginning of this line, as a prompt."""
        self._due_ns: int | None = None
        self._held = b""  # the current segment so far
        self._before = b""  # the last nonempty segment
        self._rewrites = False  # this line has a "\r"
        self._ends_in_cr = False  # the last byte is "\r"; "\n" may follow
        self._update: bytes | None = None  # the segment of this line that was shown last
        self._prompt = b""  # the beginning of this line that was shown as a prompt

    def tell_time(self, text: str) -> None:
        """Set the time of the next lines. Each text has the same length, on which `source_bytes` relies."""
        self.prefix = self._template.replace(TIME.encode(), text.encode())
        self._between = b"\n" + self.prefix

    @property
    def continues(self) -> bool:
        """Whether a part of the present line is shown, and the next output continues the line."""
        return self.reserved or self.prompted

    def interrupt(self) -> None:
        """Note that another stream is shown after the prompt.

        The remaining part of the line will get the prefix again.
        """
        self.prompted, self._prompt = False, b""

    @property
    def held_bytes(self) -> int:
        """The number of buffered bytes of an unfinished line."""
        waiting = len(self._select.held) if self._select is not None else 0
        rows = len(self._waiting) + sum(map(len, self._rows))
        return len(self._held or self._before) + self._ends_in_cr + waiting + rows

    @property
    def due_ns(self) -> int | None:
        """Time at which an update is due (see `update`); None: no update is pending."""
        return min((due for due in (self._due_ns, self._settle_ns) if due is not None), default=None)

    @property
    def unfinished_rows(self) -> list[bytes]:
        """The unfinished lines: the present line, and the rows below it to which the cursor has moved.

        Of the present line, it is the present segment. The line is missing if a part of it was passed on.
        """
        present = b"" if self.reserved else self._held or self._before
        rows = [present, *(row.rstrip(b"\r").rpartition(b"\r")[2] for row in self._rows)]
        return [row for row in rows if row.strip()]

    @property
    def is_rewritten(self) -> bool:
        r"""Whether the present line has a ``\r``."""
        return self._rewrites or self._ends_in_cr

    def feed(self, chunk: bytes, now_ns: int = 0) -> bytes:
        r"""Process the next chunk of the stream and return the bytes to write now.

        Args:
            chunk: The next bytes. The chunk may end anywhere in a line.
            now_ns: The time (monotonic). It is used only for prompts and for ``\r`` on a console.
        """
        if self._select is not None:
            chunk = self._select.feed(chunk)
        special = self._waiting or self._rows or self._hidden or self.is_rewritten
        plain = not (special or b"\x1b" in chunk or b"\r" in chunk)
        if plain or not self._rewrites_lines:
            return self._pass(chunk, now_ns)
        return self._move(chunk, now_ns)

    def finish(self) -> bytes:
        """Return the remaining bytes at the end of the stream.

        After that, the stream is at the beginning of a line again.
        """
        out: list[bytes] = []
        self._hide_row(out)
        if self._select is not None and (rest := self._select.finish()):
            out.append(self._pass(rest, None))
        self._settle(out, None)
        cleared = self._commit_all(out, None) and self._is_cleared()
        text = b"" if cleared else self._held or self._before  # a cleared line is neither reserved nor a prompt
        if self.prompted and self.is_rewritten and text:
            out += (self._again, self.prefix, text, b"\n")
        elif self.reserved or self.prompted:
            out.append(self._held + b"\n" if self._console else b"")
        elif text and text != self._update:
            out += (self.prefix, text, b"\n" if self._console else b"")
        self._begin_line()
        return b"".join(out)

    def update(self, now_ns: int) -> bytes:
        r"""Return the update that is due: the present segment of a line with ``\r``, or a prompt.

        Empty if none is due.
        """
        settled: list[bytes] = []
        if self._settle_ns is not None and now_ns >= self._settle_ns:
            self._settle(settled, now_ns)
            return b"".join(settled)
        if self._due_ns is None or now_ns < self._due_ns:
            return b""
        self._due_ns = None
        if self._shows_rows:
            return self._show_row(now_ns)
        self._hide_row(settled)
        if not self.is_rewritten:
            text, self._held = self._held, b""
            self._prompt += text
            start, self.prompted = b"" if self.prompted else self.prefix, True
            return b"".join((*settled, start, text))
        self._shown_ns = now_ns
        self._update = self._held or self._before
        if not self._prompts:
            return b"".join((self.prefix, self._update, b"\n"))
        start, self.prompted = self._again if self.prompted else b"", True
        return b"".join((*settled, start, self.prefix, self._update))

    @property
    def _shows_rows(self) -> bool:
        return bool(self._depth) and self._prompts and self._updates and not self.reserved

    def _show_row(self, now_ns: int) -> bytes:
        """Show the row of the cursor in the place of what the destination shows as a prompt."""
        row = self._rows[self._at - 1] if self._at else self._prompt + self._held or self._before
        row = row.rstrip(b"\r").rpartition(b"\r")[2]
        if not row.strip() or (self.prompted and row == (self._row or self._update)):
            return b""
        if not self._row:
            self._restore_prompt()
        out = (self._again if self.prompted else b"") + self.prefix + row
        self._shown_ns, self._row, self.prompted = now_ns, row, True
        return out

    def _restore_prompt(self) -> None:
        """Hold again what was shown of the present line, because that is erased."""
        self._prompt, self._held, self._update = b"", self._prompt + self._held, None

    def _hide_row(self, out: list[bytes]) -> None:
        """Erase the row that is shown as a prompt."""
        if self._row and self.prompted:
            out.append(self._again)
            self.prompted = False
        self._row = b""

    # Rows

    def _move(self, chunk: bytes, now_ns: int | None) -> bytes:
        """Process a chunk in which the cursor may move from row to row."""
        out: list[bytes] = []
        data, self._waiting, self._settle_ns = self._waiting + chunk, b"", None
        torn = _compiled(_TORN).search(data, max(0, len(data) - 12))
        end = torn.start() if torn is not None else len(data)
        text, place = b"", 0
        for found in _compiled(_CONTROL).finditer(data, 0, end):
            text, place = text + data[place : found.start()], found.end()
            rows, letter, cursor = found.groups()
            if letter in (b"A", b"F") and not self._depth:
                top, *self._rows = text.rsplit(b"\n", _MOST_ROWS)
                out.append(self._pass(top, now_ns))
                self._at = len(self._rows)
            elif self._depth:
                self._write(text, out, now_ns)
            elif cursor is None:
                text += b"" if letter else _ERASED
                continue
            else:
                self._hidden = cursor == b"l"
                continue
            text = b""
            if letter is not None:
                count = int(rows or 1)
                self._go(-count if letter in b"AF" else count)
            elif cursor is None:
                self._write(_ERASED, out, now_ns)
            else:
                self._hidden = cursor == b"l"
                if not self._hidden:
                    self._commit_all(out, now_ns)
        text += data[place:end]
        if self._depth:
            self._write(text, out, now_ns)
        else:
            kept = len(text) if self._updates or now_ns is None else self._begin_of_waiting(text)
            out.append(self._pass(text[:kept], now_ns))
            self._waiting = text[kept:]
        self._waiting += data[end:]
        self._set_deadline(now_ns)
        return b"".join(out)

    def _set_deadline(self, now_ns: int | None) -> None:
        """Limit the wait for a movement of the cursor, if something waits."""
        if self._shows_rows and now_ns is not None and self._due_ns is None:
            self._due_ns = max(now_ns + PROMPT_NS, self._shown_ns + UPDATE_INTERVAL_NS)
        if now_ns is None or not (self._waiting or self._has_excess()):
            self._waits_since_ns = None
            return
        if self._waits_since_ns is None:
            self._waits_since_ns = now_ns
        self._settle_ns = min(now_ns + SETTLE_NS[self._hidden], self._waits_since_ns + SETTLE_NS[True])

    def _begin_of_waiting(self, text: bytes) -> int:
        """Return where the last lines begin that a movement of the cursor may still reach."""
        begin, end = len(text), text.rfind(b"\n")
        last = text[end + 1 :].replace(_ERASED, b"").rstrip(b"\r")
        if last.count(b"\r") > 1:  # the last row is rewritten, so it is the only bar
            return begin
        for _ in range(_MOST_ROWS):
            if end < 0 or len(text) - end > _MOST_WAITING:
                break
            start = text.rfind(b"\n", 0, end) + 1
            line = text[start:end].rstrip(b"\r")
            if b"\r" in line or self._hidden or (not start and self.is_rewritten):
                begin = end
            elif line:
                break
            end = start - 1
        return begin

    def _settle(self, out: list[bytes], now_ns: int | None) -> None:
        """Process the waiting bytes and pass on what is above the rows, because no movement of the cursor followed."""
        waiting, self._waiting, self._settle_ns, self._waits_since_ns = self._waiting, b"", None, None
        self._write(waiting, out, now_ns)
        self._commit_excess(out, now_ns)

    def _go(self, count: int) -> None:
        """Move the cursor by some rows, at most to the last one."""
        missing = min(-count - self._at, _MOST_ROWS - len(self._rows))
        if missing > 0 and (not self.continues or (self.prompted and self._updates)):
            # the program writes lines again that were passed on
            prompted, row = self.prompted, self._prompt + self._held or self._before
            self._rows[:0] = [*[b"\r"] * (missing - 1), (b"\r" if self.is_rewritten else b"") + row]
            self._at += missing
            self._row = self._row or (row if prompted else b"")
            self._begin_line()
            self.prompted = prompted
            self._ends_in_cr = True  # a cleared row, as the other new ones: not shown if nothing is written to it
        self._at = min(max(self._at + count, 0), len(self._rows))
        self._depth = max(self._depth, len(self._rows) - self._at)
        self._entered, self._text, self._climbs = True, b"", count < 0

    def _write(self, text: bytes, out: list[bytes], now_ns: int | None) -> None:
        """Write text to the rows, from that of the cursor on. Without rows, pass it on as lines."""
        while text:
            line, newline, rest = text.partition(b"\n")
            if not self._depth:  # there are no rows, or they have become lines
                out.append(self._pass(text, now_ns))
                return
            if line:
                self._put(line, out, now_ns)
            if newline:
                self._go_down(out, now_ns)
            text = rest

    def _put(self, text: bytes, out: list[bytes], now_ns: int | None) -> None:
        if self._climbs and text.strip():  # the cursor does not move further up
            self._climbs = False
            self._commit_excess(out, now_ns)
        row = self._rows[self._at - 1] if self._at else self._held or self._before
        seen = (b"\r" if self._entered and row.strip() else self._text) + text
        if b"\r" in seen.rstrip(b"\r"):  # a carriage return before other text
            self._text = b"\r."
        else:
            self._text = seen.strip()[:1] + (b"\r" if seen.endswith(b"\r") else b"")
        text = b"\r" + text if self._entered and not text.startswith(b"\r") else text
        self._entered = False
        if not self._at:
            out.append(self._pass(text, now_ns))
            return
        row += text
        if b"\r" in row:
            row = b"\r" + row.rstrip(b"\r").rpartition(b"\r")[2] + (b"\r" if row.endswith(b"\r") else b"")
        self._rows[self._at - 1] = row
        if len(row) > self._limit:
            self._commit_all(out, now_ns)

    def _go_down(self, out: list[bytes], now_ns: int | None) -> None:
        """Move the cursor to the next row. An ordinary line below all rows shows that these are finished."""
        plain = self._text.strip() and b"\r" not in self._text.rstrip(b"\r")
        finished = plain and not self._hidden and self._at == len(self._rows)
        if self._at == len(self._rows):
            self._rows.append(b"")
            if len(self._rows) > _MOST_ROWS:
                self._commit(out, now_ns)
        self._go(1)
        self._entered = bool(self._rows[self._at - 1])
        if finished:
            self._commit_all(out, now_ns)

    def _commit_all(self, out: list[bytes], now_ns: int | None) -> bool:
        """Pass on all rows as lines; return whether there were some. The last row becomes the present line."""
        found = bool(self._depth)
        while self._rows:
            self._commit(out, now_ns)
        self._leave_rows()
        return found

    def _has_excess(self) -> bool:
        return bool(self._depth) and len(self._rows) > self._depth

    def _commit_excess(self, out: list[bytes], now_ns: int | None) -> None:
        """Pass on the rows above the highest one that the cursor has reached so far."""
        while self._has_excess():
            self._commit(out, now_ns)

    def _commit(self, out: list[bytes], now_ns: int | None) -> None:
        """Pass on the top row as a line, unless it was cleared. The next row becomes the top row."""
        if self._is_cleared():
            self._begin_line()
        else:
            out.append(self._pass(b"\n", now_ns))
        row = self._rows.pop(0)
        self._at = max(self._at - 1, 0)
        out.append(self._pass(row, now_ns))

    def _is_cleared(self) -> bool:
        return self.is_rewritten and not self.continues and not (self._held or self._before).strip()

    # Lines

    def _pass(self, chunk: bytes, now_ns: int | None) -> bytes:
        """Return the bytes to write for the lines in `chunk`. Without a time, they contain no updates."""
        if not (self._row or self._depth):
            return self._pass_on(chunk, now_ns)
        row: list[bytes] = []
        shown, prompted = self._row, self.prompted
        self._hide_row(row)
        passed = self._pass_on(chunk, None if self._shows_rows else now_ns)
        if row and not passed:
            self._row, self.prompted = shown, prompted
            return b""
        return b"".join((*row, passed))

    def _pass_on(self, chunk: bytes, now_ns: int | None) -> bytes:
        if not self._rewrites_lines or not (self._rewrites or self._ends_in_cr or _has_bare_cr(chunk)):
            shown = self._whole_lines(chunk)
            if self._prompts and now_ns is not None:
                self._due_ns = now_ns + PROMPT_NS if self._held else None
            return shown
        out: list[bytes] = []
        prompted, shown_before = self.prompted, self._update
        if prompted:  # the shown part will be erased, so it must be shown again
            self._restore_prompt()
        self._rewrite(chunk, out)
        if prompted and any(out):
            out.insert(0, self._again)
            self.prompted = False
        elif prompted:
            self._update = shown_before
        if now_ns is not None and self._updates:
            self._schedule(now_ns)
            out.append(self.update(now_ns))
        return b"".join(out)

    def _whole_lines(self, chunk: bytes) -> bytes:
        """Prefix all lines of a chunk by one replacement. For a chunk in which no carriage return has a meaning."""
        first = b""
        if self.reserved:
            cut = chunk.find(b"\n") + 1
            if not cut:
                return chunk
            self.reserved = False
            first, chunk = chunk[:cut], chunk[cut:]
        elif self.prompted and (cut := chunk.find(b"\n") + 1):
            first, chunk = self._held + chunk[:cut], chunk[cut:]
            self.prompted, self._prompt, self._held = False, b"", b""
        end = chunk.rfind(b"\n")
        if end < 0:
            self._held += chunk
            return first + self._piece()
        start, self._held = self._held, chunk[end + 1 :]
        lines = chunk.replace(b"\n", self._between)
        whole = memoryview(lines)[: len(lines) - len(self._held) - len(self._between)]  # a slice would be a copy
        return b"".join((first, self.prefix, start, whole, b"\n", self._piece()))

    def _piece(self) -> bytes:
        """Return the beginning of a line that exceeds the limit; empty if the line does not."""
        if len(self._held) <= self._limit:
            return b""
        piece, self._held = self._held, b""
        self.reserved = True
        start, self.prompted, self._prompt = b"" if self.prompted else self.prefix, False, b""
        return start + piece

    def _rewrite(self, chunk: bytes, out: list[bytes]) -> None:
        r"""Process a chunk with a ``\r`` line by line."""
        if self._ends_in_cr:
            chunk = b"\r" + chunk
        last_is_cr = chunk.endswith(b"\r")
        *lines, rest = chunk[: len(chunk) - last_is_cr].split(b"\n")
        for number, line in enumerate(lines):
            text = line.rstrip(b"\r")
            ending = b"\n" if len(text) == len(line) else b"\r\n"
            if number and len(line) <= self._limit:  # complete in this chunk, no segment exceeds the limit
                out += (self.prefix, text.rpartition(b"\r")[2], ending)
            else:
                self._segments(line[: len(line) - len(ending) + 1], out)
                self._end_line(ending, out)
        self._segments(rest, out)
        self._ends_in_cr = last_is_cr

    def _segments(self, part: bytes, out: list[bytes]) -> None:
        r"""Process a part of one line. Only the last of its complete segments is shown."""
        first, cr, rest = part.partition(b"\r")
        self._extend(first, out)
        while cr:
            self._end_segment(out)
            if len(rest) <= self._limit:  # no segment exceeds the limit either
                ended, _, rest = rest.rpartition(b"\r")
                self._held = ended.rstrip(b"\r").rpartition(b"\r")[2]
                if self._held:
                    self._end_segment(out)
                self._extend(rest, out)
                return
            segment, cr, rest = rest.partition(b"\r")
            self._extend(segment, out)

    def _extend(self, text: bytes, out: list[bytes]) -> None:
        if self.reserved:
            out.append(text)
        else:
            self._held += text
            out.append(self._piece())

    def _end_segment(self, out: list[bytes]) -> None:
        if self.reserved:  # the beginning was shown: end the line, and continue on a new one
            out.append(b"\n")
            self.reserved = False
            self._update = b""
            self._before = b""
        elif self._held:
            self._before, self._held = self._held, b""
        self._rewrites, self._prompt = True, b""

    def _end_line(self, ending: bytes, out: list[bytes]) -> None:
        text = self._held or self._before
        if self.reserved:
            out.append(ending)
        elif self._update is None or (text and text != self._update):
            out += (self.prefix, text, ending)
        self._begin_line()

    def _schedule(self, now_ns: int) -> None:
        text = self._held or self._before
        waiting = (self._rewrites or self._ends_in_cr) and not self.reserved
        if not waiting or not text.strip() or text == self._update:
            self._due_ns = None
        elif self._due_ns is None:
            soonest = now_ns if self._rewrites else now_ns + UPDATE_INTERVAL_NS  # a "\n" may follow the "\r"
            self._due_ns = max(soonest, self._shown_ns + UPDATE_INTERVAL_NS)


class _Selection:
    """A filter on the raw lines of a stream."""

    def __init__(self, accepts: Callable[[bytes], bool], limit_bytes: int) -> None:
        self._accepts = accepts
        self._limit = limit_bytes
        self.held = b""
        self._verdict: bool | None = None  # for a line longer than the limit

    def feed(self, chunk: bytes) -> bytes:
        passed: list[bytes] = []
        if self._verdict is not None:
            cut = chunk.find(b"\n") + 1
            head, chunk = (chunk[:cut], chunk[cut:]) if cut else (chunk, b"")
            if self._verdict:
                passed.append(head)
            if not cut:
                return b"".join(passed)
            self._verdict = None
        *lines, rest = (self.held + chunk).split(b"\n")
        for line in lines:
            raw = line + b"\n"
            if self._accepts(raw if len(raw) <= self._limit else raw[: self._limit]):
                passed.append(raw)
        self.held = rest
        if len(rest) >= self._limit:
            self.held = b""
            self._verdict = self._accepts(rest[: self._limit])
            if self._verdict:
                passed.append(rest)
        return b"".join(passed)

    def finish(self) -> bytes:
        rest, self.held = self.held, b""
        self._verdict = None
        return rest if rest and self._accepts(rest) else b""


def last_segment(line: bytes) -> bytes:
    """Return what remains of a line behind a prefix: its last nonempty segment, without movements of the cursor."""
    if b"\r" not in line and b"\x1b" not in line:
        return line
    moved = _compiled(_CONTROL).sub(lambda found: b"" if found[3] else b"\r", line)
    segments = (segment for segment in reversed(moved.split(b"\r")) if _compiled(_STYLE).sub(b"", segment).strip())
    return next(segments, b"")


def _has_bare_cr(chunk: bytes) -> bool:
    r"""Return whether `chunk` has a ``\r`` that no ``\n`` follows."""
    return b"\r" in chunk and chunk.count(b"\r") != chunk.count(b"\r\n")


def source_bytes(out: bytes, written_bytes: int, prefix: bytes, *, continues: bool) -> int:
    r"""Return how many of the first `written_bytes` of `out` are bytes of the stream. The others are the prefix.

    Args:
        out: A result of `LineStream.feed` or `LineStream.finish`.
        written_bytes: Number of bytes of `out` that were written.
        prefix: The stream's prefix.
        continues: Whether `out` begins inside a line, hence without a prefix.
    """
    earlier = out.count(b"\n", 0, written_bytes)
    line_start = out.rfind(b"\n", 0, written_bytes) + 1
    prefixes = max(0, earlier - continues) * len(prefix)
    if earlier or not continues:
        prefixes += min(len(prefix), written_bytes - line_start)
    return written_bytes - prefixes
