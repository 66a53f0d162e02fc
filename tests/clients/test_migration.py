"""Guides with PyTorch itself: what stands before and after a migration does the same; a program for torchrun runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.torchrun import PATIENCE_S

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"
TRAINER = Path(__file__).parents[2] / "docs" / "start" / "trainer.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROOT = str(Path(__file__).parents[2])


def run(python: str, program: str, folder: Path, *launcher: str) -> list[str]:
    name = folder / program.split()[2]
    name.write_text(program)
    env = {"PYTHONPATH": ROOT, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [python, *launcher, str(name)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=folder,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("guide", ["migrate-from-torch-elastic.md", "migrate-from-torch-spawn.md"])
def test_before_with_pytorch_and_after_with_ours_print_the_same(torch_python, tmp_path, guide):
    blocks = BLOCK.findall((GUIDES / guide).read_text())
    (before,) = (text for kind, text in blocks if kind == "py")
    (after,) = (text for kind, text in blocks if kind == "python")
    (shown,) = (text for kind, text in blocks if kind == "text")
    assert run(torch_python, before, tmp_path) == shown.splitlines()
    assert run(torch_python, after, tmp_path) == shown.splitlines()


@pytest.mark.parametrize("guide", ["migrate-from-torch-elastic.md", "migrate-from-torch-spawn.md"])
def test_after_needs_no_pytorch(tmp_path, guide):
    blocks = BLOCK.findall((GUIDES / guide).read_text())
    (after,) = (text for kind, text in blocks if kind == "python")
    (shown,) = (text for kind, text in blocks if kind == "text")
    assert run(sys.executable, after, tmp_path) == shown.splitlines()


def test_a_loop_over_popen_and_what_replaces_it(tmp_path):
    blocks = BLOCK.findall((GUIDES / "migrate-from-popen.md").read_text())
    before, after = (text for kind, text in blocks if kind == "python")
    assert run(sys.executable, before, tmp_path) == ["[0, 3, 0]"]
    assert run(sys.executable, after, tmp_path) == ["1 3"]


def test_the_program_for_torchrun_of_the_page_for_trainers(torch_python, tmp_path):
    """By the command of `trainer.md`, which says what each rank prints."""
    blocks = BLOCK.findall(TRAINER.read_text())
    (program,) = (text for kind, text in blocks if kind == "py")
    (command,) = (text for kind, text in blocks if kind == "sh" and "sum.py" in text)
    words, _, comment = command.partition("sum.py")
    shown = run(torch_python, program, tmp_path, "-m", *words.split(), "--log-dir", str(tmp_path))
    assert sorted(shown) == ["[default0]:1.0", "[default1]:1.0"]
    assert "each of two ranks prints 1.0" in comment
