"""Functions work in every kind of host program: script, module, command line, and with its streams closed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.processes.gangs import each_function

ROOT = str(Path(__file__).parents[2])

HOST = """
import os, sys
from pathlib import Path
from supervise import DefaultLogsSpecs, Start, Std, Supervisor, Wait

def name(number):
    import __main__
    print("out of", number, flush=True)
    print("err of", number, file=sys.stderr, flush=True)
    return number, __name__, os.getcwd()

def run(method, redirects=Std.NONE, to_close=()):
    logs = DefaultLogsSpecs("logs", redirects=redirects)
    gang = Supervisor.start(name="host", entrypoint=name, args={0: (0,), 1: (1,)}, start_method=method, logs_specs=logs)
    for fd in to_close:
        os.close(fd)
    try:
        gang.ask(Start(), timeout=40)
        return gang.ask(Wait(), timeout=40)
    finally:
        gang.stop(timeout=40)
"""

MAIN = """
if __name__ == "__main__":
    result = run(sys.argv[1])
    print("RESULT", result.outcome, sorted(value[0] for value in result.return_values.values()))
    for end in result.ends.values():
        print(end.stderr_tail)
"""


def host(folder, *arguments, **more):
    """Run a host program to its end."""
    command = [sys.executable, "-W", "error", *arguments]
    env = os.environ | {"PYTHONPATH": ROOT}
    return subprocess.run(command, cwd=folder, env=env, timeout=PATIENCE_S, text=True, check=False, **more)


@each_function
def test_a_function_of_a_script_works(tmp_path, kind):
    (tmp_path / "script.py").write_text(HOST + MAIN)
    found = host(tmp_path, "script.py", kind, capture_output=True)
    assert (found.returncode, "RESULT succeeded [0, 1]" in found.stdout) == (0, True), found


@each_function
def test_a_function_of_a_module_run_by_its_name_works(tmp_path, kind):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text(HOST + MAIN)
    found = host(tmp_path, "-m", "package.module", kind, capture_output=True)
    assert (found.returncode, "RESULT succeeded [0, 1]" in found.stdout) == (0, True), found


@each_function
@pytest.mark.parametrize("how", ["command", "stdin"])
def test_a_function_of_a_command_line_works_by_fork_and_is_otherwise_refused_with_the_reason(tmp_path, kind, how):
    """There is no file to import it from; a hang would be the worst answer."""
    source = "import sys\nsys.modules['cloudpickle'] = None\n"  # with it, the function travels by value
    source += (HOST + MAIN).replace("run(sys.argv[1])", f"run({kind!r}, Std.ALL)")
    if how == "command":
        found = host(tmp_path, "-c", source, stdin=subprocess.DEVNULL, capture_output=True)
    else:
        found = host(tmp_path, "-", input=source, capture_output=True)
    if kind == "fork":
        assert found.returncode == 0, found
        assert "RESULT succeeded [0, 1]" in found.stdout
    else:
        assert found.returncode == 1, found
        assert "SpecError: " in found.stderr
        assert (
            "put it into a file, install cloudpickle (pip install 'supervise-gang[pickle]'), or use start_method='fork'"
            in found.stderr
        )


@pytest.mark.parametrize("kind", ["spawn", "forkserver"])
@pytest.mark.parametrize("hidden", ["", "import sys; sys.modules['cloudpickle'] = None\n"])
def test_a_script_that_is_gone_is_no_hang(tmp_path, kind, hidden):
    """Its function is pickled by value, or is an error."""
    (tmp_path / "script.py").write_text(hidden + HOST + MAIN.replace("result =", "os.unlink(__file__); result ="))
    found = host(tmp_path, "script.py", kind, capture_output=True)
    assert ("RESULT succeeded" in found.stdout) == (not hidden), found
    assert ("cannot import; put it into a file" in found.stderr) == bool(hidden), found


@pytest.mark.parametrize("kind", ["spawn", "forkserver"])
def test_a_script_without_a_guard_is_an_error_and_no_hang(tmp_path, kind):
    """Its import in the worker would start a gang in turn; the message says what to do."""
    (tmp_path / "script.py").write_text(HOST + MAIN.replace('if __name__ == "__main__":', "if True:"))
    found = host(tmp_path, "script.py", kind, capture_output=True)
    assert "RESULT succeeded" not in found.stdout
    assert "__name__ == '__main__'" in found.stderr


@each_function
@pytest.mark.parametrize("closed", [(0, 1, 2), *(pytest.param((fd,), marks=pytest.mark.stress) for fd in range(3))])
@pytest.mark.parametrize(("redirected", "late"), [(True, False), (False, False), (True, True)])
def test_a_host_with_closed_streams_has_working_workers(tmp_path, kind, redirected, closed, late):
    """What the host opens takes the free numbers; none of it ends up as a worker's stream, or gets lost under one."""
    main = f"""
if __name__ == "__main__":
    result = run({kind!r}, Std.ALL if {redirected} else Std.NONE, {closed if late else ()})
    with open("answer", "w") as answer:
        print(result.outcome, sorted(v[0] for v in result.return_values.values()), file=answer)
        for paths in (result.stdouts, result.stderrs):
            print([Path(path).read_text() for path in paths.values() if path], file=answer)
    os._exit(0)
"""
    (tmp_path / "script.py").write_text(HOST + main)
    closing = "" if late else " ".join(f"{fd}>&-" for fd in closed)
    shell = f'exec "$0" -W error script.py </dev/null {closing}'
    env = os.environ | {"PYTHONPATH": ROOT}
    subprocess.run(
        ["/bin/sh", "-c", shell, sys.executable],
        cwd=tmp_path,
        env=env,
        timeout=PATIENCE_S,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    outs = ["out of 0\n", "out of 1\n"], ["err of 0\n", "err of 1\n"]
    expected = "succeeded [0, 1]\n" + "".join(f"{out}\n" for out in (outs if redirected else ([], [])))
    assert (tmp_path / "answer").read_text() == expected


@each_function
def test_a_host_that_changed_its_folder_and_path_takes_its_workers_along(tmp_path, kind):
    """Also if the fork server was started elsewhere, and if sys.path holds what marshal does not know."""
    (tmp_path / "there").mkdir()
    main = f"""
if __name__ == "__main__":
    from multiprocessing import forkserver
    if {kind!r} == "forkserver":
        forkserver.ensure_running()
    sys.path[:0] = [Path("nowhere"), ""]
    os.chdir("there")
    print("RESULT", {{os.path.basename(value[2]) for value in run({kind!r}).return_values.values()}})
"""
    (tmp_path / "script.py").write_text(HOST + main)
    found = host(tmp_path, "script.py", capture_output=True)
    assert "RESULT {'there'}" in found.stdout, found


@each_function
def test_what_the_host_had_buffered_is_not_written_by_its_workers(tmp_path, kind):
    """Neither into their logs, nor once more onto the console."""
    main = f"""
if __name__ == "__main__":
    sys.stdout = open(1, "w", closefd=False)
    print("of the host")
    logs = run({kind!r}, Std.ALL).stdouts
    run({kind!r})
    print([Path(path).read_text() for path in logs.values()])
    sys.stdout.flush()
"""
    (tmp_path / "script.py").write_text(HOST.replace("    import __main__\n", "    sys.__stdout__.flush()\n") + main)
    found = host(tmp_path, "script.py", capture_output=True)
    assert (found.stdout.count("of the host"), r"['out of 0\n', 'out of 1\n']" in found.stdout) == (1, True), found
