"""`status` of a context."""

import os

from supervise import DefaultLogsSpecs, start_processes


def test_a_context_reports_its_phase_while_it_runs():
    """None after the end."""
    logs = DefaultLogsSpecs(os.devnull)
    with start_processes("gang", "/bin/sleep", {0: ("1000",)}, logs_specs=logs) as context:
        status = context.status()
        assert (status.phase, status.pids) == ("running", context.pids())
    assert context.status() is None
