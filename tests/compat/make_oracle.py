"""Writes what PyTorch does: ``python -m tests.compat.make_oracle --torch-python PYTHON [GROUP ...]``.

Nothing in ``oracle/`` comes from anywhere else. PYTHON is an interpreter that can import PyTorch.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

from tests.compat import oracle


def main() -> None:
    """Observe PyTorch and write the files."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch-python", required=True)
    parser.add_argument("groups", nargs="*")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for group, ids in oracle.groups().items():
            if given.groups and group not in given.groups:
                continue
            seen = oracle.run(given.torch_python, "torch", ids, Path(folder, "seen.json"), timeout_s=1800)
            wrong = [name for name, what in seen.items() if what == oracle.DIED or "observer failed" in str(what)[:30]]
            if wrong:
                raise SystemExit(f"no observation of {wrong}: {seen[wrong[0]]}")
            oracle.store(group, seen, version(given.torch_python))
            print(group, len(seen), flush=True)


def version(python: str) -> str:
    """Return which PyTorch and which Python were asked."""
    program = "import sys, torch; print(torch.__version__, 'on Python', '%d.%d.%d' % sys.version_info[:3])"
    return subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
