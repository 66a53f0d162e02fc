"""The names of ``torch.distributed.elastic.multiprocessing.tail_log``."""

from supervise._facade.tail_log import TailLog, tail_logfile

__all__ = ["TailLog", "tail_logfile"]
