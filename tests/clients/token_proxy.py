"""A proxy that adds the bearer token to every request, for clients that cannot send one; all else passes as it is."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

LENGTH = re.compile(rb"^content-length: *(\d+)\r$", re.I | re.M)


@contextmanager
def token_proxy(port: int, token: str) -> Iterator[int]:
    """Yield the port of a proxy for the server at `port` of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, port, token), daemon=True).start()
        yield listener.getsockname()[1]
        # Wakes the thread that accepts.
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, port: int, token: str) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=_forward, args=(client, server, token), daemon=True).start()
            threading.Thread(target=_back, args=(server, client), daemon=True).start()


def _forward(client: socket.socket, server: socket.socket, token: str) -> None:
    with suppress(OSError), client.makefile("rb") as requests:
        while head := _head(requests):
            length = LENGTH.search(head)
            body = requests.read(int(length[1])) if length else b""
            first, _, rest = head.partition(b"\r\n")
            server.sendall(first + b"\r\nauthorization: Bearer " + token.encode() + b"\r\n" + rest + body)
    with suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)


def _head(requests: BinaryIO) -> bytes:
    lines = []
    while line := requests.readline():
        lines.append(line)
        if line == b"\r\n":
            return b"".join(lines)
    return b""


def _back(server: socket.socket, client: socket.socket) -> None:
    with suppress(OSError), server, client:
        while data := server.recv(65536):
            client.sendall(data)
        client.shutdown(socket.SHUT_RDWR)
