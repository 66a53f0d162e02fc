"""Names of the system calls in which a process may block. The kernel gives only their numbers."""

from __future__ import annotations

import os

_X86_64 = """0 read 1 write 7 poll 16 ioctl 19 readv 20 writev 23 select 34 pause 35 nanosleep 42 connect 43 accept
44 sendto 45 recvfrom 46 sendmsg 47 recvmsg 61 wait4 72 fcntl 73 flock 74 fsync 75 fdatasync 128 rt_sigtimedwait
130 rt_sigsuspend 202 futex 230 clock_nanosleep 232 epoll_wait 247 waitid 257 openat 270 pselect6 271 ppoll
281 epoll_pwait 288 accept4 299 recvmmsg 426 io_uring_enter 441 epoll_pwait2"""
_AARCH64 = """22 epoll_pwait 25 fcntl 29 ioctl 32 flock 56 openat 63 read 64 write 65 readv 66 writev 72 pselect6
73 ppoll 82 fsync 83 fdatasync 95 waitid 98 futex 101 nanosleep 115 clock_nanosleep 133 rt_sigsuspend
137 rt_sigtimedwait 202 accept 203 connect 206 sendto 207 recvfrom 211 sendmsg 212 recvmsg 242 accept4 243 recvmmsg
260 wait4 426 io_uring_enter 441 epoll_pwait2"""


def _table(machine: str) -> dict[str, str]:
    words = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(machine, "").split()
    return dict(zip(words[::2], words[1::2], strict=True))


_NAMES = _table(os.uname().machine)


def name_of(line: str) -> str:
    """Return the name or number of the call in a line of ``/proc/PID/syscall``; "" if the thread is in no call."""
    number = line.partition(" ")[0].strip()
    if not number.isdigit():  # "running"; -1 outside of a call; "" without permission
        return ""
    return _NAMES.get(number, f"system call {number}")
