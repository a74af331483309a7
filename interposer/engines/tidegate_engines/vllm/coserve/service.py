"""A Unix socket at which an engine is told to train: owner only, length-framed messages.

A thread takes connections, and each connection has a thread that reads and one that writes: a client that sends or
reads slowly holds up nobody. What changes nothing in the engine is answered here, and all else goes to the engine
core, which answers when it is done.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import messages
from .messages import Message, Refused

log = logging.getLogger("vllm.tidegate")

#: Connections at a time, and calls of each that are not answered.
CONNECTIONS = 64
CALLS = 256


def place(named: Path | None, number: int) -> Path:
    """Where the socket is: what the variable names, else in the runtime directory of the user or the machine."""
    if named is not None:
        return named
    runtime = os.environ.get("XDG_RUNTIME_DIR") or "/run"
    return Path(runtime) / "tidegate" / f"tune-{number}.sock"


class Call:
    """One message of a client's, and how it is answered. Only the first answer counts."""

    def __init__(self, connection: Connection, number: int, message: Message) -> None:
        self._connection, self._number, self.message = connection, number, message
        self._answered = False

    @property
    def gone(self) -> bool:
        """Whether nobody waits for the answer."""
        return self._connection.closed

    def reply(self, result: dict[str, Any]) -> None:
        """It is done."""
        self._answer({"id": self._number, "ok": result})

    def fail(self, error: Refused) -> None:
        """It is refused, or failed."""
        self._answer({"id": self._number, "error": {"kind": error.kind, "message": error.message}})

    def _answer(self, message: dict[str, Any]) -> None:
        if not self._answered:
            self._answered = True
            self._connection.send(message, answers=True)


class Connection:
    """One client."""

    def __init__(self, end: socket.socket, service: Service) -> None:
        self._end, self._service = end, service
        self.closed = False
        self._lock = threading.Lock()
        self._waiting = 0
        self._out: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        for work in (self._read, self._write):
            threading.Thread(target=work, name="tidegate-tune", daemon=True).start()

    def send(self, message: dict[str, Any], answers: bool = False) -> None:
        """Any thread may call this; nobody waits for the client."""
        if answers:
            with self._lock:
                self._waiting -= 1
        self._out.put(message)

    def close(self) -> None:
        """No more is read; what was sent before is still written, if the client takes it."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RD)
        self._out.put(None)

    def cut(self) -> None:
        """No more is read or written."""
        self.close()
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        try:
            while (body := self._message()) is not None:
                self._take(body)
        except OSError:
            pass
        except Exception as error:  # noqa: BLE001 # a connection is lost, and no engine
            log.warning("Tidegate closes a connection of the training service: %s: %s", type(error).__name__, error)
        finally:
            self.close()
            self._service.left(self)

    def _message(self) -> bytes | None:
        header = self._exactly(messages.HEADER)
        if header is None:
            return None
        length = messages.length(header)
        if length > messages.LONGEST:
            text = f"a message of {length} bytes is longer than {messages.LONGEST}"
            self.send({"id": None, "error": {"kind": "bad_request", "message": text}})
            return None
        return self._exactly(length)

    def _exactly(self, length: int) -> bytes | None:
        parts, left = [], length
        while left:
            part = self._end.recv(min(left, 1 << 20))
            if not part:
                return None
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _take(self, body: bytes) -> None:
        number = messages.number(body)
        if number is None:
            text = "a message is an object of JSON with a number as its id, and a method"
            self.send({"id": None, "error": {"kind": "bad_request", "message": text}})
            return
        with self._lock:
            self._waiting += 1
            busy = self._waiting > CALLS
        call = Call(self, number, Message(id=number))
        try:
            if busy:
                raise Refused("busy", f"{CALLS} calls of this connection are not answered yet")
            call.message = messages.read(body)
            self._service.take(call)
        except Refused as error:
            call.fail(error)

    def _write(self) -> None:
        try:
            while (message := self._out.get()) is not None:
                self._end.sendall(messages.framed(message))
        except (OSError, ValueError, TypeError) as error:
            if not isinstance(error, OSError):
                log.warning("Tidegate cannot write an answer of the training service: %s", error)
        finally:
            self.closed = True
            with contextlib.suppress(OSError):
                self._end.shutdown(socket.SHUT_RDWR)
            self._end.close()


class Service:
    """Takes calls until it is closed."""

    def __init__(
        self, path: Path, answers: Mapping[str, Callable[[Any], dict[str, Any]]], core: Callable[[Call], None]
    ) -> None:
        """Listens at ``path``. Raises ``OSError`` where it cannot."""
        self.path, self._answers, self._core = path, answers, core
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()
        self._listener = _listen(path)
        self._own = os.stat(path).st_ino
        threading.Thread(target=self._accept, name="tidegate-tune", daemon=True).start()

    def take(self, call: Call) -> None:
        """Answers a call, or hands it on. Raises :class:`Refused`."""
        answer = self._answers.get(call.message.method)
        if answer is None:
            self._core(call)
            return
        try:
            call.reply(answer(call.message))
        except Refused:
            raise
        except Exception as error:
            raise Refused("fault", f"{type(error).__name__}: {error}") from error

    def left(self, connection: Connection) -> None:
        """A client is gone. The core is told by a call that nobody waits for."""
        with self._lock:
            self._connections.discard(connection)
        self._core(Call(connection, 0, Message(id=0)))

    def close(self) -> None:
        """Ends it, and takes the socket away."""
        with contextlib.suppress(OSError):
            if os.stat(self.path).st_ino == self._own:
                self.path.unlink()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            left = list(self._connections)
        for connection in left:
            connection.cut()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            try:
                self._welcome(end)
            except Exception as error:  # noqa: BLE001 # the next client may do better
                log.warning("Tidegate refuses a connection to the training service: %s", error)
                end.close()

    def _welcome(self, end: socket.socket) -> None:
        _, user, _ = struct.unpack("iII", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user not in (0, os.geteuid()):
            raise PermissionError(f"user {user} is not the owner")
        with self._lock:
            if len(self._connections) >= CONNECTIONS:
                raise ConnectionError(f"there are {CONNECTIONS} already")
            self._connections.add(Connection(end, self))


def _listen(path: Path) -> socket.socket:
    """A socket that only its owner may use. One that a process left behind is taken away, one in use is not."""
    if not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            listener.bind(str(path))
        except OSError:
            if not path.is_socket() or answered(path):
                raise
            path.unlink()
            listener.bind(str(path))
        # Nobody can connect before `listen`.
        path.chmod(0o600)
        listener.listen(16)
    except BaseException:
        listener.close()
        raise
    return listener


def answered(path: Path) -> bool:
    """Whether somebody listens at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        return client.connect_ex(str(path)) != errno.ECONNREFUSED
