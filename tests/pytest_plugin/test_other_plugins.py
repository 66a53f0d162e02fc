"""Options of pytest and other plugins beside tests with ranks."""

import json
import xml.etree.ElementTree as ET

import pytest

from tests.patience import PATIENT_STACKS
from tests.pytest_plugin.running import QUIET, run, write

NO_CACHE = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:anyio"]


def test_a_budget_bounds_the_ranks_of_all_workers(tmp_path):
    """Three workers of pytest-xdist never run more than four ranks at once, and reports arrive from each."""
    write(
        tmp_path,
        test_it=f"""
        import json, os, pathlib, time
        import pytest

        @pytest.mark.parametrize("number", range(4))
        @pytest.mark.ranks([2, 3], grace_s=50)
        def test_it(number, rank, world_size, rank_gather):
            begin = time.monotonic()
            rank_gather()
            with open({str(tmp_path / "times")!r}, "a") as file:
                file.write(json.dumps([begin, time.monotonic(), os.environ["PYTEST_XDIST_WORKER"]]) + "\\n")
            assert number != 3 or world_size != 2

        @pytest.mark.ranks(4)
        def test_all():
            pass

        @pytest.mark.ranks(5)
        def test_too_many():
            pass
        """,
    )
    done = run(tmp_path, *NO_CACHE, "-n", "3", "-o", "ranks_budget=4", "--dist", "load")
    text = "ranks(5) needs 5 processes, and the option ranks_budget allows 4"
    assert text in done.of("test_too_many")["text"].splitlines()
    assert "failed in the same way" in done.of("test_it[3-ranks2]")["text"]
    outcomes = [each["outcome"] for each in done.reports if each["when"] == "call"]
    assert outcomes.count("passed") == 8, done.out
    times = [json.loads(line) for line in (tmp_path / "times").read_text().splitlines()]
    assert len(times) == 4 * (2 + 3)
    assert len({worker for _, _, worker in times}) > 1
    for begin, _, _ in times:
        assert sum(first <= begin < last for first, last, _ in times) <= 4


def test_reruns_of_pytest_rerunfailures_run_the_ranks_again(tmp_path):
    """With function-scoped fixtures set up again in each rank, and shared ones not torn down in any."""
    write(
        tmp_path,
        test_it=f"""
        import os, pathlib
        import pytest

        FOLDER = pathlib.Path({str(tmp_path)!r})

        @pytest.fixture(scope="module")
        def shared():
            yield os.getpid()
            with (FOLDER / "down").open("a") as file:
                file.write(f"{{os.getpid()}}\\n")

        @pytest.mark.flaky(reruns=2)
        @pytest.mark.ranks(2, grace_s=50)
        def test_flaky(rank, shared, tmp_path):
            seen = FOLDER / f"seen-{{rank}}"
            first = not seen.exists()
            seen.touch()
            assert not first

        @pytest.mark.flaky(reruns=1)
        @pytest.mark.ranks(2, grace_s=50)
        def test_never(shared):
            assert 0
        """,
    )
    done = run(tmp_path, *NO_CACHE, "-p", "no:randomly")
    assert [each["outcome"] for each in done.reports if each["when"] == "call"] == [
        *("rerun", "passed"),
        *("rerun", "failed"),
    ], done.out
    assert len((tmp_path / "down").read_text().split()) == 1


def test_junit_has_the_failure_and_exitfirst_ends_the_run(tmp_path):
    """With the text, the output and the properties of ranks; the order of pytest-randomly is that of each rank."""
    write(
        tmp_path,
        test_it="""
        import random
        import pytest

        @pytest.mark.ranks(2, grace_s=50)
        def test_first(rank, rank_gather, record_property):
            assert len(set(rank_gather(random.random()))) == 1
            record_property("size", 2)
            print("written by", rank)
            assert rank == 5

        @pytest.mark.ranks(2)
        def test_second():
            pass
        """,
    )
    options = ["-p", "no:rerunfailures", "--randomly-dont-reorganize", "-o", "junit_family=xunit1"]
    done = run(tmp_path, *NO_CACHE, *options, "-x", "--junitxml=junit.xml", "-o", "junit_logging=all")
    assert done.code == 1
    assert not [each for each in done.reports if each["nodeid"] == "test_second"]
    root = ET.parse(tmp_path / "junit.xml").getroot()
    (case,) = root.iter("testcase")
    assert "assert rank == 5" in case.find("failure").text
    assert "failed at the same place" in case.find("failure").text
    assert "written by" in case.find("system-out").text
    assert [each.attrib["value"] for each in case.iter("property")] == ["2"]


def test_without_capture_the_output_comes_at_once_with_its_rank(tmp_path):
    """And it is no section of the report, as the log is."""
    write(
        tmp_path,
        test_it="""
        import logging
        import pytest

        @pytest.mark.ranks(2, grace_s=50)
        def test_it(rank):
            print("hello")
            logging.getLogger().warning("from %d", rank)
            assert rank == 5
        """,
    )
    done = run(tmp_path, *QUIET, "-s")
    for rank in (0, 1):
        assert f"[rank {rank}]: hello\n" in done.out
    logs = {title: text.split()[-1] for title, text in done.of("test_it")["sections"]}
    assert logs == {f"Captured log call [rank {rank}]": str(rank) for rank in (0, 1)}
    done = run(tmp_path, *QUIET, "--capture=sys")
    assert "hello" in done.section("test_it", "Captured stdout call [rank 1]")


def test_pytest_timeout_ends_the_ranks_and_their_stacks_are_shown(tmp_path):
    """If its timeout is the shorter one."""
    write(
        tmp_path,
        patient_stacks=PATIENT_STACKS,
        test_it="""
        import threading
        import pytest
        import patient_stacks

        @pytest.mark.ranks(2)
        def test_before():
            pass  # the first gang of a process imports much

        @pytest.mark.timeout(5)
        @pytest.mark.ranks(2)
        def test_it():
            threading.Event().wait()

        def test_after():
            pass
        """,
    )
    done = run(tmp_path, *QUIET)
    assert "from pytest-timeout" in done.of("test_it")["text"]
    assert done.of("test_it")["text"].count(", in test_it") == 2
    assert done.of("test_after")["outcome"] == "passed"


@pytest.mark.stress  # hypothesis searches until its health check gives up
def test_the_health_check_of_hypothesis_speaks(tmp_path):
    """A fixture of a test with `given` is an error only to hypothesis, in the ranks, whatever their start method."""
    write(
        tmp_path,
        test_it="""
        import os
        import pytest
        from hypothesis import HealthCheck, Verbosity, given, settings, strategies

        INTEGERS = strategies.integers(0, 9)
        HOST = os.getpid()

        @pytest.mark.ranks(2)
        @given(number=INTEGERS)
        def test_checked(rank, number):
            pass

        @pytest.mark.ranks(1, start_method="spawn")
        @given(number=INTEGERS)
        def test_spawned(rank, number):
            pass

        @pytest.fixture
        def own():
            assert os.getpid() != HOST
            return os.getpid()

        @given(number=INTEGERS)
        @settings(
            suppress_health_check=[HealthCheck.function_scoped_fixture],
            derandomize=True,
            deadline=None,
            max_examples=5,
        )
        @pytest.mark.ranks(2)
        def test_suppressed(own, rank, rank_gather, number):
            assert own == os.getpid()
            assert rank_gather(number) == [number] * 2

        class TestMethod:
            @pytest.mark.ranks(2, grace_s=50)
            @settings(deadline=None, max_examples=5, verbosity=Verbosity.verbose)
            @given(number=INTEGERS)
            def test_method(self, number):
                assert number < 0

        @given(number=INTEGERS)
        def test_without_ranks(number):
            pass
        """,
    )
    words = [word for name in QUIET[1::2] if name != "no:hypothesispytest" for word in ("-p", name)]
    done = run(tmp_path, *words)
    for name in ("test_checked", "test_spawned"):
        text = done.of(name)["text"]
        assert f"FailedHealthCheck: 'test_it.py::{name}' uses a function-scoped fixture 'rank'" in text
        assert "pytest_plugin" not in text
    assert done.of("test_suppressed")["outcome"] == "passed", done.of("test_suppressed")["text"]
    assert done.of("test_without_ranks")["outcome"] == "passed"
    failed = done.of("TestMethod::test_method")
    assert "number=0" in failed["text"]
    assert "number=0" in dict(failed["sections"])["Hypothesis [rank 1]"]


def test_a_plugin_that_forbids_sockets_does_not_forbid_ranks(tmp_path):
    """As pytest-socket does it; in the ranks, sockets stay forbidden."""
    write(
        tmp_path,
        test_it="""
        import socket
        import pytest

        @pytest.fixture(scope="module")
        def forbidden():
            class Forbidden(socket.socket):
                def __new__(cls, *args, **options):
                    raise RuntimeError("no sockets")
            before, socket.socket = socket.socket, Forbidden
            yield
            socket.socket = before

        @pytest.mark.ranks(2)
        def test_it(forbidden, rank, rank_gather):
            assert rank_gather(rank) == [0, 1]
            with pytest.raises(RuntimeError, match="no sockets"):
                socket.socket()
        """,
    )
    done = run(tmp_path, *QUIET)
    assert done.of("test_it")["outcome"] == "passed", done.out


def test_without_the_plugin_of_temporary_folders_the_error_says_so(tmp_path):
    write(tmp_path, test_it="import pytest\n\n@pytest.mark.ranks(2)\ndef test_it(rank):\n    pass\n")
    done = run(tmp_path, *QUIET, "-p", "no:tmpdir")
    assert done.of("test_it")["text"] == "tests with ranks need tmp_path; omit -p no:tmpdir"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_spawned_rank_has_the_session_of_pytest(tmp_path, workers):
    """Folder, option of a class of the conftest, and worker of xdist; and a test that a hook selects by its index."""
    write(tmp_path, early="def pytest_load_initial_conftests(early_config):\n    early_config.is_early = True\n")
    with (tmp_path / "conftest.py").open("a") as file:
        file.write("""
import enum

class Kind(enum.Enum):
    BIG = "big"

def pytest_addoption(parser):
    parser.addoption("--kind", type=Kind, default=None)

def pytest_collection(session):
    class Local:
        pass

    import sys
    sys.modules["late"] = late = type(sys)("late")
    late.Local, Local.__module__, Local.__qualname__ = Local, "late", "Local"
    session.config.option.late = Local()

def pytest_collection_modifyitems(items):
    del items[::2]
""")
    (tmp_path / "sub").mkdir()
    write(
        tmp_path / "sub",
        test_it=f"""
        import pytest

        def test_removed():
            pass

        @pytest.mark.ranks(1, start_method="spawn")
        def test_it(pytestconfig, worker_id, testrun_uid):
            import conftest

            assert str(pytestconfig.rootpath) == {str(tmp_path)!r}
            assert pytestconfig.getoption("kind") is conftest.Kind.BIG
            assert type(pytestconfig.getoption("late")).__name__ == "Local"
            assert {workers} or pytestconfig.is_early  # a worker of pytest-xdist gets -p late
            assert worker_id == ("gw0" if {workers} else "master")
            assert testrun_uid == "given" or not {workers}
        """,
    )
    (tmp_path / "sub" / "conftest.py").unlink()
    done = run(tmp_path, *QUIET, "--kind=big", "-p", "early", "-n", str(workers), "--testrunuid=given")
    (called,) = [each for each in done.reports if each["when"] == "call"]
    assert called["outcome"] == "passed", done.out


@pytest.mark.parametrize("selected", ["inner or after", "patched"])
def test_gangs_run_while_modules_are_removed(tmp_path, selected):
    """By pytester and by a fixture, which remove those that were imported meanwhile."""
    write(
        tmp_path,
        test_it="""
        import sys
        from unittest import mock
        import pytest

        pytest_plugins = "pytester"

        def test_inner(pytester):
            pytester.makepyfile("import pytest\\n@pytest.mark.ranks(1)\\ndef test_it(): pass")
            pytester.runpytest_inprocess("-p", "no:randomly").assert_outcomes(passed=1)

        @pytest.mark.ranks(1, timeout_s=9)
        def test_after():
            pass

        @pytest.fixture(scope="module", params=[1, 2])
        def patch():
            with mock.patch.dict(sys.modules):
                yield

        @pytest.mark.ranks(1, timeout_s=9)
        def test_patched(patch):
            pass
        """,
    )
    done = run(tmp_path, *QUIET, "-k", selected)
    assert done.code == 0, done.out


def test_a_hook_sees_an_expected_failure_as_such(tmp_path):
    """Also a hook that comes before those of pytest, and a failure that only the test itself expects."""
    write(tmp_path, test_it="import pytest\n@pytest.mark.ranks(1)\ndef test_it():\n    pytest.xfail('known')\n")
    with (tmp_path / "conftest.py").open("a") as file:
        file.write("""
import pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(call):
    report = yield
    if call.when == "call":
        FILE.with_name("outcome").write_text(report.outcome)
    return report
""")
    assert run(tmp_path, *QUIET).code == 0
    assert (tmp_path / "outcome").read_text() == "skipped"
