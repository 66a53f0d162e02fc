"""What the start of `supervise run` costs: which modules it loads, and how it finds a program."""

import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from supervise.cli.run.program import _is_found
from tests.cli.command import Command

HEAVY = {
    *("multiprocessing", "shutil", "tempfile", "subprocess", "psutil", "structlog", "asyncio", "rich"),
    *("dataclasses", "inspect", "tomllib", "difflib"),
}


def test_a_run_that_succeeds_loads_no_heavy_module(tmp_path):
    code = (
        "import sys, pykka; before = set(sys.modules)\n"  # pykka imports traceback, which needs some since Python 3.14
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
    assert _is_found(program, SimpleNamespace(env={"PATH": search})) is (shutil.which(program, path=search) is not None)


@pytest.mark.parametrize("way", ["run", "dry", "check"])
def test_a_variable_that_the_kernel_does_not_accept_is_named(supervise: Command, way: str):
    """With its size, before a process starts; `check` and `--dry-run` say it, too."""
    (supervise.tmp_path / "a.env").write_text(f"SMALL=1\nBIG={'x' * 200_000}\n")
    (supervise.tmp_path / "gang.toml").write_text("env-file = 'a.env'\n[roles.a]\ncommand = 'touch started'\n")
    words = {"run": ("run",), "dry": ("run", "--dry-run"), "check": ("check",)}[way]
    done = supervise.supervise(*words, *(("--file",) if way != "check" else ()), "gang.toml")
    assert done.returncode == 2
    assert "argument list too long (E2BIG): the variable BIG has 200,004 bytes" in done.stderr
    assert "xxxx" not in done.stderr
    assert not (supervise.tmp_path / "started").exists()


def test_the_largest_of_too_many_variables_is_named(supervise: Command):
    """Each of them is small enough, but not all of them together."""
    lines = [f"V{number}={'é' * (60_000 if number == 3 else 50_000)}\n" for number in range(4)]
    (supervise.tmp_path / "a.env").write_text("".join(lines))
    stack = ("sh", "-c", 'ulimit -s 1024; exec "$@"', "sh")
    done = supervise.run("--env-file", "a.env", "true", before=stack)
    assert done.returncode == 2
    assert re.search(r"have 4\d\d,\d+ bytes, and the kernel accepts 262,144; the variable V3 has 120,003", done.stderr)
