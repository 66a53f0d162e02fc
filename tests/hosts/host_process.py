"""One host of a gang as a process: ``python -m tests.hosts.host_process FD``, with a Unix socket at FD.

Each frame is a length in 4 bytes and a pickle. The first frame is the order, and is answered by the address. Then each
frame is (number, method, args), answered by (number, value, error) in any order. The end of the socket, which is the
end of the driver, ends nothing here: that is for the lease.
"""

import asyncio
import inspect
import pickle
import socket
import struct
import sys
from typing import Any

from supervise._hosts.host import Host

LENGTH = struct.Struct("!I")


async def receive(reader: asyncio.StreamReader) -> Any:
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return pickle.loads(await reader.readexactly(length))


def frame(what: Any) -> bytes:
    data = pickle.dumps(what)
    return LENGTH.pack(len(data)) + data


async def answer(host: Host, writer: asyncio.StreamWriter, number: int, method: str, args: tuple[Any, ...]) -> None:
    value, error = None, None
    try:
        value = getattr(host, method)(*args)
        if inspect.isawaitable(value):
            value = await value
    except Exception as caught:
        value, error = None, caught
    writer.write(frame((number, value, error)))


async def main(fd: int) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd))
    order = await receive(reader)
    host = Host(order)
    writer.write(frame(host.address(node_id=f"node{order.number}", ip="127.0.0.1")))
    calls = set()
    try:
        while True:
            calls.add(asyncio.ensure_future(answer(host, writer, *await receive(reader))))
    except (asyncio.IncompleteReadError, ConnectionError):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
