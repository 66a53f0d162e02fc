"""Every module, name and signature of PyTorch's is here under `supervise.elastic`. PyTorch itself is not asked."""

import importlib
import inspect
import json
import logging
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

import supervise

PYTORCH = json.loads(Path(__file__).with_name("signatures.json").read_text())
INTERNAL = {
    ("SubprocessContext", "_capture_process_failures"): "failures are found by the gang's actors",
    ("ProcessFailure", "_get_error_data"): "the file is read by a function of the module",
    ("ProcessFailure", "_set_no_reply_file"): "same",
    ("ChildFailedError", "_format_failure"): "the text is made by a function of the module",
    ("Std", "_generate_next_value_"): "enum's own",
    ("AffinityMode", "_generate_next_value_"): "enum's own",
    ("redirects", "_c_std"): "takes the library here",
    ("redirects", "_python_std"): "one line here",
}
"""What is not kept, and why: nobody outside of PyTorch uses it."""
NAMES = [(m, n) for m, found in PYTORCH["modules"].items() for n in found["names"] if (m, n) not in INTERNAL]
METHODS = [(c, n) for c, found in PYTORCH["classes"].items() for n in found if (c, n) not in INTERNAL]
HOMES = {name: m for m, found in PYTORCH["modules"].items() for name in found["names"]}


def module(name):
    return importlib.import_module(f"supervise.elastic.{name}".rstrip("."))


def assert_takes_the_same(ours, theirs):
    """Theirs by the same names, in the same order, with the same defaults; what we add comes after, and is optional."""
    mine = [p for p in inspect.signature(ours).parameters.values() if p.kind not in {p.VAR_KEYWORD, p.KEYWORD_ONLY}]
    wanted = [text.partition("=") for text in theirs]
    assert [p.name for p in mine][: len(wanted)] == [name for name, _, _ in wanted]
    assert all(p.default is not p.empty for p in mine[len(wanted) :])
    for p, (name, has_default, default) in zip(mine, wanted, strict=False):
        if has_default and not default.startswith("<"):
            assert repr(p.default) == default, name
        elif has_default:
            assert p.default is not p.empty, name


@pytest.mark.parametrize("name", PYTORCH["modules"])
def test_all_holds_what_theirs_holds(name):
    missing = set(PYTORCH["modules"][name]["all"]) - set(module(name).__all__)
    assert not missing
    for exported in module(name).__all__:
        assert getattr(module(name), exported) is not None


@pytest.mark.parametrize(("where", "name"), NAMES)
def test_name_is_there_with_their_signature(where, name):
    theirs = PYTORCH["modules"][where]["names"][name]
    ours = getattr(module(where), name)
    if isinstance(theirs, list):
        assert_takes_the_same(ours, theirs)
    else:
        assert inspect.isclass(ours)
        assert ours.__name__ == theirs


@pytest.mark.parametrize(("cls", "name"), METHODS)
def test_method_is_there_with_their_signature(cls, name):
    theirs = PYTORCH["classes"][cls][name]
    ours = getattr(module(HOMES[cls]), cls)
    if theirs == "<property>":
        assert isinstance(inspect.getattr_static(ours, name), property)
    elif name != "__init__":
        assert_takes_the_same(getattr(ours, name), theirs)
    elif ours.__init__ is not object.__init__:
        assert_takes_the_same(ours, theirs[1:])  # what the class takes, without `self`


@pytest.mark.parametrize("name", ["IS_WINDOWS", "IS_MACOS"])
def test_the_constants_are_there(name):
    assert getattr(module("api"), name) is getattr(module("redirects"), name) is False


@pytest.mark.parametrize("name", ["api", "errors", "errors.error_handler", "tail_log", "redirects"])
def test_the_loggers_are_there(name):
    """Clients set their levels, and add handlers."""
    assert module(name).logger is logging.getLogger("supervise")


@pytest.mark.parametrize("name", PYTORCH["modules"])
def test_one_implementation_nothing_is_defined_twice(name):
    """The modules only hand names on: no function or class is defined in them."""
    for key in dir(module(name)):
        value = getattr(module(name), key)
        if inspect.isclass(value) or isinstance(value, types.FunctionType):
            home = value.__module__
            assert not home.startswith("supervise.elastic") or key in {
                "__annotate__",
                "__dir__",
                "__getattr__",
                "names",
            }, (key, home)


def test_the_same_objects_are_public_names_of_supervise():
    """But for the one function whose gangs leave a failure to the first wait, as PyTorch's do."""
    for where in PYTORCH["modules"]:
        for name in module(where).__all__:
            if name in supervise.__all__ and name != "start_processes":
                assert getattr(module(where), name) is getattr(supervise, name)


def test_submodules_are_attributes_and_dir_lists_the_names():
    code = "import supervise.elastic as e; print(e.api.Std, e.errors.handlers.__name__, 'start_processes' in dir(e))"
    assert fresh(code).split() == ["<flag", "'Std'>", "supervise.elastic.errors.handlers", "True"]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        module("").nothing  # noqa: B018


def test_star_import_brings_their_names():
    code = "from supervise.elastic import *; from supervise.elastic.api import *; print(start_processes, get_std_cm)"
    assert "function" in fresh(code)


@pytest.mark.parametrize(
    "line",
    [
        "from supervise.elastic import Std, start_processes, PContext, DefaultLogsSpecs",
        "from supervise.elastic.errors import record, ChildFailedError, ProcessFailure",
        "from supervise.elastic.api import Std, SignalException, PContext",
        "from supervise.elastic.redirects import redirect_stdout",
        "import supervise.elastic.api, supervise.elastic.errors",
    ],
)
def test_what_a_worker_imports_with_its_main_module_is_light(line):
    loaded = {name.split(".")[0] for name in fresh(f"import sys; {line}; print(*sys.modules)").split()}
    assert not loaded & {"torch", "pykka", "psutil", "structlog", "multiprocessing", "subprocess", "ctypes"}


def test_no_module_imports_torch():
    modules = [f"supervise.elastic.{name}".rstrip(".") for name in [*PYTORCH["modules"], "numa"]]
    code = f"""
import importlib, sys
for module in map(importlib.import_module, {modules}):
    for name in dir(module):
        getattr(module, name)
print('torch' in sys.modules)
"""
    assert fresh(code) == "False\n"


def fresh(code):
    """What a new interpreter prints."""
    path = str(Path(supervise.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
