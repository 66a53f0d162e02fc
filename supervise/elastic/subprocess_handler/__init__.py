"""The names of ``torch.distributed.elastic.multiprocessing.subprocess_handler``."""

from supervise._torch.subprocess_handler import SubprocessHandler, get_subprocess_handler

__all__ = ["SubprocessHandler", "get_subprocess_handler"]
