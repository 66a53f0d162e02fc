"""Write `signatures.json`: the names and signatures of PyTorch's modules, by asking an installed PyTorch.

Run it with a Python that has PyTorch: ``python tests/elastic/make_signatures.py``.
"""

import importlib
import inspect
import json
import types
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

BASE = "torch.distributed.elastic.multiprocessing"
MODULES = [
    "",
    "api",
    "errors",
    "errors.error_handler",
    "errors.handlers",
    "redirects",
    "subprocess_handler",
    "subprocess_handler.handlers",
    "subprocess_handler.subprocess_handler",
    "tail_log",
]


def signature(function):
    """One text a parameter: its name, and its default where it has one."""
    return [
        name if p.default is p.empty else f"{name}={default(p.default)}"
        for name, p in inspect.signature(function).parameters.items()
    ]


def default(value):
    """A default by its value, or by its type where that says more."""
    return repr(value) if value is None or type(value) in {str, int, float} else f"<{type(value).__name__}>"


def described(value):
    """A signature; of a class its name, since it is described apart; of anything else its type."""
    if inspect.isclass(value):
        return value.__name__
    return signature(value) if callable(value) else f"<{type(value).__name__}>"


def methods(cls):
    for name in sorted({name for c in cls.__mro__ if c.__module__.startswith("torch") for name in vars(c)}):
        member = inspect.getattr_static(cls, name)
        if isinstance(member, property):
            yield name, "<property>"
        elif isinstance(member, (types.FunctionType, classmethod)) and (
            name == "__init__" or not name.startswith("__")
        ):
            yield name, signature(getattr(cls, name))


def names(module):
    """Everything that is defined in one of the modules, and may be imported from this one."""
    for name, value in sorted(vars(module).items()):
        home = getattr(value, "__module__", None) or ""
        theirs = home.startswith((BASE, "torch.numa")) or isinstance(value, partial)
        if (
            theirs
            and not name.startswith(("__", "_maybe"))
            and not isinstance(value, (types.ModuleType, TypeVar, ParamSpec))
        ):
            yield name, value


def main():
    found, classes = {}, {}
    for name in MODULES:
        module = importlib.import_module(f"{BASE}.{name}".rstrip("."))
        found[name] = {
            "all": sorted(getattr(module, "__all__", [])),
            "names": {key: described(value) for key, value in names(module)},
        }
        classes |= {value.__name__: dict(methods(value)) for _, value in names(module) if inspect.isclass(value)}
    text = json.dumps(
        {"torch": torch.__version__.partition("+")[0], "modules": found, "classes": classes}, sort_keys=True
    )
    Path(__file__).with_name("signatures.json").write_text(text.replace("}, ", "},\n") + "\n")


if __name__ == "__main__":
    main()
