"""Functions whose call runs none of their code.

The call returns a coroutine or a generator, which a rank can neither run nor send.
"""

from __future__ import annotations

from functools import partial

_RUN_IT = "whose call runs nothing yet; give a function that runs it to its end"
_KINDS = {
    0x80: f"an async function, {_RUN_IT}, such as one that calls asyncio.run",
    0x200: f"an async generator function, {_RUN_IT}",
    0x20: f"a generator function, {_RUN_IT}",
}
"""The flags of code objects, to kinds of functions.

`inspect` has them, but its import takes longer than a gang's start.
"""


def deferred_kind(fn: object) -> str:
    """Return the kind of such a function and the remedy; ``""`` for all other functions.

    The functions inside methods, partials and callable objects count, too.
    """
    while isinstance(fn, partial):
        fn = fn.func
    fn = getattr(fn, "__func__", fn)
    if not hasattr(fn, "__code__") and not isinstance(fn, type):
        fn = vars(type(fn)).get("__call__")  # an inherited one is ignored
    flags = getattr(getattr(fn, "__code__", None), "co_flags", 0)
    return next((kind for flag, kind in _KINDS.items() if flags & flag), "")
