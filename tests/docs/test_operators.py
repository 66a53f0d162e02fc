"""The files on the page for operators are accepted by the programs that read them, as far as those are installed."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervise.cli.options import groups
from tests.patience import PATIENCE_S

PAGE = (Path(__file__).parents[2] / "docs/start/operator.md").read_text()
RUN = "supervise run "


def _file(name: str) -> str:
    """Return a block of the page, by the name on its first line."""
    found = re.search(rf"^```\w+\n# file: {re.escape(name)}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, name
    return found[1]


def _parsed(words: list[str]) -> float:
    """Return the seconds of ``--shutdown-timeout`` of a command line that the parser accepts."""
    return groups.gang_settings(groups.run_parser().parse_args(words))["grace"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path):
    """Without a warning, with the interpreter in place of a command that is not installed there."""
    unit = _file("train.service")
    assert "/usr/local/bin/supervise" in unit
    file = tmp_path / "train.service"
    file.write_text(unit.replace("/usr/local/bin/supervise", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", file],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_the_command_of_the_unit_ends_before_systemd_kills_it():
    """The parser accepts the command, and its grace is shorter than the time that systemd waits."""
    text = _file("train.service").replace("\\\n", "")
    unit = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert _parsed(shlex.split(unit["ExecStart"])[2:]) < float(unit["TimeoutStopSec"])


def test_the_job_of_kubernetes_has_one_completion_per_host():
    """As many pods as the command has hosts, whose grace is longer than that of supervise."""
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the tools of the documentation")
    service, job = yaml.safe_load_all(_file("job.yaml"))
    pod = job["spec"]["template"]["spec"]
    command = [word.replace("$(JOB_COMPLETION_INDEX)", "0") for word in pod["containers"][0]["args"]]
    options = groups.run_parser().parse_args(command)
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(options.nnodes)
    assert options.master_addr == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert _parsed(command) < pod["terminationGracePeriodSeconds"]


def test_a_shell_accepts_the_script_for_slurm():
    """And the parser accepts the command in it."""
    script = re.search(r"^```sh\n(#!/bin/sh\n#SBATCH.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
    subprocess.run(["sh", "-n"], input=script, text=True, timeout=PATIENCE_S, check=True)
    command = re.search(r"sh -c '(.*)'", script, re.DOTALL)[1]
    words = shlex.split(re.sub(r"\$\w+", "1", command.replace("\\\n", " ")))
    assert words[:3] == ["exec", *RUN.split()]
    before_limit_s = int(re.search(r"TERM@(\d+)", script)[1])
    assert _parsed(words[3:]) < before_limit_s


def test_the_command_of_the_container_ends_before_docker_kills_it():
    """`docker stop` waits 10 seconds; the page says so in its table."""
    lists = re.findall(r"^(?:ENTRYPOINT|CMD) \[(.*)\]$", _file("Dockerfile"), re.MULTILINE)
    words = [word.strip(' "') for part in lists for word in part.split(",")]
    assert words[:2] == RUN.split()
    assert _parsed(words[2:]) < 10
