"""The deliberate differences: what PyTorch does, what we do, and a row of the documentation for each."""

import json
from pathlib import Path

import pytest

from tests.compat import oracle

PAGE = Path(__file__).parents[2] / "docs/explanation/compatibility.md"
TORN = "error file <root>/logs/test_run_id_<random>/attempt_0/0/error.json could not be read: "
BAD = "error file <file> could not be read: "
UNTERMINATED = "Unterminated string starting at: line 1 column 2 (char 1)"
HERE = "^[0123]$> or <^"
DIFFERENCES = {
    "std_of_rank_ten": (
        [["raised", "ValueError"], rf"x does not match: <{HERE}(\d:[0123],)*(\d:[0123])$>"],
        [
            ["returned", {"0": "<Std.OUT: 1>", "10": "<Std.ALL: 3>"}],
            rf"x does not match: <{HERE}(\d+:[0123],)*(\d+:[0123])$>",
        ],
    ),
    "stopped_programs_are_listed": (
        [{"0": -15, "1": 7, "2": -15}, None],
        [{"1": 7}, {"0": [-15, "bystander"], "1": [7, "root_cause"], "2": [-15, "bystander"]}],
    ),
    "closed_functions_are_listed": ([0], [0, 1]),
    "closed_functions_that_exit_cleanly": ([{"0": -9}, {}], [{}, {"0": "value", "1": "value"}]),
    "failure_of_a_bad_error_file": (
        {
            "unknown keys": ["raised", "KeyError", "'message'"],
            "unknown keys beside": ["returned", "m"],
            "no time": ["raised", "KeyError", "'extraInfo'"],
            "a text as time": ["raised", "ValueError", "invalid literal for int() with base 10: 'soon'"],
            "a list": ["raised", "TypeError", "list indices must be integers or slices, not str"],
            "torn": ["raised", "JSONDecodeError", UNTERMINATED],
        },
        {
            "unknown keys": ["returned", f"{BAD}no 'message' that is a string or an object; exit code 3"],
            "unknown keys beside": ["returned", "m"],
            "no time": ["returned", f"{BAD}no 'timestamp' in 'extraInfo'; exit code 3"],
            "a text as time": ["returned", f"{BAD}'timestamp' is not a number: 'soon'; exit code 3"],
            "a list": ["returned", f"{BAD}no 'message' that is a string or an object; exit code 3"],
            "torn": ["returned", f"{BAD}{UNTERMINATED}; exit code 3"],
        },
    ),
    "torn_error_file": (
        ["raised", "JSONDecodeError"],
        {"0": [1, f"{TORN}Unterminated string starting at: line 1 column 14 (char 13); exit code 1"]},
    ),
    "empty_error_file": (["raised", "JSONDecodeError"], {"0": [1, f"{TORN}the file is empty; exit code 1"]}),
    "foreign_error_file": (
        ["raised", "TypeError"],
        {"0": [1, f"{TORN}no 'message' that is a string or an object; exit code 1"]},
    ),
    "torn_error_file_of_a_child": ("JSONDecodeError", "ChildFailedError"),
    "end_without_a_value": (
        None,
        {"0": [0, "exited with code 0 without a return value (os._exit, or a crash in a C library)"]},
    ),
    "interrupt_in_a_rank": (None, {"0": [130, "KeyboardInterrupt: "]}),
    "handlers_afterwards": (False, True),
    "ignored_signals": (False, True),
    "handlers_in_forked_ranks": (
        {"0": [1, "SignalException: Process <pid> got signal: 15"]},
        {"0": [-15, "Signal 15 (SIGTERM) received by PID <pid>"]},
    ),
    "signal_while_closing": ([["raised", "SignalException"], False, []], [["returned", None], True, [15]]),
    "text_of_sys_exit": (["", "the reason\n"], ["the reason\n", ""]),
    "traceback_without_an_error_file": ([], ["ValueError: x 0"]),
    "bytes_that_are_no_text": (b"[job0]:a\xef\xbf\xbdb\n".hex(), b"[job0]:a\xffb\n".hex()),
    "rewritten_lines": ("[job0]:1%\n[job0]:2%\n[job0]:3%\n", "[job0]:3%\n"),
    "unfinished_line_of_two_ranks": (
        [0, ["", "[job0]:end 0", "[job1]:end 1"]],
        [2, ["", "", "", "[job0]:end 0", "[job1]:end 1"]],
    ),
    "logs_of_an_earlier_start": ({"stdout.log": "second\n"}, {"stdout.log": "second\n", "stdout.log.1": "first\n"}),
    "folders_are_private": (["0o755", "0o755"], ["0o700", "0o700"]),
    "settings_that_cannot_work": (
        {
            "no ranks": ["returned", {}],
            "no program": ["raised", "PermissionError"],
            "start method": ["raised", "ValueError"],
            "arguments": ["raised", "ValueError"],
        },
        {key: ["raised", "RuntimeError"] for key in ("no ranks", "no program", "start method", "arguments")},
    ),
    "bare_string": ("h e l l o\n", "hello\n"),
    "environment_of_numbers": (["raised", "TypeError"], ["returned", "0\n"]),
    "older_signature": (["raised", "TypeError"], ["returned", {"0": "<root>/0/stdout.log"}]),
    "omitted_envs": (["raised", "TypeError"], ["returned", {"0": None}]),
    "stdin_of_programs": ("typed\n", ""),
    "processes_of_a_stopped_function": (True, False),
    "order_within_a_second": (
        [{"0": 1_700_000_000, "1": 1_700_000_000}, {"0": None, "1": None}],
        [{"0": 1_700_000_000, "1": 1_700_000_000}, {"0": 1_700_000_000_900_000_000, "1": 1_700_000_000_100_000_000}],
    ),
    "data_of_an_earlier_failure": (
        {"message": "<NONE>", "errorTraits": {"category": "system_terminated_error", "retryability": "False"}},
        {"message": "<NONE>"},
    ),
}
"""Case to what PyTorch was observed to do, and what we are observed to do."""
pytestmark = pytest.mark.timeout(200)


@pytest.mark.parametrize("name", DIFFERENCES)
def test_both_do_what_is_written_here(name, ours):
    """Neither is told from memory: theirs is stored, ours is run."""
    theirs, here = DIFFERENCES[name]
    assert theirs != here
    assert oracle.load("differences")[f"differs.{name}"] == json.loads(json.dumps(theirs))
    assert ours("differences")[f"differs.{name}"] == json.loads(json.dumps(here))


def test_each_difference_is_a_case_and_a_row_of_the_page():
    """The page names the case behind each of its rows."""
    cases = {name.removeprefix("differs.") for name in oracle.groups()["differences"]}
    rows = [line.split("|")[1].strip().strip("`") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(cases) == sorted(DIFFERENCES)
