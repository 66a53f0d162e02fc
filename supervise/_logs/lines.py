r"""What may be shown of a stream now: whole lines, each behind its prefix. Pure: no I/O, no clock.

A line ends with ``\n`` and passes with every byte it has, whatever it is encoded in. The exceptions:

- An unfinished line waits for its end, or for the end of the stream. There a console gets a newline
  after it, so that what comes next starts at column 0; a file gets what was written and no more.
- A line longer than the limit is passed on in pieces. Until its newline its stream is *reserved*:
  nothing of another stream may be written to the same destination.
- On a console, ``\r`` means what it means there: the segment after it replaces the one before.
  A line with such segments is shown as its last one; until its newline, the state it is in is shown
  as a line of its own, at most once in `UPDATE_INTERVAL_NS`. ``\r\n`` is an ordinary line end.
- A filter sees each line raw, with its newline. Of a line longer than the limit it sees the
  first bytes, up to the limit, and decides on them for the whole line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_BYTES = 64 * 1024
"""The longest unfinished line that is kept in memory."""

UPDATE_INTERVAL_NS = 100_000_000
r"""The least time between two updates of a line that rewrites itself with ``\r``."""


class LineStream:
    """One source on its way to one destination. Memory is bounded by the limit and one chunk."""

    def __init__(
        self,
        prefix: bytes,
        *,
        console: bool,
        rewrites: bool | None = None,
        line_filter: Callable[[bytes], bool] | None = None,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        r"""Start at the beginning of a line.

        Args:
            prefix: What to put before each line; may be empty.
            console: Whether the destination is a console, where each line gets an end.
            rewrites: Whether ``\r`` has its meaning there; None: as on a console.
            line_filter: Answers whether a raw line is to be shown; None shows all.
            limit_bytes: The longest unfinished line that is kept in memory.
        """
        self.prefix = prefix
        self.reserved = False
        """Whether a line was passed on in part: the destination belongs to this stream until its end."""
        self._between = b"\n" + prefix
        self._console = console
        self._rewrites_lines = console if rewrites is None else rewrites
        self._limit = limit_bytes
        self._select = _Selection(line_filter, limit_bytes) if line_filter is not None else None
        self._shown_ns = -UPDATE_INTERVAL_NS
        self._begin_line()

    def _begin_line(self) -> None:
        self.reserved = False
        self.due_ns: int | None = None
        """When an update is due (see `update`); None: none is waiting."""
        self._held = b""  # what there is of the current segment
        self._before = b""  # the last segment that was not empty
        self._rewrites = False  # a "\r" was seen in this line
        self._ends_in_cr = False  # the last byte was "\r", which may become "\r\n"
        self._update: bytes | None = None  # the state of this line that was shown last

    @property
    def held_bytes(self) -> int:
        """How many bytes were fed and wait for the end of their line."""
        waiting = self._select.held_bytes if self._select is not None else 0
        return len(self._held or self._before) + self._ends_in_cr + waiting

    def feed(self, chunk: bytes, now_ns: int = 0) -> bytes:
        r"""Take what comes next in the stream and return what may be written now.

        Args:
            chunk: The next bytes, cut anywhere.
            now_ns: The time (monotonic); only ``\r`` on a console depends on it.
        """
        if self._select is not None:
            chunk = self._select.feed(chunk)
        return self._pass(chunk, now_ns)

    def finish(self) -> bytes:
        """Return what is left, at the end of the stream, and start at the beginning of a line again."""
        out: list[bytes] = []
        if self._select is not None and (rest := self._select.finish()):
            out.append(self._pass(rest, None))
        text = self._held or self._before
        if self.reserved:
            out.append(b"\n" if self._console else b"")
        elif text and text != self._update:
            out += (self.prefix, text, b"\n" if self._console else b"")
        self._begin_line()
        return b"".join(out)

    def update(self, now_ns: int) -> bytes:
        r"""Return the state of a line that rewrites itself with ``\r``, if that is due at `now_ns`."""
        if self.due_ns is None or now_ns < self.due_ns:
            return b""
        self.due_ns = None
        self._shown_ns = now_ns
        self._update = self._held or self._before
        return b"".join((self.prefix, self._update, b"\n"))

    def _pass(self, chunk: bytes, now_ns: int | None) -> bytes:
        """Return what may be written of the lines in `chunk`; without a time there are no updates."""
        if not self._rewrites_lines or not (self._rewrites or self._ends_in_cr or _has_bare_cr(chunk)):
            return self._whole_lines(chunk)
        out: list[bytes] = []
        self._rewrite(chunk, out)
        if now_ns is not None:
            self._schedule(now_ns)
            out.append(self.update(now_ns))
        return b"".join(out)

    def _whole_lines(self, chunk: bytes) -> bytes:
        """Prefix by whole chunks: the fast path, and the only one of a file."""
        first = b""
        if self.reserved:
            cut = chunk.find(b"\n") + 1
            if not cut:
                return chunk
            self.reserved = False
            first, chunk = chunk[:cut], chunk[cut:]
        end = chunk.rfind(b"\n")
        if end < 0:
            self._held += chunk
            return first + self._piece()
        start, self._held = self._held, chunk[end + 1 :]
        lines = chunk[:end].replace(b"\n", self._between)
        return b"".join((first, self.prefix, start, lines, b"\n", self._piece()))

    def _piece(self) -> bytes:
        """Return the beginning of a line that has become too long to be kept."""
        if len(self._held) <= self._limit:
            return b""
        piece, self._held = self._held, b""
        self.reserved = True
        return self.prefix + piece

    def _rewrite(self, chunk: bytes, out: list[bytes]) -> None:
        r"""Go from line to line, since a ``\r`` is among them."""
        if self._ends_in_cr:
            chunk = b"\r" + chunk
        last_is_cr = chunk.endswith(b"\r")
        *lines, rest = chunk[: len(chunk) - last_is_cr].split(b"\n")
        for number, line in enumerate(lines):
            text = line.rstrip(b"\r")
            ending = b"\n" if len(text) == len(line) else b"\r\n"
            if number and len(line) <= self._limit:  # it begins here, too, and no segment is too long to be kept
                out += (self.prefix, text.rpartition(b"\r")[2], ending)
            else:
                self._segments(line[: len(line) - len(ending) + 1], out)
                self._end_line(ending, out)
        self._segments(rest, out)
        self._ends_in_cr = last_is_cr

    def _segments(self, part: bytes, out: list[bytes]) -> None:
        r"""Take a part of one line. Of the segments that begin and end in it, only the last matters."""
        first, cr, rest = part.partition(b"\r")
        self._extend(first, out)
        while cr:
            self._end_segment(out)
            if len(rest) <= self._limit:  # and so are its segments: none is to be passed on in pieces
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
        if self.reserved:  # its beginning is shown already: end it here, and go on on a new line
            out.append(b"\n")
            self.reserved = False
            self._update = b""
            self._before = b""
        elif self._held:
            self._before, self._held = self._held, b""
        self._rewrites = True

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
        if not waiting or not text or text == self._update:
            self.due_ns = None
        elif self.due_ns is None:
            soonest = now_ns if self._rewrites else now_ns + UPDATE_INTERVAL_NS  # "\n" may still follow
            self.due_ns = max(soonest, self._shown_ns + UPDATE_INTERVAL_NS)


class _Selection:
    """The raw lines of a stream that pass a filter."""

    def __init__(self, accepts: Callable[[bytes], bool], limit_bytes: int) -> None:
        self._accepts = accepts
        self._limit = limit_bytes
        self._held = b""
        self._verdict: bool | None = None  # on the line that is longer than the limit

    @property
    def held_bytes(self) -> int:
        return len(self._held)

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
        *lines, rest = (self._held + chunk).split(b"\n")
        for line in lines:
            raw = line + b"\n"
            if self._accepts(raw if len(raw) <= self._limit else raw[: self._limit]):
                passed.append(raw)
        self._held = rest
        if len(rest) >= self._limit:
            self._held = b""
            self._verdict = self._accepts(rest[: self._limit])
            if self._verdict:
                passed.append(rest)
        return b"".join(passed)

    def finish(self) -> bytes:
        rest, self._held = self._held, b""
        self._verdict = None
        return rest if rest and self._accepts(rest) else b""


def _has_bare_cr(chunk: bytes) -> bool:
    r"""Whether a ``\r`` in `chunk` is not (yet) part of a ``\r\n``."""
    return b"\r" in chunk and chunk.count(b"\r") != chunk.count(b"\r\n")


def source_bytes(out: bytes, written_bytes: int, prefix: bytes, *, continues: bool) -> int:
    r"""Return how much of a stream is in the first `written_bytes` of `out`: what is not prefix.

    Args:
        out: What `LineStream.feed` or `LineStream.finish` returned.
        written_bytes: How much of it counts.
        prefix: The stream's prefix.
        continues: Whether `out` begins inside a line, with no prefix before it.
    """
    earlier = out.count(b"\n", 0, written_bytes)
    line_start = out.rfind(b"\n", 0, written_bytes) + 1
    prefixes = max(0, earlier - continues) * len(prefix)
    if earlier or not continues:
        prefixes += min(len(prefix), written_bytes - line_start)
    return written_bytes - prefixes
