"""Exceptions that Python ranks do not catch are recorded at their moment, and nothing else is different for them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import Command, environment
from tests.patience import PATIENCE_S

RAISES = """
import atexit, os, sys, threading
rank = int(os.environ["RANK"])
# An exit of its own that lasts until it is stopped, as that of a library which waits for its peers
SLOW = lambda: (sys.stderr.flush(), threading.Event().wait(1000))
"""
PROBE = """
import json, os, subprocess, sys, multiprocessing
def seen():
    main = sys.modules["__main__"]
    ours = ("RANK", "WORLD_", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "SUPERVISE_WORKER", "NOTIFY_")
    spec = main.__spec__
    return {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "caches": sorted(sys.path_importer_cache),
        "flags": repr(sys.flags), "warn": sys.warnoptions, "modules": sorted(sys.modules),
        "cmdline": open("/proc/self/cmdline").read(),
        "main": {k: repr(v) for k, v in vars(main).items() if isinstance(v, str) or v is None},
        "spec": spec and [spec.name, spec.origin, type(spec.loader).__name__], "loader": type(main.__loader__).__name__,
        "env": [[k, v] for k, v in os.environ.items() if not k.startswith(ours)],
        "hooks": [sys.excepthook is sys.__excepthook__, len(sys.meta_path), len(sys.path_hooks), repr(sys.displayhook)],
        "set": getattr(sys, "set_by_sitecustomize", None),
        "custom": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    }
def spawned(pipe):
    pipe.send(seen())
if __name__ == "__main__":
    found = {"here": seen()}
    if sys.argv[1:] != ["child"]:
        again = [sys.executable, "-W", "error", __file__, "child"]
        found["child"] = json.loads(subprocess.run(again, capture_output=True, check=True).stdout)
        context = multiprocessing.get_context("spawn")
        mine, yours = context.Pipe()
        process = context.Process(target=spawned, args=(yours,))
        process.start()
        found["spawned"] = mine.recv()
        process.join()
        for name in ("cmdline", "orig_argv"):  # numbers of descriptors
            del found["spawned"][name]
    print(json.dumps(found))
"""


def records(supervise: Command) -> dict[int, str]:
    """Return what was recorded, by rank: the text of the exception."""
    files = supervise.directory().glob("attempt_0/*/error.json")
    return {int(file.parent.name): json.loads(file.read_text())["message"]["message"] for file in files}


def screen_of(done: "subprocess.CompletedProcess[str]") -> list[str]:
    lines = done.stderr.splitlines()
    return lines[next(at for at, line in enumerate(lines) if re.match(r"supervise: rank \d of \d failed", line)) :]


@pytest.mark.parametrize("module", [False, True])
def test_o14_a_plain_script_that_raises_and_is_slow_to_exit_is_the_root_cause(supervise: Command, module: bool):
    """Its victim ends first. The screen and the exit code know nothing of the SIGTERM by which we ended the wait."""
    source = RAISES + (
        "if rank == 1:\n    atexit.register(SLOW)\n    raise ValueError('the 7th shard is empty')\n"
        "import time\nwhile not any(f.endswith('error.json') for _, _, fs in os.walk('.') for f in fs):\n"
        "    threading.Event().wait(0.01)\nos._exit(7)\n"
    )
    (supervise.tmp_path / "work.py").write_text(source)
    words = ["-m", "work"] if module else ["work.py"]
    done = supervise.run("-n", "3", "--log-dir", "runs", *words)
    screen = screen_of(done)
    assert done.returncode == 1
    assert screen[0].startswith("supervise: rank 1 of 3 failed: ValueError (host ")
    assert "  ValueError: the 7th shard is empty" in screen
    assert "SIGTERM" not in screen[0]
    assert any(line.endswith("failed too: exit code 7") for line in screen[3:])
    assert records(supervise) == {1: "ValueError: the 7th shard is empty"}


def test_o14_four_that_raise_together_have_all_failed_in_the_order_of_their_exceptions(supervise: Command):
    """None of them is called stopped by us, although we stopped those whose exit was slower."""
    source = RAISES + (
        "import pathlib\n"
        "turn = {2: 0, 0: 1, 3: 2, 1: 3}[rank]\n"
        "while len([f for f in os.listdir('.') if f.startswith('raised')]) < turn:\n    threading.Event().wait(0.005)\n"
        "def last():\n"
        "    pathlib.Path(f'raised{rank}').touch()\n"
        "    while len([f for f in os.listdir('.') if f.startswith('raised')]) < 4:\n"
        "        threading.Event().wait(0.005)\n"
        "    if rank != 3: SLOW()\n"
        "atexit.register(last)\n"
        "raise ValueError(rank)\n"
    )
    (supervise.tmp_path / "work.py").write_text(source)
    done = supervise.run("-n", "4", "work.py")
    screen = screen_of(done)
    assert done.returncode == 1
    assert screen[0].startswith("supervise: rank 2 of 4 failed: ValueError (host ")
    assert screen[-4:-1] == [
        "  rank 0: failed too: ValueError: 0",
        "  rank 3: failed too: exit code 1: ValueError: 3",
        "  rank 1: failed too: ValueError: 1",
    ]
    result = json.loads((supervise.directory() / "result.json").read_text())
    assert result["root_cause"] == 2
    assert list(result["failures"]) == ["2", "0", "3", "1"]


def test_o14_a_rank_that_is_stopped_while_it_records_has_told_file_line_and_function(supervise: Command):
    """Another rank fails while the rank that raised first imports what formats its traceback."""
    source = RAISES + (
        "class Slow:\n    def find_spec(self, name, path=None, target=None):\n"
        "        name == 'json' and threading.Event().wait(1000)\n"
        "def load(shard):\n    raise ValueError('the 7th shard is \u2603 empty')\n"
        "if rank == 0:\n    sys.meta_path.insert(0, Slow())\n    load(7)\n"
        "import time\nwhile not any(f == 'error.json' for _, _, fs in os.walk('.') for f in fs):\n"
        "    threading.Event().wait(0.01)\nos._exit(7)\n"
    )
    (supervise.tmp_path / "work.py").write_text(source, encoding="utf-8")
    done = supervise.run("-n", "2", "--log-dir", "runs", "work.py")
    screen = screen_of(done)
    assert screen[0].startswith("supervise: rank 0 of 2 failed: ValueError (host ")
    line = source[: source.index("    raise ValueError")].count("\n") + 1
    assert screen[2:6] == [
        "  Traceback (most recent call last):",
        f'    File "{supervise.tmp_path}/work.py", line {line + 3}, in <module>',
        f'    File "{supervise.tmp_path}/work.py", line {line}, in load',
        "  ValueError: the 7th shard is \u2603 empty",
    ]
    assert records(supervise) == {0: "ValueError: the 7th shard is \u2603 empty"}


@pytest.mark.parametrize("words", [("-m", "probe", "a b"), ("probe.py", "a b")])
@pytest.mark.parametrize("paths", [None, "", "/nowhere", ":/nowhere", "{}/custom", "{}/broken"])
def test_o14_nothing_of_a_rank_differs_from_a_bare_run(supervise: Command, words: tuple[str, ...], paths: str | None):
    """Nor of its children: arguments, path, modules, flags, environment, main module, a sitecustomize of the user's."""
    here = supervise.tmp_path
    for name, text in (("custom", "import sys\nsys.set_by_sitecustomize = 1\n"), ("broken", "1 / 0\n")):
        (here / name).mkdir()
        (here / name / "sitecustomize.py").write_text(text)
    (here / "probe.py").write_text(PROBE)
    env = environment(here, PYTHONUNBUFFERED="1")
    if paths is None:
        del env["PYTHONPATH"]  # the checkout itself is installed for the tests
    else:
        env["PYTHONPATH"] = paths.format(here)
    run = [
        sys.executable,
        "-c",
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from supervise.cli import main; main()",
    ]
    commands = ([sys.executable], [*run, str(Path(__file__).parents[2]), "run", "-q", "--no-prefix"])
    bare, ranked = (
        subprocess.run(
            [*command, *words],
            env=env,
            cwd=here,
            stdin=-3,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        for command in commands
    )
    assert json.loads(ranked.stdout) == json.loads(bare.stdout)
    assert ranked.stderr.endswith(bare.stderr)


NOT_OURS = {
    "shown and survived": "try: 1 / 0\nexcept Exception: sys.excepthook(*sys.exc_info())\nsys.exit(3)",
    "of a thread": "t = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()\nsys.exit(3)",
    "of a forked child": "pid = os.fork()\nif not pid: 1 / 0\nos.waitpid(pid, 0)\nsys.exit(3)",
    "of a forked child, below record": (
        "from supervise import record\n@record\ndef main():\n    pid = os.fork()\n    if not pid: 1 / 0\n"
        "    os.waitpid(pid, 0)\n    sys.exit(3)\nmain()"
    ),
    "of a child": "import subprocess\nsubprocess.run([sys.executable, '-c', '1 / 0'])\nsys.exit(3)",
    "an exit": "sys.exit('no')",
    "hidden by a hook": "sys.excepthook = lambda *a: print('mine')\n1 / 0",
}


@pytest.mark.parametrize("name", NOT_OURS)
def test_what_is_no_uncaught_exception_of_the_rank_is_not_recorded(supervise: Command, name: str):
    """A traceback that is only shown, a thread, a child, an exit; and a hook that calls no other is left alone."""
    (supervise.tmp_path / "work.py").write_text(f"import os, sys, threading\n{NOT_OURS[name]}\n")
    done = supervise.run("work.py")
    assert done.returncode == (1 if name in ("an exit", "hidden by a hook") else 3)
    assert not records(supervise)


def test_hooks_and_record_of_the_program_and_ours_record_once(supervise: Command):
    """A hook of the program's that goes on to Python's own, under either name; and `record`, whose file stays."""
    (supervise.tmp_path / "work.py").write_text(
        "import atexit, glob, os, sys, threading\nfrom supervise import record\n"
        "rank, before, path = os.environ['RANK'], sys.excepthook, os.environ['TORCHELASTIC_ERROR_FILE']\n"
        "def wait_for_all():\n"
        "    while len(glob.glob('runs/*/*/*/error.json')) < 4: threading.Event().wait(0.01)\n"
        "atexit.register(wait_for_all)\n"
        "if rank == '1': sys.excepthook = lambda *a: before(*a)\n"
        "if rank == '2': sys.excepthook = lambda *a: sys.__excepthook__(*a)\n"
        "def main(): raise ValueError(rank)\n"
        "if rank == '3': main = record(main)\n"
        "try: main()\n"
        "finally:\n"
        "    if rank == '3': os.link(path, path + '.first')\n"
    )
    done = supervise.run("-n", "4", "work.py")
    assert done.returncode == 1
    first, now = (supervise.directory() / f"attempt_0/3/error.json{end}" for end in (".first", ""))
    assert first.samefile(now)
    assert records(supervise) == {rank: f"ValueError: {rank}" for rank in range(4)}


def test_no_record_leaves_a_rank_alone(supervise: Command):
    """The option, and programs that are not Python's."""
    (supervise.tmp_path / "work.py").write_text("import sys, os\nprint(os.environ.get('PYTHONPATH'))\n1 / 0\n")
    done = supervise.run("--no-record", "work.py")
    assert done.returncode == 1
    assert not records(supervise)
    shown = supervise.supervise(
        "run", "--no-prefix", "--log-dir", "x", "--", "sh", "-c", "env | grep -c SUPERVISE_RECORD"
    )
    assert shown.stdout == "0\n"


def test_o14_a_rank_that_cannot_import_us_is_recorded(supervise: Command):
    """Its folder has a module of the same name."""
    folder = supervise.tmp_path / "scripts"
    folder.mkdir()
    (folder / "supervise.py").write_text("mine = True\n")
    (folder / "work.py").write_text(
        "import atexit, supervise, sys\nassert supervise.mine\n"
        "atexit.register(lambda: print(*sorted(name for name in sys.modules if name.startswith('supervise'))))\n"
        "raise ValueError(7)\n"
    )
    done = supervise.run("--no-prefix", "scripts/work.py")
    assert done.returncode == 1
    assert records(supervise) == {0: "ValueError: 7"}
    assert done.stdout == "supervise\n"


@pytest.mark.parametrize("name", ["collections", "contextlib", "enum", "functools", "types"])
def test_o14_a_module_of_the_user_beside_the_script_is_not_taken_for_one_of_python(supervise: Command, name: str):
    """Python imports these modules itself only where the command, not a script, starts."""
    folder = supervise.tmp_path / "scripts"
    folder.mkdir()
    (folder / f"{name}.py").write_text("print('of the user')\n")
    (folder / "work.py").write_text("raise ValueError(7)\n")
    done = supervise.run("--no-prefix", "scripts/work.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert records(supervise) == {0: "ValueError: 7"}


def test_o14_files_of_the_user_with_names_of_the_standard_library_cost_nothing(supervise: Command):
    """Neither the record nor the command imports them, and a module of the user stays in `sys.modules`."""
    for name in [
        "argparse",
        "ast",
        "json",
        "linecache",
        "logging",
        "random",
        "re",
        "struct",
        "tokenize",
        "traceback",
        "typing",
        "unicodedata",
    ]:
        (supervise.tmp_path / f"{name}.py").write_text(f"print('{name} of the user')\n")
    (supervise.tmp_path / "work.py").write_text(
        "import atexit, sys\nimport traceback\natexit.register(lambda: print(sys.modules['traceback'].__file__))\n"
        "def load():\n    raise ValueError('empty')\nload()\n"
    )
    done = supervise.run("--no-prefix", "work.py")
    assert (done.returncode, done.stdout) == (1, f"traceback of the user\n{supervise.tmp_path}/traceback.py\n")
    assert "of the user" not in done.stderr
    assert records(supervise) == {0: "ValueError: empty"}
    (record,) = supervise.directory().rglob("error.json")
    assert "load()\n" in json.loads(record.read_text())["message"]["extraInfo"]["py_callstack"]
