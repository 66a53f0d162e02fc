"""Names, signatures, warnings and exceptions are PyTorch's."""

import importlib
import inspect
import multiprocessing
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from supervise import multiprocessing as mp
from tests.multiprocessing import work
from tests.multiprocessing.test_join import finish

spawn_module = importlib.import_module("supervise.multiprocessing.spawn")
NAMES = [
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnContext",
    "spawn",
    "start_processes",
]


def test_the_names_of_the_standard_library_are_its_own():
    """But for the list of the children, which has the processes of `spawn`, too."""
    assert {name for name in multiprocessing.__all__ if getattr(mp, name) is not getattr(multiprocessing, name)} == {
        "active_children"
    }
    assert set(multiprocessing.__all__) < set(mp.__all__)


def test_the_names_of_the_module():
    assert sorted(spawn_module.__all__, key=str.lower) == sorted(NAMES, key=str.lower)
    assert all(getattr(mp, name) is getattr(spawn_module, name) for name in NAMES)
    assert mp.ENV_VAR_PARALLEL_START == spawn_module.ENV_VAR_PARALLEL_START == "TORCH_MP_PARALLEL_START"


@pytest.mark.parametrize("name", ["set_sharing_strategy", "get_sharing_strategy", "reductions"])
def test_what_concerns_tensors_is_that_of_torch(tmp_path: Path, name: str):
    """Programs set a sharing strategy before they spawn. Nothing else imports torch."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "multiprocessing.py").write_text(f"{name} = 'of torch'\n")
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import supervise.multiprocessing as mp
assert not hasattr(mp, "zork") and "torch" not in sys.modules
from supervise.multiprocessing import {name}
print({name}, mp.{name})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "of torch of torch\n"


def test_signatures():
    shown = {
        f: ", ".join(
            str(p).partition(":")[0] + (f"={p.default!r}" if p.default is not p.empty else "")
            for p in inspect.signature(f).parameters.values()
        )
        for f in (mp.spawn, mp.start_processes)
    }
    common = "fn, args=(), nprocs=1, join=True, daemon=False, start_method='spawn'"
    assert shown == {mp.spawn: common, mp.start_processes: f"{common}, numa_options=None"}
    assert list(inspect.signature(mp.ProcessContext.join).parameters) == ["self", "timeout", "grace_period"]
    assert list(inspect.signature(mp.ProcessContext).parameters) == ["processes", "error_files"]


def test_another_start_method_warns_and_is_not_heeded(ear):
    text = (
        "This method only supports start_method=spawn (got: fork).\n"
        "To use a different start_method use:\n\t\t torch.multiprocessing.start_processes(...)"
    )
    with pytest.warns(FutureWarning) as caught:
        mp.spawn(work.tell_all, (ear.path,), start_method="fork")
    assert (str(caught[0].message), caught[0].filename) == (text, __file__)
    assert "SpawnProcess-" in ear.hear()


def test_the_parallel_start_of_pytorch_is_accepted(monkeypatch):
    monkeypatch.setenv("TORCH_MP_PARALLEL_START", "1")
    mp.start_processes(work.return_lambda, nprocs=2, start_method="forkserver")


def test_the_old_name_of_the_context_warns():
    with pytest.warns(UserWarning, match=r"^SpawnContext is renamed to ProcessContext since 1.4 release.$"):
        assert mp.SpawnContext([], []).join() is True


@pytest.mark.parametrize(
    "error",
    [
        mp.ProcessException("text", 1, 2),
        mp.ProcessRaisedException("text", error_index=1, error_pid=2),
        mp.ProcessExitedException("text", error_index=1, error_pid=2, exit_code=-11, signal_name="SIGSEGV"),
    ],
)
def test_exceptions_travel(error):
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), "text", vars(error))
    assert (copy.msg, copy.error_index, copy.error_pid) == ("text", 1, 2)


def test_a_context_of_the_standard_librarys_processes(tmp_path):
    """As PyTorch's own class, it can be made for processes that were started in another way."""
    spawning = multiprocessing.get_context("spawn")
    files = [tmp_path / str(index) for index in range(3)]
    calls = [(work.return_lambda, index, (), files[index]) for index in range(2)]
    calls.append((work.run, 2, ({2: "raise ValueError('mine')"},), files[2]))
    processes = [spawning.Process(target=spawn_module._wrap, args=call) for call in calls]
    for process in processes:
        process.start()
    context = mp.ProcessContext(processes, files)
    begin = r"-- Process 2 terminated with the following error:\nTraceback \(most recent call last\):"
    with pytest.raises(mp.ProcessRaisedException, match=rf"(?s){begin}.*ValueError: mine"):
        finish(context)
    for process in processes:
        process.close()
