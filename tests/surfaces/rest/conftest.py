"""Real servers on the loopback, each in a thread with a loop of its own, and raw sockets to them."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.scenarios.agents import did
from tests.surfaces.rest.wire import QUICK, ScriptedEngine, Server

from leaseplane.clock import SystemClock
from leaseplane.engine import Authority
from leaseplane.identity.access import Gate
from leaseplane.identity.registry import open_registry
from leaseplane.serving import Engine
from leaseplane.settings import read_settings
from leaseplane.store.folder import DataFolder
from leaseplane.surfaces.rest.connections import ConnectionBounds
from leaseplane.surfaces.rest.door import Door
from leaseplane.surfaces.rest.samples import ADA
from leaseplane.surfaces.rest.server import RestServer, listen_on
from leaseplane.surfaces.rest.surface import RestSurface

Serve = Callable[..., Server]
Making = Callable[[], Awaitable[tuple[Any, Callable[[], Awaitable[None]]]]]
"""What makes an engine on the server's loop, and what ends it there."""


def _make_keys(folder: Path) -> dict[str, str]:
    data_folder = DataFolder.open(folder)
    now_ms = SystemClock().now().wall_ms
    registry = open_registry(data_folder, os.urandom)
    registry.create_workspace("acme", now_ms)
    registry.admit_agent(did("signer"), "acme", now_ms)
    keys = {
        "any": registry.create_key("acme", "any-actor", now_ms)[1].reveal(),
        "ada": registry.create_key("acme", "bound", now_ms, actor=ADA)[1].reveal(),
        "operator": registry.create_key("acme", "operator", now_ms)[1].reveal(),
    }
    registry.close()
    return keys


class Running:
    """A server in a thread with a loop of its own."""

    def __init__(
        self, folder: Path, making: Making, bounds: ConnectionBounds = QUICK, **options: Any
    ) -> None:
        self._folder = folder
        self._making = making
        self._bounds = bounds
        self._options = {"door": Door(), "openapi": b'{"openapi":"3.1.1"}', **options}
        self._sockets = listen_on("127.0.0.1", 0)
        self.server = Server(self._sockets[0].getsockname()[1], _make_keys(folder))
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(10), "the server did not start"

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        registry = open_registry(DataFolder.open(self._folder), os.urandom)
        self.server.engine, end = await self._making()
        surface = RestSurface(
            engine=self.server.engine,
            gate=Gate(registry),
            clock=SystemClock(),
            jwks=lambda: {"keys": []},
            did_document=lambda host: {"id": f"did:web:{host}"},
            **self._options,
        )
        self.server.rest = RestServer(surface, self._bounds)
        self._started.set()
        try:
            await self.server.rest.serve(self._sockets)
        finally:
            await end()
            registry.close()

    def stop(self) -> None:
        self.server.close()
        self.server.rest.stop()
        self._thread.join(10)
        assert not self._thread.is_alive(), "the server did not stop"


async def _make_scripted() -> tuple[Any, Callable[[], Awaitable[None]]]:
    async def end() -> None:
        pass

    return ScriptedEngine(), end


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a server over a scripted engine. It is stopped when the test is over."""
    running: list[Running] = []

    def start(bounds: ConnectionBounds = QUICK, **options: Any) -> Server:
        running.append(Running(tmp_path / f"data{len(running)}", _make_scripted, bounds, **options))
        return running[-1].server

    yield start
    for each in running:
        each.stop()


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server over a scripted engine for a module's tests."""
    running = Running(tmp_path_factory.mktemp("scripted") / "data", _make_scripted, ConnectionBounds())
    yield running.server
    running.stop()


@pytest.fixture
def engine(scripted: Server) -> ScriptedEngine:
    """The scripted engine of the module's server, as new."""
    scripted.engine.reset()
    return scripted.engine  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server over a real plane for a module's tests. Each test uses resources of its own."""
    folder = tmp_path_factory.mktemp("plane") / "data"

    async def make() -> tuple[Any, Callable[[], Awaitable[None]]]:
        opened = Authority.open(read_settings({"LEASEPLANE_DATA": str(folder)}), SystemClock(), governs=True)
        engine = Engine(opened)
        await engine.start()

        async def end() -> None:
            await engine.stop()
            opened.close()

        return engine, end

    running = Running(folder, make, ConnectionBounds())
    yield running.server
    running.stop()
