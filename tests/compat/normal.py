"""Takes out of an observation what differs from run to run: pids, times, random names, frames of the libraries."""

import itertools
import re

_FRAME = re.compile(r'^(\s*(?:\| )?\s*)File "([^"]*)", line \d+,? in (.*)$')
_SOURCE = re.compile(r"^(\s*\| )?\s{4}\s*\S")
_MARKS = re.compile(r"^[\s|]*[~^]+[\s~^]*$")
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+ (?:\[[^\]]*\] )?\(most recent call first\):")
_C_STACK = re.compile(r"\n?Current thread's C stack trace \(most recent call first\):\n(?:  (?:Binary file|<).*\n?)*")
"""What `faulthandler` adds from Python 3.14 on."""
_OURS = ("/tests/compat/work.py", "/tests/compat/recorded.py", "/tests/compat/families.py")


def traceback_text(text: str) -> str:
    """Return a text in which tracebacks have only the frames of the cases' own functions."""
    kept, keeping, skipping = [], True, False
    for line in _C_STACK.sub("", text).split("\n"):
        frame = _FRAME.match(line)
        if frame:
            indent, path, name = frame.groups()
            keeping, skipping = path.endswith(_OURS), True
            if keeping:
                kept.append(f'{indent}File "<{path.rsplit("/", 1)[1]}>", line <number>, in {name}')
            continue
        if skipping and _SOURCE.match(line):
            if keeping and not _MARKS.match(line):
                kept.append(line)
            continue
        skipping = False
        if line.startswith("Extension modules: "):
            kept.pop()
            continue
        if _MARKS.match(line):
            continue
        kept.append(_THREAD.sub(r"\1 <id> (most recent call first):", line))
    return "\n".join(kept)


_PREFIX = re.compile(r"\[job(\d+)\]:|\[zero\] ")


def shown_text(text: str) -> list[str]:
    """Return the sorted lines of what a host has shown; each rank's lines are read as that rank wrote them.

    PyTorch's tails show a line that a rank has written in pieces, as faulthandler does, in these pieces. Each has the
    prefix, and pieces of other ranks may come in between.
    """
    ranks: dict[str, list[str]] = {}
    for line in text.splitlines(keepends=True):
        begins = [found.start() for found in _PREFIX.finditer(line)]
        for begin, end in itertools.pairwise([0, *begins, len(line)]):
            prefix = _PREFIX.match(line, begin)
            mark = prefix[0] if prefix else ""
            ranks.setdefault(mark, []).append(line[begin + len(mark) : end])
    return sorted(
        mark + line
        for mark, lines in ranks.items()
        for line in traceback_text("".join(lines)).splitlines(keepends=True)
    )


class Normal:
    """Knows what is random in one case.

    Args:
        root: The folder of the case.
        pids: Rank to pid.
    """

    def __init__(self, root: str, pids: dict[int, int]) -> None:
        self._root = root
        self._pids = pids

    def text(self, text: str) -> str:
        """Return a text without what differs from run to run."""
        return traceback_text(self.plain(text))

    def plain(self, text: str) -> str:
        """Return a text with its tracebacks, but without random names and numbers."""
        text = text.replace(self._root, "<root>")
        text = re.sub(r"(<root>/logs/[^/\s]*_)[a-z0-9_]{8}(?=/|$)", r"\1<random>", text)
        for rank, pid in self._pids.items():
            text = re.sub(rf"(?<!\d){pid}(?!\d)", f"<pid {rank}>", text)
        return text

    def path(self, path: str) -> str:
        """Return a path below ``<root>``."""
        return self.text(path) if path else path

    def any(self, value: object) -> object:
        """Return something like JSON without what differs from run to run."""
        if isinstance(value, dict):
            return {
                self.text(str(key)): f"<{type(item).__name__} time>" if key == "timestamp" else self.any(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.any(item) for item in value]
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        if isinstance(value, str):
            return self.text(value if len(value) < 100_000 else f"<{len(value)} characters of {value[0]!r}>")
        if value is None or isinstance(value, bool | int | float):
            return value
        return f"<{type(value).__qualname__}>"
