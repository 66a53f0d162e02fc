"""What the start of `supervise run` costs: which modules it loads, and how it finds a program."""

import os
import shutil
import subprocess
import sys

import pytest

from supervise.cli.program import _is_found

HEAVY = {"multiprocessing", "shutil", "tempfile", "subprocess", "psutil", "structlog", "asyncio", "rich"}


def test_a_run_that_succeeds_loads_no_heavy_module(tmp_path):
    code = (
        "import sys; before = set(sys.modules)\n"
        "from supervise.cli import main\n"
        "sys.argv = ['supervise', 'run', '-n', '2', 'true']\n"
        "code = main()\n"
        f"print(code, sorted({HEAVY} & set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "SUPERVISE_RUNS_DIR": str(tmp_path)},
    )
    assert done.stdout == "0 []\n", done.stderr


@pytest.fixture
def folders(tmp_path):
    """Two folders with a program, a file that cannot be executed, and a folder of the name of a program."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "data").touch()
    (tmp_path / "a" / "folder").mkdir()
    (tmp_path / "b" / "tool").touch(mode=0o755)
    (tmp_path / "b" / "folder").touch(mode=0o755)
    return tmp_path


@pytest.mark.parametrize("search", ["{0}/a", "{0}/a:{0}/b", "{0}/nothing:{0}/b:{0}/b", ":", ""])
@pytest.mark.parametrize(
    "program", ["tool", "data", "folder", "nothing", "{0}/b/tool", "{0}/a/data", "a/folder", "b/tool"]
)
def test_a_program_is_found_where_the_standard_library_finds_it(folders, monkeypatch, program, search):
    monkeypatch.chdir(folders)
    program, search = program.format(folders), search.format(folders)
    assert _is_found(program, search) is (shutil.which(program, path=search) is not None)
