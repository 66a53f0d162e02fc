"""The names of ``torch.distributed.elastic.multiprocessing.errors.handlers``."""

from supervise.recording import ErrorHandler as ErrorHandler
from supervise.recording import get_error_handler

__all__ = ["get_error_handler"]
