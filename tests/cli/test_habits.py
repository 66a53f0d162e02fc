"""Each habit of users of other launchers, as the page lists them, is run by a test."""

import importlib
import re
from pathlib import Path

import tests.ports  # noqa: F401  its socket, which lasts as long as pytest, is not left by the test that imports it first

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/come-from-another-launcher.md"
HABITS = {
    "`printf": "test_stdin.test_the_only_rank_reads_a_pipe",
    "`breakpoint()`": "test_stdin_terminal.test_a_debugger_works",
    "`run ...": "test_output_options.test_without_a_reader_the_run_is_stopped_on_request",
    "stdout and": "test_merge.test_both_streams_are_in_the_order_of_the_writes",
    "progress bars": "test_rows.test_a_bar_is_one_row_and_leaves_its_last_state",
    "colors of": "test_output_options.test_ranks_learn_that_a_terminal_shows_them",
    "Ctrl-Z and": "test_job_control.test_ctrl_z_suspends_the_ranks_and_fg_continues_them",
    "`docker compose": "test_roles.test_run_may_be_left_out",
    "a mistyped": "test_run_options.test_a_mistyped_option_gets_the_right_suggestion_or_none",
    "`torchrun": "test_exit_codes.test_torchruns_words_for_one_node_change_nothing",
}
"""Beginning of a row to the test that runs it."""


def test_each_row_has_its_test():
    """And each of these tests exists."""
    habits, _, _ = PAGE.read_text().partition("## Keys and options")
    cells = re.findall(r"^\| (?!habit|---)(.*?[^\\]) \| .* \|$", habits, re.MULTILINE)
    assert len(cells) == len(HABITS)
    for cell, (row, name) in zip(cells, HABITS.items(), strict=True):
        module, _, test = name.partition(".")
        assert cell.startswith(row)
        assert callable(getattr(importlib.import_module(f"tests.cli.{module}"), test))
