"""Programs that know nothing of supervise, and speak the protocol: systemd's own, PyPI's sdnotify, gunicorn."""

import shutil
import signal
import sys

import pytest

from tests.patience import PATIENCE_S

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-notify") is None, reason="systemd-notify is not installed: apt install systemd"
)


@needs_systemd
@pytest.mark.parametrize("block", ["", "--no-block"])
def test_systemd_notify(host, block):
    """With its barrier it waits until what it has sent is handled; after 5 s without that, it fails."""
    rank = host.launch(0, ["sh", "-c", f"systemd-notify {block} --ready --status='up and running'; echo $?; read end"])
    assert host.next() == (0, "ready", 0)
    assert rank.stdout.readline() == "0\n"
    assert host.state(0).status == "up and running"
    assert host.state(0).dropped == 0


@needs_systemd
def test_systemd_notify_after_ready(host):
    """The sockets are read every 0.1 s then, which a barrier waits for."""
    loop = "for i in 1 2 3; do systemd-notify WATCHDOG=trigger X_SUPERVISE_STEP=$i || exit 1; done"
    rank = host.launch(0, ["sh", "-c", loop], awaits_ready=False)
    notes = host.after_exit(rank, 0)
    assert [host.next() for _ in range(3)] == [(0, "trigger", 0)] * 3
    assert (notes.step, notes.dropped) == (3, 0)


def test_sdnotify(host):
    pytest.importorskip("sdnotify", reason="not installed: pip install sdnotify")
    source = "import sdnotify\nnotifier = sdnotify.SystemdNotifier(debug=True)\n"
    rank = host.python(0, source + "for word in ('STATUS=up', 'READY=1', 'WATCHDOG=1'): notifier.notify(word)")
    notes = host.after_exit(rank, 0)
    assert host.next() == (0, "ready", 0)
    assert notes.status == "up"
    assert notes.beat_ns is not None


def test_gunicorn(host, tmp_path):
    """It sends READY=1 by itself where NOTIFY_SOCKET is set, as under `Type=notify`."""
    pytest.importorskip("gunicorn", reason="not installed: pip install gunicorn")
    (tmp_path / "application.py").write_text("def app(environ, start_response): raise NotImplementedError\n")
    argv = [sys.executable, "-m", "gunicorn", "--bind", f"unix:{tmp_path}/web", "--workers", "1", "application:app"]
    with (tmp_path / "log").open("w") as log:
        rank = host.launch(0, argv, cwd=tmp_path, stderr=log)
        assert host.next() == (0, "ready", 0)
        assert host.state(0).status == "Gunicorn arbiter booted"
        assert (tmp_path / "web").is_socket()
        rank.send_signal(signal.SIGTERM)
        assert rank.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
