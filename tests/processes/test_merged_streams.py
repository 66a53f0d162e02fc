"""Log paths that are the same for both streams of a rank: one file, opened once, in the order of the writes."""

from pathlib import Path

import pytest

import supervise
from tests.processes.gangs import each_kind, faulty, prepared

WRITES = "for i in range(50): os.write(1, b'out %d\\n' % i); os.write(2, b'err %d\\n' % i)\n"
IN_ORDER = "".join(f"out {i}\nerr {i}\n" for i in range(50))


class Merged(supervise.DefaultLogsSpecs):
    """A caller's own layout."""

    def reify(self, envs):
        dest = super().reify(envs)
        dest.stderrs = dict(dest.stdouts)
        dest.tee_stderrs = {}
        return dest


def logs(folder: Path, **streams: supervise.Std) -> Merged:
    return Merged(str(folder / "logs"), **streams)


@each_kind
def test_both_streams_share_one_open_file(tmp_path: Path, kind: str):
    """The rank sees one file description: the position of one stream is that of the other."""
    same = WRITES + "say(os.lseek(1, 0, os.SEEK_CUR) == os.lseek(2, 0, os.SEEK_CUR) > 0)\nos._exit(3)"
    with faulty(tmp_path, kind, [same, same], logs_specs=logs(tmp_path, redirects=supervise.Std.ALL)) as gang:
        assert gang.hear() == ["True"]
        result = gang.wait()
    root = result.root_cause
    assert root is not None
    assert result.stderrs == result.stdouts
    assert Path(result.stdouts[root]).read_text() == IN_ORDER
    assert result.ends[root].stderr_tail == "\n".join(IN_ORDER.splitlines()[-20:])


@each_kind
def test_they_are_shown_once(tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]):
    """On the destination of stdout; also in a later life."""
    source = WRITES + 'os._exit(int(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"))'
    policy = supervise.RestartPolicy(max_restarts=1, backoff=0)
    specs = logs(tmp_path, tee=supervise.Std.ALL)
    how = {"strategy": "one_for_one", "success_exit_codes": frozenset({0})}
    with prepared(tmp_path, kind, [source], logs_specs=specs, restart_policy=policy, **how) as gang:
        gang.start().wait()
        gang.close()
    out, err = capfd.readouterr()
    assert out == "".join(f"[fault0]:{line}\n" for line in IN_ORDER.splitlines() * 2)
    assert err == ""
