"""What PyTorch was observed to do, stored, and how an implementation is observed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from tests.compat.case import all_cases

ROOT = Path(__file__).parents[2]
DIED = {"host": "died or hung"}
"""Stands for an observation that there is none of."""
FOLDER = Path(__file__).parent / "oracle"


def groups() -> dict[str, list[str]]:
    """Return file name to ids of cases."""
    found: dict[str, list[str]] = {}
    for case in all_cases().values():
        name = case.kind if case.kind != "function" else f"function-{case.start_method}"
        found.setdefault(name, []).append(case.id)
    from tests.compat import families

    found["families"] = [name for name in families.names() if not name.startswith("differs.")]
    found["differences"] = [name for name in families.names() if name.startswith("differs.")]
    return found


@cache
def _read(group: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{group}.json").read_text())


def load(group: str) -> dict[str, Any]:
    """Return id to observation."""
    return _read(group)["observations"]


def version(group: str) -> str:
    """Return which PyTorch was observed."""
    return _read(group)["torch"]


def store(group: str, seen: dict[str, Any], version: str) -> None:
    """Write a group, one case a line."""
    lines = [f"{json.dumps(name)}: {_compact(seen[name])}" for name in sorted(seen)]
    head = f'{{"torch": {json.dumps(version)}, "made by": "python -m tests.compat.make_oracle", "observations": {{\n'
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{group}.json").write_text(head + ",\n".join(lines) + "\n}}\n")


def _compact(what: Any) -> str:
    return json.dumps(what, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def run(
    python: str,
    implementation: str,
    ids: Iterable[str],
    to: Path,
    *,
    jobs: int = 4,
    mutation: str = "",
    timeout_s: float = 300.0,
) -> dict[str, Any]:
    """Observe cases with an interpreter; return id to observation."""
    command = [python, "-m", "tests.compat.observe", implementation, "--to", str(to), "--jobs", str(jobs)]
    if mutation:
        command += ["--mutation", mutation]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("TORCHELASTIC_", "PYTEST_", "COV_"))}
    env["PYTHONHASHSEED"] = "0"  # a text of PyTorch's shows a set
    subprocess.run(command, cwd=ROOT, env=env, input="\n".join(ids), text=True, check=True, timeout=timeout_s)
    return json.loads(to.read_text())


def differences(theirs: Any, ours: Any, where: str = "") -> list[str]:
    """Return, one line each, what is observed otherwise."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return [
            line
            for key in {**theirs, **ours}
            for line in differences(theirs.get(key, "<absent>"), ours.get(key, "<absent>"), f"{where}[{key!r}]")
        ]
    return [] if theirs == ours else [f"{where}:\n    torch:     {theirs!r}\n    supervise: {ours!r}"]


def main() -> None:
    """Compare two files of observations: ``python -m tests.compat.oracle THEIRS OURS``."""
    theirs, ours = (json.loads(Path(path).read_text()) for path in sys.argv[1:3])
    for name in theirs:
        for line in differences(theirs[name], ours.get(name)):
            print(name, line)


if __name__ == "__main__":
    main()
