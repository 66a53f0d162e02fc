"""Signal handlers of an agent while it has no gang: at the exit barrier, and in the rendezvous before a restart."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.multiprocessing import SignalException

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_DEFAULT = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


@contextlib.contextmanager
def handlers() -> Iterator[None]:
    """Raise PyTorch's `SignalException` in the main thread for the signals of ``TORCHELASTIC_SIGNALS_TO_HANDLE``.

    Ignored signals stay ignored. Outside of the main thread, no handler is installed. The previous handlers are
    restored at the end.
    """
    old: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", _DEFAULT).split(","):
            sig = getattr(signal, name.strip(), None)
            if isinstance(sig, signal.Signals) and signal.getsignal(sig) not in {None, signal.SIG_IGN}:
                old[sig] = signal.signal(sig, _raise)
    try:
        yield
    finally:
        for sig, handler in old.items():
            signal.signal(sig, handler)


def _raise(signum: int, _frame: FrameType | None) -> None:
    sig = signal.Signals(signum)
    raise SignalException(f"Process {os.getpid()} got signal: {sig}", sig)
