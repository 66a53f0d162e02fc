"""Where the figures come from: machine, interpreters, versions."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_PACKAGES = ("circus", "honcho", "inotify_simple", "loky", "numpy", "psutil", "pykka", "structlog", "torch")
_VERSIONS = f"""
import json, platform
from importlib import metadata
found = {{"python": platform.python_version()}}
for name in {_PACKAGES!r}:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def describe(pythons: dict[str, str]) -> dict[str, Any]:
    """Return what a reader of the figures must know.

    Args:
        pythons: The interpreters in use: a name that tells a reader more than a path, to the path.
    """
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)),
        "load_average": list(os.getloadavg()),
        "interpreters": {name: _versions(python) for name, python in pythons.items()},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor()


def _versions(python: str) -> dict[str, str]:
    done = subprocess.run([python, "-c", _VERSIONS], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found
