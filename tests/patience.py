"""How long a test waits for an event that comes at once: only a test that fails waits so long."""

PATIENCE_S = 50.0
"""Shorter than the timeout of a test in `pyproject.toml`, so that the failed wait is what is reported."""
