"""The names of ``torch.distributed.elastic.multiprocessing.tail_log``."""

from supervise._api.tail_log import TailLog, log as logger, tail_logfile

__all__ = ["TailLog", "logger", "tail_logfile"]
