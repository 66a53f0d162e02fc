"""The workaround for Python 3.14, whose compiler leaves some backward jumps out of the exception table of a `try`.

A loop whose last statement is a condition (``while True: assert gang.wait(0) is None``) ends in a backward jump that no
`except` around the loop covers. Python runs signal handlers at these jumps, so the `except` misses the exception of a
handler. Python 3.13 and 3.15 cover the jumps.
"""

from __future__ import annotations

import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_JUMP_BYTES = 10
"""Largest gap before the backward jump: a conditional jump and its cache, NOT_TAKEN, EXTENDED_ARG."""
_PATIENCE = 10
"""Largest number of delays of a signal. Without a limit, a loop of only such jumps would never receive the signal."""
_put_off = [0]


def put_off(signum: int, frame: FrameType | None) -> bool:
    """Resend a signal a moment later if it arrived at such a jump; return whether it did."""
    if sys.version_info[:2] != (3, 14) or frame is None or _put_off[0] == _PATIENCE or not _is_uncovered(frame):
        _put_off[0] = 0
        return False
    _put_off[0] += 1
    try:
        _thread.start_new_thread(os.kill, (os.getpid(), signum))
    except RuntimeError:  # no thread is available
        return False
    return True


def _is_uncovered(frame: FrameType) -> bool:
    """Whether a frame is at an uncovered backward jump directly after a range that a `try` covers."""
    import opcode

    code, at = frame.f_code, frame.f_lasti
    if code.co_code[at] not in (opcode.opmap["JUMP_BACKWARD"], opcode.opmap["JUMP_BACKWARD_NO_INTERRUPT"]):
        return False
    ranges = _covered(code.co_exceptiontable)
    return not any(begin <= at < end for begin, end in ranges) and any(
        0 <= at - end <= _JUMP_BYTES for _, end in ranges
    )


def _covered(table: bytes) -> list[tuple[int, int]]:
    """Return begin and end of each covered range, in bytes of code. The table has four numbers per range."""
    numbers, number = [], 0
    for byte in table:
        number = number << 6 | byte & 63
        if not byte & 64:
            numbers.append(number)
            number = 0
    return [(2 * begin, 2 * (begin + length)) for begin, length in zip(numbers[::4], numbers[1::4], strict=True)]
