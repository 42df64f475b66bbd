"""Raw connections to a server, and an engine that says what the test wants."""

import asyncio
import json
import socket
import threading
from collections.abc import Mapping
from typing import Any

from leaseplane.answers import render
from leaseplane.calls import Answered
from leaseplane.model import Command, Granted, Outcome, Principal, RequestFacts
from leaseplane.surfaces.rest.connections import ConnectionBounds
from leaseplane.surfaces.rest.samples import OUTCOMES
from leaseplane.surfaces.rest.server import RestServer

LEASE = "/api/v1/acp/coordination/lease"
RELEASE = "/api/v1/acp/coordination/release"
WAIT = "/api/v1/acp/coordination/wait"
BREAK = "/api/v1/acp/coordination/break"
TRUST = "/api/v1/acp/trust"

QUICK = ConnectionBounds(complete_ms=300, idle_ms=600, sweep_ms=50)


class Response:
    """One response, as it came."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def header(self, name: str) -> str | None:
        found = [value for each, value in self.headers if each == name.lower()]
        assert len(found) <= 1, f"{name} came {len(found)} times"
        return found[0] if found else None

    @property
    def json(self) -> Any:
        assert self.header("content-type") == "application/json"
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"{self.status} {self.body!r}"


class Wire:
    """A raw connection. Reads responses one after the other, however they are sent."""

    def __init__(self, port: int, timeout_s: float = 5) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._read = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def _more(self) -> bool:
        try:
            data = self.socket.recv(65_536)
        except ConnectionResetError:
            data = b""
        self._read += data
        return bool(data)

    def response(self, method: str = "POST") -> Response | None:
        """The next final response, or None where the connection was closed instead."""
        while b"\r\n\r\n" not in self._read:
            if not self._more():
                assert self._read == b"", f"closed in the middle of a response: {self._read!r}"
                return None
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        status = int(first.split(" ")[1])
        headers = [
            (name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)
        ]
        if status == 100:
            return Response(status, headers, b"")
        length = next((int(value) for name, value in headers if name == "content-length"), 0)
        length = 0 if method == "HEAD" else length
        while len(self._read) < length:
            assert self._more(), "closed in the middle of a body"
        body, self._read = self._read[:length], self._read[length:]
        return Response(status, headers, body)

    def is_closed(self) -> bool:
        """Whether the server closes the connection now, without another byte."""
        return not self._read and not self._more()

    def close(self) -> None:
        self.socket.close()


class Server:
    """A running REST server."""

    def __init__(self, port: int, keys: Mapping[str, str]) -> None:
        self.port = port
        self.keys = keys
        self.engine: Any = None
        self.rest: RestServer
        self._wires: list[Wire] = []

    def wire(self) -> Wire:
        """A new connection; `close` closes it, where nothing else has."""
        wire = Wire(self.port)
        self._wires.append(wire)
        return wire

    def close(self) -> None:
        while self._wires:
            self._wires.pop().close()

    def head(self, method: str, target: str, key: str | None = "any", **headers: str) -> bytes:
        lines = [f"{method} {target} HTTP/1.1"]
        lines += [] if "host" in headers else [f"Host: 127.0.0.1:{self.port}"]
        lines += [] if key is None else [f"Authorization: Bearer {self.keys[key]}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items() if value != ""]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n"

    def request(
        self, method: str, target: str, body: bytes | None = None, key: str | None = "any", **headers: str
    ) -> bytes:
        head = self.head(method, target, key, **headers)
        if body is None:
            return head + b"\r\n"
        return head + b"content-length: %d\r\n\r\n" % len(body) + body

    def ask(
        self, method: str, target: str, body: Any = None, key: str | None = "any", **headers: str
    ) -> Response:
        """One request on a connection of its own; `body` is JSON to be, or bytes as they are."""
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        wire = Wire(self.port)
        try:
            wire.send(self.request(method, target, sent, key, **headers))
            response = wire.response(method)
            assert response is not None, "the server closed the connection"
            return response
        finally:
            wire.close()


class ScriptedEngine:
    """Answers whatever the test says, for what a real plane cannot be made to do at will."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.outcome: Outcome = OUTCOMES[Granted]
        self.raises: BaseException | None = None
        self.not_ready: Exception | None = None
        self.asked: list[tuple[Principal, Command, RequestFacts, str | None]] = []
        self.parks = False
        self.parked = threading.Event()
        self.hung_up = threading.Event()
        self.stopped = False
        self._dismissals: list[asyncio.Future[None]] = []

    async def ask(
        self,
        principal: Principal,
        command: Command,
        request: RequestFacts,
        idempotency_key: str | None = None,
    ) -> Answered:
        self.asked.append((principal, command, request, idempotency_key))
        if self.parks:
            waiting = asyncio.get_running_loop().create_future()
            self._dismissals.append(waiting)
            self.parked.set()
            try:
                await waiting
            except asyncio.CancelledError:
                self.hung_up.set()
                raise
        if self.raises is not None:
            raise self.raises
        rendered = render(self.outcome)
        return Answered(rendered.status, rendered.body_without_receipt, rendered.retry_after_s)

    def ready(self) -> None:
        if self.not_ready is not None:
            raise self.not_ready

    def stats(self) -> dict[str, int]:
        return {"transactions": 3, "parked_now": len(self._dismissals)}

    async def stop(self) -> None:
        self.stopped = True
        for waiting in self._dismissals:
            if not waiting.done():
                waiting.set_result(None)
