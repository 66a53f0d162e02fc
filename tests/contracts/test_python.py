"""The other private parts of Python and of small libraries that we stand on."""

import argparse
import atexit
import importlib
import sys
import threading
import warnings

import pytest

NEW = "Python has changed: "


def test_exit_functions_can_be_forgotten_and_run():
    import subprocess

    source = (
        "import atexit, os; atexit.register(print, 'forgotten'); atexit._clear();"
        " atexit.register(print, 'run', flush=True); atexit._run_exitfuncs(); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True, timeout=30)
    assert done.stdout == "run\n", NEW + "the exit functions"
    assert callable(atexit._clear)


def test_a_thread_keeps_whether_it_is_a_daemon_in_an_attribute():
    thread = threading.Thread(daemon=True)
    thread._daemonic = False
    assert not thread.daemon, NEW + "how a thread is a daemon"


def test_the_end_of_an_interpreter_waits_for_threads_by_a_function():
    assert callable(threading._shutdown), NEW + "who waits for threads"


def test_a_function_can_be_called_at_the_beginning_of_the_exit():
    import subprocess

    source = (
        "import atexit, threading; threading._register_atexit(print, 'first');"
        " atexit.register(print, 'third', flush=True);"
        " threading.Thread(target=lambda: (threading.main_thread().join(), print('second'))).start()"
    )
    done = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True, timeout=30)
    assert sorted(done.stdout.split()) == ["first", "second", "third"], NEW + "the exit"
    assert done.stdout.split()[-1] == "third", NEW + "the exit"
    assert threading._SHUTTING_DOWN is False, NEW + "how threads know of the exit"


def test_a_parser_lists_its_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--option", help=argparse.SUPPRESS)
    assert [action.option_strings for action in parser._actions] == [["-h", "--help"], ["--option"]], NEW + "argparse"


def test_a_filter_of_warnings_that_is_added_is_the_first_of_a_list():
    with warnings.catch_warnings():
        before = list(warnings.filters)
        warnings.filterwarnings("ignore", message="no such warning")
        assert warnings.filters[1:] == before, NEW + "the list of filters"
        assert isinstance(warnings.filters, list)
        warnings.filters.remove(warnings.filters[0])
        assert warnings.filters == before


def test_a_module_s_code_sees_the_spec_s_loader():
    """A worker acts as soon as multiprocessing is imported: its loader's `exec_module` can be replaced."""
    import importlib.util

    spec = importlib.util.find_spec("json")
    assert spec is not None
    assert spec.loader is not None
    called = []
    execute = spec.loader.exec_module
    spec.loader.exec_module = lambda module: (execute(module), called.append(module.__name__))
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert called == ["json"]


def test_a_module_that_is_imported_has_a_lock_whose_owner_is_the_thread(tmp_path, monkeypatch):
    """The next import is begun anew if both the module and its lock are removed."""
    (tmp_path / "half_imported.py").write_text("seen.append(locks['half_imported']().owner)\n")
    monkeypatch.syspath_prepend(tmp_path)
    locks, seen = sys.modules["_frozen_importlib"]._module_locks, []
    monkeypatch.setattr("builtins.locks", locks, raising=False)
    monkeypatch.setattr("builtins.seen", seen, raising=False)
    importlib.import_module("half_imported")
    assert seen == [threading.get_ident()], NEW + "the locks of modules"
    assert "half_imported" not in locks
    del sys.modules["half_imported"]
    importlib.import_module("half_imported")
    assert len(seen) == 2


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_stream_of_the_interpreter_is_known_twice(name):
    assert hasattr(sys, f"__{name}__"), NEW + "the standard streams"


def test_the_characters_of_bytes_are_at_their_address():
    """Arguments and environment of a program are passed to C as pointers to these."""
    import ctypes

    text = b"NAME=value"
    assert ctypes.string_at(id(text) + bytes.__basicsize__ - 1) == text, NEW + "the layout of bytes"


def test_an_event_has_its_state_in_an_attribute():
    event = threading.Event()
    assert event._flag is False, NEW + "an event's state"
    event.set()
    assert event._flag is True


def test_the_number_of_exit_functions_is_known():
    before = atexit._ncallbacks()
    atexit.register(print)
    try:
        assert atexit._ncallbacks() == before + 1, NEW + "the number of exit functions"
    finally:
        atexit.unregister(print)
