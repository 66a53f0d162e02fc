"""A link that delays every frame and loses some: two TAP devices, and a process that carries frames between them.

Run as ``python -m tests.ray.slow_link HERE THERE DELAY_S LOSS``, as root: names of the two devices, one-way delay in
seconds, share of lost frames. It prints a line when the devices exist, and ends with its stdin.
"""

import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_BYTES = 65536


def tap(name: str) -> int:
    """Make a TAP device; return its descriptor."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def carry(here: int, there: int, delay_s: float, loss: float) -> None:
    """Carry frames until stdin ends."""
    other = {here: there, there: here}
    under_way: list[tuple[float, int, int, bytes]] = []
    count = itertools.count()
    poll = select.poll()
    for fd in (0, here, there):
        poll.register(fd, select.POLLIN | select.POLLHUP)
    while True:
        wait_ms = max(0.0, under_way[0][0] - time.monotonic()) * 1000 if under_way else None
        for fd, _ in poll.poll(wait_ms):
            if fd == 0:
                return
            frame = read(fd)
            if frame and random.random() >= loss:
                heapq.heappush(under_way, (time.monotonic() + delay_s, next(count), other[fd], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, target, frame = heapq.heappop(under_way)
            write(target, frame)


def read(fd: int) -> bytes:
    try:
        return os.read(fd, FRAME_BYTES)
    except OSError:  # the device is down
        return b""


def write(fd: int, frame: bytes) -> None:
    try:
        os.write(fd, frame)
    except OSError:  # a frame that is lost
        return


if __name__ == "__main__":
    ends = tap(sys.argv[1]), tap(sys.argv[2])
    print("there", flush=True)
    carry(*ends, float(sys.argv[3]), float(sys.argv[4]))
