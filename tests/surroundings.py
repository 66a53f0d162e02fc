"""What a test run inherits, and must not depend on: from a shell, `nohup`, a terminal, a CI system, or a rank."""

import os
import resource
import signal
import sys
import tempfile

OF_OTHERS = (
    *("SUPERVISE_", "TORCHELASTIC_", "PET_", "CUDA_", "OMP_", "NCCL_", "MASTER_", "LOCAL_", "GROUP_", "ROLE_"),
    *("PYTHON", "LC_"),
)
"""Beginnings of variables that change what a rank, its launcher, PyTorch or Python does."""
VARIABLES = {"CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "FORCE_COLOR", "LANGUAGE", "LINES", "NO_COLOR", "PY_COLORS"} | {
    *("RANK", "WORLD_SIZE")
}
KEPT = {"PYTHONPATH", "PYTHONHASHSEED", "PYTHONPYCACHEPREFIX"} | {
    *("SUPERVISE_WITHOUT", "SUPERVISE_OWN_PIDS", "SUPERVISE_COMPAT_SEED"),
    *(
        "SUPERVISE_TORCH_PYTHON",
        "SUPERVISE_NEEDS_TORCH",
        "SUPERVISE_RAY_PYTHON",
        "SUPERVISE_NEEDS_RAY",
        "SUPERVISE_HOSTS_PROCESSES",
        "SUPERVISE_CLIENTS_REFERENCE",
    ),
}
"""What changes no result, and what a person says to the tests themselves."""


def reset() -> None:
    """Have this process, and so all that the tests start, be as a login shell starts a program."""
    for sig in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # those two are Python's own
        if signal.getsignal(sig) == signal.SIG_IGN:  # by `nohup`, or by a shell that starts it in the background
            signal.signal(sig, signal.default_int_handler if sig == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    for name in list(os.environ):
        if name not in KEPT and (name in VARIABLES or name.startswith(OF_OTHERS)):
            del os.environ[name]
    sys.dont_write_bytecode = False  # else each of some thousand processes compiles the package again
    os.environ["LANG"] = "C.UTF-8"
    os.environ["TERM"] = "xterm-256color"
    examples = ".hypothesis"  # in the checkout, which may be another user's
    if not os.access(examples if os.path.lexists(examples) else ".", os.W_OK):
        own = os.path.join(tempfile.gettempdir(), f"supervise-hypothesis-{os.getuid()}")  # noqa: PTH118
        os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", own)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft > 65536:  # some tests use up all descriptors
        resource.setrlimit(resource.RLIMIT_NOFILE, (65536, hard))
