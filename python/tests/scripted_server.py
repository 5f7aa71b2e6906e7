"""A server for the client's unit tests: it plays one given turn per connection."""

from __future__ import annotations

import json
import socket
import struct
import threading
from typing import Any, Callable

import checkout  # noqa: F401
from DLMLocker import _wire

# What one connection gets: its socket and the request that came, decoded.
Turn = Callable[[socket.socket, Any], None]


class ScriptedServer:
    """Plays its turns in order, each on its own thread; the last one is repeated for ever.

    `requests` are the requests received so far, in the order they came.
    """

    def __init__(self, *turns: Turn) -> None:
        self._turns = turns
        self.requests: list[Any] = []
        self._threads: list[threading.Thread] = []
        self._last_peer: Any = None
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept)

    def __enter__(self) -> ScriptedServer:
        self._accepting.start()
        return self

    def __exit__(self, *exc: object) -> None:
        # Accepted last, so that every connection before it is played first.
        with socket.socket() as last:
            last.bind(("127.0.0.1", 0))
            self._last_peer = last.getsockname()
            last.connect(("127.0.0.1", self.port))
            self._accepting.join()
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            connection, peer = self._listener.accept()
            if peer == self._last_peer:
                connection.close()
                return
            turn = self._turns[min(len(self._threads), len(self._turns) - 1)]
            thread = threading.Thread(target=self._play, args=(connection, turn))
            thread.start()
            self._threads.append(thread)

    def _play(self, connection: socket.socket, turn: Turn) -> None:
        with connection, connection.makefile("rb") as lines:
            line = lines.readline()
            request = json.loads(_wire.decode(line.strip()))
            self.requests.append(request)
            turn(connection, request)


def encoded(text: str) -> bytes:
    return _wire.encode(text.encode())


def answer(status: str, **fields: str | None) -> Turn:
    """Answers with this status, and closes."""
    return send(encoded(json.dumps({"Status": status, **fields})) + b"\n")


def send(message: bytes) -> Turn:
    """Sends exactly this, and closes."""

    def turn(connection: socket.socket, request: Any) -> None:
        connection.sendall(message)

    return turn


def hang_up(connection: socket.socket, request: Any) -> None:
    """Closes without an answer."""


def reset(connection: socket.socket, request: Any) -> None:
    """Ends the connection by a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def say_nothing(connection: socket.socket, request: Any) -> None:
    """Stays silent until the client gives up."""
    connection.recv(1)
