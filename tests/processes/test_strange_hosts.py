"""Functions in programs that are no ordinary run of a Python: each works, or is refused by name; none runs twice."""

import os
import shutil
import subprocess
import sys
import zipapp
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S

ROOT = str(Path(__file__).parents[2])

WORK = """
def work(number):
    import multiprocessing, os
    multiprocessing.get_context("spawn").SimpleQueue()  # needs the resource tracker
    return number, multiprocessing.current_process().name, multiprocessing.parent_process().pid != os.getpid()
"""

MAIN = """
def main():
    import os, supervise
    for method in os.environ["METHODS"].split():
        entry, args = ("true", {0: (), 1: ()}) if method == "program" else (work, {0: (0,), 1: (1,)})
        more = {} if method == "program" else {"start_method": method}
        try:
            with supervise.start_processes("strange", entry, args, **more) as context:
                print(method, "values", sorted(context.wait().return_values.values()), flush=True)
        except supervise.SpecError as error:
            print(method, "refused:", error, flush=True)
"""
VALUES = "values [(0, 'Rank-0', True), (1, 'Rank-1', True)]"
GUARDED = f'{WORK}{MAIN}\nif __name__ == "__main__":\n    main()\n'


def run(folder: Path, *command: str, methods: str = "spawn forkserver fork", **env: str) -> dict[str, str]:
    """Run a program to its end, in `folder`; return what it has printed for each start method."""
    whole = os.environ | {"PYTHONPATH": ROOT, "METHODS": methods} | env
    more: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, cwd=folder, env=whole, timeout=PATIENCE_S, **more)
    lines = (line.split(" ", 1) for line in done.stdout.splitlines())
    found = {line[0]: line[1] for line in lines if line[0] in methods.split()}
    assert found.keys() == set(methods.split()), done
    return found


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_function_that_only_the_main_program_defines_is_explained(tmp_path, method):
    (tmp_path / "program.py").write_text(
        f"""import supervise
if __name__ == "__main__":
    def work(number):
        return number
    try:
        supervise.run(work, n=2, args=(1,), start_method={method!r})
    except supervise.GangFailed as error:
        print({method!r}, str(error).splitlines()[2].strip())
"""
    )
    found = run(tmp_path, sys.executable, "program.py", methods=method)
    before_3_15, later = "Can't get attribute 'work' on <module '__mp_main__'", "module '__mp_main__' has no attribute"
    assert found[method].startswith((f"AttributeError: {before_3_15}", f"AttributeError: {later} 'work'"))
    hint = "a rank imports the main module without what is below if __name__ == '__main__'; define it above that"
    assert found[method].endswith(hint)


# Frozen programs

FREEZER = """
import multiprocessing, multiprocessing.spawn, os, sys

sys.frozen, sys.executable = True, os.environ["APP"]
multiprocessing.spawn.set_executable(sys.executable)

def freeze_support():
    if "-c" in sys.argv:  # the resource tracker and the fork server
        exec(sys.argv[sys.argv.index("-c") + 1], {})
        sys.exit()
    if sys.argv[1:2] == ["--multiprocessing-fork"]:
        multiprocessing.spawn.spawn_main(**{name: eval(value) for name, value in (a.split("=") for a in sys.argv[2:])})

multiprocessing.freeze_support = freeze_support
"""
"""What PyInstaller does before the main module."""


def run_frozen(folder: Path, first: str, *arguments: str, **more: Any) -> dict[str, str]:
    """Run a program that knows no option of Python: its file `started` says how often, `mains` how far.

    Args:
        folder: Where it is.
        first: The first statement of its main.
        arguments: Of the program.
        more: As for `run`.
    """
    (folder / "freezer.py").write_text(FREEZER)
    main = f"    {first}\n    print(file=open('mains', 'a'))\n    main()\n"
    (folder / "frozen.py").write_text(
        f'import freezer, multiprocessing\n{WORK}{MAIN}\nif __name__ == "__main__":\n{main}'
    )
    app = folder / "app"
    app.write_text(f'#!/bin/sh\necho "$*" >> {folder}/started\nexec "{sys.executable}" {folder}/frozen.py "$@"\n')
    app.chmod(0o700)
    return run(folder, str(app), *arguments, APP=str(app), **more)


def test_p6_a_frozen_program_that_calls_freeze_support_works(tmp_path):
    """Its main is run once, however many processes are one more of it."""
    found = run_frozen(tmp_path, "multiprocessing.freeze_support()")
    assert found == dict.fromkeys(found, VALUES)
    assert (tmp_path / "mains").read_text() == "\n"


def test_p6_a_frozen_program_without_freeze_support_is_refused_before_anything_starts(tmp_path):
    found = run_frozen(tmp_path, "pass", methods="spawn forkserver")
    for method, said in found.items():
        assert said == (
            f"refused: start_method '{method}' would run the main module of this frozen program again; call"
            " multiprocessing.freeze_support() first in the main module, or use start_method='fork'"
        )
    assert (tmp_path / "started").read_text() == "\n"


@pytest.mark.parametrize(
    "command", [["--multiprocessing-fork", "pipe_handle=9"], ["-c", "from multiprocessing.x import"]]
)
def test_p6_a_frozen_program_that_is_a_worker_and_did_not_call_freeze_support_starts_nothing(tmp_path, command):
    """Nor forks, nor runs programs: each of them might do the same."""
    never = "__file__ or multiprocessing.freeze_support()"
    found = run_frozen(tmp_path, never, *command, methods="spawn forkserver fork program")
    for said in found.values():
        assert said.startswith("refused: multiprocessing has started this frozen program for a worker")
    assert (tmp_path / "started").read_text().count("\n") == 1


OF_PYINSTALLER = "import multiprocessing\n" + GUARDED.replace(
    "    main()\n", "    multiprocessing.freeze_support()\n    main()\n"
)
APART = ["unshare", "--map-root-user", "--pid", "--mount-proc", "--fork", "--kill-child"]


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_p6_a_program_of_pyinstaller_works_or_is_refused(tmp_path):
    """The real thing, where it is installed; in a pid namespace of its own, since what it disproves is a fork bomb."""
    pytest.importorskip("PyInstaller", reason="not installed: after `pip install pyinstaller` this test runs")
    if subprocess.run([*APART, "true"], capture_output=True, check=False).returncode:
        pytest.skip("we may not make a pid namespace here")
    (tmp_path / "app.py").write_text(OF_PYINSTALLER)
    (tmp_path / "late.py").write_text(f"import supervise\n{GUARDED}")
    for script in ("app.py", "late.py"):
        build = [sys.executable, "-m", "PyInstaller", "--onedir", "--noconfirm", "--paths", ROOT, script]
        subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    app, late = (str(tmp_path / "dist" / name / name) for name in ("app", "late"))
    found = run(tmp_path, *APART, app)
    assert found == dict.fromkeys(found, VALUES)
    refused = run(tmp_path, *APART, late, methods="spawn forkserver")
    for said in refused.values():
        assert "would run the main module of this frozen program again" in said


# Embedded interpreters


@pytest.mark.parametrize("executable", ["", None])
def test_p6_without_an_executable_the_start_is_refused(tmp_path, executable):
    (tmp_path / "script.py").write_text(f"import sys\nsys.executable = {executable!r}\n{GUARDED}")
    found = run(tmp_path, sys.executable, "script.py", methods="spawn forkserver")
    for method, said in found.items():
        assert said == (
            f"refused: start_method '{method}' needs a Python to start, and sys.executable is empty;"
            " give one to multiprocessing.set_executable(), or use start_method='fork'"
        )


def test_p6_in_a_program_that_embeds_python_a_start_is_refused_until_it_has_a_python(tmp_path):
    """An executable of another name than Python's has its own options, and would run itself again."""
    engine = shutil.copy(os.path.realpath(sys.executable), tmp_path / "engine")
    env = {"PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}", "PYTHONPATH": os.pathsep.join([ROOT, *sys.path])}
    if subprocess.run([engine, "-c", "import supervise"], env=os.environ | env, check=False).returncode:
        pytest.skip("a copy of this Python does not run")
    (tmp_path / "script.py").write_text(GUARDED)
    found = run(tmp_path, engine, "script.py", **env)
    assert found.pop("fork") == VALUES
    for said in found.values():
        assert f"and sys.executable is this program, {engine}, in which Python is embedded; give one to" in said
    given = f"import multiprocessing\nmultiprocessing.set_executable({sys.executable!r})\n"
    (tmp_path / "script.py").write_text(given + GUARDED)
    found = run(tmp_path, engine, "script.py", **env)
    assert found == dict.fromkeys(found, VALUES)


# Archives and packages


@pytest.mark.parametrize("form", ["archive", "package"])
@pytest.mark.parametrize("place", ["work", "__main__", "__main__ by value"])
def test_p6_a_function_of_a_zipapp_or_package_works_or_is_refused(tmp_path, form, place):
    """As in multiprocessing, a new process does not import a ``__main__.py``: what it defines needs cloudpickle."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "work.py").write_text(WORK)
    dot = "." if form == "package" else ""
    source = f"from {dot}work import work\n" if place == "work" else WORK
    if place == "__main__":
        source = f"import sys\nsys.modules['cloudpickle'] = None\n{source}"
    (folder / "__main__.py").write_text(f'{source}{MAIN}\nif __name__ == "__main__":\n    main()\n')
    if form == "archive":
        zipapp.create_archive(folder, tmp_path / "app.pyz")
        shutil.rmtree(folder)
    found = run(tmp_path, sys.executable, *(["app.pyz"] if form == "archive" else ["-m", "app"]))
    assert found.pop("fork") == VALUES
    for said in found.values():
        if place != "__main__":
            assert said == VALUES
        else:
            assert said.startswith("refused: work was defined in the __main__.py of a package or an archive, which")


# Debuggers, profilers and Celery


@pytest.mark.parametrize("tool", [["pdb", "-c", "continue", "-c", "quit"], ["cProfile"]])
def test_p6_under_a_debugger_or_a_profiler_a_function_works_or_is_refused(tmp_path, tool):
    """The second has a main module of its own, from which a function cannot be pickled."""
    (tmp_path / "script.py").write_text(GUARDED)
    found = run(tmp_path, sys.executable, "-m", *tool, "script.py")
    assert found.pop("fork") == VALUES
    for said in found.values():
        assert said == VALUES or (tool[0] != "pdb" and said.startswith("refused: rank 0: work or one of its arguments"))


CELERY = """
import multiprocessing.process

class Key(bytes):
    def __reduce__(self):
        raise TypeError("Pickling an AuthenticationString object is disallowed for security reasons")

class Process:  # not multiprocessing's
    name, daemon, _identity, _parent_pid, authkey = "ForkPoolWorker-1", True, (1,), 1, Key(b"secret")
    _config = {"authkey": authkey, "semprefix": "/mp", "daemon": True}

multiprocessing.process._current_process = Process()
"""


def test_p6_in_a_celery_worker_a_function_works(tmp_path):
    """billiard's process stands for multiprocessing's; its key refuses to be pickled."""
    (tmp_path / "script.py").write_text(GUARDED.replace("    main()\n", f"    exec({CELERY!r})\n    main()\n"))
    found = run(tmp_path, sys.executable, "script.py")
    assert found == dict.fromkeys(found, VALUES)


@pytest.mark.parametrize("package", [False, True])
def test_p6_a_function_of_a_module_that_is_found_no_more_works(tmp_path, package):
    """Celery has the current directory in `sys.path` only while it imports the tasks."""
    tasks = tmp_path / "project" / ("tasks/gang.py" if package else "tasks.py")
    tasks.parent.mkdir(parents=True)
    tasks.write_text(WORK)
    name = "tasks.gang" if package else "tasks"
    # Below the guard, because a rank that imports the script must not import the module in this way
    imports = f"    import sys; sys.path.append('project')\n    from {name} import work\n    sys.path.pop()\n"
    (tmp_path / "script.py").write_text(GUARDED.replace(WORK, "").replace("    main()\n", f"{imports}    main()\n"))
    found = run(tmp_path, sys.executable, "script.py")
    assert found == dict.fromkeys(found, VALUES)


LOKY = """
import multiprocessing.context

class Loky(multiprocessing.context.SpawnContext):
    _name = "loky"

multiprocessing.context._concrete_contexts["loky"] = Loky()
multiprocessing.set_start_method("loky", force=True)
"""


def test_p6_in_a_worker_of_loky_a_function_works(tmp_path):
    """Its start method, which multiprocessing hands on to each new process, is not known there."""
    (tmp_path / "script.py").write_text(GUARDED.replace("    main()\n", f"    exec({LOKY!r})\n    main()\n"))
    found = run(tmp_path, sys.executable, "script.py")
    assert found == dict.fromkeys(found, VALUES)


IPYTHON = """
__spec__ = importlib.util.find_spec("ran")
get_ipython = print
"""


def test_p6_after_ipython_has_run_a_module_functions_of_cells_work(tmp_path):
    """``%run -m`` leaves the specification of that module to the main module."""
    (tmp_path / "ran.py").write_text("raise SystemExit('a rank has imported this')")
    source = "import importlib.util\n" + GUARDED.replace("    main()\n", f"    exec({IPYTHON!r})\n    main()\n")
    found = run(tmp_path, sys.executable, "-c", source, methods="spawn forkserver")
    assert found == dict.fromkeys(found, VALUES)


AGAIN = """
def sq():
    return "new"

for method in ("spawn", "forkserver"):
    print(method, supervise.run(sq, n=2, start_method=method))

"""


@pytest.mark.parametrize("words", [("ran.py",), ("-m", "ran")])
def test_a_function_of_a_prompt_is_that_of_the_prompt(tmp_path, words):
    """Also if the main module is that of a file, which has a function of the same name."""
    (tmp_path / "ran.py").write_text("import supervise\nprint('read')\ndef sq():\n    return 'old'\n")
    command = [sys.executable, "-i", *words]
    env = os.environ | {"PYTHONPATH": ROOT}
    more = {"text": True, "capture_output": True, "timeout": PATIENCE_S, "env": env}
    done = subprocess.run(command, input=AGAIN, cwd=tmp_path, check=False, **more)
    assert done.stdout.splitlines() == ["read", "spawn ['new', 'new']", "forkserver ['new', 'new']"], done


@pytest.mark.parametrize("function", ["work", "new"])
def test_without_cloudpickle_a_function_of_a_prompt_is_refused_and_that_of_its_file_is_not(tmp_path, function):
    """The main module can be imported, but without what was defined later."""
    new = "exec(compile('def new(number): pass', '<stdin>', 'exec'))\n"
    hidden = f"import sys\nsys.ps1, sys.modules['cloudpickle'] = '>>> ', None\n{new}"
    (tmp_path / "script.py").write_text(hidden + GUARDED.replace("else (work,", f"else ({function},"))
    found = run(tmp_path, sys.executable, "script.py", methods="spawn forkserver")
    refused = "refused: new was defined at a prompt, in a notebook, by -c or from stdin, which the new processes cannot"
    for said in found.values():
        assert said == VALUES if function == "work" else said.startswith(refused)


@pytest.mark.parametrize(("library", "question"), [("gevent", "is_module_patched"), ("eventlet", "is_monkey_patched")])
def test_p6_where_a_library_has_replaced_threads_a_start_is_refused(tmp_path, library, question):
    """It would hang, or fail with an error about that library's modules."""
    part = "monkey" if library == "gevent" else "patcher"
    (tmp_path / library).mkdir()
    (tmp_path / library / "__init__.py").touch()
    (tmp_path / library / f"{part}.py").write_text(f"def {question}(name):\n    return name == 'select'\n")
    (tmp_path / "script.py").write_text(f"import {library}.{part}\n{GUARDED}")
    found = run(tmp_path, sys.executable, "script.py", methods="spawn program")
    refused = f"refused: {library} has replaced select in this process, so no gang can run in it; start the gang in a"
    assert all(said.startswith(refused) for said in found.values()), found


def test_k7_a_host_that_has_closed_its_stderr_starts_functions(tmp_path):
    """As a daemon does. The resource tracker of multiprocessing would get the same descriptor twice."""
    source = GUARDED.replace("import os, supervise", "import os, sys, supervise; os.close(sys.stderr.fileno())", 1)
    (tmp_path / "program.py").write_text(source)
    assert run(tmp_path, sys.executable, "program.py") == dict.fromkeys(("spawn", "forkserver", "fork"), VALUES)


def test_k1_in_a_host_that_has_closed_its_streams_the_output_of_ranks_is_not_written_to_the_lifeline(tmp_path):
    """Each write to that pipe would kill the ranks. A daemon may close the streams, and open no others."""
    (tmp_path / "program.py").write_text(
        """import os, sys, supervise
def work():
    print("out", flush=True)
    print("err", file=sys.stderr)
if __name__ == "__main__":
    said = os.open("said", os.O_WRONLY | os.O_CREAT)
    os.closerange(0, 3)
    for entry, args in (("sh", ("-c", "echo out; echo err >&2")), (work, ())):
        for _ in range(5):  # the output goes to files, and from there to what the streams of the host are now
            try:
                supervise.run(entry, n=2, args=args)
                os.write(said, b"succeeded\\n")
            except supervise.GangFailed as error:
                os.write(said, str(error).encode())
    os._exit(0)  # an interpreter without a stdout exits with 120
"""
    )
    subprocess.run([sys.executable, "program.py"], check=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": ROOT})
    assert (tmp_path / "said").read_text() == "succeeded\n" * 10


CLOSES_ALL = """
import os, supervise
try:
    with supervise.start_processes("sleep", "sleep", {0: ("600",), 1: ("600",)}, timeout=1) as context:
        os.closerange(3, 4096)
        context.wait()
except supervise.SupervisorCrashed as error:
    print("program", error, flush=True)
"""


def test_k3_a_host_that_closes_all_its_descriptors_is_told_that_the_gang_has_crashed(tmp_path):
    """As one does that becomes a daemon. The kernel kills the ranks when the lifeline is closed."""
    found = run(tmp_path, sys.executable, "-c", CLOSES_ALL, methods="program")
    assert found["program"].endswith("; every worker was killed")
