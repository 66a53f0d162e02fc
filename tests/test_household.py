"""The fixture that looks after every test: it sees whatever a test leaves behind, names it and clears it away."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parts import LONG_TESTS
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.timeout(4 * PATIENCE_S)  # whole programs, one after the other

LEAKS = {
    "process": (
        "import subprocess\ndef test_it():\n    subprocess.Popen(['sleep', '600'])\n",
        r"process: child pid \d+, \S+: sleep",  # its arguments cannot be read in the middle of its exec
    ),
    "zombie": (
        (
            "import os\ndef test_it():\n    pid = os.fork()\n    if not pid:\n        os._exit(0)\n"
            "    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)\n"
        ),
        r"zombie: child pid \d+ .*never reaped",
    ),
    "thread": (
        (
            "import threading\ndef test_it():\n    gone = threading.Event()\n"
            "    threading.Thread(target=gone.wait, args=(20,), name='forgotten', daemon=True).start()\n"
        ),
        "thread: forgotten",
    ),
    "actor": (
        "import pykka\nclass Left(pykka.ThreadingActor):\n    pass\ndef test_it():\n    Left.start()\n",
        "actor: Left",
    ),
    "descriptor": (
        "import os\ndef test_it():\n    os.open('/dev/null', os.O_RDONLY)\n",
        r"descriptor: \d+ -> /dev/null",
    ),
}


@pytest.mark.parametrize("kind", LEAKS)
def test_e2_whatever_a_test_leaves_behind_fails_it_by_name(tmp_path: Path, kind: str):
    """One leaking and one clean test under this conftest: the first fails, the second does not."""
    source, named = LEAKS[kind]
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_leak.py").write_text(f"import conftest\nconftest.PATIENCE_S = 0.2\n{source}")
    (tmp_path / "test_next.py").write_text("def test_clean():\n    pass\n")
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
            "-p",
            "no:xdist",
            f"--basetemp={tmp_path / 'inner'}",
            str(tmp_path),
        ],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )
    assert "this test left behind:" in run.stdout, run.stdout
    assert re.search(named, run.stdout), run.stdout
    assert "2 passed, 1 error" in run.stdout


def test_each_test_that_is_listed_as_long_is_there():
    """A test with another name is short, until `python -m tests.make_long_tests` has measured it again."""
    root, listed = LONG_TESTS.parents[1], [line.split("::")[:2] for line in LONG_TESTS.read_text().splitlines()]
    assert len(listed) > 100
    texts = {name: (root / name).read_text() if (root / name).exists() else "" for name, _ in listed}
    assert [f"{name}::{test}" for name, test in listed if not re.search(rf"\b{test}\b", texts[name])] == []
