"""Execution of a command under a seccomp filter that answers some system calls with an error.

``python sandbox.py ERRNO NAME,NAME... COMMAND ...``, on x86-64 only.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

AVAILABLE = platform.machine() == "x86_64"
NUMBERS = {
    "bind": 49,
    "close_range": 436,
    "clone3": 435,
    "dup2": 33,
    "epoll_create1": 291,
    "epoll_ctl": 233,
    "epoll_wait": 232,
    "eventfd2": 290,
    "faccessat2": 439,
    "fallocate": 285,
    "fcntl(F_ADD_SEALS)": 72,
    "fcntl(F_SETOWN)": 72,
    "fcntl(F_SETSIG)": 72,
    "getcwd": 79,
    "getrusage": 98,
    "getsockname": 51,
    "getsockopt": 55,
    "inotify_add_watch": 254,
    "inotify_init1": 294,
    "lseek": 8,
    "memfd_create": 319,
    "pidfd_open": 434,
    "pidfd_send_signal": 424,
    "pipe2": 293,
    "poll": 7,
    "prctl": 157,
    "prlimit64": 302,
    "process_vm_readv": 310,
    "ptrace": 101,
    "readlink": 89,
    "rt_sigprocmask": 14,
    "sched_getaffinity": 204,
    "sched_setaffinity": 203,
    "setsid": 112,
    "setsockopt": 54,
    "socket(AF_INET)": 41,
    "socket(AF_UNIX)": 41,
    "statx": 332,
    "uname": 63,
    "wait4": 61,
    "waitid": 247,
}
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # of classic BPF
_FIRST_ARGUMENT, _SECOND_ARGUMENT = 16, 24
_ARGUMENTS = {
    "fcntl(F_ADD_SEALS)": (_SECOND_ARGUMENT, 1033),
    "fcntl(F_SETOWN)": (_SECOND_ARGUMENT, 8),
    "fcntl(F_SETSIG)": (_SECOND_ARGUMENT, 10),
    "socket(AF_INET)": (_FIRST_ARGUMENT, 2),
    "socket(AF_UNIX)": (_FIRST_ARGUMENT, 1),
}
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def refuse(number: int, names: list[str]) -> None:
    """Let the kernel answer these system calls of this process and its descendants with an errno."""
    steps = [(_LOAD, 0, 0, 0)]  # the number of the call
    for name in names:
        if name in _ARGUMENTS:
            place, value = _ARGUMENTS[name]
            steps += [(_JUMP_IF_EQUAL, 0, 4, NUMBERS[name]), (_LOAD, 0, 0, place)]
            steps += [(_JUMP_IF_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ERRNO | number), (_LOAD, 0, 0, 0)]
            continue
        steps += [(_JUMP_IF_EQUAL, 0, 1, NUMBERS[name]), (_RETURN, 0, 0, _ERRNO | number)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if libc.prctl(_SECCOMP, _FILTER, ctypes.byref(_Program(len(steps), code)), 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    refuse(getattr(errno, sys.argv[1]), sys.argv[2].split(","))
    os.execvp(sys.argv[3], sys.argv[3:])
