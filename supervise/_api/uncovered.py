"""Where Python 3.14 loses an exception of a signal handler: at a jump that its compiler has left out of a `try`.

A loop whose last statement is a condition (``while True: assert gang.wait(0) is None``) ends in a jump back that no
`except` around the loop covers. Python runs signal handlers at just these jumps. Python 3.13 and 3.15 cover them.
"""

from __future__ import annotations

import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_JUMP_BYTES = 10
"""A conditional jump and its cache, a marker of what is not taken, a long argument; then the jump back."""
_PATIENCE = 10
"""So often a signal is put off: a loop that does nothing else would never get it."""
_put_off = [0]


def put_off(signum: int, frame: FrameType | None) -> bool:
    """Have a signal come again in a moment if it has come at such a jump; tell whether."""
    if sys.version_info[:2] != (3, 14) or frame is None or _put_off[0] == _PATIENCE or not _is_uncovered(frame):
        _put_off[0] = 0
        return False
    _put_off[0] += 1
    try:
        _thread.start_new_thread(os.kill, (os.getpid(), signum))
    except RuntimeError:  # there can be no thread
        return False
    return True


def _is_uncovered(frame: FrameType) -> bool:
    """Whether a frame is at a jump back right behind what a `try` covers, and not covered itself."""
    import opcode

    code, at = frame.f_code, frame.f_lasti
    if code.co_code[at] not in (opcode.opmap["JUMP_BACKWARD"], opcode.opmap["JUMP_BACKWARD_NO_INTERRUPT"]):
        return False
    ranges = _covered(code.co_exceptiontable)
    return not any(begin <= at < end for begin, end in ranges) and any(
        0 <= at - end <= _JUMP_BYTES for _, end in ranges
    )


def _covered(table: bytes) -> list[tuple[int, int]]:
    """Return where what is covered begins and ends, in bytes of code. The table has four numbers for each."""
    numbers, number = [], 0
    for byte in table:
        number = number << 6 | byte & 63
        if not byte & 64:
            numbers.append(number)
            number = 0
    return [(2 * begin, 2 * (begin + length)) for begin, length in zip(numbers[::4], numbers[1::4], strict=True)]
