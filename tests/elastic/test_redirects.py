"""Redirects of this process's own streams, below Python. Each runs in a process whose streams are pipes."""

import ctypes
import io
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import supervise
from supervise.elastic.api import get_std_cm
from supervise.elastic.redirects import redirect, redirect_stderr, redirect_stdout

ROOT = str(Path(supervise.__file__).parents[1])


def run(code, tmp_path):
    """Run a program whose stdout and stderr are pipes; return both."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_an_unknown_stream_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="unknown standard stream <stdnope>"), redirect("stdnope", str(tmp_path / "x")):
        pass
    assert not (tmp_path / "x").exists()


def test_python_c_and_children_are_redirected_and_restored(tmp_path):
    out, err = run(
        """
        import ctypes, os, sys
        from supervise.elastic.redirects import redirect_stdout, redirect_stderr
        libc = ctypes.CDLL(None)
        c_stderr = ctypes.c_void_p.in_dll(libc, "stderr")
        print("python before")
        libc.printf(b"c before\\n")
        with redirect_stdout("out.log"), redirect_stderr("err.log"):
            print("python inside")
            libc.printf(b"c inside\\n")
            os.system("echo child inside")
            print("python error", file=sys.stderr)
            libc.fprintf(c_stderr, b"c error\\n")
            os.system("echo child error >&2")
        print("python after")
        libc.printf(b"c after\\n")
        sys.stdout.flush(); libc.fflush(None)
        os.system("echo child after")
        """,
        tmp_path,
    )
    assert sorted(out.splitlines()) == sorted(["python before", "c before", "python after", "c after", "child after"])
    assert err == ""
    assert sorted((tmp_path / "out.log").read_text().splitlines()) == ["c inside", "child inside", "python inside"]
    assert sorted((tmp_path / "err.log").read_text().splitlines()) == ["c error", "child error", "python error"]


def test_nested_redirects_go_where_the_innermost_says(tmp_path):
    out, _ = run(
        """
        from supervise.elastic.redirects import redirect_stdout
        with redirect_stdout("outer.log"):
            print("1")
            with redirect_stdout("inner.log"):
                print("2")
            print("3")
        print("4")
        """,
        tmp_path,
    )
    assert (out, (tmp_path / "outer.log").read_text(), (tmp_path / "inner.log").read_text()) == ("4\n", "1\n3\n", "2\n")


def test_restored_after_an_exception_and_twice_on_one_file(tmp_path):
    out, _ = run(
        """
        from supervise.elastic.redirects import redirect_stdout
        try:
            with redirect_stdout("x.log"):
                print("lost")
                raise KeyError
        except KeyError:
            print("seen")
        with redirect_stdout("x.log"):
            print("emptied before")
        """,
        tmp_path,
    )
    assert (out, (tmp_path / "x.log").read_text()) == ("seen\n", "emptied before\n")


@pytest.mark.parametrize("reader", ["file", "console"])
def test_no_line_of_500_000_is_lost(tmp_path, reader):
    """Half of them Python's, half of them C's, which are all still buffered when the block ends."""
    out, _ = run(
        f"""
        import contextlib, ctypes
        from supervise.elastic.redirects import redirect_stdout
        libc, buffer = ctypes.CDLL(None), ctypes.create_string_buffer(1 << 24)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), buffer, 0, len(buffer))  # whole lines, at one stroke
        with redirect_stdout("out.log") if {reader == "file"} else contextlib.nullcontext():
            for i in range(0, 500_000, 2):
                print(f"line {{i}} of 500000")
                libc.puts(b"line %d of 500000" % (i + 1))
        with redirect_stdout("after.log"):
            print("after")
        """,
        tmp_path,
    )
    text = (tmp_path / "out.log").read_text() if reader == "file" else out
    lines = text.splitlines()
    assert len(lines) == 500_000
    assert {int(line.split()[1]) for line in lines} == set(range(500_000))
    assert (tmp_path / "after.log").read_text() == "after\n"


def test_a_stream_that_was_closed_is_closed_again(tmp_path):
    _, err = run(
        """
        import os, sys
        from supervise.elastic.redirects import redirect_stdout
        os.close(1)
        sys.stdout = None
        with redirect_stdout("out.log"):
            os.system("echo child")
        try:
            os.fstat(1)
        except OSError:
            print("closed", file=sys.stderr)
        """,
        tmp_path,
    )
    assert err == "closed\n"
    assert (tmp_path / "out.log").read_text() == "child\n"


def test_a_python_stream_without_a_descriptor_is_redirected_too(tmp_path, monkeypatch):
    """As under a notebook, or a test's capture: print() lands in the file, and the stream comes back."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    with redirect_stdout(str(tmp_path / "out.log")):
        print("inside")
        ctypes.CDLL(None).puts(b"c inside")
    assert sys.stdout is stream
    print("after")
    assert stream.getvalue() == "after\n"
    assert sorted((tmp_path / "out.log").read_text().splitlines()) == ["c inside", "inside"]


def test_a_folder_that_is_not_there_is_an_os_error_and_changes_nothing(tmp_path):
    before = os.fstat(1)
    with pytest.raises(FileNotFoundError), redirect_stdout(str(tmp_path / "none" / "out.log")):
        pass
    assert os.path.samestat(before, os.fstat(1))


def test_get_std_cm_redirects_where_there_is_a_path(tmp_path):
    path = tmp_path / "err.log"
    with get_std_cm(str(path), redirect_stderr):
        os.write(2, b"inside\n")
    with get_std_cm("", redirect_stderr):
        assert path.read_text() == "inside\n"


def test_a_file_it_makes_is_private(tmp_path):
    with redirect_stdout(str(tmp_path / "out.log")):
        pass
    assert (tmp_path / "out.log").stat().st_mode & 0o777 == 0o600
