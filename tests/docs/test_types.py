"""The programs of the documentation and the examples pass mypy and pyright."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import EXECUTED, FENCE, ROOT
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.stress, pytest.mark.timeout(10 * PATIENCE_S)]  # half a minute each

UNIONS_OF_MYPY = ("arg-type", "index", "operator", "union-attr")
UNIONS_OF_PYRIGHT = (
    "reportArgumentType",
    "reportAttributeAccessIssue",
    "reportIndexIssue",
    "reportOperatorIssue",
    "reportOptionalMemberAccess",
)
"""Rules that programs break which use a reply of `ask`, or a result of `wait`, without a check that it is not a Future
or None, as the programs of the documentation do."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the programs of each page into a folder of its own, and return the folder of all."""
    folder = tmp_path_factory.mktemp("programs")
    for page in EXECUTED:
        home = folder / page.stem.replace("-", "_")
        home.mkdir()
        for number, (kind, text) in enumerate(FENCE.findall(page.read_text())):
            if kind == "python":
                name = text.split()[2] if text.startswith("# file: ") else f"block{number}.py"
                (home / name).write_text(text)
    assert len(list(folder.rglob("*.py"))) > 40
    return folder


def _checked(command: list[object], folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=9 * PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_mypy_accepts_the_programs_of_the_documentation(programs: Path):
    """Names, calls, arguments and overrides; `mypy --strict` checks the examples in a step of its own."""
    disabled = [f"--disable-error-code={code}" for code in UNIONS_OF_MYPY]
    command = ["mypy", "--python-executable", sys.executable, "--explicit-package-bases", *disabled]
    code, text = _checked([*command, f"--cache-dir={programs}/.cache", "."], programs)
    assert code == 0, text


def test_pyright_accepts_the_programs_of_the_documentation(programs: Path):
    """The same with the rules of pyright."""
    pytest.importorskip("basedpyright", reason="pyright is not installed for this Python")
    rules = {"typeCheckingMode": "standard"} | dict.fromkeys(UNIONS_OF_PYRIGHT, "none")
    (programs / "pyrightconfig.json").write_text(json.dumps(rules))
    code, text = _checked(["basedpyright", "--pythonpath", sys.executable, "-p", programs], programs)
    assert code == 0, text


def test_pyright_accepts_the_examples_and_the_typed_tests(tmp_path: Path):
    """All but the imports of PyTorch, which one example needs and the tests do not install."""
    pytest.importorskip("basedpyright", reason="pyright is not installed for this Python")
    settings = {
        "include": [str(ROOT / "examples"), str(ROOT / "tests/typing")],
        "typeCheckingMode": "standard",
        "reportMissingImports": "none",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    code, text = _checked(["basedpyright", "--pythonpath", sys.executable, "-p", tmp_path], ROOT)
    assert code == 0, text
    assert "0 errors" in text
