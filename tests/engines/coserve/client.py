"""A client of the training service, as its messages are described in ``interposer/engines/README.md``."""

from __future__ import annotations

import itertools
import json
import socket
import struct
from pathlib import Path
from typing import Any


class Failed(Exception):
    """The service answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['kind']}: {error['message']}")
        self.kind = error["kind"]


class Client:
    """One connection. Answers may be asked for later, in any order."""

    def __init__(self, path: Path | str, timeout: float = 300) -> None:
        self._end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._end.settimeout(timeout)
        self._end.connect(str(path))
        self._numbers = itertools.count(1)
        self._found: dict[int | None, dict[str, Any]] = {}

    def send(self, method: str, **fields: Any) -> int:
        """Sends a call; its number."""
        number = next(self._numbers)
        self.raw(json.dumps({"id": number, "method": method, **fields}).encode())
        return number

    def raw(self, body: bytes, length: int | None = None) -> None:
        """Sends anything."""
        self._end.sendall(struct.pack("<I", len(body) if length is None else length) + body)

    def wait(self, number: int | None) -> dict[str, Any]:
        """The answer to a call. Raises :class:`Failed`."""
        while number not in self._found:
            (length,) = struct.unpack("<I", self._exactly(4))
            message = json.loads(self._exactly(length))
            self._found[message["id"]] = message
        message = self._found.pop(number)
        if "error" in message:
            raise Failed(message["error"])
        return message["ok"]

    def call(self, method: str, **fields: Any) -> dict[str, Any]:
        """Sends a call, and waits for its answer."""
        return self.wait(self.send(method, **fields))

    def _exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            part = self._end.recv(length - len(data))
            if not part:
                raise EOFError("the service closed the connection")
            data += part
        return data

    def close(self) -> None:
        self._end.close()
