"""What pytest reports of a test with ranks, for each way in which it can end."""

import re

import pytest

from tests.patience import PATIENCE_S, PATIENT_STACKS
from tests.pytest_plugin.running import QUIET, Run, run, write

pytestmark = pytest.mark.timeout(4 * PATIENCE_S)  # a corpus has many gangs

TESTS = """
    import os, resource, threading, time, unittest, warnings
    from fractions import Fraction
    import pytest
    import patient_stacks

    @pytest.mark.ranks(3, grace_s=50)
    def test_equal_failures(rank):
        print("hello from", rank)
        size = {"a": 1}
        assert size == {"a": 2}

    @pytest.mark.ranks(2, grace_s=50)
    def test_addresses(rank):
        raise ValueError(f"cannot use <object at 0x7f{rank}a0>")

    @pytest.mark.ranks(3, grace_s=50)
    def test_other_values(rank):
        assert rank == 5

    @pytest.mark.ranks(2, grace_s=50)
    def test_other_places(rank, rank_gather):
        rank_gather()
        if rank:
            rank_gather(timeout_s=40)
        raise ValueError("only here")

    @pytest.mark.ranks(2)
    def test_killed(rank):
        if rank:
            os.kill(os.getpid(), 9)

    @pytest.mark.ranks(2)
    def test_exits(rank):
        if not rank:
            os._exit(7)

    @pytest.mark.ranks(2)
    def test_crashes_at_its_exit(rank):
        if rank:  # the process waits for the thread, but the test does not
            threading.Thread(target=lambda: (threading.main_thread().join(), os.kill(os.getpid(), 9))).start()

    @pytest.mark.ranks(2)
    def test_closes_descriptors(rank):
        os.closerange(3, 200)

    @pytest.mark.ranks(2)
    def test_terminated(rank):
        if rank:
            os.kill(os.getpid(), 15)

    @pytest.mark.ranks(3, timeout_s=8)
    def test_hangs(rank):
        if rank:
            threading.Event().wait()

    @pytest.mark.ranks(3, grace_s=0.2)
    def test_victims(rank, rank_gather):
        if rank:
            print("waiting")
        rank_gather()
        if rank:
            threading.Event().wait()
        raise RuntimeError("the cause")

    @pytest.mark.ranks(2, grace_s=50)
    def test_skipped(rank):
        pytest.skip("not today")

    @pytest.mark.ranks(3, grace_s=50)
    def test_skipped_in_some(rank):
        if rank == 1:
            pytest.skip("not here")

    @pytest.mark.xfail(reason="known")
    @pytest.mark.ranks(2, grace_s=50)
    def test_expected(rank):
        assert rank

    @pytest.mark.xfail(strict=True)
    @pytest.mark.ranks(2, grace_s=50)
    def test_expected_strictly_in_one(rank):
        assert rank

    @pytest.mark.xfail(strict=True, reason="known")
    @pytest.mark.ranks(2, grace_s=50)
    def test_unexpected_strictly():
        pass

    @pytest.mark.xfail(reason="known")
    @pytest.mark.ranks(2, grace_s=50)
    def test_unexpected():
        pass

    @pytest.fixture
    def broken_teardown(rank):
        yield
        assert rank == 0, "broken teardown"

    @pytest.mark.ranks(2)
    def test_teardown_fails(broken_teardown):
        pass

    @pytest.fixture
    def no_teardown():
        yield
        raise KeyError("no teardown")

    @pytest.mark.ranks(2, grace_s=50)
    def test_skips_before_its_teardown_fails(no_teardown):
        pytest.skip("not today")

    @pytest.mark.ranks(1)
    def test_fails_before_its_teardown_fails(no_teardown):
        raise ValueError("first of all")

    @pytest.fixture
    def deadly_teardown(rank):
        yield
        if rank:
            os._exit(3)

    @pytest.mark.ranks(2, grace_s=50)
    def test_skips_before_it_dies(deadly_teardown):
        pytest.skip("not today")

    @pytest.mark.xfail(reason="known")
    @pytest.mark.ranks(2, grace_s=50)
    def test_fails_as_expected_before_it_dies(deadly_teardown):
        raise ValueError("known")

    @pytest.fixture
    def endless_teardown(rank):
        yield
        if rank:
            threading.Event().wait()

    @pytest.mark.xfail(reason="known")
    @pytest.mark.ranks(2, timeout_s=8)
    def test_fails_as_expected_before_it_hangs(endless_teardown):
        raise ValueError("known")

    @pytest.mark.ranks(2, grace_s=50)
    def test_uses_all_descriptors():
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        opened = []
        while True:
            opened.append(os.open("/dev/null", os.O_RDONLY))

    @pytest.mark.ranks(2, grace_s=50)
    def test_gathers_after_its_peer_has_given_up(rank, rank_gather, gang_tmp_path):
        if rank == 0:
            for number in range(3):
                with pytest.raises(Exception, match="rank 1 did not make call"):
                    rank_gather(number, timeout_s=0)
            (gang_tmp_path / "given up").touch()
        while not (gang_tmp_path / "given up").exists():
            time.sleep(0.01)
        if rank == 1:
            assert rank_gather(7, timeout_s=40) == [0, 7]

    @pytest.fixture
    def broken_setup(rank):
        assert rank == 0, "broken setup"

    @pytest.mark.ranks(2, grace_s=50)
    def test_setup_fails(broken_setup):
        pass

    @pytest.fixture(scope="module")
    def broken_module():
        raise ValueError("broken module")

    @pytest.mark.ranks(2)
    def test_module_fails(broken_module):
        pass

    @pytest.mark.ranks(2)
    def test_warns(record_property, rank):
        warnings.warn("from each rank", FutureWarning)
        record_property("size", 2)
        record_property("rank", rank)
        record_property("loss", Fraction(1, 2))
        record_property("losses", {(1, 2): 3})
        circle = []
        circle.append(circle)
        record_property("circle", circle)
        with pytest.warns(DeprecationWarning), pytest.raises(ZeroDivisionError):
            warnings.warn("caught", DeprecationWarning)
            1 / 0

    @pytest.mark.ranks(2)
    class TestUnit(unittest.TestCase):
        def setUp(self):
            self.rank = int(os.environ["RANK"])

        def test_it(self):
            self.assertLess(self.rank, int(os.environ["WORLD_SIZE"]))

        def test_in_parts(self):
            for part in range(3):
                with self.subTest(part=part):
                    self.assertEqual(part * self.rank, 0)

    @pytest.mark.ranks(2)
    def test_in_parts(rank, subtests):
        for part in range(3):
            with subtests.test("one", part=part):
                print("part", part)
                assert part * rank == 0

    @pytest.fixture
    def talking():
        yield
        print("good-bye")

    @pytest.mark.ranks(1)
    def test_ends_with_words(talking):
        raise ValueError("after all")

    @pytest.fixture
    def done_is_told(rank, gang_tmp_path):
        yield
        (gang_tmp_path / f"done{rank}").touch()

    @pytest.mark.ranks(2, grace_s=50)
    def test_the_peer_of_a_killed_rank(rank, gang_tmp_path, done_is_told):
        if rank == 0:
            raise ConnectionError("the peer closed the connection")
        while not (gang_tmp_path / "done0").exists():
            time.sleep(0.001)
        os.kill(os.getpid(), 9)

    @pytest.mark.filterwarnings("error")
    @pytest.mark.ranks(1, start_method="spawn")
    def test_a_spawned_rank_warns():
        warnings.warn("an error here", FutureWarning)

    @pytest.mark.ranks(1, start_method="spawn")
    def test_a_spawned_rank_compares():
        assert {"a": 1, "b": 2} == {"a": 1, "b": 3}

    @pytest.mark.ranks(2)
    def test_in_good_parts(subtests):
        with subtests.test("one"):
            pass
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> Run:
    """One run of all tests of this module's corpus."""
    folder = tmp_path_factory.mktemp("outcomes")
    write(folder, test_it=TESTS, patient_stacks=PATIENT_STACKS)
    return run(folder, *QUIET, "-v", patience_s=3 * PATIENCE_S)


def test_a_failure_is_shown_as_if_it_had_happened_here(outcomes):
    """With pytest's introspection, from the rank, without a frame of supervise; equal failures are folded."""
    report = outcomes.of("test_equal_failures")
    assert report["outcome"] == "failed"
    assert report["text"].startswith("rank = ")
    assert '>       assert size == {"a": 2}' in report["text"]
    assert "E       AssertionError: assert {'a': 1} == {'a': 2}" in report["text"]
    assert report["text"].count("def test_equal_failures") == 1
    assert "of 3 failed first" in report["text"]
    assert "failed in the same way" in report["text"]
    assert "supervise" not in report["text"]


def test_failures_that_differ_only_in_an_address_are_equal(outcomes):
    text = outcomes.of("test_addresses")["text"]
    assert "failed in the same way" in text
    assert text.count("E       ValueError: cannot use") == 1


def test_the_output_of_each_rank_is_a_section(outcomes):
    """Its title names the phase and the rank."""
    for rank in range(3):
        assert outcomes.section("test_equal_failures", f"Captured stdout call [rank {rank}]") == f"hello from {rank}\n"


def test_other_values_at_the_same_place_are_listed_without_the_traceback(outcomes):
    """Each rank's own message is shown."""
    text = outcomes.of("test_other_values")["text"]
    assert text.count("def test_other_values") == 1
    assert text.count("failed at the same place:") == 2
    assert all(f"assert {rank} == 5" in text for rank in range(3))


def test_a_rank_that_waited_for_the_failed_one_is_one_line(outcomes):
    """The traceback is that of the cause."""
    text = outcomes.of("test_other_places")["text"]
    assert "ValueError: only here" in text
    assert "rank 1: rank_gather: rank 0 ended before call number 2" in text


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("test_killed", "rank 1 was killed by SIGKILL in the call of the test"),
        ("test_exits", "rank 0 exited with code 7 in the call of the test"),
        ("test_crashes_at_its_exit", "rank 1 was killed by SIGKILL at its exit"),
    ],
)
def test_a_rank_that_dies_fails_the_test(outcomes, name, end):
    """The text says how it died, and in which phase."""
    assert outcomes.of(name)["outcome"] == "failed"
    assert outcomes.of(name)["text"].startswith(end)


def test_a_rank_that_is_killed_comes_before_the_failure_that_its_peer_recorded(outcomes):
    """As in the result of a gang: the peer notices first that the connection is closed."""
    text = outcomes.of("test_the_peer_of_a_killed_rank")["text"]
    assert text.startswith("rank 1 was killed by SIGKILL")
    assert "ConnectionError" in text


def test_a_spawned_rank_has_the_hooks_around_a_test(outcomes):
    """Filters of warnings by a mark, and the texts of compared values."""
    assert "FutureWarning: an error here" in outcomes.of("test_a_spawned_rank_warns")["text"]
    assert "Differing items" in outcomes.of("test_a_spawned_rank_compares")["text"]


def test_a_test_that_closes_what_its_exit_needs_passes(outcomes):
    """The exit code is then not that of the test."""
    assert outcomes.of("test_closes_descriptors")["outcome"] == "passed"


@pytest.mark.parametrize("name", ["test_skips_before_it_dies", "test_fails_as_expected_before_it_dies"])
def test_a_rank_that_dies_in_its_teardown_is_not_hidden_by_a_skip(outcomes, name):
    """Nor by an expected failure."""
    assert outcomes.of(name)["outcome"] == "failed"
    assert outcomes.of(name)["text"].startswith("rank 1 exited with code 3 in the teardown of the test")


def test_a_teardown_that_hangs_is_not_hidden_by_an_expected_failure(outcomes):
    """It has all the time of the test, because the other ranks do not wait for it."""
    report = outcomes.of("test_fails_as_expected_before_it_hangs")
    assert report["outcome"] == "failed"
    assert report["text"].startswith("rank 1 did not end after the test")
    assert ", in endless_teardown" in report["text"]
    assert "in the teardown of the test, and was stopped" in report["text"]


def test_a_teardown_that_fails_is_not_hidden_by_a_skip(outcomes):
    report = outcomes.of("test_skips_before_its_teardown_fails")
    assert report["outcome"] == "failed"
    assert "KeyError: 'no teardown'" in report["text"]


def test_a_teardown_that_fails_is_shown_below_the_failure_of_the_test(outcomes):
    text = outcomes.of("test_fails_before_its_teardown_fails")["text"]
    assert text.index("E       ValueError: first of all") < text.index("rank 0 failed in teardown, too:")
    assert "KeyError: 'no teardown'" in text


def test_a_test_that_uses_all_descriptors_shows_where(outcomes):
    """Its report reaches the host without a further one."""
    text = outcomes.of("test_uses_all_descriptors")["text"]
    assert "OSError: [Errno 24] Too many open files: '/dev/null'" in text
    assert "test_it.py:" in text


def test_a_gather_has_the_values_of_a_rank_that_has_given_up(outcomes):
    assert outcomes.of("test_gathers_after_its_peer_has_given_up")["outcome"] == "passed"


def test_a_rank_that_gets_sigterm_shows_where(outcomes):
    """Without the handler of supervise."""
    report = outcomes.of("test_terminated")
    assert report["outcome"] == "failed"
    assert re.search(r"\n>  +os\.kill\(os\.getpid\(\), 15\)\nE  .*: the rank got SIGTERM\n", report["text"])
    assert "def stop" not in report["text"]


def test_a_timeout_shows_the_stacks_of_the_ranks_that_still_run(outcomes):
    """From the test's own call on."""
    text = outcomes.of("test_hangs")["text"]
    assert re.match(r"timeout: ranks 1-2 of 3 still running after (8|9|\d\d)\.", text)
    assert "ranks 1-2: test_hangs (test_it.py:" in text
    assert "rank 0 was" not in text
    assert text.count(", in test_hangs") == 2
    assert "supervise" not in text


def test_victims_are_named_with_their_stacks_below_the_cause(outcomes):
    """The cause is the failure of the test; ranks that waited for it were stopped."""
    report = outcomes.of("test_victims")
    assert "RuntimeError: the cause" in report["text"]
    for rank in (1, 2):
        assert f"rank {rank} was still running" in report["text"]
        assert outcomes.section("test_victims", f"Captured stdout call [rank {rank}]") == "waiting\n"
    assert report["text"].count(", in test_victims") == 2


def test_a_skip_in_all_ranks_is_a_skip(outcomes):
    """With its reason."""
    assert outcomes.of("test_skipped")["outcome"] == "skipped"
    assert "Skipped: not today" in outcomes.of("test_skipped")["text"]


def test_a_skip_in_some_ranks_is_a_failure_that_names_them(outcomes):
    """And those that did not skip."""
    report = outcomes.of("test_skipped_in_some")
    assert report["outcome"] == "failed"
    assert "skipped in rank 1 only (not here), and not in ranks 0, 2" in report["text"]


@pytest.mark.parametrize("name", ["test_expected", "test_expected_strictly_in_one"])
def test_a_failure_in_one_rank_fulfills_xfail(outcomes, name):
    """Also if the other ranks pass, and the mark is strict."""
    assert outcomes.of(name)["outcome"] == "skipped"
    assert outcomes.of(name)["wasxfail"] is not None


def test_an_unexpected_pass_is_reported_as_by_pytest(outcomes):
    """Strictly, it is a failure."""
    assert outcomes.of("test_unexpected_strictly")["outcome"] == "failed"
    assert outcomes.of("test_unexpected_strictly")["text"] == "[XPASS(strict)] known"
    assert outcomes.of("test_unexpected")["outcome"] == "passed"
    assert outcomes.of("test_unexpected")["wasxfail"] == "known"


def test_failures_of_fixtures_in_ranks_fail_the_test(outcomes):
    """The phase is named."""
    assert "rank 1 of 2 failed first (in teardown)" in outcomes.of("test_teardown_fails")["text"]
    assert "rank 1 of 2 failed first (in setup)" in outcomes.of("test_setup_fails")["text"]
    assert "broken setup" in outcomes.of("test_setup_fails")["text"]


def test_a_failure_of_a_shared_fixture_is_an_error_at_setup(outcomes):
    """No rank is started."""
    assert outcomes.of("test_module_fails", "setup")["outcome"] == "failed"


def test_warnings_and_properties_of_ranks_arrive_once(outcomes):
    """Equal ones are not repeated; those that the test has caught are not shown; any value has a text."""
    assert outcomes.of("test_warns")["outcome"] == "passed", outcomes.of("test_warns")["text"]
    assert outcomes.out.count("FutureWarning: from each rank") == 1
    assert "DeprecationWarning: caught" not in outcomes.out
    assert sorted(map(tuple, outcomes.of("test_warns")["properties"])) == [
        ("circle", "[[...]]"),
        ("loss", "1/2"),
        ("losses", "{(1, 2): 3}"),
        ("rank", 0),
        ("rank", 1),
        ("size", 2),
    ]


def test_a_unittest_case_runs_in_ranks(outcomes):
    """With setUp in each rank, and the variables of torchrun."""
    assert outcomes.of("TestUnit::test_it")["outcome"] == "passed", outcomes.of("TestUnit::test_it")["text"]
    assert outcomes.of("TestUnit::test_it", "teardown")["outcome"] == "passed"


@pytest.mark.parametrize("name", ["test_in_parts", "TestUnit::test_in_parts"])
def test_a_subtest_that_fails_in_a_rank_fails_the_test(outcomes, name):
    """The first one is shown in full, the others with a line each."""
    report = outcomes.of(name)
    assert report["outcome"] == "failed"
    assert "1 != 0" in report["text"] or "assert (1 * 1) == 0" in report["text"]
    for part, value in ((1, "1"), (2, "2")):
        assert re.search(rf"\n\S*test_in_parts .*\(part='?{part}'?\): .*\b{value}\b", report["text"]), report["text"]
    assert "rank 1 of 2 failed first" in report["text"]
    assert [each for each in outcomes.reports if each["nodeid"] == name and each["when"] == "call"] == [report]


def test_subtests_that_pass_leave_the_test_alone(outcomes):
    """And the output of a subtest is that of its rank."""
    assert outcomes.of("test_in_good_parts")["outcome"] == "passed"
    assert outcomes.section("test_in_parts", "Captured stdout call [rank 1]") == "part 0\npart 1\npart 2\n"


def test_a_fork_of_a_rank_is_no_warning_of_the_test(outcomes):
    """Python warns about a fork in a process with threads; the thread is that of the gang."""
    assert "multi-threaded" not in outcomes.out


def test_the_output_of_a_teardown_is_shown_once(outcomes):
    """As by pytest: with the report of the teardown."""
    assert outcomes.out.count("good-bye") == 1


@pytest.mark.parametrize(
    ("method", "code", "place"),
    [("fork", 7, "call"), ("spawn", 7, "fixture"), ("fork", None, "fixture")],
)
def test_exit_in_a_rank_ends_the_run_with_its_code(tmp_path, method, code, place):
    """The reason names the rank, and no further test runs."""
    write(
        tmp_path,
        test_it=f"""
        import pytest

        def leave(rank, place):
            if rank == 1 and place == {place!r}:
                pytest.exit("enough for today", {code})

        @pytest.fixture
        def leaving(rank):
            leave(rank, "fixture")

        @pytest.mark.ranks(3, start_method={method!r})
        def test_exit(rank, leaving):
            leave(rank, "call")

        def test_next():
            pass
        """,
    )
    done = run(tmp_path, *QUIET)
    assert done.code == (2 if code is None else code), done.out
    assert "Exit: rank 1: enough for today" in done.out
    assert not [each for each in done.reports if each["nodeid"] == "test_next"]


def test_an_exit_of_several_ranks_names_those_of_the_first(tmp_path):
    """Those that gave the same reason and the same code as the rank that left first."""
    write(
        tmp_path,
        test_it="""
        import pytest

        @pytest.mark.ranks(3, grace_s=50)
        def test_exit(rank, rank_gather):
            if rank == 0:
                with pytest.raises(Exception, match="ended"):
                    rank_gather()
                pytest.exit("later", 9)
            pytest.exit("first", 8)
        """,
    )
    done = run(tmp_path, *QUIET)
    assert done.code == 8, done.out
    assert "Exit: ranks 1-2: first" in done.out


def test_what_is_kept_of_long_tests_noisy_ranks_and_their_children(tmp_path):
    """The grace is as long as the test had run; equal warnings count once; a flood of output keeps its end."""
    write(
        tmp_path,
        test_it="""
        import os, signal, threading, time, warnings
        import pytest

        @pytest.mark.ranks(2, grace_s=0)
        def test_long(rank, rank_gather):
            threading.Event().wait(8)
            rank_gather()
            if not rank:
                threading.Event().wait(1)
            assert 0, f"of rank {rank}"

        @pytest.mark.ranks(3)
        def test_warns():
            warnings.warn("from each rank")

        @pytest.mark.ranks(1)
        def test_noisy():
            print("first" + "x" * (1 << 20) + "last")

        @pytest.mark.ranks(1)
        def test_child():
            read, write = os.pipe()
            child = os.fork()
            if not child:
                os.write(write, b"!")
                while True:
                    time.sleep(0.01)  # a signal that comes just before pause() would not end it
                    # Python 3.13 and later see a signal in what a thread has forked only when a call looks for it
                    signal.pthread_sigmask(signal.SIG_BLOCK, ())
            os.read(read, 1)
            os.kill(child, signal.SIGTERM)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        """,
    )
    done = run(tmp_path, *QUIET, "-rA")
    text = done.of("test_long")["text"]
    assert "of rank 0" in text
    assert "of rank 1" in text
    assert "rank 1 of 2 failed first" in text
    assert "still running" not in text
    assert ", 1 warning in " in done.out
    shown = done.section("test_noisy", "Captured stdout call [rank 0]")
    assert shown.startswith("[10 earlier bytes left out]\nxxx")
    assert shown.endswith("xlast\n")
    assert done.of("test_child")["outcome"] == "passed", done.of("test_child")["text"]
