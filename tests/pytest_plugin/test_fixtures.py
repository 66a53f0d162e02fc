"""The fixtures of the plugin, and ordinary fixtures in ranks."""

import pytest

from supervise.pytest_plugin._gather import Folder, RankGather
from tests.patience import PATIENCE_S
from tests.pytest_plugin.running import QUIET, Run, run, write

pytestmark = pytest.mark.timeout(4 * PATIENCE_S)  # a corpus has many gangs

TESTS = """
    import decimal, json, logging, os, pathlib, sys, tempfile, threading, time, unittest.mock
    import pykka, pytest

    NOTES = pathlib.Path(__file__).with_name("notes")

    def note(text):
        with NOTES.open("a") as file:
            file.write(text + "\\n")

    @pytest.fixture(scope="module")
    def shared():
        note("shared up")
        yield os.getpid()
        note("shared down")

    @pytest.fixture(scope="session")
    def late():
        yield os.getpid()
        note("late down")

    @pytest.fixture
    def own(rank):
        note("own up")
        yield os.getpid()
        note("own down")

    @pytest.mark.ranks(3)
    def test_scopes(shared, own, request, rank_gather):
        assert rank_gather(shared) == [shared] * 3
        assert own == os.getpid() != shared
        assert len(set(rank_gather(request.getfixturevalue("late")))) == 3

    def test_without_ranks(shared):
        assert shared == os.getpid()

    @pytest.fixture(scope="module")
    def exact():
        decimal.getcontext().prec = 50

    @pytest.mark.ranks(2)
    def test_context(exact):
        assert decimal.getcontext().prec == 50

    class Service:
        def stop(self):
            pass

        def __del__(self):
            (NOTES.parent / "stopped").touch()

    @pytest.fixture(scope="module")
    def host_folder(request):
        request.addfinalizer(Service().stop)
        with tempfile.TemporaryDirectory() as folder:
            yield pathlib.Path(folder)

    @pytest.mark.ranks(2)
    def test_inherited_generator(host_folder):
        assert host_folder.is_dir()

    def test_of_host(host_folder):
        assert host_folder.is_dir()
        assert not (NOTES.parent / "stopped").exists()

    @pytest.mark.ranks(3)
    def test_places(rank, world_size, gang_tmp_path, tmp_path, rank_gather):
        assert world_size == 3 and os.environ["RANK"] == str(rank)
        (gang_tmp_path / str(rank)).touch()
        assert len(set(rank_gather(tmp_path))) == 3
        assert sorted(path.name for path in gang_tmp_path.iterdir()) == ["0", "1", "2"]
        for step in range(20):
            assert rank_gather((rank, step)) == [(0, step), (1, step), (2, step)]
        assert rank_gather(bytes(10_000_000))[2] == bytes(10_000_000)

    @pytest.mark.ranks(2, grace_s=50)
    def test_pytest_fixtures(capsys, capfd, caplog, monkeypatch, rank):
        logging.getLogger().warning("from %d", rank)
        assert caplog.messages == [f"from {rank}"]

    @pytest.mark.ranks(2)
    def test_capsys(capsys):
        print("seen")
        assert capsys.readouterr().out == "seen\\n"

    @pytest.mark.ranks(2)
    def test_capfd(capfd):
        os.system("echo seen")
        assert capfd.readouterr().out == "seen\\n"
        with capfd.disabled():
            print("passed on")

    @pytest.mark.ranks(2)
    def test_replaced(monkeypatch, rank, rank_gather):
        monkeypatch.setattr(os, "getpid", lambda: 1)
        monkeypatch.setattr(json, "dumps", None)
        monkeypatch.setattr(time, "monotonic", lambda: 0.0)
        monkeypatch.setattr(sys, "stdout", None)
        assert rank_gather(rank) == [0, 1]

    @pytest.mark.ranks(2)
    @pytest.mark.parametrize("effect", [None, ValueError])
    @pytest.mark.parametrize("name", ["open", "stat", "rename"])
    def test_mocked(monkeypatch, rank, rank_gather, name, effect):
        monkeypatch.setattr(os, name, unittest.mock.Mock(side_effect=effect))
        assert rank_gather(rank) == [0, 1]

    @pytest.fixture
    def frozen(monkeypatch):  # as freezegun does it
        fakes = {id(time.monotonic): lambda: 0.0, id(time.monotonic_ns): lambda: 0}
        for module in list(sys.modules.values()):
            for name, value in list(vars(module).items()):
                if id(value) in fakes:
                    monkeypatch.setattr(module, name, fakes[id(value)])

    def end_of(rank, folder):
        while not (folder.parent / f"ended-{rank}").exists():
            time.sleep(0.01)

    @pytest.mark.ranks(2, timeout_s=9)
    def test_frozen_gather(frozen, rank, rank_gather, gang_tmp_path):
        if rank:
            return end_of(0, gang_tmp_path)
        with pytest.raises(Exception, match="did not make call"):
            rank_gather(timeout_s=0.1)

    @pytest.mark.ranks(2, grace_s=50)
    def test_frozen_failure(frozen, rank, gang_tmp_path):
        if not rank:
            end_of(1, gang_tmp_path)
        raise ValueError(rank)

    @pytest.mark.ranks(2)
    def test_actors():
        assert pykka.ActorRegistry.stop_all() == []

    @pytest.mark.ranks(2)
    def test_log(rank):
        logging.getLogger().warning("from %d", rank)

    @pytest.mark.ranks(3, grace_s=1)
    def test_late_rank(rank, rank_gather, gang_tmp_path):
        rank_gather()
        if rank == 1:
            threading.Event().wait()
        while not rank and not (gang_tmp_path.parent / "value-1-2").exists():  # rank 2 is not late
            time.sleep(0.01)
        rank_gather(rank, timeout_s=1000 if rank else 2)

    @pytest.mark.ranks(2)
    def test_early_rank(rank, rank_gather):
        if rank:
            rank_gather(rank)

    @pytest.mark.ranks(2, grace_s=50)
    def test_bad_value(rank_gather):
        rank_gather(threading.Lock())

    def test_no_ranks(rank):
        pass

    @pytest.mark.ranks(2, start_method="spawn", grace_s=50)
    def test_spawned(rank, rank_gather, tmp_path, shared):
        print("in a new interpreter")
        assert shared == os.getpid()
        assert rank_gather(rank) == [0, 1]
        assert rank == 5
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the run."""
    return tmp_path_factory.mktemp("fixtures")


@pytest.fixture(scope="module")
def fixtures(folder) -> Run:
    """One run of all tests of this module's corpus."""
    write(folder, test_it=TESTS)
    return run(folder, *QUIET, "-v", patience_s=3 * PATIENCE_S)


@pytest.mark.parametrize(
    "name",
    [
        "test_scopes",
        "test_without_ranks",
        "test_inherited_generator",
        "test_of_host",
        "test_places",
        "test_capsys",
        "test_capfd",
        "test_replaced",
        *(f"test_mocked[{name}-{effect}]" for name in ("open", "stat", "rename") for effect in ("None", "ValueError")),
        "test_frozen_gather",
        "test_actors",
        "test_log",
    ],
)
def test_fixtures_work_in_each_rank(fixtures, name):
    """The assertions are in the test of the corpus."""
    assert fixtures.of(name)["outcome"] == "passed", fixtures.of(name)["text"]


def test_a_fork_inherits_what_outlives_the_test_and_sets_up_the_rest(fixtures, folder):
    """A module's fixture is set up once for all tests in the host, and torn down there; a late one by its rank."""
    notes = (folder / "notes").read_text().splitlines()
    assert notes.count("own up") == notes.count("own down") == 3
    assert notes.count("late down") == 3
    assert notes.count("shared up") == notes.count("shared down") == 3  # the host, and two spawned ranks


def test_the_first_failure_is_known_while_time_stands_still(fixtures):
    """A rank reads a clock that freezegun does not replace."""
    assert "rank 1 of 2 failed first" in fixtures.of("test_frozen_failure")["text"]


def test_two_captures_are_an_error_as_in_pytest(fixtures):
    """The error of pytest arrives, folded."""
    text = fixtures.of("test_pytest_fixtures")["text"]
    assert "cannot use capfd and capsys at the same time" in text
    assert "failed in the same way" in text


def test_the_log_of_each_rank_is_a_section(fixtures):
    """As pytest formats it."""
    for rank in (0, 1):
        assert f"from {rank}" in fixtures.section("test_log", f"Captured log call [rank {rank}]")


def test_a_gather_names_the_missing_rank(fixtures):
    """After its timeout."""
    text = fixtures.of("test_late_rank")["text"]
    assert "RankGatherError: rank_gather: rank 1 did not make call number 2 within 2 s" in text
    assert "rank 1 failed" not in text


def test_a_gather_does_not_wait_for_a_rank_that_has_ended(fixtures):
    """Also if that rank passed."""
    text = fixtures.of("test_early_rank")["text"]
    assert "RankGatherError: rank_gather: rank 0 ended before call number 1" in text


def test_a_value_that_does_not_pickle_is_named(fixtures):
    """As a TypeError."""
    assert "TypeError: rank_gather cannot pickle the value of rank" in fixtures.of("test_bad_value")["text"]


def test_a_rank_has_the_context_variables_of_the_host(fixtures):
    """The thread of the gang forks, and has none of them."""
    assert fixtures.of("test_context")["outcome"] == "passed"


def test_the_fixtures_need_the_mark(fixtures):
    """The error says so, at setup."""
    text = fixtures.of("test_no_ranks", "setup")["text"]
    assert text == "the fixture 'rank' needs a test that is marked with pytest.mark.ranks"


def test_a_spawned_rank_collects_the_test_itself(fixtures):
    """And reports as a forked one does."""
    report = fixtures.of("test_spawned")
    assert "assert rank == 5" in report["text"]
    assert "failed at the same place" in report["text"]
    assert "in a new interpreter\n" in fixtures.section("test_spawned", "Captured stdout call [rank 0]")


BUSY_LOG = """
    import io, logging, os, threading
    import pytest

    entered, go = threading.Event(), threading.Event()

    class Slow(io.RawIOBase):
        def writable(self):
            return True

        def fileno(self):
            return real.fileno()

        def write(self, data):
            entered.set()
            go.wait()
            return len(data)

    @pytest.fixture(scope="session", autouse=True)
    def server(request):
        global real
        handler = request.config.pluginmanager.getplugin("logging-plugin").log_file_handler
        real = handler.stream
        handler.stream = io.TextIOWrapper(io.BufferedWriter(Slow()))
        thread = threading.Thread(target=logging.getLogger("server").warning, args=("tick",))
        thread.start()
        entered.wait()
        yield
        go.set()
        thread.join()

    @pytest.mark.ranks(2)
    def test_it(rank):
        logging.getLogger().warning("from %d", rank)
"""


def test_a_thread_of_the_host_that_logs_at_the_fork_blocks_no_log_of_a_rank(tmp_path):
    """It holds the lock of the stream of the log file, which a fork copies."""
    write(tmp_path, test_it=BUSY_LOG)
    log = tmp_path / "log"
    done = run(tmp_path, *QUIET, f"--log-file={log}")
    assert done.code == 0, done.out
    lines = log.read_text().splitlines()
    assert sorted(line.split()[-1] for line in lines) == ["0", "1"], lines


def test_the_failure_of_a_fixture_starts_in_the_frame_of_the_user(tmp_path):
    """In every phase, scope and start method, if the fixture is in another file than the test."""
    write(
        tmp_path,
        fixtures="""
        import pytest

        @pytest.fixture
        def setup():
            raise ValueError("of the fixture")

        @pytest.fixture(scope="module")
        def shared():
            raise ValueError("of the fixture")

        @pytest.fixture
        def teardown():
            yield
            raise ValueError("of the fixture")

        class Odd:
            def __reduce__(self):
                return give, ()

        def give():
            raise ValueError("of the value")
        """,
        test_it="""
        import pytest
        from fixtures import Odd, setup, shared, teardown

        @pytest.mark.ranks(2, grace_s=50)
        def test_setup(setup):
            pass

        @pytest.mark.ranks(2, start_method="spawn", grace_s=50)
        def test_spawned(shared):
            pass

        @pytest.mark.ranks(2, grace_s=50)
        def test_shared(shared):
            pass

        @pytest.mark.ranks(2, grace_s=50)
        def test_teardown(teardown):
            pass

        @pytest.mark.ranks(2, grace_s=50)
        def test_value(rank_gather):
            rank_gather(Odd())
        """,
    )
    done = run(tmp_path, *QUIET)
    phases = {"setup": "call", "spawned": "call", "shared": "setup", "teardown": "call", "value": "call"}
    for name, when in phases.items():
        text = done.of(f"test_{name}", when)["text"]
        files = [line.partition(":")[0] for line in text.splitlines() if ".py:" in line]
        assert files == (["test_it.py", "fixtures.py"] if name == "value" else ["fixtures.py"]), text


def test_a_value_that_comes_just_before_the_end_of_its_rank_counts(tmp_path, monkeypatch):
    """Even if the reader has looked for the value before, and for the end after it."""
    folder = Folder(tmp_path)
    folder.make(2)
    reader, writer = RankGather(folder, 0, 2, None), RankGather(folder, 1, 2, None)
    ended = Folder.ended

    def at_once(self, rank):
        if not ended(self, rank).exists():
            writer._give(0, "late")
            ended(self, rank).touch()
        return ended(self, rank)

    monkeypatch.setattr(Folder, "ended", at_once)
    assert reader("mine") == ["mine", "late"]


def test_the_values_of_earlier_gathers_are_removed(tmp_path):
    """Each rank keeps its values of the last two calls, because another rank may still read them."""
    folder = Folder(tmp_path)
    folder.make(1)
    gather = RankGather(folder, 0, 1, None)
    assert [gather(number) for number in range(5)] == [[number] for number in range(5)]
    assert sorted(tmp_path.glob("value-*")) == [folder.value(3, 0), folder.value(4, 0)]
