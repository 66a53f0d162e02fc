"""The promises about processes are kept without the kernel's newer services, too.

Each case runs a sample of the row tests (see `sample`) in a pytest of its own, which is told, as are the workers, to do
without one service. To run all tests so: ``SUPERVISE_WITHOUT=group python -m pytest``.
"""

import faulthandler
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from supervise import _platform as platform
from tests.fallbacks.sample import ROW

ROOT = Path(__file__).parents[2]
FLAGS = {
    "pidfd": {"PIDFD": False, "GROUP_BY_PIDFD": False},
    "group": {"GROUP_BY_PIDFD": False},
    "inotify": {"INOTIFY": False},
    "glibc": {"GLIBC": False},
}
ROWS = {
    *("o1", "o2", "o3", "o4", "o5", "o6", "o7", "o8", "o9", "o10", "o12", "o13", "d1", "d2", "d3", "d4"),
    *("s1", "s2", "s3", "s5", "s6", "s8", "s9", "s10", "s11", "k1", "k2", "k3", "k5", "k6", "k7"),
}
"""Of which a test must pass; rows that are not here want what not every machine has."""
CONCERNED = {"pidfd": "odsk", "group": "dsk", "inotify": "o", "glibc": "sk"}
"""The rows, by their letters, that depend on a service: output, detection, stop and the death of the host."""
NO_FALLBACK = re.compile("without a pidfd the kernel cannot be asked|see test_")
"""Why a test may be skipped: a service tells what nothing else does, or the reason names the test of the fallback."""
PATIENCE_S = 900  # it is the longest test, so it is begun first


def test_every_service_can_be_done_without():
    """A new name in `platform` wants a case here."""
    assert set(FLAGS) == platform.NAMES


@pytest.mark.parametrize("without", FLAGS)
def test_what_is_named_is_off(without):
    """In the process that is told so, all that depends on it and nothing else."""
    names = sorted({name for flags in FLAGS.values() for name in flags})
    program = f"from supervise import _platform as c; print([getattr(c, name) for name in {names}])"

    def said(word):
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=_env(word), capture_output=True, text=True, check=True)
        return dict(zip(names, done.stdout.strip("[]\n").split(", "), strict=True))

    off = {name: str(value) for name, value in FLAGS[without].items()}
    assert said(without) == {**said(""), **off}


@pytest.mark.stress
@pytest.mark.timeout(PATIENCE_S + 30)
@pytest.mark.parametrize("without", FLAGS)
def test_rows_hold_without(tmp_path, without):
    """All of the sample passes; a test may be skipped for what the machine lacks, never for what is done without."""
    faulthandler.cancel_dump_traceback_later()  # this takes minutes
    report, said = tmp_path / "report.xml", tmp_path / "said"
    words = ["-c", "pyproject.toml", "--rootdir", ".", "-n", "0", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    words += ["-p", "tests.fallbacks.sample", f"--basetemp={tmp_path / 'inner'}", f"--junitxml={report}"]
    code = _run([*words, "tests/processes", "tests/api"], without, said)
    tail = "\n".join(said.read_text(errors="replace").splitlines()[-80:])
    assert code == 0, tail
    cases = [*ET.parse(report).iter("testcase")]
    skips = {case.get("name"): skip.get("message", "") for case in cases for skip in case.iter("skipped")}
    forced = [why for why in skips.values() if any(flag in why for flag in FLAGS) and not NO_FALLBACK.search(why)]
    assert not forced
    passed = {
        found[1] for case in cases if (found := ROW.match(case.get("name", ""))) and case.get("name") not in skips
    }
    assert passed >= {row for row in ROWS if row[0] in CONCERNED[without]}, tail


def _run(words, without, said):
    """Run pytest; whatever happens, it and what it started are gone afterwards."""
    with said.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *words],
            cwd=ROOT,
            env=_env(without),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return process.wait(PATIENCE_S)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _env(without):
    ours = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return ours | {"SUPERVISE_WITHOUT": without, "SAMPLED_ROWS": CONCERNED.get(without, "")}


NO_CTYPES = """
import sys
sys.modules["ctypes"] = None
from supervise import DefaultLogsSpecs, Std, start_processes
specs = DefaultLogsSpecs("logs", tee=Std.ALL)
context = start_processes("g", "sh", {0: ("-c", "echo shown; exit 3")}, {0: {}}, specs)
print(context.wait().failures[0].exitcode)
context.close()
"""


def test_a_python_without_ctypes_starts_programs_and_shows_their_output(tmp_path):
    command = [sys.executable, "-W", "error", "-c", NO_CTYPES]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout.splitlines(), done.returncode) == (["[g0]:shown", "3"], 0), done.stderr


def test_a_word_that_is_not_a_service_is_refused():
    """As a spelling that turns nothing off; spaces do not count."""

    def run(without: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "supervise", "run", "-q", "--log-dir", os.devnull, "true"]
        env = {**os.environ, "SUPERVISE_WITHOUT": without}
        return subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    done = run("group,pidfds")
    assert done.returncode == 2
    assert "SUPERVISE_WITHOUT has 'pidfds'; it accepts glibc, group, inotify, pidfd, separated by commas" in done.stderr
    assert run(" group, inotify ").returncode == 0
