"""What ranks inherit in all their lives: sockets that a role shares, closed with the gang; and a stdin."""

import errno
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from supervise import (
    Close,
    RestartPolicy,
    RestartRanks,
    Role,
    SpecError,
    Start,
    Supervisor,
    Wait,
    run,
    start_processes,
)
from tests.kernels import use_another_c_library
from tests.patience import PATIENCE_S

SHOW = (
    'echo "$LISTEN_FDS $LISTEN_FDNAMES" $([ "$LISTEN_PID" = $$ ] && echo own) >> $OUT;'
    ' ls -l /proc/$$/fd | sed -n "s/.* \\([0-9]*\\) -> socket.*/\\1/p" | sort -n | tr "\\n" " " >> $OUT'
)
"""A program that tells its variables and the numbers of its sockets."""

SERVE = """
import os, select, signal, socket, sys
read, write = os.pipe()
os.set_blocking(write, False)
signal.set_wakeup_fd(write)
signal.signal(signal.SIGTERM, lambda *_: None)
server = socket.socket(fileno=3)
server.setblocking(False)
left = int(sys.argv[1])
while left and read not in select.select([server, read], [], [])[0]:
    try:
        end, _ = server.accept()
    except BlockingIOError:
        continue
    end.setblocking(True)
    end.sendall(end.recv(10) + str(os.getpid()).encode())
    end.close()
    left -= 1
sys.exit(0 if left else 3)
"""
"""A server that answers what it has accepted, also after SIGTERM; it fails after a number of answers."""


def outcome(**settings: Any) -> Any:
    """Run a gang to its end."""
    with start_processes("gang", **settings) as gang:
        return gang.wait(PATIENCE_S)


def name_of(path: Path) -> str:
    return f"unix:{path}"


def accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as end:
        return end.connect_ex(str(path)) == 0


# What a rank gets


@pytest.mark.parametrize("without", ["", "glibc", "posix_spawn"])
@pytest.mark.parametrize("gate", [False, True])
def test_a_program_gets_the_sockets_of_its_role_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str, gate: bool
):
    """From descriptor 3 on, with the variables of systemd; whatever numbers the host has in use."""
    if without == "glibc":
        use_another_c_library(monkeypatch)
    elif without:  # as below a debugger

        class Popen(subprocess.Popen[Any]):
            pass

        monkeypatch.setattr(subprocess, "Popen", Popen)
    monkeypatch.setenv("LISTEN_FDS", "7")  # of the host itself
    few = [socket.socket() for _ in range(30)]
    for each in few[::3]:
        each.close()
    listen = {"web": [name_of(tmp_path / "a.sock"), "tcp:127.0.0.1:0"], "api": ["tcp:[::1]:0"], "none": []}
    roles = [
        Role(name=name, entrypoint="sh", args={0: ("-c", SHOW), 1: ("-c", SHOW)}, listen=addresses)
        for name, addresses in listen.items()
    ]
    envs = {rank: {"OUT": str(tmp_path / str(rank))} for rank in range(6)}
    assert outcome(roles=roles, envs=envs, gate=gate).outcome == "succeeded"
    for each in few:
        each.close()
    told = [(tmp_path / str(rank)).read_text().split() for rank in range(6)]
    assert told[0] == told[1]
    count, names, own, *numbers = told[0]
    assert (count, own, numbers) == ("2", "own", ["3", "4"])
    assert names.startswith("a.sock:")
    assert 0 < int(names.removeprefix("a.sock:")) < 1 << 16
    assert told[2] == told[3] == ["1", told[2][1], "own", "3"]
    assert told[4] == told[5] == []


ANSWERS = """
import multiprocessing, os, socket, sys
from supervise import Start, Supervisor, Wait

def answer(queue):
    assert os.environ["LISTEN_PID"] == str(os.getpid())
    names = os.environ["LISTEN_FDNAMES"].split(":")
    assert len(names) == int(os.environ["LISTEN_FDS"]) == 16
    for number, name in enumerate(names, 3):
        with socket.socket(fileno=number) as server, socket.socket() as client:
            assert server.getsockname() == (f"127.0.0.{number}", int(name))
            client.connect(server.getsockname())
            server.accept()[0].close()
    queue.put("both")
    return "served"

if __name__ == "__main__":
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(40)]
    queue = multiprocessing.get_context("spawn").Queue()
    hold, listen = sys.argv[1] == "True", [f"tcp:127.0.0.{number}:0" for number in range(3, 19)]
    with Supervisor.start(name="a", entrypoint=answer, args={0: (queue,)}, listen=listen, hold_returned=hold) as gang:
        for fd in taken:  # the descriptors of the launch get their numbers, which the sockets have in the rank
            os.close(fd)
        gang.ask(Start())
        print(gang.ask(Wait()).return_values)
    print(queue.get(timeout=50))
"""


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("without", ["", "glibc"])
def test_a_function_gets_them_by_spawn(tmp_path: Path, hold: bool, without: str):
    """Beside its queues and its own descriptors, whose numbers the sockets would take, before any code of the user."""
    (tmp_path / "answers.py").write_text(ANSWERS)
    done = subprocess.run(
        [sys.executable, tmp_path / "answers.py", str(hold)],
        env={**os.environ, "SUPERVISE_WITHOUT": without},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("{0: 'served'}\nboth\n", "")


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_forked_function_cannot_have_them(method: str, no_launch: None):
    """Other files may have the numbers; that is said before any process starts."""
    with pytest.raises(SpecError, match=f"listen is not possible with start_method '{method}'.*use 'spawn'"):
        run(print, 1, start_method=method, listen=["tcp:127.0.0.1:0"])


def test_a_forked_role_has_no_sockets_of_another(tmp_path: Path):
    """Nor has it the descriptors of the host under other numbers."""
    web = Role(name="web", entrypoint="true", args={0: ()}, listen=[name_of(tmp_path / "a.sock")])
    other = Role(name="other", entrypoint=sockets_now, args={0: (sockets_now(),)}, start_method="fork")
    assert outcome(roles=[web, other]).return_values[1] == set()


def sockets_now(before: Any = frozenset()) -> Any:
    """Return the listening sockets of this process."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing itself
            if str(link := each.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(each.name))) as end:
                    found |= {link} if end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) else set()
    return found - before


# What is refused, and by which words


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp:127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("8000", "'8000' is not an address; give tcp:HOST:PORT"),
        ("tcp:8000:", "is not an address"),
        ("tcp:a:65536", "is not an address"),
        ("tcp::8000", "is not an address"),
        ("tcp://127.0.0.1:8000", "is not an address"),
        ("tcp:::1:8000", "is not an address"),
        ("udp:127.0.0.1:8000", "is not an address"),
        ("unix:", "is not an address"),
        ("unix:run/", "is not an address"),
        ("tcp:192.0.2.1:8000", "Cannot assign requested address; give an address of this machine"),
        ("tcp:no.such.host.invalid:8000", "listen: 'tcp:no.such.host.invalid:8000': "),
        ("unix:/proc/version/a.sock", "File exists"),
        (
            f"unix:{'a' * 108}",
            "is not an address; give tcp:HOST:PORT, such as tcp:127.0.0.1:8000, or unix:PATH, of less",
        ),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(address: str, why: str, no_launch: None):
    """With the name of the role and the address, before any process starts."""
    with pytest.raises(SpecError, match="role 'web': listen: ") as caught:  # noqa: PT012 - the first may raise, too
        bad = Role(name="web", entrypoint="true", args={0: ()}, listen=[address])
        start_processes("gang", roles=[bad])
    assert why in str(caught.value)


def test_an_address_in_use_is_refused_and_all_others_are_released(taken: str, tmp_path: Path, no_launch: None):
    """The files that were made go, too."""
    web = Role(name="web", entrypoint="true", args={0: ()}, listen=[name_of(tmp_path / "a.sock")])
    api = Role(name="api", entrypoint="true", args={0: ()}, listen=[taken])
    why = f"role 'api': listen: '{taken}': Address already in use.*; stop the process that listens there, or give"
    with pytest.raises(SpecError, match=why):
        start_processes("gang", roles=[web, api])
    assert not any(tmp_path.iterdir())


def test_a_port_without_permission_says_what_to_do(monkeypatch: pytest.MonkeyPatch, no_launch: None):
    """The tests may run as root, so the kernel's answer is given here."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(SpecError, match=r"^listen: 'tcp:0.0.0.0:80': Permission denied; ports below .* need root"):
        start_processes("gang", "true", {0: ()}, listen=["tcp:0.0.0.0:80"])


@pytest.mark.parametrize("again", ["tcp:127.0.0.1:7", "tcp:7"])
def test_an_address_belongs_to_one_role(again: str, no_launch: None):
    """It is refused twice in a role, and in two roles, in each spelling."""

    def role(name: str, *addresses: str) -> Role:
        return Role(name=name, entrypoint="true", args={0: ()}, listen=addresses)

    with pytest.raises(SpecError, match=r"role 'a': listen: 'tcp:127.0.0.1:7' is given twice; remove one of the two"):
        start_processes("gang", roles=[role("a", "tcp:127.0.0.1:7", again)])
    with pytest.raises(SpecError, match=f"role 'b': listen: '{again}' is an address of role 'a', too; give each"):
        start_processes("gang", roles=[role("a", "tcp:127.0.0.1:7"), role("b", again)])
    with pytest.raises(
        SpecError, match=r"role 'b': listen: 'unix:\./a/\.\./b' is an address of role 'a', too; give each"
    ):
        start_processes("gang", roles=[role("a", "unix:b"), role("b", "unix:./a/../b")])


def test_each_port_zero_is_a_free_port_of_its_own(tmp_path: Path):
    """Also twice in a role, and in two roles."""
    listen = ["tcp:0", "tcp:0"]
    roles = [
        Role(
            name=name,
            entrypoint="sh",
            args={0: ("-c", 'echo "$LISTEN_FDNAMES" > ' + name)},
            listen=listen,
            cwd=tmp_path,
        )
        for name in ("a", "b")
    ]
    gang = Supervisor.start(name="g", roles=roles)
    gang.ask(Start())
    gang.ask(Wait())
    gang.stop()
    ports = [port for name in ("a", "b") for port in (tmp_path / name).read_text().strip().split(":")]
    assert len({int(port) for port in ports} - {0}) == 4


def test_settings_of_a_wrong_kind_are_refused(no_launch: None):
    """A text in place of a list, and more sockets than there are numbers."""
    with pytest.raises(SpecError, match=r"^listen is 'tcp:1'; give a list of texts"):
        start_processes("gang", "true", {0: ()}, listen="tcp:1")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"^listen has 17 addresses; give at most 16"):
        start_processes("gang", "true", {0: ()}, listen=[f"tcp:{port}" for port in range(17)])


# Socket files


def test_a_stale_file_is_replaced_and_a_used_one_is_not(tmp_path: Path):
    """The path is relative to the folder of the ranks; missing folders are made; the end removes the file."""
    path = tmp_path / "run" / "a.sock"
    settings: dict[str, Any] = {"entrypoint": "true", "args": {0: ()}, "cwd": tmp_path, "listen": ["unix:run/a.sock"]}
    with start_processes("gang", **settings | {"entrypoint": "sleep", "args": {0: ("1000",)}}):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        with pytest.raises(SpecError, match=r"listen: 'unix:run/a.sock': another process listens there already"):
            start_processes("gang", **settings)
        assert accepts(path)
    assert not path.exists()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert outcome(**settings).outcome == "succeeded"
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(SpecError, match="a file that is not a socket is there already"):
        start_processes("gang", **settings)
    assert path.read_text() == "mine"


def test_the_end_removes_no_file_of_another(tmp_path: Path):
    """A file that has taken the place of ours stays."""
    path = tmp_path / "a.sock"
    with start_processes("gang", "sleep", {0: ("1000",)}, listen=[name_of(path)]):
        path.unlink()
        path.write_text("other")
    assert path.read_text() == "other"


FORKS = """
import os, sys
from supervise import start_processes
with start_processes("gang", "sleep", {0: ("1000",)}, listen=["unix:" + sys.argv[1]]):
    pid = os.fork()
    if not pid:
        print(sum("socket:" in os.readlink(each.path) for each in os.scandir("/proc/self/fd")), flush=True)
        os.read(0, 1)
        os._exit(0)
    os.waitpid(pid, 0)
    print(os.path.exists(sys.argv[1]))
"""


def test_a_fork_of_the_host_keeps_no_socket(tmp_path: Path):
    """Its copy would keep the port, and its end does not remove the file of the gang."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, str(tmp_path / "a.sock")],  # of a fork
        input="x",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0\nTrue\n", "")
    assert not (tmp_path / "a.sock").exists()


# Restarts under load


class Clients:
    """Eight clients that connect without pause, and count what they are answered."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._over = threading.Event()
        self._changed = threading.Condition()
        self.count = 0
        self.answers: set[bytes] = set()
        """The servers that have answered."""
        self.lost: list[str] = []
        self._threads = [threading.Thread(target=self._go_on, daemon=True) for _ in range(8)]

    def _go_on(self) -> None:
        while not self._over.is_set():
            got = b""
            try:
                with self._connect() as end:
                    end.settimeout(PATIENCE_S)
                    end.sendall(b"ask")
                    while data := end.recv(100):
                        got += data
                    assert got.startswith(b"ask"), got
            except (OSError, AssertionError) as error:
                self.lost.append(repr(error))
            with self._changed:
                self.count += 1
                self.answers.add(got)
                self._changed.notify_all()

    def serve(self, more: int) -> None:
        """Wait until so many further connections have ended."""
        with self._changed:
            until = self.count + more
            assert self._changed.wait_for(lambda: self.count >= until or self.lost, PATIENCE_S)
        assert self.lost == []

    @contextmanager
    def running(self) -> Iterator["Clients"]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join(PATIENCE_S)
            assert self.lost == []


def unix(path: Path) -> Callable[[], socket.socket]:
    def connect() -> socket.socket:
        end = socket.socket(socket.AF_UNIX)
        end.settimeout(PATIENCE_S)
        try:
            end.connect(str(path))
        except BaseException:
            end.close()
            raise
        return end

    return connect


def test_t14_a_rolling_restart_loses_no_connection(tmp_path: Path):
    """Rank by rank and all at once: connections wait in the backlog while no rank accepts."""
    path = tmp_path / "a.sock"
    args = dict.fromkeys(range(2), ("-S", "-c", SERVE, "-1"))
    web = Role(name="web", entrypoint=sys.executable, args=args, listen=[name_of(path)])
    other = Role(name="other", entrypoint="sleep", args={0: ("1000",)})
    gang = Supervisor.start(name="gang", roles=[web, other])
    try:
        gang.ask(Start(), timeout=PATIENCE_S)
        with Clients(unix(path)).running() as clients:
            clients.serve(20)
            for ranks in ({0}, {1}, {0, 1}, {2}, {0, 1, 2}):
                gang.ask(RestartRanks(ranks=frozenset(ranks)), timeout=PATIENCE_S)
                clients.serve(20)
        assert len(clients.answers) >= 3
        gang.ask(Close(), timeout=PATIENCE_S)
        assert not path.exists()
    finally:
        gang.stop()


@pytest.mark.parametrize("strategy", ["one_for_all", "one_for_one"])
def test_t14_a_crash_loses_no_connection(tmp_path: Path, strategy: Any):
    """The server fails after each twenty answers, and all is answered by a later life."""
    path = tmp_path / "a.sock"
    policy = RestartPolicy(max_restarts=1000, backoff=0.0)
    web = {0: ("-S", "-c", SERVE, "20")}
    settings: dict[str, Any] = {"strategy": strategy, "restart_policy": policy, "listen": [name_of(path)]}
    with (
        start_processes("gang", sys.executable, web, **settings),
        Clients(unix(path)).running() as clients,
    ):
        clients.serve(100)
    assert len(clients.answers) >= 4


def test_the_sockets_are_closed_when_the_gang_has_ended(tmp_path: Path):
    """Before the result is there, although the Supervisor goes on."""
    path = tmp_path / "a.sock"
    gang = Supervisor.start(name="gang", entrypoint="true", args={0: ()}, listen=[name_of(path)])
    try:
        assert accepts(path)  # before the start
        gang.ask(Start(), timeout=PATIENCE_S)
        assert gang.ask(Wait(), timeout=PATIENCE_S).outcome == "succeeded"
        assert not path.exists()
    finally:
        gang.stop()


def test_a_gang_that_is_never_started_releases_its_address(tmp_path: Path):
    """A stop of the actor is enough."""
    path = tmp_path / "a.sock"
    gang = Supervisor.start(name="gang", entrypoint="true", args={0: ()}, listen=[name_of(path)])
    gang.stop()
    assert not path.exists()


# The stdin of a role


@pytest.mark.parametrize(
    ("kind", "longest", "wanted"), [("null", PATIENCE_S, "0"), ("open", 0.2, "124"), ("inherit", PATIENCE_S, "0")]
)
def test_a_role_chooses_its_stdin(tmp_path: Path, kind: str, longest: float, wanted: str):
    """An open one has no end in any life, and a later life reads on in that of the host."""
    program = (
        "import sys; from supervise import *\n"
        f"end = 'timeout {longest} cat > $OUT; echo $? >> $OUT; exit $((1 - TORCHELASTIC_RESTART_COUNT))'\n"
        f"role = Role(name='a', entrypoint='sh', args={{0: ('-c', end)}}, stdin={kind!r})\n"
        "policy = RestartPolicy(max_restarts=1, backoff=0.0)\n"
        "with start_processes('gang', roles=[role], restart_policy=policy) as gang:\n"
        "    print(gang.wait().outcome)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "OUT": str(tmp_path / "out")},
        input="word",
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout == "succeeded\n"
    assert (tmp_path / "out").read_text() == f"{wanted}\n"


def test_a_stdin_that_a_rank_cannot_have_is_refused(no_launch: None):
    """For a function, for a second rank, and a terminal, whose session the rank leaves."""
    one = {"name": "a", "entrypoint": "true", "args": {0: ()}}
    with pytest.raises(SpecError, match="only a program can have a stdin"):
        start_processes("gang", roles=[Role(name="a", entrypoint=print, args={0: ()}, stdin="open")])
    with pytest.raises(SpecError, match="role 'a': stdin is 'inherit', which is for one rank, and the role has 2"):
        start_processes("gang", roles=[Role(**one | {"args": {0: (), 1: ()}}, stdin="inherit")])
    with pytest.raises(SpecError, match="role 'b': stdin is 'inherit', which is for one rank, and role 'a' has it"):
        start_processes("gang", roles=[Role(**one | {"name": name}, stdin="inherit") for name in ("a", "b")])


def test_a_terminal_is_not_inherited(tmp_path: Path):
    """Before any process starts; only the command can pass it on."""
    program = (
        "import sys; from supervise import *\n"
        "try: start_processes('gang', roles=[Role(name='a', entrypoint='true', args={0: ()}, stdin='inherit')])\n"
        "except SpecError as error: print(error)\n"
    )
    master, slave = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdin=slave,
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
    finally:
        os.close(master)
        os.close(slave)
    assert done.stdout.startswith("role 'a': stdin is 'inherit', and this process has a terminal, which only")
