"""Every option of torchrun's own parser is honored, accepted with a message, or refused with a reason."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from supervise.cli.options.groups import FLAGS, VALUES
from supervise.cli.options.options import parse

WALK = """
import json
from torch.distributed.run import get_args_parser
found = {}
for action in get_args_parser()._actions:
    found.update(dict.fromkeys(action.option_strings, [action.dest, action.nargs == 0, type(action).__name__]))
print(json.dumps(found))
"""
SAMPLES = {
    "--nnodes": "1:1",
    "--nproc-per-node": "2",
    "--rdzv-backend": "c10d",
    "--rdzv-endpoint": "localhost:0",
    "--rdzv-id": "job",
    "--rdzv-conf": "timeout=3",
    "--max-restarts": "3",
    "--monitor-interval": "0.1",
    "--start-method": "spawn",
    "--event-log-handler": "null",
    "--role": "trainer",
    "--log-dir": "logs",
    "-r": "1",
    "--redirects": "0:1",
    "-t": "3",
    "--tee": "0:2",
    "--local-ranks-filter": "0",
    "--duplicate-stdout-filters": "apple",
    "--duplicate-stderr-filters": "apple",
    "--node-rank": "0",
    "--master-addr": "10.0.0.1",
    "--master-port": "29500",
    "--local-addr": "10.0.0.1",
    "--logs-specs": "default",
    "--numa-binding": "node",
    "--signals-to-handle": "SIGTERM,SIGINT",
    "--shutdown-timeout": "30",
}
"""Option of torchrun to a value that its users give."""
TOLD = {"--rdzv-conf", "--monitor-interval", "--event-log-handler", "--start-method"}
"""Options that are accepted with a message."""
TABLE = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"


@pytest.fixture(scope="module")
def options(torch_python):
    """Return torchrun's options: spelling to destination, whether it is a flag, and the class of its action."""
    done = subprocess.run([torch_python, "-c", WALK], capture_output=True, text=True, check=True, timeout=100)
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: value for name, value in found.items() if name not in ("-h", "--help")}


def test_each_option_is_accepted_in_each_spelling(options):
    """A line of torchrun's works after its first word is replaced."""
    for name, (_, flag, _) in options.items():
        plain = name.replace("_", "-") if name.startswith("--") else name
        words = [name] if flag else [name, SAMPLES[plain]]
        found = parse([*words, "true"])
        assert bool(found.notes) == (plain in TOLD), name


def test_each_variable_is_a_default(options):
    """Torchrun reads PET_<NAME> for these options, and no other."""
    read = {dest for dest, _, kind in options.values() if kind in ("env", "check_env")}
    assert read == {name.replace("-", "_") for name in (*FLAGS, *VALUES)}


def test_each_option_has_its_row(options):
    """The table in the reference says what becomes of it."""
    rows = re.findall(r"^\| ((?:`--?[a-z-]+`(?:, )?)+) \| (honored|accepted|refused)", TABLE.read_text(), re.MULTILINE)
    treated = {name: treatment for names, treatment in rows for name in re.findall(r"`(--?[a-z-]+)`", names)}
    assert {name.replace("_", "-") if name.startswith("--") else name for name in options} <= treated.keys()
    assert {name for name, treatment in treated.items() if treatment == "accepted"} >= TOLD


def test_without_variables_there_are_no_defaults():
    """The table of variables is not read from the environment of the tests."""
    assert not [name for name in os.environ if name.startswith("PET_")]
