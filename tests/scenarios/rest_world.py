"""A whole server as a world: real HTTP on loopback, real SQLite, and a clock that the history sets."""

import asyncio
import atexit
import http.client
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

import uvloop
from tests.scenarios.rules_world import OPERATION_OF, told
from tests.scenarios.world import TERM_MS, Answer, Capability, Op, ParkedAsk

from leaseplane.clock import ManualClock
from leaseplane.engine import Authority
from leaseplane.identity.access import Gate
from leaseplane.identity.registry import open_registry
from leaseplane.serving import Engine
from leaseplane.settings import read_settings
from leaseplane.surfaces.rest.connections import ConnectionBounds
from leaseplane.surfaces.rest.door import Door
from leaseplane.surfaces.rest.server import RestServer, listen_on
from leaseplane.surfaces.rest.surface import RestSurface

PATIENCE_S = 10.0


class RestAsk:
    """One connection that waits for its answer."""

    def __init__(self, world: "RestWorld", request: bytes) -> None:
        self.world = world
        self.socket: socket.socket | None = socket.create_connection(("127.0.0.1", world.port))
        self.socket.sendall(request)
        self.received = b""
        self._answer: Answer | None = None

    @property
    def is_open(self) -> bool:
        return self.socket is not None

    def answer(self) -> Answer | None:
        return self._answer

    def receive(self) -> None:
        """Take what has arrived, without waiting for more."""
        assert self.socket is not None
        self.socket.settimeout(0.005)
        try:
            self.received += self.socket.recv(65_536)
        except TimeoutError:
            return
        head, blank, body = self.received.partition(b"\r\n\r\n")
        if not blank:
            return
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        if len(body) == int(length.partition(b":")[2]):
            self._answer = told(int(head.split(b" ", 2)[1]), body)
            self.close()

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def hang_up(self) -> None:
        if self.is_open:
            self.close()
            self.world.settle()


class Server:
    """One server in a thread of its own, for all histories: each has a workspace of its own in it."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000, 1_790_000_000_000)
        self.folder = tempfile.TemporaryDirectory(prefix="plane-")
        settings = read_settings(
            {"LEASEPLANE_DATA": str(Path(self.folder.name) / "data"), "LEASEPLANE_LEASE_MS": str(TERM_MS)}
        )
        self.plane = Authority.open(settings, self.clock, governs=True)
        self.registry = open_registry(self.plane.folder, os.urandom)
        self.sockets = listen_on("127.0.0.1", 0)
        self.port = self.sockets[0].getsockname()[1]
        self.loop = uvloop.new_event_loop()
        started = threading.Event()
        self.thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self.thread.start()
        assert started.wait(PATIENCE_S), "the server did not start"

    def _serve(self, started: threading.Event) -> None:
        async def serve() -> None:
            self.engine = Engine(self.plane)
            await self.engine.start()
            surface = RestSurface(
                engine=self.engine,
                gate=Gate(self.registry),
                clock=self.clock,
                door=Door(),
                jwks=self.plane.keyring.published.jwks,
                did_document=lambda host: self.plane.keyring.published.did_document(host),
                openapi=b"{}",
            )
            self.server = RestServer(surface, ConnectionBounds())
            self.loop.call_soon(started.set)
            await self.server.serve(self.sockets)
            await self.engine.stop()

        self.loop.run_until_complete(serve())
        self.loop.close()

    def close(self) -> None:
        self.server.stop()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "the server did not stop"
        self.registry.close()
        self.plane.close()
        self.folder.cleanup()


@cache
def the_server() -> Server:
    server = Server()
    atexit.register(server.close)
    return server


class RestWorld:
    """One workspace of a server."""

    lacks: ClassVar[dict[Capability, str]] = {
        "freeze": "the requests of one server are kept by one process",
        "kill_parker": "the requests of one server are kept by one process",
        "restart": "servers are killed and started again as processes in tests/surfaces/cli",
        "reboot": "a new boot id is for a process that starts",
    }
    worlds = count(1)

    def __init__(self) -> None:
        server = the_server()
        self.loop, self.plane, self.registry = server.loop, server.plane, server.registry
        self.engine, self.clock, self.port = server.engine, server.clock, server.port
        self.workspace = f"history-{next(self.worlds)}"
        self.keys: dict[str, str] = {}
        self.handles: list[RestAsk] = []
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    def on_loop(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(PATIENCE_S)

    def settle(self) -> None:
        """Return when everything that follows from what was sent has happened and has arrived."""
        until = time.monotonic() + PATIENCE_S
        agreed = 0
        while time.monotonic() < until:
            self.on_loop(self.engine.run_alarm)
            waiting = [handle for handle in self.handles if handle.is_open]
            # Twice in a row: what the first turn of the loop decided, the second has sent.
            agreed = agreed + 1 if self.engine.stats()["open_now"] == len(waiting) else 0
            if agreed == 2:
                return
            if agreed == 0:
                for handle in waiting:
                    handle.receive()
        raise AssertionError(f"{len(waiting)} requests wait, the engine knows {self.engine.stats()}")

    # -- World ---------------------------------------------------------------------------------

    def request(
        self, op: Op, body: dict[str, Any], key: str | None, idempotency_key: str | None
    ) -> tuple[str, str, bytes, dict[str, str]]:
        operation = OPERATION_OF[op]
        headers = {"Authorization": f"Bearer {self.api_key(key, op)}", "Host": f"localhost:{self.port}"}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        if operation.source == "body":
            return operation.method, operation.path, json.dumps(body).encode(), headers
        path = f"{operation.path}?{urlencode(body)}" if body else operation.path
        return operation.method, path, b"", headers

    def api_key(self, key: str | None, op: Op) -> str:
        name = "operator" if key is None and op == "break" else key or "any"
        if name not in self.keys:
            now_ms = self.clock.now().wall_ms
            kind, _, rest = name.partition(":")
            workspace = f"{self.workspace}-{rest}" if kind == "workspace" else self.workspace
            if workspace not in {known.name for known in self.registry.workspaces()}:
                self.registry.create_workspace(workspace, now_ms)
            actor = rest if kind == "bound" else None
            made = "bound" if kind == "bound" else "operator" if kind == "operator" else "any-actor"
            _, secret = self.registry.create_key(workspace, made, now_ms, actor=actor)
            self.keys[name] = secret.reveal()
        return self.keys[name]

    def ask(
        self, op: Op, body: dict[str, Any], *, key: str | None = None, idempotency_key: str | None = None
    ) -> Answer:
        method, path, sent, headers = self.request(op, body, key, idempotency_key)
        self.connection.request(method, path, sent or None, headers)
        response = self.connection.getresponse()
        answer = told(response.status, response.read())
        self.settle()
        return answer

    def park(
        self, body: dict[str, Any], *, key: str | None = None, idempotency_key: str | None = None
    ) -> ParkedAsk:
        method, path, sent, headers = self.request("lease", body, key, idempotency_key)
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        request = f"{method} {path} HTTP/1.1\r\n{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent
        before = self.engine.stats()["asked"]
        handle = RestAsk(self, request)
        self.handles.append(handle)
        until = time.monotonic() + PATIENCE_S
        while self.engine.stats()["asked"] == before and handle.answer() is None:
            assert time.monotonic() < until, "the request did not arrive"
            handle.receive()
        self.settle()
        return handle

    def advance(self, ms: int) -> None:
        target = self.clock.now().boot_ms + ms
        while (now := self.clock.now().boot_ms) < target:
            alarm = self.on_loop(self._next_alarm)
            step_to = target if alarm is None or alarm <= now else min(alarm, target)
            self.clock.advance(step_to - now)
            self.settle()

    async def _next_alarm(self) -> int | None:
        return self.plane.store.next_alarm_boot_ms()

    def step_wall(self, ms: int) -> None:
        self.clock.step_wall(ms)

    def restart(self, down_ms: int) -> None:
        raise NotImplementedError(self.lacks["restart"])

    def reboot(self) -> None:
        raise NotImplementedError(self.lacks["reboot"])

    def freeze(self, *parked: ParkedAsk) -> None:
        raise NotImplementedError(self.lacks["freeze"])

    def kill_parker(self, *parked: ParkedAsk) -> None:
        raise NotImplementedError(self.lacks["kill_parker"])

    def close(self) -> None:
        for handle in self.handles:
            handle.close()
        self.connection.close()
        self.settle()
