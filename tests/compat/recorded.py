"""A rank that is a Python program under ``@record``: recorded.py PREFIX RANK NPROCS OUTCOME SYNC."""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.compat import work

prefix, rank, nprocs, outcome, sync = sys.argv[1:]
record = importlib.import_module(f"{prefix}.errors").record


@record
def main() -> None:
    """Do what a function would."""
    work.rank(int(rank), int(nprocs), outcome, "held", sync)


main()
