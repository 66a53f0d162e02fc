"""An elastic agent of PyTorch whose ranks are launched by supervise. It needs PyTorch, and patches nothing of it.

``python -m supervise.agent`` takes the arguments of torchrun. `launch` takes a `LaunchConfig`, as PyTorch's
``elastic_launch`` does. `SupervisedElasticAgent` is for programs that build a `WorkerSpec` themselves.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from supervise._lazy import names

if importlib.util.find_spec("torch") is None:
    missing = "supervise.agent needs PyTorch, which is not installed: pip install torch"
    if sys.argv[:1] == ["-m"] and __name__ in sys.orig_argv:  # runpy imports the package before `__main__`
        sys.exit(missing)
    raise ImportError(missing, name="torch")

if TYPE_CHECKING:
    from supervise.agent.elastic_agent import SupervisedElasticAgent
    from supervise.agent.launcher import launch

__all__ = ["SupervisedElasticAgent", "launch"]

_HOMES = {"SupervisedElasticAgent": "agent.elastic_agent", "launch": "agent.launcher"}

if not TYPE_CHECKING:  # for a type checker, only the names above exist
    __getattr__, __dir__ = names(__name__, globals(), _HOMES)
