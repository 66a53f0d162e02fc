"""The names of ``torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler``."""

from supervise._api import signals
from supervise._process.launch.numa import NumaOptions as NumaOptions
from supervise._torch.redirects import IS_WINDOWS as IS_WINDOWS
from supervise._torch.subprocess_handler import SubprocessHandler

__all__ = ["SubprocessHandler"]

_get_default_signal = signals.default_signal
