"""The server: sockets, signals and an orderly end around the REST surface.

Everything is said here in code and nothing is taken from the environment.
"""

import asyncio
import contextlib
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, cast

import uvicorn

from leaseplane.limits import CONNECTIONS_MAX, FILES_KEPT_FREE, STOP_MS_MAX
from leaseplane.surfaces.rest.connections import ConnectionBounds, Connections
from leaseplane.surfaces.rest.surface import RestSurface

BACKLOG: Final = 2_048
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def raise_open_files(wanted: int = CONNECTIONS_MAX + FILES_KEPT_FREE) -> int:
    """Raise the soft limit of open files towards `wanted`, as far as the hard one allows.

    Answers the limit that now holds. It is never lowered, and where it cannot be raised it stays.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or target <= soft:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):
        return soft
    return target


def connections_within(open_files: int) -> int:
    """How many connections a process may keep that may have so many files open."""
    return max(1, min(CONNECTIONS_MAX, open_files - FILES_KEPT_FREE))


def listen_on(host: str, port: int) -> list[socket.socket]:
    """Listen on every address that `host` stands for, on one port; 0 takes one that is free.

    Raises `OSError` where an address cannot be had, and then listens on none.
    """
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ):
            taken = sockets[0].getsockname()[1] if sockets else port
            sockets.append(socket.create_server((str(address[0]), taken), family=family, backlog=BACKLOG))
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


class RestServer(uvicorn.Server):
    """Serves one REST surface, until `stop` is called or the process is asked to end by a signal.

    Ending is orderly: no new connections, parked requests are answered, requests that are being
    decided get their answers, and `serve` returns. A second signal ends it without waiting.
    `on_listening` is called once requests are answered and signals are heard.
    """

    def __init__(
        self,
        surface: RestSurface,
        bounds: ConnectionBounds,
        on_listening: Callable[[], None] = lambda: None,
    ) -> None:
        self._surface = surface
        self._on_listening = on_listening
        self._connections = Connections(bounds)
        super().__init__(
            uvicorn.Config(
                surface,
                http=cast("Any", self._connections.protocol_factory()),
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="warning",
                access_log=False,
                # Whoever can reach the port could claim any address or scheme.
                proxy_headers=False,
                forwarded_allow_ips="",
                server_header=False,
                backlog=BACKLOG,
                workers=1,
                timeout_graceful_shutdown=STOP_MS_MAX // 1000,
            )
        )

    def stop(self) -> None:
        """Begin the orderly end. May be called from a signal handler and from another thread."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn."""
        await super().startup(sockets)
        self._connections.start(asyncio.get_running_loop())
        self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn."""
        for server in self.servers:
            server.close()
        # Before anything is answered, so that the last answers say that they are the last.
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._surface.stop()
        await super().shutdown(sockets)
        self._connections.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Called by uvicorn, whose own would raise the signal again: an orderly end is not a failure."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self._on_signal) for each in _SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.stop()
