"""Runs a command where a folder is a small disk of its own, in a mount namespace that ends with the command."""

import shutil
import subprocess

import pytest

FILL = """
import os
def fill(folder):
    "Write until the disk takes not even a byte more."
    with open(folder + "/fill", "ab", buffering=0) as file:
        for count in (4096, 1):
            try:
                while True:
                    file.write(b"x" * count)
            except OSError as full:
                error = full
    return error
"""
"""Python source of a function that fills the disk of a folder."""


def on_small_disk(folder: str, more: str = "") -> tuple[str, ...]:
    """Return what to put before a command, so that `folder` is a disk of 256 KiB; skip where none can be mounted.

    Args:
        folder: It is there, relative to the command's working directory.
        more: Further options of the mount, such as ``,nr_inodes=20``.
    """
    trial = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/tmp"]
    if shutil.which("unshare") is None or subprocess.run(trial, check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("nothing can be mounted here, so no disk can be filled")
    mount = f'mount -t tmpfs -o size=256k{more} none "$0" || exit 99; exec "$@"'
    return "unshare", "--mount", "sh", "-c", mount, folder
