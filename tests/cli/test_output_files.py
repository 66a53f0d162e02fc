"""Paths that a user gives for the output of a command: a file is replaced, a device or a pipe is written into."""

import errno
import os
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from supervise.cli.run import directory
from tests.cli.command import SUPERVISE, Command, environment
from tests.patience import PATIENCE_S

NULL, FULL, DISK = (stat.S_IFCHR, 1, 3), (stat.S_IFCHR, 1, 7), (stat.S_IFBLK, 7, 200)
OPTIONS = {
    "metrics": lambda path: ("run", "--metrics", path, "-q", "--no-python", "true"),
    "page": lambda path: ("report", "job", "-o", path),
    "trace": lambda path: ("report", "job", "--trace", path),
}
each_option = pytest.mark.parametrize("option", OPTIONS)


@pytest.fixture(autouse=True)
def job(supervise: Command) -> None:
    """A run that a report can be about."""
    supervise.run("--run-id", "job", "-q", "--no-python", "true")


def device(path: Path, kind: int, major: int, minor: int) -> Path:
    """Make a device node that only this test uses."""
    try:
        os.mknod(path, kind | 0o600, os.makedev(major, minor))
        os.close(os.open(path, os.O_RDONLY)) if kind == stat.S_IFCHR else None
    except PermissionError as error:
        pytest.skip(f"no device nodes can be made or opened in {path.parent}: {error}")
    return path


def content(option: str) -> str:
    """A text that the output has."""
    return {"metrics": "supervise_run_exit_code{", "page": "<!DOCTYPE html>", "trace": '"traceEvents"'}[option]


@each_option
@pytest.mark.parametrize("node", [NULL, FULL], ids=["null", "full"])
def test_a_device_stays_a_device(supervise: Command, tmp_path: Path, option: str, node: tuple[int, int, int]):
    """As for every other program: what ``/dev/full`` does not take is a failed write."""
    path = device(tmp_path / "node", *node)
    done = supervise.supervise(*OPTIONS[option](str(path)))
    assert stat.S_ISCHR(path.stat().st_mode)
    assert ("No space left on device" in done.stderr) == (node == FULL)
    assert [each.name for each in tmp_path.glob("node*")] == ["node"]


@each_option
def test_a_named_pipe_is_written_into(supervise: Command, tmp_path: Path, option: str):
    path, read = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    with path.open("a"):  # so that the reader waits for the command, whose own open then finds it
        supervise.supervise(*OPTIONS[option](str(path)))
    reader.join()
    assert content(option) in read[0]
    assert stat.S_ISFIFO(path.stat().st_mode)


@each_option
def test_a_named_pipe_without_a_reader_is_an_error(supervise: Command, tmp_path: Path, option: str):
    """And does not block."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert f"{path}: no process reads this pipe" in supervise.supervise(*OPTIONS[option](str(path))).stderr


@each_option
def test_stdout_that_is_a_regular_file(supervise: Command, option: str):
    """The next writer continues after the output, which has nothing else in it."""
    script = ["sh", "-c", '"$@" && echo done', "sh", *SUPERVISE, *OPTIONS[option]("/dev/stdout")]
    env = environment(supervise.tmp_path)
    with (supervise.tmp_path / "out").open("w+") as out:
        subprocess.run(script, env=env, cwd=supervise.tmp_path, stdout=out, timeout=PATIENCE_S, check=True)
        out.seek(0)
        text = out.read()
    assert content(option) in text
    assert text.startswith(("# HELP", "<!DOCTYPE html>", "{"))
    assert text.endswith("done\n")
    assert "/dev/stdout" not in text.splitlines()


@each_option
def test_stdout_by_its_path(supervise: Command, option: str):
    assert content(option) in supervise.supervise(*OPTIONS[option]("/dev/stdout")).stdout
    assert content(option) in supervise.supervise(*OPTIONS[option]("/dev/fd/1")).stdout


@each_option
def test_a_link_stays_and_leads_to_the_new_content(supervise: Command, tmp_path: Path, option: str):
    link, target = tmp_path / "latest", tmp_path / "files" / "one"
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to("files/one")
    supervise.supervise(*OPTIONS[option](str(link)))
    assert link.is_symlink()
    assert content(option) in target.read_text()
    assert [each.name for each in target.parent.iterdir()] == ["one"]


def test_a_block_device_is_refused(tmp_path: Path):
    """A write would destroy a file system."""
    path = device(tmp_path / "disk", *DISK)
    with pytest.raises(OSError, match="is a block device, which is not overwritten"):
        directory.write_output(str(path), b"x", mode=0o600)
    assert stat.S_ISBLK(path.stat().st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
def test_a_link_of_another_user_is_refused(tmp_path: Path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    os.chown(link, 12345, 12345, follow_symlinks=False)
    with pytest.raises(OSError, match="another user") as refused:
        directory.write_output(str(link), b"x", mode=0o600)
    assert refused.value.errno == errno.ELOOP
    assert target.read_text() == "old"


def test_links_in_a_circle_are_an_error(tmp_path: Path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        directory.write_output(str(tmp_path / "a"), b"x", mode=0o600)


def test_a_new_file_has_the_given_mode(tmp_path: Path):
    directory.write_output(str(tmp_path / "private"), b"x", mode=0o600)
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600
