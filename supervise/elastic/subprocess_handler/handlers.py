"""The names of ``torch.distributed.elastic.multiprocessing.subprocess_handler.handlers``."""

from supervise._process.launch.numa import NumaOptions as NumaOptions
from supervise._torch.subprocess_handler import SubprocessHandler as SubprocessHandler, get_subprocess_handler

__all__ = ["get_subprocess_handler"]
