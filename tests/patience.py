"""How long a test waits for an event that comes at once: only a test that fails waits so long."""

PATIENCE_S = 50.0
"""Shorter than the timeout of a test in `pyproject.toml`, so that the failed wait is what is reported."""

PATIENT_STACKS = """
from supervise._gang import health
from supervise._process.stacks import gather

gather._KERNEL_S, gather._RUN_S, gather._PY_SPY_S, gather._DUMPS_S, gather.LONGEST_S = 2.5, 4.0, 5.5, 8.0, 9.0
health._LONGEST_S, health._WRITE_S = 9.0, 5.0
"""
"""A ``sitecustomize`` of a program from which stacks are asked: it waits for them on a machine that stands still."""
