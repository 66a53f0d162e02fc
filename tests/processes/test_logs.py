"""What the ranks write reaches the host's console: whole, in lines, before the result, whatever it is."""

import os
import re

import pytest

from tests.processes.console import CONSOLES, hosted, show

each_kind = pytest.mark.parametrize("kind", ["binary", "spawn", "forkserver"])
OVER = b"<over>\n"
BARE = {0: "", 1: ""}


def log_of(tmp_path, rank=0, stream="stdout"):
    [path] = tmp_path.glob(f"logs/*/attempt_0/{rank}/{stream}.log")
    return path


LINES = 100_000
WRITE_LINES = f"""
streams = [open(fd, "wb", closefd=False) for fd in (1, 2)]
for i in range({LINES}):
    for fd, stream in enumerate(streams, 1):
        stream.write(b"%d:%d:{{}}\\n" % (fd, i))
for stream in streams:
    stream.flush()
"""


def written_lines(fd):
    return b"".join(b"%d:%d:{}\n" % (fd, i) for i in range(LINES))


@pytest.mark.parametrize(
    ("kind", "console"),
    [*(("binary", console) for console in CONSOLES), ("spawn", "pipe"), ("forkserver", "pipe"), ("fork", "merged")],
)
def test_l1_100_000_lines_before_an_exit_stand_on_the_console_before_wait_returns(tmp_path, kind, console):
    """File and console are byte for byte what was written, although the worker leaves by os._exit."""
    host = show(
        tmp_path, kind, [WRITE_LINES + "os._exit(7)"], console=console, tee=3, log_line_prefixes={0: ""},
        body="result = start().wait(); mark('over'); report['code'] = result.failures[0].exitcode",
    )  # fmt: skip
    assert log_of(tmp_path).read_bytes() == written_lines(1)
    assert log_of(tmp_path, stream="stderr").read_bytes() == written_lines(2)
    if console == "merged":
        lines = host.out.data.removesuffix(OVER).splitlines(keepends=True)
        assert b"".join(line for line in lines if line.startswith(b"1:")) == written_lines(1)
        assert b"".join(line for line in lines if line.startswith(b"2:")) == written_lines(2)
        assert len(lines) == 2 * LINES
    else:
        assert host.out.data == written_lines(1) + OVER
        assert host.err.data == written_lines(2)
    assert host.out.data.endswith(OVER)
    assert (host.report["code"], host.complaints) == (7, [])


@each_kind
def test_l1_everything_stands_on_the_console_before_close_returns(tmp_path, kind):
    """A rank that has written much and lives on is closed; its prefixed lines are all there, each with its prefix."""
    source = WRITE_LINES + "say('written'); signal.pause()"
    body = "gang = start(); wait_for_word(); gang.close(); mark('over')"
    with hosted(tmp_path, kind, [source], tee=3, body=body) as host:
        assert host.hear() == "written"
        host.tell()
        host.finish()
    assert log_of(tmp_path).read_bytes() == written_lines(1)
    assert host.out.data == re.sub(rb"(?m)^(?=.)", b"[w0]:", written_lines(1)) + OVER


PIECES = """
for piece in ("one ", "two ", "three\\n"):
    wait_for_word()
    os.write(1, piece.encode())
    say(piece.strip())
"""
BEATS = """
for number in range(3):
    wait_for_word()
    os.write(1 + {err:d}, b"be")
    say(f"be {number}")
    wait_for_word()
    os.write(1 + {err:d}, b"at %d\\n" % number)
"""


@each_kind
@pytest.mark.parametrize("console", ["pipe", "pty", "merged"])
def test_l2_lines_in_pieces_of_two_slow_writers_do_not_mix(tmp_path, kind, console):
    """Rank 1's pieces come between those of rank 0's line, and, with 2>&1, by the other stream."""
    beats = BEATS.replace("{err:d}", str(int(console == "merged")))
    with hosted(tmp_path, kind, [PIECES, beats], console=console, tee=3) as host:
        for number in range(3):
            host.tell(1)
            assert host.hear() == f"be {number}"
            host.tell(0)
            host.hear()
            host.tell(1)
            host.out.until(b"[w1]:beat %d\n" % number)
        host.finish()
    lines = host.out.data.splitlines(keepends=True)
    assert sorted(lines[:-1]) == [b"[w0]:one two three\n", *(b"[w1]:beat %d\n" % i for i in range(3))]
    assert lines[-1] == OVER
    assert host.err.data == b""


ODD = """
os.write(1, b"\\xff\\xfe\\n\\0nul\\0\\n")
os.write(1, "h\\u00e9".encode()[:2])
say("half")
wait_for_word()
os.write(1, "h\\u00e9".encode()[2:] + b"\\n")
stream = open(1, "wb", closefd=False)
stream.write(b"y" * SIZE)
stream.flush()
say("long")
wait_for_word()
os.write(1, b"z\\nthe end")
"""


@each_kind
@pytest.mark.parametrize("console", ["pipe", "pty", "merged"])
def test_l3_odd_bytes_arrive_as_they_are(tmp_path, kind, console):
    """0xFF, NUL, a character cut in two, 10 MiB without a newline (in one case; else 1): nothing is lost or mixed."""
    size = (10 if (kind, console) == ("binary", "pipe") else 1) << 20
    fd = 2 if console == "merged" else 1
    other = f"wait_for_word(); os.write({fd}, b'patience\\n'); say('said')"
    with hosted(tmp_path, kind, [ODD.replace("SIZE", str(size)), other], console=console, tee=3) as host:
        assert host.hear() == "half"
        host.tell(0)
        host.out.until(b"[w0]:h\xc3\xa9\n")
        assert host.hear() == "long"
        host.out.until(b"[w0]:yyy")
        host.tell(1)
        assert host.hear() == "said"
        host.tell(0)
        host.finish()
    raw = b"\xff\xfe\n\0nul\0\nh\xc3\xa9\n" + b"y" * size + b"z\nthe end"
    assert log_of(tmp_path).read_bytes() == raw
    first, last = b"[w0]:" + raw[:-7].replace(b"\n", b"\n[w0]:")[:-5], b"[w0]:the end\n"
    assert host.out.data.startswith(first)
    rest = host.out.data.removeprefix(first).splitlines(keepends=True)
    assert sorted(rest[:-1]) == [last, b"[w1]:patience\n"]
    assert rest[-1] == OVER


BAR = """
say("ready")
for percent in range(2000):
    os.write(1, b"\\r%4d of 2000" % (percent + 1))
os.write(1, b"\\nwindows\\r\\n\\r 1%\\r 2%")
say("shown")
wait_for_word()
"""


@each_kind
@pytest.mark.parametrize("console", ["pty", "pipe"])
def test_l4_a_progress_bar_is_whole_lines_few_of_them_and_its_last_state(tmp_path, kind, console):
    """Each state shown is a prefixed line, at most one in 100 ms, and the file has every byte of it."""
    other = "wait_for_word()\nfor i in range(500): os.write(1, b'line %d\\n' % i)"
    with hosted(tmp_path, kind, [BAR, other], console=console, tee=1) as host:
        begun = os.times().elapsed  # before the first state is written
        assert host.hear() == "ready"
        host.tell(1)
        assert host.hear() == "shown"
        host.out.until(b"[w0]: 2%\n")  # due at the latest after 100 ms, without a newline
        took_s = os.times().elapsed - begun
        host.tell(0)
        host.finish()
    bar = b"".join(b"\r%4d of 2000" % (i + 1) for i in range(2000))
    assert log_of(tmp_path).read_bytes() == bar + b"\nwindows\r\n\r 1%\r 2%"
    lines = host.out.data.removesuffix(OVER).splitlines(keepends=True)
    own = [line for line in lines if line.startswith(b"[w0]:")]
    assert [line for line in lines if line not in own] == [b"[w1]:line %d\n" % i for i in range(500)]
    assert own[-3:] == [b"[w0]:2000 of 2000\n", b"[w0]:windows\r\n", b"[w0]: 2%\n"]
    assert all(re.fullmatch(rb"\[w0\]: *\d+ of 2000\n", line) for line in own[:-2])
    assert len(own) <= 4 + took_s / 0.1


def test_prefixes_stand_right_before_the_line(tmp_path):
    """The default is [<name><rank>]: without a space; what the caller gives is taken as it is."""
    source = "os.write(1, b'out\\n'); os.write(2, b' err')"
    host = show(tmp_path, "binary", [source] * 3, tee=3, log_line_prefixes={1: "one> ", 2: ""})
    assert sorted(host.out.data.splitlines()) == [b"<over>", b"[w0]:out", b"one> out", b"out"]
    assert sorted(host.err.data.splitlines()) == [b" err", b"[w0]: err", b"one>  err"]
