"""The names of ``torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler``."""

from supervise._facade.signals import default_signal as _get_default_signal
from supervise._facade.subprocess_handler import SubprocessHandler
from supervise._process.numa import NumaOptions as NumaOptions
from supervise._streams.redirects import IS_WINDOWS as IS_WINDOWS

__all__ = ["SubprocessHandler"]
