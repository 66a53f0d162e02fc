"""The mark, its errors, and what the plugin costs where no test has it."""

import subprocess
import sys

import pytest

from tests.patience import PATIENCE_S
from tests.pytest_plugin.running import QUIET, environment, run, write

BAD = {
    "0": "ranks(0): 0 is not a number of ranks from 1 to 1024",
    "True": "ranks(True): True is not a number of ranks",
    "'4'": "ranks('4'): '4' is not a number of ranks",
    "[]": "ranks([]) has no number of ranks",
    "[2, 'x']": "'x' is not a number of ranks",
    "": "takes one number or one list of numbers, not 0",
    "2, 3": "takes one number or one list of numbers, not 2",
    "2, timeout=3": "ranks(...) does not accept 'timeout'; it accepts grace_s, start_method, timeout_s",
    "2, timeout_s='soon'": "ranks(timeout_s=...) is 'soon'; it is a number of seconds, 0 or more",
    "2, grace_s=-1": "ranks(grace_s=...) is -1; it is a number of seconds, 0 or more",
    "2, start_method='thread'": "ranks(start_method='thread') is not valid; use one of fork, spawn",
}


def test_a_bad_mark_is_an_error_of_the_collection(tmp_path):
    """The text names the value and what is valid; no test runs."""
    module = "import pytest\n@pytest.mark.ranks({})\ndef test_it():\n    pass\n"
    write(tmp_path, **{f"test_{number}": module.format(args) for number, args in enumerate(BAD)})
    done = run(tmp_path, *QUIET)
    assert done.code == 2
    for text in BAD.values():
        assert text in done.out
    assert "Traceback" not in done.out


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("ranks_timeout=x", "the option ranks_timeout is 'x'; it is a number of seconds, 0 or more"),
        ("ranks_budget=-1", "the option ranks_budget is '-1'; it is a whole number of ranks, 0 for no limit"),
    ],
)
def test_a_bad_option_is_named(tmp_path, option, text):
    """Before any test runs."""
    write(tmp_path, test_it="import pytest\n@pytest.mark.ranks(2)\ndef test_it():\n    pass\n")
    done = run(tmp_path, *QUIET, "-o", option)
    assert done.code in (2, 4)
    assert text in done.out
    assert "INTERNALERROR" not in done.out


def test_a_mark_that_a_conftest_adds_after_the_collection(tmp_path):
    """A number makes ranks, and a list is refused, because the tests are counted by then."""
    write(tmp_path, test_it="import os\ndef test_it():\n    assert os.environ['WORLD_SIZE'] == '2'\n")
    with (tmp_path / "conftest.py").open("a") as file:
        file.write("\nimport pytest\ndef pytest_collection_modifyitems(items):\n    [item] = items\n")
        file.write("    item.add_marker(pytest.mark.ranks([2, 2][int(os.environ['LIST']):] or 2))\n")
    assert run(tmp_path, *QUIET, LIST="2").code == 0
    done = run(tmp_path, *QUIET, LIST="0")
    assert (done.code, "a mark that is added later take one number" in done.out) == (4, True)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_tests_outside_of_the_folder_of_the_configuration(tmp_path, method):
    """Their names depend on the arguments. And the options that show fixtures are no options of a rank."""
    for name in ("cfg", "tests"):
        (tmp_path / name).mkdir()
    (tmp_path / "cfg/pytest.ini").write_text("[pytest]\n")
    mark = f"pytest.mark.ranks(2, start_method={method!r})"
    (tmp_path / "tests/test_it.py").write_text(f"import pytest\n@{mark}\ndef test_it():\n    pass\n")
    done = run(tmp_path, *QUIET, "-c", "cfg/pytest.ini", "--setup-show", "tests")
    assert (done.code, "1 passed" in done.out) == (0, True), done.out


def test_a_list_makes_a_test_for_each_number_and_the_mark_selects(tmp_path):
    """Also beside other parameters, and by a mark of the class."""
    write(
        tmp_path,
        test_it="""
        import pytest

        @pytest.mark.ranks([1, 2])
        @pytest.mark.parametrize("size", [10, 20])
        def test_list(size, rank, rank_gather):
            assert len(rank_gather()) == len(rank_gather(rank)) <= 2

        @pytest.mark.ranks(2)
        class TestClass:
            @pytest.mark.ranks(3)
            def test_nearest(self, world_size):
                assert world_size == 3

            def test_outer(self, world_size):
                assert world_size == 2

        def test_plain():
            pass
        """,
    )
    done = run(tmp_path, *QUIET, "-m", "ranks", "--strict-markers")
    assert done.code == 0, done.out
    called = {each["nodeid"] for each in done.reports if each["when"] == "call"}
    lists = {f"test_list[{size}-ranks{count}]" for size in (10, 20) for count in (1, 2)}
    assert called == lists | {"TestClass::test_nearest", "TestClass::test_outer"}


def test_a_run_without_a_marked_test_imports_only_the_entry_module(tmp_path):
    """Nor any module of Python that pytest had not imported."""
    code = "import pathlib, sys\ndef test_it():\n    pathlib.Path({!r}).write_text(' '.join(sys.modules))\n"
    loaded = {}
    for name, more in (("with", []), ("without", ["-p", "no:supervise"])):
        folder = tmp_path / name
        folder.mkdir()
        write(folder, test_it=code.format(str(folder / "modules")))
        assert run(folder, *QUIET, *more).code == 0
        loaded[name] = set((folder / "modules").read_text().split())
    assert "pytest" in loaded["without"]
    assert loaded["with"] - loaded["without"] == {"supervise", "supervise.pytest_plugin"}


def test_pytest_does_not_warn_in_a_process_that_has_imported_supervise(tmp_path):
    """As a rank of `supervise run` has."""
    write(tmp_path, test_it="def test_it():\n    pass\n")
    code = f"import supervise.recording, pytest; raise SystemExit(pytest.main(['-W', 'error', {str(tmp_path)!r}]))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stdout + done.stderr


def test_supervise_does_not_import_pytest():
    """Whatever else of it is used."""
    code = """
import sys
import supervise, supervise.cli, supervise.testing
for name in supervise.__all__:
    getattr(supervise, name)
print("pytest" in sys.modules, "_pytest" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True, env=environment()
    )
    assert done.stdout == "False False\n"
