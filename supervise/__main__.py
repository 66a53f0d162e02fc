"""Entry point of ``python -m supervise`` and of the command ``supervise``."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # built-in, whereas the import of `signal` takes a millisecond
import gc
import os
import sys


def _is_program() -> bool:
    """Return whether this process is the command. A spawned worker of user code imports its main module, too."""
    return __name__ == "__main__" or (__name__ == "supervise.__main__" and os.path.basename(sys.argv[0]) == "supervise")


if _is_program():
    gc.disable()  # until `main` enables it: imports leave no garbage, and the search takes a twelfth of their time
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        # Ctrl-C during the imports that follow shows no traceback
        _signal.signal(_signal.SIGINT, lambda *_: os._exit(128 + _signal.SIGINT))
    if sys.argv[0] == __file__ and not sys.flags.safe_path and sys.path[0] not in os.environ.get("PYTHONPATH", ""):
        # The current folder, which Python puts first for -m: a file of user code there must not hide a module
        del sys.path[0]

from supervise.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
