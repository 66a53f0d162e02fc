"""The names of ``torch.distributed.elastic.multiprocessing.errors.handlers``."""

from supervise.recording import ErrorHandler as ErrorHandler, get_error_handler

__all__ = ["get_error_handler"]
