"""The programs of the documentation and the examples pass mypy and pyright."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import EXECUTED, FENCE, ROOT, docstring_programs
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.stress, pytest.mark.timeout(10 * PATIENCE_S)]  # half a minute each


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the programs of each page into a folder of its own, and return the folder of all."""
    folder = tmp_path_factory.mktemp("programs")
    for page in EXECUTED:
        home = folder / page.stem.replace("-", "_")
        home.mkdir()
        for number, (kind, text) in enumerate(FENCE.findall(page.read_text())):
            if kind in {"python", "py"}:
                name = text.split()[2] if text.startswith("# file: ") else f"block{number}.py"
                (home / name).write_text(text)
    (folder / "docstrings").mkdir()
    for name, text in docstring_programs().items():
        (folder / "docstrings" / f"of_{name}").write_text(text)
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
    (programs / "mypy.ini").write_text("[mypy]\n[mypy-ray.*,torch.*]\nignore_missing_imports = True\n")
    command = ["mypy", "--python-executable", sys.executable, "--explicit-package-bases"]
    code, text = _checked([*command, f"--cache-dir={programs}/.cache", "."], programs)
    assert code == 0, text


def test_pyright_accepts_the_programs_of_the_documentation(programs: Path):
    """The same with the rules of pyright."""
    pytest.importorskip("basedpyright", reason="pyright is not installed for this Python")
    # PyTorch and Ray need not be installed; mypy finds a mistyped import
    settings = {"typeCheckingMode": "standard", "reportMissingImports": "none"}
    (programs / "pyrightconfig.json").write_text(json.dumps(settings))
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


def test_every_public_name_has_a_type_that_each_type_checker_sees_alike():
    """``basedpyright --verifytypes`` knows the type of every name, without inference and without a gap.

    One class derives from a class of PyTorch, which is unknown where PyTorch is not installed.
    """
    pytest.importorskip("basedpyright", reason="pyright is not installed for this Python")
    folder = Path(sys.executable).parent
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--verifytypes", "supervise", "--ignoreexternal", "--outputjson"],
        env={**os.environ, "VIRTUAL_ENV": str(folder.parent), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=9 * PATIENCE_S,
        check=False,
    )
    types = json.loads(done.stdout)["typeCompleteness"]
    assert types["exportedSymbolCounts"]["withKnownType"] > 1000
    gaps = {name["name"]: name["diagnostics"] for name in types["symbols"] if not _is_known(name)}
    if importlib.util.find_spec("torch") is None:
        gaps = {name: why for name, why in gaps.items() if not name.endswith(".SupervisedElasticAgent")}
    assert not gaps


def _is_known(symbol: dict[str, bool]) -> bool:
    return symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"]
