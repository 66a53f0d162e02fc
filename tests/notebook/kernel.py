"""Runs cells in a real Jupyter kernel, in a process of its own, because ZeroMQ leaves threads and descriptors behind.

``python -m tests.notebook.kernel`` reads the cells as JSON from stdin and prints the outputs of each cell as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

PATIENCE_S = 150.0


def main() -> None:
    """Run the cells, with ``nbclient`` as the argument by nbclient."""
    cells: list[dict[str, str]] = json.load(sys.stdin)
    print(json.dumps(by_nbclient(cells) if sys.argv[1:] == ["nbclient"] else one_by_one(cells)))


def by_nbclient(cells: list[dict[str, str]]) -> list[Any]:
    """Run a notebook. Another process may take a TCP port that was chosen for the kernel: then choose others."""
    import nbformat
    from nbclient import NotebookClient

    for last in (False, False, True):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell["code"]) for cell in cells])
        client = NotebookClient(notebook, kernel_name="python3", allow_errors=True, timeout=60, startup_timeout=40)
        try:
            client.execute()
        except RuntimeError:  # no answer from the kernel, or it has ended
            if last:
                raise
        else:
            break
    return [cell["outputs"] for cell in notebook.cells]


def one_by_one(cells: list[dict[str, str]]) -> list[Any]:
    """Run cells that may say what is done at an output."""
    from jupyter_client.manager import start_new_kernel

    for last in (False, False, True):
        try:
            manager, client = start_new_kernel(startup_timeout=40)
        except RuntimeError:
            if last:
                raise
        else:
            break
    try:
        return [run(manager, client, **cell) for cell in cells]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run(manager: Any, client: Any, code: str, at: str = "", do: str = "") -> list[dict[str, Any]]:
    """Run one cell; at the output `at`, interrupt the kernel, or create the file `do`."""
    sent = client.execute(code)
    outputs: list[dict[str, Any]] = []
    while True:
        message = client.get_iopub_msg(timeout=PATIENCE_S)
        if message["parent_header"].get("msg_id") != sent:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle":
            return outputs
        if kind in ("stream", "error", "execute_result", "display_data"):
            outputs.append({"output_type": kind, **content})
        if at and kind == "stream" and at in content["text"]:
            at = ""
            if do == "interrupt":
                manager.interrupt_kernel()
            else:
                Path(do).touch()


if __name__ == "__main__":
    main()
