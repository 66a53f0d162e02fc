"""A rank whose fault is written as source: the argument, which may use what `tests.processes.work` offers."""

import sys

from tests.processes.work import PREAMBLE

exec(compile(PREAMBLE + sys.argv[1], "<fault>", "exec"), {"__name__": "__main__"})
