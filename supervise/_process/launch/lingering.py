"""Report of a rank whose function has returned, and whose process does not exit. Runs in the rank."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

from supervise._process.launch import return_value

TYPE_CHECKING = False  # without an import of typing, as in `bootstrap`
if TYPE_CHECKING:
    from types import FrameType

    from supervise._process.launch.settings import Settings

_AFTER_S = 5.0
_MOST_THREADS, _MOST_CALLS = 8, 6
_FEEDER = "QueueFeederThread"
"""Name of the daemon thread that writes the items of a `multiprocessing.Queue`. The exit waits until it has written."""


def report_later(settings: Settings) -> None:
    """Report on stderr and to the host what this process does, if it has not exited after a few seconds."""
    with suppress(RuntimeError):  # no thread is available
        threading.Thread(target=_report, args=(settings,), name="supervise-lingering", daemon=True).start()


def _report(settings: Settings) -> None:
    threading.Event().wait(_AFTER_S)
    text = _threads()
    with suppress(OSError):
        return_value.add_note(settings.channel, settings.address, text)
    who = f"supervise: rank {settings.local_rank}: its function returned {_AFTER_S:g} s ago, but its process runs on"
    with suppress(AttributeError, OSError, ValueError):  # stderr is None or closed
        sys.stderr.write(f"{who}: {text}\n")
        sys.stderr.flush()


def _threads() -> str:
    """Return the threads for which the exit may wait, with their innermost calls. The main thread is the last."""
    frames, main = sys._current_frames(), threading.main_thread()  # noqa: SLF001 - documented in spite of its name
    found = [each for each in threading.enumerate() if each is not main and (not each.daemon or each.name == _FEEDER)]
    shown = [*found[:_MOST_THREADS], main]
    return "; ".join(f"thread {each.name}: {_calls(frames.get(each.ident or 0))}" for each in shown)


def _calls(frame: FrameType | None) -> str:
    calls: list[str] = []
    while frame is not None and len(calls) < _MOST_CALLS:
        code = frame.f_code
        outer = code.co_filename.endswith("threading.py") and code.co_name in ("run", "_bootstrap_inner", "_bootstrap")
        if calls and (outer or code.co_filename.startswith(os.path.dirname(__file__))):  # every thread has these calls
            break
        calls.append(f"{code.co_name} ({os.path.basename(code.co_filename)}:{frame.f_lineno})")
        frame = frame.f_back
    return ", called by ".join(calls) or "no Python call"
