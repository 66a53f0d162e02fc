"""Messages and results: dataclasses for user code, although none of them is made by `dataclasses`."""

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys

import pytest

import supervise
from supervise import Close, LogsDest, RunProcsResult, WorkerStarted
from supervise._core.steps import RankReady, SetTimer

STARTED = WorkerStarted(local_rank=1, pid=2, started_ns=3)
RECORDS = [
    each
    for each in (getattr(supervise, name) for name in supervise.__all__)
    if isinstance(each, type) and "__record__" in vars(each)
]


def test_most_public_records_are_looked_at():
    assert len(RECORDS) > 30


@pytest.mark.parametrize("kind", RECORDS)
def test_a_public_record_is_a_dataclass_with_a_signature(kind):
    """Also one of which no attribute was read before."""
    assert dataclasses.is_dataclass(kind)
    accepted = [each.name for each in dataclasses.fields(kind) if each.init]
    assert accepted == list(inspect.signature(kind).parameters) == list(kind.__annotations__)[: len(accepted)]


def test_a_record_behaves_as_a_value():
    same = WorkerStarted(local_rank=1, pid=2, started_ns=3, attempt=0)
    assert same == STARTED != WorkerStarted(local_rank=1, pid=2, started_ns=4)
    assert hash(same) == hash(STARTED)
    assert STARTED not in ({}, (1, 2, 3, 0), Close())
    assert repr(STARTED) == "WorkerStarted(local_rank=1, pid=2, started_ns=3, attempt=0)"
    for twin in (pickle.loads(pickle.dumps(STARTED)), copy.copy(STARTED), copy.deepcopy(STARTED)):
        assert twin == STARTED
    assert dataclasses.replace(STARTED, pid=9).pid == 9
    assert dataclasses.asdict(STARTED) == {"local_rank": 1, "pid": 2, "started_ns": 3, "attempt": 0}
    if sys.version_info >= (3, 13):
        assert copy.replace(STARTED, pid=9) == dataclasses.replace(STARTED, pid=9)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: WorkerStarted(1, 2, 3), "WorkerStarted.__init__() takes 1 positional argument but 4 were given"),
        (lambda: WorkerStarted(local_rank=1), "missing 2 required keyword-only arguments: 'pid' and 'started_ns'"),
        (lambda: Close(grace=1), "Close.__init__() got an unexpected keyword argument 'grace'"),
        (lambda: RunProcsResult({}, return_values={}), "got multiple values for argument 'return_values'"),
        (lambda: LogsDest(*range(8)), "takes from 1 to 8 positional arguments but 9 were given"),
        (lambda: hash(RunProcsResult()), "unhashable type: 'RunProcsResult'"),
    ],
)
def test_a_mistake_has_the_usual_error(call, error):
    with pytest.raises(TypeError) as raised:
        call()
    assert error in str(raised.value)


def test_a_frozen_record_stays_as_it_is():
    for change in (
        lambda: setattr(STARTED, "pid", 1),
        lambda: setattr(STARTED, "x", 1),
        lambda: delattr(STARTED, "pid"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    assert vars(STARTED) == dataclasses.asdict(STARTED)


def test_each_result_has_mappings_of_its_own_and_pytorchs_order():
    one, other = RunProcsResult({0: 1}), RunProcsResult()
    one.stdouts[0] = "log"
    assert (other.return_values, other.stdouts) == ({}, {})
    match one:
        case RunProcsResult(values, failures):
            assert (values, failures) == ({0: 1}, {})


def test_dataclasses_and_plain_classes_extend_records():
    @dataclasses.dataclass
    class Mine(RunProcsResult):
        extra: int = 3

    class Late(Close):
        def __init__(self, seconds):
            super().__init__(timeout=seconds)

    assert Mine(extra=5).extra == 5
    assert Mine().outcome == "succeeded"
    assert Late(2).timeout == 2
    assert list(inspect.signature(Late).parameters) == ["seconds"]
    assert [each.name for each in dataclasses.fields(Late)] == ["death_sig", "timeout"]


def test_a_named_tuple_behaves_as_one_of_typing():
    ready = RankReady(1, attempt=2)
    assert ready == (1, 2, 0)
    assert repr(ready) == "RankReady(local_rank=1, attempt=2, at_ns=0)"
    assert ready._replace(at_ns=5) == copy.copy(pickle.loads(pickle.dumps(RankReady(1, 2, 5))))
    assert ready._asdict() == {"local_rank": 1, "attempt": 2, "at_ns": 0}
    assert list(inspect.signature(RankReady).parameters) == list(RankReady._fields) == list(RankReady.__match_args__)
    with pytest.raises(TypeError, match="RankReady has no field x"):
        ready._replace(x=1)
    with pytest.raises(TypeError, match=r"SetTimer.__new__\(\) missing"):
        SetTimer()
    with pytest.raises(AttributeError):
        ready.at_ns = 1


def test_a_first_gang_imports_no_dataclasses():
    """`dataclasses` imports `inspect`, which takes a tenth of the time of a first gang."""
    code = (
        "import sys, pykka; before = set(sys.modules)\n"  # pykka imports traceback, which needs them since Python 3.14
        "from supervise import DefaultLogsSpecs, start_processes\n"
        "context = start_processes('t', '/bin/true', {0: ()}, {0: {}}, logs_specs=DefaultLogsSpecs())\n"
        "print(context.wait(50).outcome, context.close())\n"
        "print(sorted({'dataclasses', 'inspect', 'subprocess', 'tempfile'} & set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "succeeded None\n[]\n", done.stderr
