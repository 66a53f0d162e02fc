"""The example runs under any launcher that sets torchrun's variables, or under none."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.ports import free_port

pytestmark = pytest.mark.timeout(4 * PATIENCE_S)  # whole programs, one after the other
PROGRAM = Path(__file__).parent.parent / "examples" / "wordcount.py"


def _start(rank: int, size: int, port: int, *args: str) -> subprocess.Popen[str]:
    place = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(PROGRAM), *args],
        env=os.environ | place,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _outputs(gang: list[subprocess.Popen[str]]) -> list[str]:
    try:
        results = [process.communicate(timeout=3 * PATIENCE_S) for process in gang]
    finally:
        for process in gang:
            process.kill()
            process.communicate()
    ends = [(process.returncode, stderr) for process, (_, stderr) in zip(gang, results, strict=True)]
    assert ends == [(0, "")] * len(gang)
    return [stdout for stdout, _ in results]


def _table(stdout: str) -> str:
    """Return what rank 0 prints after the progress lines."""
    return stdout.partition("\n\n")[2]


def _alone(*args: str) -> str:
    bare = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}
    program = [sys.executable, "-W", "error", str(PROGRAM), *args]
    run = subprocess.run(program, env=bare, capture_output=True, text=True, check=True, timeout=3 * PATIENCE_S)
    assert run.stderr == ""
    return run.stdout


@pytest.mark.parametrize("size", [2, 4, 7])
def test_ranks_together_count_what_one_rank_counts(size: int) -> None:
    """The table of a gang is that of one rank, and the shares add up to it."""
    port = free_port()
    outputs = _outputs([_start(rank, size, port) for rank in range(size)])
    assert _table(outputs[0]) == _table(_alone())
    total = re.match(r"([\d,]+) words", _table(outputs[0]))
    shares = [re.match(rf"rank {rank}: ([\d,]+) words in \d+ files?\n", text) for rank, text in enumerate(outputs)]
    assert total
    assert sum(int(share[1].replace(",", "")) for share in shares if share) == int(total[1].replace(",", ""))


def test_every_line_belongs_to_one_rank_wherever_the_shares_end(tmp_path: Path) -> None:
    """Lines of all lengths, none at the end of a file, an empty file, more ranks than bytes in some."""
    (tmp_path / "a.txt").write_text("one\n\nthe other\nthe\u2019s\n" * 3 + "the last", "utf-8")
    (tmp_path / "b.txt").write_text("", "utf-8")
    (tmp_path / "c.txt").write_text("é", "utf-8")
    port = free_port()
    outputs = _outputs([_start(rank, 9, port, "--corpus", str(tmp_path)) for rank in range(9)])
    assert _table(outputs[0]) == _table(_alone("--corpus", str(tmp_path)))
    assert "15 words, 6 of them different" in outputs[0]


def test_a_rank_told_to_fail_says_who_it_is_in_a_traceback() -> None:
    """The failing rank needs no peer to fail."""
    with _start(2, 4, free_port(), "--fail-rank", "2") as rank:
        stdout, stderr = rank.communicate(timeout=3 * PATIENCE_S)
    assert (rank.returncode, stdout) == (1, "")
    assert stderr.startswith("Traceback (most recent call last):\n")
    assert re.search(r"^RuntimeError: rank 2 was told to fail at byte [\d,]+ of [\w-]+\.txt$", stderr, re.MULTILINE)


def test_a_corpus_without_text_is_refused(tmp_path: Path) -> None:
    """The message names the directory."""
    with _start(0, 1, 0, "--corpus", str(tmp_path)) as rank:
        _, stderr = rank.communicate(timeout=3 * PATIENCE_S)
    assert (rank.returncode, stderr) == (1, f"no *.txt in {tmp_path}\n")
