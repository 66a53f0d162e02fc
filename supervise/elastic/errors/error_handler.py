"""The names of ``torch.distributed.elastic.multiprocessing.errors.error_handler``."""

from supervise.elastic._lazy import names
from supervise.recording import ErrorHandler

__all__ = ["ErrorHandler"]

__getattr__ = names(__name__, globals(), {"logger": "elastic._logger"})
