"""The names of ``torch.distributed.elastic.multiprocessing.tail_log``."""

from supervise._api.tail_log import TailLog, tail_logfile
from supervise.events import log as logger

__all__ = ["TailLog", "logger", "tail_logfile"]
