"""Files that a user writes: env files, Procfiles and gang files share one reader."""

import json
from pathlib import Path

import pytest

from tests.cli.command import Command

PRINT = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k[0] == 'Z'}))"
SEPARATORS = "a\u2028b\u2029c\x85d\x0ce\x0bf\x1cg"
"""Characters at which `str.splitlines` ends a line, and no editor does."""


def variables(supervise: Command, content: bytes) -> dict[str, str]:
    (supervise.tmp_path / "given.env").write_bytes(content)
    done = supervise.run(
        "--env-file", "given.env", "-q", "--no-prefix", "python", "-c", PRINT, PYTHONIOENCODING="utf-8"
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"\xef\xbb\xbfZ=1\n", {"Z": "1"}),
        (b"Z=1\r\nZ2=two words \r\n\r\n# no\r\nZ3=3", {"Z": "1", "Z2": "two words", "Z3": "3"}),
        (f"Z={SEPARATORS}\nZ2=x".encode(), {"Z": SEPARATORS, "Z2": "x"}),
        (f"Z='{SEPARATORS}'\n".encode(), {"Z": SEPARATORS}),
        (
            b"Z=\"one\ntwo # kept\n\nthree\" # comment\nZ2='raw\\n\n$X'\n",
            {"Z": "one\ntwo # kept\n\nthree", "Z2": "raw\\n\n$X"},
        ),
        (rb'Z="a\nb\tc\"d\\e\$f\dg"', {"Z": 'a\nb\tc"d\\e$f\\dg'}),
        (b"Z.dotted.name=1\nZ-hyphen=2\nexport Z_x = 3\n", {"Z.dotted.name": "1", "Z-hyphen": "2", "Z_x": "3"}),
        (
            b"Z=\nZ1=''\nZ2= \nZ3=a#b\nZ4=a #b\nZ5=k=v\n",
            {"Z": "", "Z1": "", "Z2": "", "Z3": "a#b", "Z4": "a", "Z5": "k=v"},
        ),
        (b"Z=#a\nZ2=  #a\nZ3=\t#\nZ4= #a#b\n", {"Z": "#a", "Z2": "", "Z3": "", "Z4": ""}),
        (rb"Z='Let\'s go!' # c" + b"\n" + rb"Z2='a\\'", {"Z": "Let's go!", "Z2": "a\\\\"}),
        (b'Z=it\'s\nZ2=say "hi"\n', {"Z": "it's", "Z2": 'say "hi"'}),
        (b"Z: yaml\nZ2 : 'a:b' # c\nZ3:\nZ4=a:b\n", {"Z": "yaml", "Z2": "a:b", "Z3": "", "Z4": "a:b"}),
    ],
)
def test_an_env_file_is_read_as_docker_compose_reads_it(supervise: Command, content: bytes, wanted: dict[str, str]):
    """Each variable reaches the rank unchanged."""
    assert variables(supervise, content) == wanted


def test_a_name_alone_in_an_env_file_has_its_value_in_the_environment(supervise: Command):
    """As with docker compose; a name that is not set there keeps the value of an earlier line."""
    (supervise.tmp_path / "given.env").write_text("Z=file\nZ\nexport Z2 \nZ3=kept\nZ3\nZ4")
    words = ("--env-file", "given.env", "-q", "--no-prefix", "python", "-c", PRINT)
    done = supervise.run(*words, Z="outer", Z2="two words", PYTHONIOENCODING="utf-8")
    assert json.loads(done.stdout) == {"Z": "outer", "Z2": "two words", "Z3": "kept"}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("A=1\nB='open\nC=2\n", 'line 2: "B=\'open" is not NAME=VALUE (a quote is not closed'),
        ('A="x\ny"\nB C=1\n', "line 3: 'B C=1' is not NAME=VALUE"),
        ('A="x" y\n', "line 1: 'A=\"x\" y' is not NAME=VALUE"),
        ("A=a\0b", "line 1"),
        ("\n\nA\nA B\n", "line 4: 'A B' is not NAME=VALUE"),
    ],
)
def test_a_bad_line_of_an_env_file_is_named(supervise: Command, content: str, line: str):
    """Also behind a value of several lines."""
    (supervise.tmp_path / "bad.env").write_text(content)
    done = supervise.run("--env-file", "bad.env", "true")
    assert done.returncode == 2
    assert line in done.stderr


def test_a_procfile_of_another_editor(supervise: Command, tmp_path: Path):
    """It begins with a byte-order mark, and its lines end with CRLF; other separators are part of a command."""
    tmp_path.joinpath("Procfile").write_bytes(f"\ufeffweb: echo '{SEPARATORS}'\r\n# x\r\nworker: echo w\r\n".encode())
    done = supervise.run("-q", "--file", "Procfile", PYTHONIOENCODING="utf-8", LC_ALL="C.UTF-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split("\n")) == ["", f"[web0]:{SEPARATORS}", "[worker0]:w"]


def test_a_gang_file_of_another_editor(supervise: Command, tmp_path: Path):
    """As for a Procfile; a multi-line text of TOML has newlines."""
    text = "\ufeff[roles.a]\r\ncommand = ['sh', '-c', '''\r\necho one\r\necho two''']\r\nenv = { 'A.B' = '1' }\r\n"
    tmp_path.joinpath("gang.toml").write_bytes(text.encode())
    done = supervise.run("-q", "--no-prefix", "--file", "gang.toml")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "one\ntwo\n")


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("g.toml", "a = " + "[" * 100_000, "nested too deeply"),
        ("g.toml", "[" + "a." * 20_000 + "a]\n[roles.a]\ncommand = 'true'", "nested too deeply"),
        ("g.toml", "max_restarts = 0x" + "f" * 5000 + "\n[roles.a]\ncommand = 'true'\n", "4300 digits\n"),
        ("g.toml", "max_restarts = 1" + "0" * 5000 + "\n[roles.a]\ncommand = 'true'\n", "4300 digits\n"),
        ("g.toml", "max-restarts = 1\nmax_restarts = 2\n[roles.a]\ncommand = 'true'", "'max-restarts' is given twice"),
        (
            "g.toml",
            "[roles.a]\ncommand = 'true'\nrun_path = true\nrun-path = true",
            "roles.a: 'run-path' is given twice",
        ),
        ("g.toml", '[roles.a]\ncommand = "tr\\u0000ue"', "g.toml: a text in it holds a NUL character"),
        (
            "g.toml",
            '[roles.a]\ncommand = "true"\nenv-file = ["a\\u0000"]',
            "g.toml: a text in it holds a NUL character",
        ),
        ("g.toml", 'log-dir = "a\\u0000"\n[roles.a]\ncommand = "true"', "g.toml: a text in it holds a NUL character"),
        ("G.TOML", "[roles.a]\ncommand = 3", "G.TOML: roles.a: command is 3"),
        ("docker-compose.yml", "services: {}", "a gang file is TOML"),
        ("gang.YAML", "roles: {}", "a gang file is TOML"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(supervise: Command, tmp_path: Path, name: str, content: str, wanted: str):
    """With exit code 2, for `run` and for `check`."""
    (tmp_path / name).write_text(content)
    for done in (supervise.run("--file", name), supervise.supervise("check", name)):
        assert done.returncode == 2
        assert wanted in done.stderr
        assert "Traceback" not in done.stderr
        assert name in done.stderr
