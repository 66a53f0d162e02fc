"""Every block of the pages is executed as printed, or has a check of its own, or a reason why it does not run."""

import importlib.util
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import supervise
from supervise.cli.options import groups
from tests.docs.test_docs import EXECUTED, NEEDS_MORE, ROOT, Shell
from tests.patience import PATIENCE_S

BLOCK = re.compile(r"^(`{3,}|~{3,})([^\n]*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    kind: str
    text: str
    before: str
    """The kind of the block before it on the page."""

    @property
    def key(self) -> tuple[str, str]:
        """Page and the first words of the block."""
        return self.page, self.text.splitlines()[0].strip()[:38].strip()


def _blocks(page: Path) -> Iterator[Block]:
    before = ""
    for _, kind, text in BLOCK.findall(page.read_text()):
        yield Block(str(page.relative_to(ROOT)), kind, text, before)
        before = kind


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [block for page in PAGES for block in _blocks(page)]

CHECKED = {
    ("README.md", "$ supervise run -n 4 examples/wordcoun"): "docs/test_docs.py: test_the_captures_in_the_readme",
    ("README.md", "python3 -m venv .venv && . .venv/bin/a"): "docs/test_blocks.py: test_the_installation_of_the_readme",
    ("README.md", "pip install -U pip && pip install -e ."): "docs/test_docs.py: test_the_readme_and_continuous_integ",
    ("docs/tutorial.md", "python3 -m venv .venv && . .venv/bin/a"): "docs/test_blocks.py: test_the_installation_of_the",
    ("docs/explanation/architecture.md", "user code            command line"): "docs/test_blocks.py: test_the_drawing",
    (
        "docs/explanation/logs.md",
        "supervise: stdout: No space left on de",
    ): "docs/test_blocks.py: test_the_messages_on_the",
    (
        "docs/explanation/reliability.md",
        "python -m pytest -k test_s4_",
    ): "docs/test_blocks.py: test_the_command_of_a_row",
    ("docs/how-to/debug-ranks.md", "{"): "docs/test_blocks.py: test_the_configuration_of_vs_code",
    (
        "docs/how-to/detect-hangs.md",
        "hung: no heartbeat for 30.0 s (step 7)",
    ): "docs/test_blocks.py: test_the_messages_on",
    (
        "docs/how-to/roll-a-restart.md",
        "supervise reload gang            # all",
    ): "docs/test_blocks.py: test_the_commands_for",
    ("docs/how-to/run-elastic-agents.md", "rank 0 did 10 steps"): "agent/test_guide.py: test_the_program_of_the_guide",
    ("docs/how-to/supervise-services.md", "[roles.migrate]"): "docs/test_blocks.py: test_the_gang_files",
    ("docs/how-to/supervise-services.md", "[roles.web]"): "docs/test_blocks.py: test_the_gang_files",
    (
        "docs/reference/command-line.md",
        "supervise run [OPTIONS] [--] PROGRAM [",
    ): "docs/test_blocks.py: test_the_synopsis",
    (
        "docs/reference/control-socket.md",
        'echo \'{"version": 1, "request": "statu',
    ): "docs/test_blocks.py: test_the_request",
    ("docs/reference/errors.md", "Exception"): "docs/test_blocks.py: test_the_tree_of_errors",
    (
        "docs/reference/gang-file.md",
        'strategy = "one_for_one"          # an',
    ): "docs/test_docs.py: test_the_gang_files_of",
    ("docs/reference/gang-file.md", "[roles.store]"): "docs/test_docs.py: test_the_gang_files_of",
    (
        "docs/reference/run-directory.md",
        "DIR/<run ID>_<random>/",
    ): "docs/test_blocks.py: test_the_files_of_a_run_directory",
    (
        "docs/reference/run-directory.md",
        '{"message": {"message": "ValueError: b',
    ): "docs/test_blocks.py: test_the_error_file",
    ("docs/start/operator.md", "# file: Dockerfile"): "docs/test_operators.py: test_the_command_of_the_container",
    ("docs/start/operator.md", "# file: job.yaml"): "docs/test_operators.py: test_the_job_of_kubernetes",
    ("docs/start/operator.md", "#!/bin/sh"): "docs/test_operators.py: test_a_shell_accepts_the_script_for_slurm",
    ("docs/start/operator.md", "# file: train.service"): "docs/test_operators.py: test_systemd_accepts_the_unit",
    (
        "docs/start/operator.md",
        "systemd-analyze verify train.service",
    ): "docs/test_operators.py: test_systemd_accepts_the_unit",
    (
        "docs/start/service.md",
        "supervise status gang           # the",
    ): "docs/test_blocks.py: test_the_commands_for_a_running",
    (
        "docs/start/trainer.md",
        "supervise run -n 2 sum.py    # each of",
    ): "clients/test_migration.py: test_the_program_for_torch",
}
"""Block to the beginning of the name of the test that executes or checks it, with its file."""

NOT_RUN = {
    ("docs/explanation/performance-details.md", "python3.11 -m tests.benchmarks --torch"): (
        "the benchmarks need an idle machine and hours; their parsers accept the options"
    ),
    ("docs/how-to/run-elastic-agents.md", "torchrun --nnodes 4 --nproc-per-node 8"): (
        "needs four hosts with eight GPUs; tests/agent runs the agent on one, with the same options"
    ),
    ("docs/how-to/run-elastic-agents.md", "python -m supervise.agent --nnodes 1:2"): (
        "needs two hosts; tests/agent runs two agents on one, with the same options"
    ),
    ("docs/how-to/run-on-ray.md", "pip install 'supervise-gang[ray]'"): "needs two hosts; tests/ray makes the cluster",
    (
        "docs/how-to/run-on-ray.md",
        "supervise run --engine ray --nnodes 4",
    ): "needs a Ray cluster; the parser accepts it",
    ("docs/how-to/use-notebooks.md", "pip install 'supervise-gang[pickle]'"): "needs the published distribution",
    ("docs/how-to/use-notebooks.md", "In [1]: import os, supervise"): (
        "is a picture of a notebook; tests/notebook runs such a cell in a kernel, and compares what it shows"
    ),
}
"""Block to the reason why no test executes it."""


RULES = {
    "runs the tests and tools themselves": lambda block: block.page == "CONTRIBUTING.md",
    "is a directive, which the build of the site executes": lambda block: block.kind.startswith("{"),
    "test_docs.py executes it": lambda block: block.kind in {"python", "console"} and ROOT / block.page in EXECUTED,
    "test_docs.py knows the test for it": lambda block: block.kind == "py" and Path(block.page).name in NEEDS_MORE,
    "is compared with the output of the program above it": lambda block: (
        block.kind == "text" and block.before == "python" and block.key not in CHECKED
    ),
    "is compared by a test of migrations": lambda block: block.kind == "text" and Path(block.page).name in MIGRATIONS,
    "test_docs.py writes it for the commands below it": lambda block: block.text.startswith("# file: gang.toml"),
    "runs here": lambda block: block in RUNNABLE,
}
"""What executes a block, to whether it does. All other blocks have an entry in one of the lists."""
MIGRATIONS = {"migrate-from-torch-elastic.md", "migrate-from-torch-spawn.md"}
RUNNABLE = [
    block
    for block in BLOCKS
    if block.kind == "sh"
    and re.search(r"supervise run.* train\.py", block.text)
    and block.key not in {*CHECKED, *NOT_RUN}
]
"""Blocks that run with any program."""


def _how(block: Block) -> str | None:
    """Return the rule that holds for a block; None if it needs an entry in one of the lists."""
    return next((rule for rule, holds in RULES.items() if holds(block)), None)


def test_each_block_is_executed_or_checked_or_has_a_reason():
    """No block is in two lists, and no list names a block that is not on a page."""
    without_rule = [block.key for block in BLOCKS if _how(block) is None]
    assert max(Counter(without_rule).values()) <= 2  # the two gang files of the reference begin alike
    assert not CHECKED.keys() & NOT_RUN
    assert sorted({*without_rule} ^ {*CHECKED, *NOT_RUN}) == []
    assert len(BLOCKS) > 180
    print(*(f"{page}: {first}: {why}" for (page, first), why in NOT_RUN.items()), sep="\n")


def test_the_named_tests_exist():
    """Each with its file."""
    for test in CHECKED.values():
        file, _, name = test.partition(": ")
        assert f"def {name}" in (ROOT / "tests" / file).read_text(), test


def _block(page: str, first: str) -> str:
    (found,) = (one.text for one in BLOCKS if one.page == f"docs/{page}" and one.text.strip().startswith(first))
    return found


# Commands


@pytest.mark.parametrize("block", [pytest.param(block, id=block.page) for block in RUNNABLE])
def test_a_command_with_a_program_of_the_reader_runs(block: Block, tmp_path: Path):
    """With a program that prints its rank and ends."""
    (tmp_path / "train.py").write_text("import os\nprint('rank', os.environ['RANK'], 'ran')\n")
    run = Shell(tmp_path)
    written = run(f"set -e\n{block.text}")
    ranks = int(re.search(r"-n (\d)", block.text)[1]) * int((re.search(r"--nnodes (\d)", block.text) or [0, 1])[1])
    assert (run.code, sum(line.endswith(" ran") for line in written)) == (0, ranks), written


SERVER = """
import os, signal, supervise
signal.signal(signal.SIGHUP, lambda *_: None)
print("serves", flush=True)
supervise.notify(ready=True)
if os.environ["ROLE_NAME"] == "worker" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    open("started", "w").close()
signal.sigwait([signal.SIGTERM])
"""
SERVERS = """
strategy = "one_for_one"
ready = "notify"
reload-signal = "HUP"
[roles.web]
command = "serve.py"
count = 3
[roles.worker]
command = "serve.py"
"""


@pytest.mark.parametrize(
    ("page", "first"), [("start/service.md", "supervise status"), ("how-to/roll-a-restart.md", "")]
)
def test_the_commands_for_a_running_gang_work(page: str, first: str, tmp_path: Path):
    """Each line of the block, beside a run whose roles are those of the commands."""
    (tmp_path / "serve.py").write_text(SERVER)
    (tmp_path / "gang.toml").write_text(SERVERS)
    lines = [line.partition(" #")[0].strip() for line in _block(page, first or "supervise reload").splitlines()]
    assert len(lines) >= 2
    stops = lines[-1] == "supervise stop gang"
    run = Shell(tmp_path)
    written = run(
        "\n".join(
            [
                "set -e; mkfifo started",
                "supervise run --run-id gang --file gang.toml >run.txt 2>&1 &",
                "read none <started || true  # until the last rank is ready",
                *(f"echo '$ {line}'; {line}{' >followed.txt &' if ' -f ' in line else ''}" for line in lines),
                *([] if stops else ["supervise stop gang"]),
                "wait",
            ]
        )
    )
    assert run.code == 0, written
    if "supervise logs -f gang" in lines:
        assert (tmp_path / "followed.txt").read_text().count("serves") == 5  # four ranks, one of which restarted
    else:
        assert [line for line in written if "reloaded" in line or "restarted" in line], written


def test_the_request_to_a_control_socket_is_answered(tmp_path: Path):
    """By the printed pipe; where `nc` is not installed, a program in its place sends its stdin and prints the reply."""
    run = Shell(tmp_path)
    if not shutil.which("nc"):
        (tmp_path / ".bin/nc").write_text(f"#!{sys.executable}\n{NETCAT}")
        (tmp_path / ".bin/nc").chmod(0o700)
    command = _block("reference/control-socket.md", "echo")
    written = run(
        "mkfifo started; supervise run -q --log-dir runs sh -c 'echo >started; exec sleep 600' &\n"
        f"read none <started; cd runs/*/; {command}\nkill $!; wait $!"
    )
    reply = json.loads(next(line for line in written if line.startswith("{")))
    assert reply["ok"] is True, written


NETCAT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as client:
    assert sys.argv[1] == "-U"
    client.connect(sys.argv[2])
    client.sendall(sys.stdin.buffer.read())
    client.shutdown(socket.SHUT_WR)
    while text := client.recv(4096):
        sys.stdout.buffer.write(text)
"""


def test_the_gang_files_of_the_guide_are_valid(tmp_path: Path):
    """With programs of the named commands."""
    run = Shell(tmp_path)
    for name in ("gunicorn", "python"):
        (tmp_path / ".bin" / name).touch(0o700)
    texts = [one.text for one in BLOCKS if one.page == "docs/how-to/supervise-services.md" and one.kind == "toml"]
    assert len(texts) == 2
    for text in texts:
        (tmp_path / "gang.toml").write_text(text)
        written = run("supervise check gang.toml")
        assert run.code == 0, written


def test_the_command_of_a_row_of_reliability_selects_its_tests():
    """And a row has tests in several files."""
    words = shlex.split(_block("explanation/reliability.md", "python -m pytest"))
    done = _python(
        *words[1:], "--collect-only", "-q", "-n", "0", "-p", "no:randomly", "tests/processes/test_containment.py"
    )
    assert re.search(r"^tests/\S+::test_s4_", done, re.MULTILINE), done
    assert not re.search(r"::test_(?!s4_)", done)


def test_the_options_of_the_benchmarks_are_those_of_their_parsers():
    """Every option of the commands on the page for their repetition."""
    for line in _block("explanation/performance-details.md", "python3.11").splitlines():
        words = shlex.split(line)
        shown = _python("-m", words[2], "--help")
        assert [word for word in words[3:] if word.startswith("--") and word not in shown] == [], line


def test_contributing_names_modules_and_tests_that_exist():
    """Its commands run the tests and tools, so no test runs them."""
    texts = [block.text for block in BLOCKS if block.page == "CONTRIBUTING.md" and block.kind == "console"]
    named = re.findall(r"python -m (tests[.\w]*)", "".join(texts))
    assert len(named) > 8
    assert [name for name in named if importlib.util.find_spec(name) is None] == []
    paths = re.findall(r"(?<![\w./])(tests/[\w/.]+|\.ci/run)", "".join(texts))
    assert len(paths) > 4
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_extras_that_the_pages_install_exist():
    """``pip install 'supervise-gang[NAME]'`` of any page."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {name for page in PAGES for name in re.findall(r"supervise-gang\[(\w+)\]", page.read_text())}
    assert {"pickle", "ray"} <= named <= project["optional-dependencies"].keys()


def _python(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.stress
@pytest.mark.timeout(10 * PATIENCE_S)  # pip builds the package and installs what it needs
def test_the_installation_of_the_readme_works(tmp_path: Path):
    """In a copy of the checkout, as printed; the tutorial has the same commands."""
    readme = next(one.text for one in BLOCKS if one.page == "README.md" and one.text.startswith("python3 -m venv"))
    tutorial = _block("tutorial.md", "python3 -m venv")
    first, second, command = readme.splitlines()
    assert tutorial.strip() == f"{first} && {second}"
    kept = shutil.ignore_patterns(".*", "_build", "__pycache__", "tests")
    shutil.copytree(ROOT, tmp_path / "copy", ignore=kept)
    python = tmp_path / "python3"
    python.symlink_to(sys.executable)
    done = subprocess.run(
        ["sh", "-c", f"{first} && {second} && {command}"],
        cwd=tmp_path / "copy",
        env={"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin", "PIP_NO_INPUT": "1"} | _pip_settings(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=9 * PATIENCE_S,
        check=False,
    )
    if "Could not find a version" in done.stderr or "NewConnectionError" in done.stderr:
        pytest.skip("pip reaches no package index")
    assert done.returncode == 1, done.stderr
    assert "RuntimeError: rank 2 was told to fail at byte 0 of strings.txt" in done.stderr


def _pip_settings() -> dict[str, str]:
    return {
        key: value for key, value in os.environ.items() if key.startswith("PIP_") or key.endswith(("_proxy", "_CERT"))
    }


# Pictures, messages, formats


def test_the_synopsis_of_the_reference_is_that_of_the_parsers():
    """Commands, options and positional arguments, without those that each command has: `-h`, `--rank`."""
    shown = _block("reference/command-line.md", "supervise run").splitlines()
    synopsis: dict[str, str] = {}
    for line in shown:
        synopsis.setdefault(line.split()[1], "")
        synopsis[line.split()[1]] += line
    for name, text in synopsis.items():
        if name.startswith("-"):
            continue
        usage = _python("-m", "supervise", name, "--help").partition("\n\n")[0]
        words = set(re.findall(r"--?[\w-]+|[A-Z]{2,}", usage)) - {"-h", "--help", "--rank", "R"}
        assert words == set(re.findall(r"(?<!\w)--?[\w-]+|[A-Z]{2,}", text)), name
    listed = re.findall(r"^  ([a-z]+)  ", _python("-m", "supervise", "--help"), re.MULTILINE)
    assert synopsis.keys() - {"--version", "--help"} == {*listed}


def test_the_tree_of_errors_is_that_of_the_classes():
    """Each class below the one that the drawing shows above it."""
    depth: dict[int, str] = {0: "Exception"}
    drawn = _block("reference/errors.md", "Exception").splitlines()[1:]
    for line in drawn:
        bars, name = re.match(r"([│ ]*[├└]── )(\w+)", line).groups()
        level = len(bars) // 4
        depth[level] = name
        above = getattr(supervise, depth[level - 1], Exception)
        assert above in getattr(supervise, name).__mro__, line
    public = {name for name, one in inspect.getmembers(supervise, inspect.isclass) if issubclass(one, Exception)}
    assert public == {re.search(r"\w+", line)[0] for line in drawn}


def test_the_drawing_of_the_architecture_names_what_exists():
    """Folders, and the modules of the vocabulary."""
    drawing = _block("explanation/architecture.md", "user code")
    folders = re.findall(r"\b_?[a-z]+/", drawing)
    assert len(folders) > 9
    assert [name for name in folders if not (ROOT / "supervise" / name).is_dir()] == []
    words = re.findall(r"[a-z]+(?=  )", drawing.partition("vocabulary")[2])
    assert len(words) > 8
    assert [name for name in words if importlib.util.find_spec(f"supervise.{name}") is None] == []


def _source() -> str:
    """Return the texts of the package, with ``...`` in place of each value."""
    modules = "".join(path.read_text() for path in (ROOT / "supervise").rglob("*.py"))
    return re.sub(r"\{[^{}]*\}", "...", re.sub(r'"\s*\n\s*f?"', "", modules))


def test_the_messages_on_the_pages_are_those_of_the_program():
    """The message for a full disk, and what a watchdog says; their values are those of an example."""
    source = _source()
    disk = _block("explanation/logs.md", "supervise: stdout:").partition("; ")[2].partition(":")[0]
    assert disk in source
    hangs = _block("how-to/detect-hangs.md", "hung:").splitlines()
    said = {re.sub(r"[\d.]+ s\b", "...", part) for line in hangs for part in re.split("; |: ", line)[1:]}
    constant = {part for part in said if not re.search(r"\d|\.\.\.|, outside", part)}
    different = "all wait in a collective, but not in the same call"
    assert constant == {"by its stack", "silent longest", "the stacks are alike", different}
    parts = [*constant, ", outside of the collective", " s ago with code ", " returned before", "these ranks wait"]
    assert [part for part in parts if part not in source] == []


def test_the_error_file_of_the_reference_is_what_a_rank_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Same keys, same types."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    supervise.ErrorHandler().record_exception(ValueError("boom"))
    page = json.loads(_block("reference/run-directory.md", '{"message"'))
    written = json.loads((tmp_path / "error.json").read_text())
    assert _types(page) == _types(written)
    assert page["message"]["message"] == written["message"]["message"]


def _types(value: object) -> object:
    return {key: _types(one) for key, one in value.items()} if isinstance(value, dict) else type(value)


def test_the_files_of_a_run_directory_are_those_that_are_written(tmp_path: Path):
    """By a run, its report, and a failed rank. The others need a hang, a run that goes on, or one of some seconds."""
    (tmp_path / "train.py").write_text("print('apple')\nraise ValueError\n")
    run = Shell(tmp_path)
    run("supervise run -n 2 --log-dir runs --duplicate-stdout-filters apple --duplicate-stderr-filters apple train.py")
    run("supervise report runs/*")
    (folder,) = (tmp_path / "runs").iterdir()
    written = {re.sub(r"\d+", "<n>", path.name) for path in folder.rglob("*")}
    listed = {line.split()[0].strip("/") for line in _block("reference/run-directory.md", "DIR").splitlines()[1:]}
    others = {"stacks-<n>.txt", "control.sock", "samples.jsonl"}
    assert listed - others - {"<local"} == written - others - {"<n>"}
    assert [name for name in others if re.sub("<n>.*", "", name) not in _source()] == []


def test_the_configuration_of_vs_code_starts_supervise():
    """It is JSON, and its arguments are those of a run; tests/debuggers has a debugger attach to the ranks."""
    found = json.loads(_block("how-to/debug-ranks.md", "{"))
    assert (found["module"], found["subProcess"], found["args"][0]) == ("supervise", True, "run")
    assert groups.run_parser().parse_args(found["args"][1:]).nproc_per_node == 2
