"""The names of ``torch.distributed.elastic.multiprocessing.subprocess_handler.handlers``."""

from supervise._facade.subprocess_handler import SubprocessHandler as SubprocessHandler
from supervise._facade.subprocess_handler import get_subprocess_handler
from supervise._process.numa import NumaOptions as NumaOptions

__all__ = ["get_subprocess_handler"]
