"""The public names, what an import costs, and which part of the house may know which."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

import supervise
from supervise import aio
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.timeout(4 * PATIENCE_S)  # each module is imported by an interpreter of its own
PACKAGE = Path(supervise.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

WORDS = {
    "_blame",
    "_files",
    "_lazy",
    "_record",
    "_platform",
    "_printable",
    "_probes",
    "_second_signal",
    "_settings",
    "messages",
    "notifying",
    "logs",
    "destinations",
    "errors",
    "restarts",
    "result",
    "roles",
    "watchdog",
    "stacks",
    "recording",
    "events",
    "trees",
}
WAKEUP = {"_runtime.descriptors", "_runtime.fork_hooks", "_runtime.wakeup"}
"""What the rooms below the runtime use, too. It knows words only."""
STORY = {
    "_story.failure_report",
    "_story.small_timeline",
    "_story.wording",
}
"""The text of `GangFailed` and the picture of a result: they know a gang by its result and its files."""
MAY_IMPORT = {
    "words": {"words", "story", "supervise"},  # the package itself, whose names are loaded at their first use
    "story": {"words", "story"},
    "wakeup": {"words", "wakeup"},
    "_runtime": {"words", "wakeup", "_runtime"},
    "_process": {"words", "wakeup", "_process"},
    "_logs": {"words", "story", "wakeup", "_logs"},  # it knows nothing of processes, as _process knows nothing of logs
    "_core": {"words", "_core"},
    "_views": {"words", "story", "wakeup", "_process", "_logs", "_views"},  # a run is known by its files
    "_control": {"words", "wakeup", "_runtime", "_process", "_control"},  # a gang is known by its messages
    "_gang": {"words", "story", "wakeup", "_runtime", "_process", "_logs", "_core", "_control", "_gang"},
    "_tree": {"words", "wakeup", "_runtime", "_core", "_tree"},  # a gang is known by its messages
    "_hosts": {"words", "wakeup", "_runtime", "_core", "_logs", "_gang", "_hosts"},
    "_api": {"words", "story", "wakeup", "_runtime", "_process", "_logs", "_core", "_gang", "_api"},
    "_torch": {"words", "story", "wakeup", "_runtime", "_process", "_logs", "_core", "_gang", "_api", "_torch"},
    "agent": {"words", "supervise", "agent"},  # the public API only
    "aio": {"words", "supervise", "aio"},  # the public API only
    "pytest_plugin": {"words", "supervise", "pytest_plugin"},  # the public API only
}
TOP = {"cli", "ray", "testing", "elastic", "multiprocessing"}
EVERYTHING = {*MAY_IMPORT, "supervise", *TOP}


def type_checking_imports():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    return {alias.asname: node.module for node in block.body for alias in node.names if node.module != "typing"}


def home(module):
    """The part of the house a module belongs to."""
    parts = module.split(".")
    if len(parts) == 1:
        return "supervise"
    if ".".join(parts[1:]) in WAKEUP:
        return "wakeup"
    if ".".join(parts[1:]) in STORY:
        return "story"
    return "words" if parts[1] in WORDS else parts[1]


@cache
def name_of(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(path):
    """Every module of ours that a file imports, wherever it does so, with the line."""
    me, modules = name_of(path), []
    package = me if path.name == "__init__.py" else me.rpartition(".")[0]
    known = {name_of(file) for file in FILES}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(part for part in (above, node.module) if part)
            found = [f"{base}.{a.name}" if f"{base}.{a.name}" in known else base for a in node.names]
        else:
            continue
        modules += [(module, node.lineno) for module in found if module.split(".")[0] == "supervise"]
    return modules


def in_fresh_interpreter(code):
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Names


OTHER_SECONDS = {"timeout", "grace", "backoff", "interval_sec", "period"}
"""`timeout` is PyTorch's and pykka's word, `interval_sec` and `period` are PyTorch's; the others are a gang's."""


def times():
    """Yield each public name that takes a number with a fraction, and the name of that parameter."""
    for module in (supervise, aio):
        for name in module.__all__:
            public = getattr(module, name)
            methods = [each for key, each in vars(public).items() if key[0] != "_"] if isinstance(public, type) else []
            for each in filter(callable, (public, *methods)):
                with suppress(TypeError, ValueError):  # an alias of a type, or a class of C
                    parameters = inspect.signature(each).parameters.values()
                    yield from ((name, one.name) for one in parameters if re.search(r"\bfloat\b", str(one.annotation)))


def test_a_number_of_seconds_says_so_in_its_name():
    found = set(times())
    assert {
        ("Role", "ready_timeout_s"),
        ("RestartPolicy", "backoff"),
        ("Gang", "timeout"),
        ("Close", "timeout"),
    } <= found
    assert {name for _, name in found if not name.endswith("_s")} == OTHER_SECONDS


def test_all_is_sorted_and_equal_to_what_type_checkers_see():
    assert supervise.__all__ == sorted(supervise.__all__)
    assert set(supervise.__all__) == set(type_checking_imports())


def test_each_name_comes_from_where_type_checkers_see_it():
    for name, module in type_checking_imports().items():
        found = getattr(supervise, name)
        assert found is getattr(importlib.import_module(module), name), name


def test_a_module_that_is_imported_first_does_not_hide_a_name():
    """Importing a submodule makes it an attribute of the package: `record` must stay the decorator."""
    code = f"""
import importlib, sys, types
for module in {sorted(path.stem for path in PACKAGE.glob("[a-z]*.py"))}:
    for known in [name for name in sys.modules if name.split(".")[0] == "supervise"]:
        del sys.modules[known]
    supervise = importlib.import_module("supervise")
    importlib.import_module("supervise." + module)
    hidden = [name for name in supervise.__all__ if isinstance(getattr(supervise, name), types.ModuleType)]
    assert not hidden, (module, hidden)
print("none")
"""
    assert in_fresh_interpreter(code) == "none\n"


def test_every_public_name_has_a_docstring_of_its_own():
    for name in supervise.__all__:
        found = getattr(supervise, name)
        doc = vars(found).get("__doc__") if inspect.isclass(found) else found.__doc__
        assert doc, name
        assert doc.strip()[0].isupper(), name
        assert not doc.startswith(f"{name}("), f"{name}: a dataclass's own text"


def test_every_public_method_has_a_docstring():
    for name in supervise.__all__:
        members = vars(found).items() if inspect.isclass(found := getattr(supervise, name)) else ()
        for key, member in members:
            if not key.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{name}.{key}"


def test_dir_lists_the_names_and_an_unknown_one_is_an_attribute_error():
    assert set(supervise.__all__) < set(dir(supervise))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        supervise.nothing  # noqa: B018


# Imports


def test_importing_it_is_next_to_nothing():
    heavy = {"torch", "rich", "structlog", "pykka", "multiprocessing", "psutil", "subprocess", "logging", "json"}
    loaded = in_fresh_interpreter("import sys; a = set(sys.modules); import supervise; print(*(set(sys.modules) - a))")
    assert not heavy & {module.split(".")[0] for module in loaded.split()}


def test_what_a_worker_imports_is_light():
    heavy = {"torch", "rich", "structlog", "pykka", "psutil", "subprocess", "ctypes", "asyncio"}
    code = "import sys; a = set(sys.modules); from supervise import record, Std; print(*(set(sys.modules) - a))"
    assert not heavy & {module.split(".")[0] for module in in_fresh_interpreter(code).split()}


def test_no_use_of_it_imports_torch_or_rich():
    code = """
import sys
import supervise
from supervise import aio
from tests.patience import PATIENCE_S
for name in supervise.__all__:
    getattr(supervise, name)
import supervise.testing
print(*sys.modules)
"""
    assert not {"torch", "rich"} & {module.split(".")[0] for module in in_fresh_interpreter(code).split()}


def test_imports_go_down_only():
    bad = []
    for path in FILES:
        mine = home(name_of(path))
        allowed = EVERYTHING if mine in TOP else MAY_IMPORT.get(mine, EVERYTHING)
        wrong = [(module, line) for module, line in imports(path) if home(module) not in allowed]
        bad += [f"{path}:{line}: {mine} must not know {module}" for module, line in wrong]
    assert not bad, "\n".join(bad)


def test_the_core_is_pure():
    """No thread, clock, process or pykka."""
    pure = {"__future__", "dataclasses", "signal", "typing", "collections", "collections.abc", "enum", "types"}
    pure |= {"difflib", "graphlib"}  # they only compute
    for path in (PACKAGE / "_core").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
                assert all(name in pure or name.startswith("supervise") for name in names), (path.name, names)


def test_there_is_no_circle():
    """Neither in functions nor for type checkers alone."""
    graph = {name_of(path): {module for module, _ in imports(path)} - {name_of(path)} for path in FILES}
    del graph["supervise"]  # loads the public names when they are first used
    done, under_way = set(), []

    def visit(module):
        assert module not in under_way, " -> ".join([*under_way, module])
        if module in done:
            return
        under_way.append(module)
        for other in sorted(graph.get(module, ())):
            visit(other)
        under_way.pop()
        done.add(module)

    for module in graph:
        visit(module)
