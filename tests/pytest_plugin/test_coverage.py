"""Coverage of tests with ranks: no process destroys the data of another, and all are combined."""

import json
import subprocess
import sys

import pytest

from tests.patience import PATIENCE_S
from tests.pytest_plugin.running import QUIET, environment, run, write

WHO = ("host", "fork 0", "fork 1", "spawn 0", "spawn 1")
LIBRARY = "def seen(who):\n" + "".join(f"    if who == {who!r}:\n        return\n" for who in WHO)
LINES = {who: 3 + 2 * number for number, who in enumerate(WHO)}
"""The line of the library that a process runs."""
TESTS = """
    import library
    import pytest

    def test_host():
        library.seen("host")

    @pytest.mark.ranks(2)
    def test_fork(rank):
        library.seen(f"fork {rank}")

    @pytest.mark.ranks(2, start_method="spawn")
    def test_spawn(rank):
        library.seen(f"spawn {rank}")

    @pytest.mark.ranks(2, start_method="spawn")
    def test_torn(rank):
        import coverage
        library.seen(f"spawn {rank}")
        with open(f"{coverage.Coverage.current()._data.base_filename()}.torn", "w") as file:
            file.write("not what coverage.py writes")

    @pytest.mark.no_cover
    @pytest.mark.ranks(1, start_method="spawn")
    def test_without_coverage():
        library.seen("host")
"""
PLAIN = {"COVERAGE_PROCESS_CONFIG": "", "COVERAGE_PROCESS_START": ""}
"""Variables of a pytest that no other coverage.py measures."""
COV = ["--cov=library", "--cov-report=json:cov.json"]


def seen(path) -> list[str]:
    """Return the processes whose line a JSON report counts."""
    found = json.loads((path / "cov.json").read_text())["files"]["library.py"]["executed_lines"]
    return [who for who in WHO if LINES[who] in found]


@pytest.mark.parametrize(
    ("args", "processes"),
    [
        (["-k", "fork"], WHO[1:3]),
        (["-k", "spawn"], WHO[3:]),
        (["-k", "not without and not torn"], WHO),
        (["-k", "not without and not torn", "-n", "2"], WHO),
        (["-k", "without"], ()),
    ],
    ids=["fork", "spawn", "both", "xdist", "no_cover"],
)
def test_pytest_cov_counts_the_lines_of_each_process(tmp_path, args, processes):
    """Whatever the start methods, alone, in one run and with pytest-xdist; not of a test without coverage."""
    write(tmp_path, library=LIBRARY, test_it=TESTS)
    done = run(tmp_path, *QUIET, *COV, *args, **PLAIN)
    assert done.code == 0, done.out
    assert seen(tmp_path) == list(processes)
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".coverage.")]


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["plain", "xdist"])
def test_the_options_of_pytest_cov_hold_in_ranks_that_coverage_measures_by_itself(tmp_path, workers):
    """With this setting it measures each process of multiprocessing, and knows nothing of the command line."""
    write(tmp_path, library=LIBRARY, test_it=TESTS)
    (tmp_path / ".coveragerc").write_text("[run]\nconcurrency = multiprocessing, thread\n")
    args = ("--cov-branch", "-k", "not without and not torn", *workers)
    done = run(tmp_path, *QUIET, *COV, *args, **PLAIN)
    assert done.code == 0, done.out
    assert seen(tmp_path) == list(WHO)
    assert list(json.loads((tmp_path / "cov.json").read_text())["files"]) == ["library.py"]
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".coverage.")]


@pytest.mark.stress  # three runs of pytest, and coverage starts in each rank
@pytest.mark.parametrize("patch", ["", "patch = subprocess"], ids=["plain", "subprocess"])
def test_cov_append_keeps_the_earlier_data(tmp_path, patch):
    """Also if coverage.py measures every subprocess, so that the ranks are measured before pytest starts in them."""
    write(tmp_path, library=LIBRARY, test_it=TESTS)
    (tmp_path / ".coveragerc").write_text(f"[run]\nbranch = true\n{patch}\n")
    for name in ("fork", "spawn", "host"):
        done = run(tmp_path, *QUIET, *COV, "--cov-append", "-k", name, **PLAIN)
        assert done.code == 0, done.out
    assert seen(tmp_path) == list(WHO)


@pytest.mark.stress  # coverage starts in each rank
def test_the_contexts_of_pytest_cov_name_the_tests_of_spawned_ranks(tmp_path):
    """And the phase, as in a fork."""
    write(tmp_path, library=LIBRARY, test_it=TESTS)
    (tmp_path / ".coveragerc").write_text("[json]\nshow_contexts = true\n")
    done = run(tmp_path, *QUIET, *COV, "--cov-context=test", "-k", "fork or spawn", **PLAIN)
    assert done.code == 0, done.out
    contexts = json.loads((tmp_path / "cov.json").read_text())["files"]["library.py"]["contexts"]
    assert contexts[str(LINES["fork 1"])] == ["test_it.py::test_fork|run"]
    assert contexts[str(LINES["spawn 1"])] == ["test_it.py::test_spawn|run"]


@pytest.mark.parametrize("option", ["--parallel-mode", "--append", ""], ids=["parallel", "append", "single"])
def test_coverage_run_counts_the_lines_of_each_process(tmp_path, option):
    """With a data file for each process, and with a single one, to which pytest adds those of the ranks."""
    write(tmp_path, library=LIBRARY, test_it=TESTS)
    launcher = ["-m", "coverage", "run", "--include=library.py", *option.split()]
    parts = ["host", "fork or spawn"] if option == "--append" else ["not without and not torn"]
    if not option:
        parts = ["not without"]  # also with a file of a rank that was killed while it wrote
    for part in parts:
        done = run(tmp_path, *QUIET, "-k", part, launcher=launcher, **PLAIN)
        assert done.code == 0, done.out
    combine = [["combine", "-q"]] if option == "--parallel-mode" else []
    for words in [*combine, ["json", "-q", "-o", "cov.json"]]:
        subprocess.run(
            [sys.executable, "-m", "coverage", *words],
            cwd=tmp_path,
            env=environment(**PLAIN),
            check=True,
            timeout=PATIENCE_S,
        )
    assert seen(tmp_path) == list(WHO)
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".coverage.")]


def test_a_spawned_rank_overwrites_no_file_of_pytest(tmp_path):
    """Neither the log file nor the cache nor a report for JUnit or allure, whose options the rank has as well."""
    write(
        tmp_path,
        test_it="""
        import logging, os, pathlib
        import pytest

        def test_first(pytestconfig):
            logging.getLogger().error("from the first test")
            pytestconfig.cache.set("of/tests", 1)

        @pytest.mark.ranks(1, start_method="spawn")
        def test_rank():
            logging.getLogger().error("from the rank")

        def test_last(pytestconfig):
            assert "from the first test" in pathlib.Path("log.txt").read_text()
            assert pytestconfig.cache.get("of/tests", None) == 1
            assert not pathlib.Path("junit.xml").exists()
            assert pathlib.Path("allure").read_text() == str(os.getpid())
        """,
    )
    with (tmp_path / "conftest.py").open("a") as file:
        file.write("""
def pytest_addoption(parser):
    parser.addoption("--alluredir", dest="allure_report_dir")

def pytest_sessionstart(session):
    if session.config.option.allure_report_dir:
        FILE.with_name(session.config.option.allure_report_dir).write_text(str(os.getpid()))
""")
    words = [word for word in QUIET if word != "no:cacheprovider"]
    options = [
        "-p",
        "cacheprovider",
        "--log-file=log.txt",
        "--cache-clear",
        "--junitxml=junit.xml",
        "--alluredir=allure",
    ]
    done = run(tmp_path, *words[1:], *options)
    assert done.code == 0, done.out
