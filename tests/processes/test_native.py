"""Programs are started as `subprocess.Popen` would: the same errors, folder, arguments and environment."""

import os
import subprocess
from pathlib import Path

import pytest

from supervise import DefaultLogsSpecs, Start, Std, Supervisor, Wait
from supervise._process.launch import posix_spawn
from tests.kernels import use_another_c_library
from tests.patience import PATIENCE_S


@pytest.fixture(params=["glibc", "another C library"], autouse=True)
def _library(request, monkeypatch):
    if request.param == "another C library":
        use_another_c_library(monkeypatch)
    elif posix_spawn.glibc is None:
        pytest.skip("the C library is another one")


def in_folder(cwd):
    """Skip where a shell would have to go there."""
    if cwd is not None and not posix_spawn.CHANGES_FOLDER:
        pytest.skip("Python cannot start a program in another folder; see test_descriptors.py")


def ended(argv, cwd=None, env=None, fds=(), out=None):
    """Run a program to its end; return its exit code."""
    pid, pidfd = posix_spawn.spawn(argv, env or {}, (None, out, None), fds, cwd=cwd)
    assert pidfd in (-1, posix_spawn.UNARMED)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


FAULTS = {
    "no such name": ("no-such-program", None),
    "no such path": ("/no/such/program", None),
    "a folder": ("/tmp", None),
    "not executable": ("{}/plain", None),
    "no program": ("{}/empty", None),
    "no interpreter": ("{}/orphan", None),
    "through a file": ("{}/plain/program", None),
    "no such folder": ("true", "{}/nowhere"),
    "no such folder, by a path": ("./empty", "{}/nowhere"),
    "a file as folder": ("true", "{}/plain"),
    "no such path there": ("./program", "{}"),
    "not executable there": ("./plain", "{}"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_an_error_is_the_one_of_popen(tmp_path, what):
    """Its class, number, text and the file that it names."""
    (tmp_path / "plain").touch(0o644)
    (tmp_path / "empty").touch(0o755)
    (tmp_path / "orphan").write_text("#!/no/such/interpreter\n")
    (tmp_path / "orphan").chmod(0o755)
    program, cwd = (None if text is None else text.format(tmp_path) for text in FAULTS[what])
    in_folder(cwd)
    env = {"PATH": "/usr/bin:/bin"}
    errors = []
    for start in (lambda: ended([program], cwd, env), lambda: subprocess.Popen([program], cwd=cwd, env=env)):
        with pytest.raises(OSError) as raised:  # noqa: PT011 - which one is compared
            start()
        error = raised.value
        errors.append((type(error), error.errno, error.strerror, error.filename))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("cwd", [None, "here"])
def test_a_program_finds_its_folder_arguments_and_environment(tmp_path, cwd):
    """Also what is no valid text."""
    in_folder(cwd)
    folder = tmp_path / "here"
    folder.mkdir()
    program = folder / "tell"
    program.write_text('#!/bin/sh\npwd -P; printf \'%s|\' "$@"; echo; echo "$NAME"\n')
    program.chmod(0o755)
    odd = os.fsdecode(b"a\xff b")
    with (tmp_path / "out").open("wb") as out:
        path = str(program) if cwd is None else "./tell"
        assert ended([path, odd, "", "x"], cwd and str(folder), {"NAME": odd}, out=out.fileno()) == 0
    place = os.fsencode(Path.cwd() if cwd is None else folder.resolve())
    assert (tmp_path / "out").read_bytes() == place + b"\na\xff b||x|\na\xff b\n"


def test_a_nul_is_refused():
    """C would take it for the end."""
    with pytest.raises(ValueError, match="null"):
        ended(["true", "a\0b"])


def test_a_number_up_to_the_limit_of_open_files_is_passed_on():
    """Several keep their own numbers, also the last one that there is."""
    last = os.sysconf("SC_OPEN_MAX") - 1
    low = os.open(os.devnull, os.O_RDONLY)
    if last > 1 << 20:
        last = low + 500
    high, between = os.dup2(low, last), os.dup2(low, last - 1)
    try:
        check = f"[ -e /proc/$$/fd/{low} -a -e /proc/$$/fd/{high} -a ! -e /proc/$$/fd/{between} ]"
        assert ended(["/bin/sh", "-c", check], env=os.environ, fds=[low, high]) == 0
    finally:
        for fd in (low, high, between):
            os.close(fd)


def test_each_rank_has_the_variables_of_the_host_and_its_own(tmp_path, monkeypatch):
    """In the order of a dictionary that was updated: an own variable takes the place of the host's."""
    monkeypatch.setenv("FIRST", "host's")
    monkeypatch.setenv("SECOND", "host's")
    envs = {rank: {"FIRST": str(rank), "LAST": "x" * rank} for rank in range(5)} | {5: {"SECOND": "another's"}}
    gang = Supervisor.start(
        name="each",
        entrypoint="env",
        args=dict.fromkeys(envs, ("-0",)),
        envs={rank: dict(env) for rank, env in envs.items()},
        logs_specs=DefaultLogsSpecs(str(tmp_path), redirects=Std.OUT),
    )
    try:
        gang.ask(Start(), timeout=PATIENCE_S)
        result = gang.ask(Wait(timeout=PATIENCE_S))
    finally:
        gang.stop(timeout=PATIENCE_S)
    for rank, own in envs.items():
        words = Path(result.stdouts[rank]).read_text().split("\0")[:-1]
        expected = [f"{name}={value}" for name, value in {**os.environ, **own}.items()]
        assert [word for word in words if word in expected] == expected
        assert len({word.partition("=")[0] for word in words}) == len(words)
