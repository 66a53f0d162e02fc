"""What a forked child runs is one list, in one order."""

import ast
import os
from pathlib import Path

import supervise
from supervise._runtime import fork_hooks

PACKAGE = Path(supervise.__file__).parent


def calls(name):
    """Yield the file and the call of each function of this name in the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
                yield str(path.relative_to(PACKAGE)), node


def test_each_hook_is_in_the_list_once():
    names = [ast.literal_eval(call.args[0]) for path, call in calls("register") if ast.unparse(call.func) == HOOK]
    assert sorted(names) == sorted(fork_hooks.ORDER)


HOOK = "fork_hooks.register"


def test_no_module_has_a_hook_of_its_own():
    """The lifeline's lock keeps a fork away while a pipe is half made: no other module needs one before a fork."""
    found = {(path, keyword.arg) for path, call in calls("register_at_fork") for keyword in call.keywords}
    lifeline = "_process/lifeline/lifeline.py"
    assert found == {
        ("_runtime/fork_hooks.py", "after_in_child"),
        (lifeline, "before"),
        (lifeline, "after_in_parent"),
    }


def test_the_hooks_run_in_the_written_order_whatever_was_imported_first(monkeypatch):
    monkeypatch.setattr(fork_hooks, "_in_child", {})
    ran = []
    for name in reversed(fork_hooks.ORDER):
        fork_hooks.register(name, lambda name=name: ran.append(name))
    fork_hooks._run_in_child()
    assert ran == list(fork_hooks.ORDER)


def test_a_hook_that_raises_keeps_no_other_from_running(monkeypatch, capsys):
    monkeypatch.setattr(fork_hooks, "_in_child", {})
    ran = []
    fork_hooks.register("watch", lambda: 1 / 0)
    fork_hooks.register("signals", lambda: ran.append(os.getpid()))
    fork_hooks._run_in_child()
    assert ran == [os.getpid()]
    assert "ZeroDivisionError" in capsys.readouterr().err
