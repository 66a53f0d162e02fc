"""The documentation is true: its programs run, its lists are complete, its links lead somewhere."""

import argparse
import ast
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import supervise
from supervise import aio, messages, testing
from supervise.cli.options import groups
from tests.cli.command import ANNOUNCED
from tests.docs import make_reference
from tests.patience import PATIENCE_S, PATIENT_STACKS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
NAME_EVENTS = [ROOT / f"supervise/{name}.py" for name in ("_gang/describe", "_hosts/supervisor", "_tree/supervisor")]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXECUTED = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if {"python", "console"} & {kind for kind, _ in FENCE.findall(page.read_text())}
]
"""All pages with such blocks, except CONTRIBUTING.md, whose commands run these tests."""
NEEDS_MORE = {
    "migrate-from-torch-elastic.md": "tests/clients/test_migration.py",
    "migrate-from-torch-spawn.md": "tests/clients/test_migration.py",
    "run-elastic-agents.md": "tests/agent/test_guide.py",
    "run-on-ray.md": "tests/ray/program.py",
    "trainer.md": "tests/clients/test_migration.py",
}
"""Pages with a ``py`` block, a program that needs PyTorch or Ray, to the test that executes it."""
INHERITED = re.compile(r"^(RANK|WORLD_SIZE|LOCAL_|GROUP_|ROLE_|MASTER_|TORCHELASTIC_|OMP_|PYTHON|NO_COLOR)")
MARKS = re.compile(r"(\[default\d\]:)?[ ~^]*[~^]")
"""Newer Pythons mark more of a traceback's lines."""


def _named(pages: list[Path]) -> list[object]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


# Programs and commands


@pytest.mark.timeout(4 * PATIENCE_S)  # some pages have a dozen commands
@pytest.mark.parametrize("page", _named(EXECUTED))
def test_every_program_and_command_does_what_the_page_says(page: Path, tmp_path: Path):
    """Blocks run in order, in one empty directory: ``python`` as a program, ``console`` after each ``$``."""
    run = Shell(tmp_path)
    blocks = FENCE.findall(page.read_text())
    for (kind, text), (next_kind, next_text) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if text.startswith("# file: "):
            (tmp_path / text.split()[2]).write_text(text)
        elif kind == "python":
            (tmp_path / "block.py").write_text(text)
            expected = next_text if next_kind == "text" else ""
            _compare(expected.splitlines(), run("python block.py"), text)
            assert run.code == 0, text
        elif kind == "console":
            for command, shown in _commands(text):
                _compare(shown, run(command), command)


def test_every_command_that_the_pages_do_not_run_is_accepted():
    """Each `supervise run` of an ``sh`` block, up to its comment, by the parser."""
    blocks = [text for page in PAGES for kind, text in FENCE.findall(page.read_text()) if kind == "sh"]
    lines = [line.partition(" #")[0] for text in blocks for line in text.splitlines()]
    commands = [shlex.split(line)[2:] for line in lines if line.startswith("supervise run ")]
    assert len(commands) >= 5
    for words in commands:
        groups.run_parser().parse_args(words)


@pytest.mark.parametrize("page", _named(PAGES))
def test_a_wide_window_shows_each_line_of_code(page: Path):
    """At 1400 pixels the site has 98 columns for code; outputs may be wider."""
    shown = [line for kind, text in FENCE.findall(page.read_text()) if kind != "text" for line in text.splitlines()]
    assert [line for line in shown if len(line) > 98 and not _is_output(line, page)] == []


def _is_output(line: str, page: Path) -> bool:
    consoles = [text for kind, text in FENCE.findall(page.read_text()) if kind == "console"]
    return any(line in text.splitlines() for text in consoles) and not line.startswith("$ ")


def test_the_gang_files_of_the_reference_are_valid(tmp_path: Path):
    """With the programs that they name."""
    page = (ROOT / "docs/reference/gang-file.md").read_text()
    texts = [text for kind, text in FENCE.findall(page) if kind == "toml"]
    for name in ("store", "web", "worker", "train.py"):
        (tmp_path / name).touch(0o700)
    run = Shell(tmp_path)
    checked = []
    for text in texts:
        (tmp_path / "gang.toml").write_text(text)
        checked.append(run("supervise check gang.toml"))
        assert run.code == 0, checked[-1]
    assert checked[0][0] == "gang.toml: 2 roles, 5 ranks, one_for_one, max-restarts 3"
    assert checked[-1][-1] == "  they start in this order: 1. store; 2. web, worker"


def test_every_program_that_needs_pytorch_or_ray_has_a_test():
    """These programs are in ``py`` blocks; their tests run where PyTorch or Ray is installed."""
    pages = {page for page in PAGES if "py" in dict(FENCE.findall(page.read_text()))}
    assert {page.name for page in pages} == set(NEEDS_MORE)
    assert [name for name, test in NEEDS_MORE.items() if name not in (ROOT / test).read_text()] == []


@pytest.mark.parametrize("program", ["aio.py", "testing.py"])
def test_the_program_in_a_docstring_runs(program: str, tmp_path: Path):
    """With the imports and the function that its reader has."""
    (tmp_path / program).write_text(docstring_programs()[program])
    run = Shell(tmp_path)
    written = run(f"python {program}")
    assert run.code == 0, "\n".join(written)


def docstring_programs() -> dict[str, str]:
    """Return file name to a complete program, made of the block in the docstring of a module."""
    block = {module: textwrap.dedent(module.__doc__.partition("::\n")[2]) for module in (aio, testing)}
    inner = textwrap.indent(block[aio], "    ")
    return {
        "aio.py": "import asyncio\n\nfrom supervise import aio\n\n\ndef train() -> None:\n    pass\n\n\n"
        f"async def main() -> None:{inner}\n\nif __name__ == '__main__':\n    asyncio.run(main())\n",
        "testing.py": "from supervise import GangFinished, Start, Subscribe, Wait\n"
        f"from supervise.testing import FakeGang, Recorder\n{block[testing]}",
    }


class Shell:
    """Runs commands as a person would who has activated the environment; ``$?`` is that of the last one."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.code = 0
        programs = home / ".bin"
        programs.mkdir()
        for name, words in {"python": "-W error", "supervise": "-W error -m supervise"}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            (programs / name).chmod(0o700)
        plain = {key: value for key, value in os.environ.items() if not INHERITED.match(key)}
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        (home / ".patient").mkdir()
        (home / ".patient/sitecustomize.py").write_text(PATIENT_STACKS)
        paths = f"{home}/.patient{os.pathsep}{ROOT}"
        self._env = plain | {"PATH": path, "TMPDIR": str(home), "PYTHONPATH": paths, "TERM": "xterm"}
        self._env["SUPERVISE_RUNS_DIR"] = f"{home}/.local/state/supervise/runs"

    def __call__(self, command: str) -> list[str]:
        done = subprocess.run(
            ["sh", "-c", f"(exit {self.code})\n{command}"],
            cwd=self._home,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=3 * PATIENCE_S,
            check=False,
        )
        self.code = done.returncode
        return ANNOUNCED.sub("", done.stdout).replace(f"{self._home}/", "/home/you/").splitlines()


def _commands(text: str) -> Iterator[tuple[str, list[str]]]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield command, shown


def _compare(shown: list[str], written: list[str], what: str) -> None:
    """Compare in any order, since ranks write when they will; ``...`` is anything, and numbers may differ."""
    rest = [line.rstrip() for line in written]
    for line in shown:
        if line == "...":
            continue
        pattern = re.compile(_pattern(line.rstrip()))
        found = next((have for have in rest if have == line), None) or next(filter(pattern.fullmatch, rest), None)
        assert found is not None, f"{what}\nwrote\n" + "\n".join(written) + f"\nwhich lacks\n{line}"
        rest.remove(found)
    rest = [line for line in rest if not MARKS.fullmatch(line) and line != "samples.jsonl"]  # of a run of a second
    assert not rest or "..." in shown, f"{what}\nalso wrote\n" + "\n".join(rest)


def _pattern(line: str) -> str:
    pattern = re.escape(line).replace(r"\.\.\.", ".*")
    pattern = re.sub(r"host\\ \w+,", r"host\\ \\S+,", pattern)  # a name and a pid that vary
    pattern = re.sub(r"(pid\\ )\d+", r"\1\\d+", pattern)
    pattern = re.sub(r"(after\\ )\d+(\\ ms)", r"\1[\\d.]+\\ m?s", pattern)
    pattern = re.sub(r"(no\\ \w+\\ for\\ )[\d.\\]+(\\ s)", r"\1[\\d.]+\2", pattern)
    return re.sub(r"(logs/first_)\w+", r"\1\\w+", pattern).replace(r"logs:\ ", r"logs:\ (?:/home/you/)?")


def test_the_captures_in_the_readme_are_what_the_program_shows():
    """Same lines as a run on a terminal now, whatever the pids, times and directories."""
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "docs/capture.py", "--check"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_and_continuous_integration_run_the_same_tests():
    """What a newcomer is told to type is what every change has passed."""
    assert "python -m pytest\n" in (ROOT / "README.md").read_text()
    assert re.search(r"&& python -m pytest\)", (ROOT / ".ci/run").read_text())


# Lists


def test_the_reference_lists_every_event_with_its_levels_and_fields():
    """Neither more nor less than what the modules that name events can emit."""
    listed = {
        row[0]: (row[1], row[2]) for row in _rows(ROOT / "docs/reference/events.md") if row[0].startswith("supervise.")
    }
    of_gangs, of_hosts, of_trees = map(_emitted, NAME_EVENTS)
    of_hosts = {name: found for name, found in of_hosts.items() if name.startswith("supervise.host.")}
    assert listed == of_gangs | of_hosts | of_trees


def test_events_are_named_in_one_place_for_gangs_and_one_for_trees():
    """So the list above is a list of all."""
    said = re.compile(r"\bEvent\(\"supervise\.")
    modules = [path for path in (ROOT / "supervise").rglob("*.py") if said.search(path.read_text())]
    assert sorted(modules) == NAME_EVENTS


def _rows(page: Path) -> Iterator[list[str]]:
    for line in page.read_text().splitlines():
        if line.startswith("| `"):
            yield [", ".join(sorted(re.findall(r"[\w.]+", cell))) for cell in line.strip("| ").split("|")]


def _emitted(module: Path) -> dict[str, tuple[str, str]]:
    """Event to ``(levels, fields)``, from each ``Event(name, level, fields)`` and ``_rank(name, level, ...)``."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    functions = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.FunctionDef)]
    returned = {one.name: one.body[-1].value for one in functions if isinstance(one.body[-1], ast.Return)}
    for function in functions:
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call) and node.args):
            name = call.args[0]
            if not isinstance(name, ast.Constant) or not re.match(r"supervise\.[a-z]", str(name.value)):
                continue
            of_rank = isinstance(call.func, ast.Attribute) and call.func.attr == "_rank"
            levels, fields = found.setdefault(name.value, (set(), set()))
            levels |= _levels(call.args[1])
            fields |= {"rank", "local_rank"} if of_rank else _keys(call.args[2], call, function, returned)
            for keyword in call.keywords:
                fields |= {keyword.arg} if keyword.arg else _keys(keyword.value, call, function, returned)
    return {name: (", ".join(sorted(levels)), ", ".join(sorted(words))) for name, (levels, words) in found.items()}


def _levels(node: ast.expr) -> set[str]:
    """Return the levels that an expression can have; `_failed_level` has two."""
    either = any(isinstance(part, ast.Attribute) and part.attr == "_failed_level" for part in ast.walk(node))
    if isinstance(node, ast.IfExp):
        return _levels(node.body) | _levels(node.orelse)
    return {"info", "error"} if either else {node.value}


def _keys(node: ast.expr, call: ast.Call, function: ast.FunctionDef, returned: dict[str, ast.expr]) -> set[str]:
    """Return the keys of a dictionary: a literal, a name that was last assigned one, or what a function returns."""
    if isinstance(node, ast.Name):
        assigned = [one for one in ast.walk(function) if isinstance(one, ast.Assign) and one.lineno < call.lineno]
        values = [one.value for one in assigned if getattr(one.targets[0], "id", None) == node.id]
        return _keys(max(values, key=lambda value: value.lineno), call, function, returned)
    if isinstance(node, ast.Call):
        return _keys(returned[node.func.id], call, function, returned)
    keys = {key.value for key in node.keys if key is not None}
    spread = (value for key, value in zip(node.keys, node.values, strict=True) if key is None)
    return keys.union(*(_keys(value, call, function, returned) for value in spread))


def test_the_reference_names_everything_public():
    """Every name that can be imported, and every field of every message."""
    reference = "".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
    words = set(re.findall(r"\w+", reference))
    assert not sorted(set(supervise.__all__) - words)
    public = [getattr(supervise, name) for name in supervise.__all__]
    names = {field.name for one in public if isinstance(one, type) and is_dataclass(one) for field in fields(one)} | {
        field.name for one in (messages.GangStatus, messages.WorkerExited) for field in fields(one)
    }
    assert not sorted(names - words)


def test_the_reference_names_every_option_of_run():
    """As the parser has them, with the spelling that the help shows."""
    page = (ROOT / "docs/reference/command-line.md").read_text()
    actions = groups.run_parser()._actions
    shown = [word for one in actions if one.help is not argparse.SUPPRESS for word in one.option_strings]
    assert shown
    assert [word for word in shown if f"`{word}" not in page] == []


def test_the_tables_of_settings_are_those_of_the_program():
    """After a change of the table of settings: ``python -m tests.docs.make_reference``."""
    names = [name for _, text, _ in make_reference.pages() for name, _ in make_reference.BLOCK.findall(text)]
    assert sorted(names) == sorted(make_reference.blocks())
    assert [page for page, text, made in make_reference.pages() if text != made] == []


FOREIGN = {
    "cannot start rank ...: ...: No such file or directory",
    "cannot start rank ...: ...: Permission denied",
    "Too many open files",
    "missing 1 required positional argument: 'rank'",
    "Address already in use",
    "EOFError: EOF when reading a line",
    "breakpoint()",
}
"""Texts of Python and of the kernel."""


def test_the_texts_of_troubleshooting_are_those_of_the_program():
    """Each part of them between two ``...`` is in the source."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    cells = re.findall(r"^\| (`.*?) \|", page.partition("## Exit codes")[0], re.MULTILINE)
    told = {text for cell in cells for text in re.findall(r"`([^`]+ [^`]+)`", cell)} - FOREIGN
    modules = "".join(path.read_text() for path in (ROOT / "supervise").rglob("*.py"))
    source = re.sub(r"\{[^{}]*\}", "...", re.sub(r'"\s*\n\s*f?"', "", modules))
    parts = {part.strip(" ;:") for text in told for part in text.split("...")} - {""}
    assert len(parts) > 20
    assert sorted(part for part in parts if part not in source) == []


# Links, and what must not be in any text


@pytest.mark.parametrize("page", _named(PAGES))
def test_every_link_leads_to_a_file_and_a_heading(page: Path):
    """Links into the project, with their anchors."""
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            assert anchor in _anchors(there), target


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_architecture_names_files_that_exist():
    """Each file between backquotes, below the package or the project."""
    named = re.findall(r"`([\w/]+/|[\w/]+\.(?:py|md))`", (ROOT / "docs/explanation/architecture.md").read_text())
    assert len(named) > 40
    assert [path for path in named if not ((ROOT / "supervise" / path).exists() or (ROOT / path).exists())] == []


def test_every_page_of_the_docs_can_be_reached_from_the_readme():
    """Nobody has to guess a file name."""
    seen, unread = set(), [ROOT / "README.md"]
    while unread:
        page = unread.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            links = re.findall(r"\]\(([^)#\s:]+)", page.read_text())
            unread += [(page.parent / link).resolve() for link in links]
    pages = {page for page in (ROOT / "docs").rglob("*.md") if not page.read_text().startswith("<!-- file: ")}
    assert pages <= seen  # the others stand on the site for files that the README itself links


def test_no_text_holds_a_path_of_a_machine_or_the_host_of_a_registry():
    """Nobody else has them."""
    homes = [r"/(?:root|opt|mnt|srv)/\w", r"/(?:home|Users)/(?!you\b)\w", r"/wo" + r"rk/\w"]
    hosts = [r"py" + r"pi\.\w", r"python" + r"hosted", r"/simp" + r"le/", r"index-" + r"url", r"artifac" + r"tory"]
    forbidden = re.compile("|".join([*homes, *hosts]))
    kinds = {".py", ".md", ".toml", ".txt", ".cfg", ".yml", ".yaml", ".sh"}
    texts = [path for path in ROOT.iterdir() if path.suffix in kinds]
    for folder in ("supervise", "docs", "tests", "examples", ".ci"):
        texts += [path for path in (ROOT / folder).rglob("*") if path.suffix in kinds or path.parent.name == ".ci"]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if forbidden.search(line)
    ]
    assert not found, "\n".join(found)
