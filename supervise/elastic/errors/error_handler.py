"""The names of ``torch.distributed.elastic.multiprocessing.errors.error_handler``."""

from supervise.recording import ErrorHandler

__all__ = ["ErrorHandler"]
