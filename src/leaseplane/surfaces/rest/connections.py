"""Connections: HTTP/1.1 as uvicorn speaks it, with the bounds that it lacks.

uvicorn waits for ever for a header or a body that does not come, bounds neither the size of a header
nor how many requests are sent ahead, answers what is no HTTP in plain text, and tells a request that
its caller hung up only if no other was sent behind it. Here one sweep, twice a second, closes what has
been incomplete or idle for too long; a request costs no timer of its own.

Time is counted in sweeps and not read from a clock: a connection is closed up to one sweep after its
time, and never before it.
"""

import asyncio
import logging
import re
from functools import partial
from itertools import chain
from typing import Any, Final, TypeAlias

import httptools
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from leaseplane.answers import Rendered, refuse
from leaseplane.limits import (
    CONNECTION_SWEEP_MS,
    CONNECTIONS_MAX,
    CONNECTIONS_SHED,
    HEAD_BYTES_MAX,
    KEEP_ALIVE_MS_MAX,
    MESSAGE_BYTES_MAX,
    PIPELINED_MAX,
    REQUEST_COMPLETE_MS_MAX,
)

logger = logging.getLogger("leaseplane.rest")

Sweeps: TypeAlias = int
"""A point in time, or a length of it, in sweeps."""

CONNECTION_IN_SCOPE: Final = "leaseplane.connection"
"""Where the surface finds, in the ASGI scope, the connection that can take a whole response at once."""

_FRAMING: Final = frozenset((b"content-length", b"transfer-encoding"))
_HEAD_TOO_LONG: Final = refuse("invalid_request", f"The request's header is over {HEAD_BYTES_MAX} bytes.")
_ABSOLUTE_TARGET: Final = re.compile(rb"https?://([^/?#]+)/", re.IGNORECASE)


class _HeadTooLong(Exception):
    """Raised through the parser, which passes it on as the context of its own."""


class ConnectionBounds(msgspec.Struct, frozen=True, kw_only=True):
    """How long a connection may keep the server waiting, and how many there may be."""

    complete_ms: int = REQUEST_COMPLETE_MS_MAX
    """From a request's first byte to its last, and from a connection's beginning to the first byte."""
    idle_ms: int = KEEP_ALIVE_MS_MAX
    """From one answer to the first byte of the next request, and for how long answers may lie unread."""
    sweep_ms: int = CONNECTION_SWEEP_MS
    connections: int = CONNECTIONS_MAX


class Connections:
    """All connections of one server, and the sweep over them."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self.now: Sweeps = 0
        self._bounds = bounds
        # One more than the division says, since a wait may begin just before the next sweep is counted.
        self._complete_sweeps: Sweeps = -(-bounds.complete_ms // bounds.sweep_ms) + 1
        self._idle_sweeps: Sweeps = -(-bounds.idle_ms // bounds.sweep_ms) + 1
        self._open: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._default_headers: list[tuple[bytes, bytes]] = []
        self._default_head = b""

    def protocol_factory(self) -> "partial[Connection]":
        """What makes the protocol of a new connection, as uvicorn wants it."""
        return partial(Connection, self)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to sweep."""
        self._timer = loop.call_later(self._bounds.sweep_ms / 1000, self._sweep, loop)

    def stop(self) -> None:
        """Sweep no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def default_head(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """uvicorn's own response headers (the date), as they go over the wire."""
        if headers is not self._default_headers:  # uvicorn makes a new list each second
            self._default_headers = headers
            self._default_head = b"".join(b"%b: %b\r\n" % header for header in headers)
        return self._default_head

    def admit(self, connection: "Connection") -> bool:
        """Take note of a new connection. False where there is no room, not even by closing idle ones."""
        if len(self._open) >= self._bounds.connections and not self._shed():
            return False
        self._open.add(connection)
        return True

    def forget(self, connection: "Connection") -> None:
        """A connection is over."""
        self._open.discard(connection)

    def _shed(self) -> bool:
        """Close some of those that nobody waits on: first those that never completed a request, last
        those that do not read their answers, of which one may be in the middle of a long one."""
        idle: list[tuple[bool, bool, Sweeps, Connection]] = []
        for connection in self._open:
            is_unread = connection.unread_since is not None
            since = connection.unread_since if is_unread else connection.idle_since
            if since is not None:
                idle.append((is_unread, connection.answers > 0, since, connection))
        idle.sort(key=lambda each: each[:3])
        for *_, connection in idle[:CONNECTIONS_SHED]:
            connection.give_up()
            self._open.discard(connection)
        return bool(idle)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now += 1
        for connection in list(self._open):
            if connection.message_since is not None:
                over = self.now - connection.message_since >= self._complete_sweeps
            elif connection.idle_since is not None:
                allowed = self._idle_sweeps if connection.answers else self._complete_sweeps
                over = self.now - connection.idle_since >= allowed
            else:
                over = False
            if connection.unread_since is not None and not over:
                over = self.now - connection.unread_since >= self._idle_sweeps
            if over:
                connection.give_up()
        self._timer = loop.call_later(self._bounds.sweep_ms / 1000, self._sweep, loop)


class Connection(HttpToolsProtocol):
    """One connection.

    `message_since` is when the request began of which not everything is here yet, or None.
    `idle_since` is since when no request is being answered, or None while one is.
    `unread_since` is since when its caller has let answers pile up unread, or None. The request that is
    being answered waits for that caller and nobody for it, so it keeps no connection open.
    """

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._all = connections
        self.message_since: Sweeps | None = None
        self.idle_since: Sweeps | None = connections.now
        self.unread_since: Sweeps | None = None
        self.answers = 0
        self._running: RequestResponseCycle | None = None
        self._within_head = False
        self._message_is_new = False
        self._head_bytes = 0
        self._message_bytes = 0
        self._deaf = False
        self._told_twice = False

    # -- the connection's life -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if not self._all.admit(self):
            self._refuse(
                refuse(
                    "authority_unavailable",
                    "The server has as many connections as it can keep. No lease was granted: ask again.",
                    retry_after_s=1,
                )
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.forget(self)
        running = self._running
        super().connection_lost(exc)
        # uvicorn tells the newest request only, which may be one that waits behind the running one.
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        self.pipeline.clear()

    def shutdown(self) -> None:
        if self.message_since is not None:
            self.give_up()
        else:
            super().shutdown()

    def give_up(self) -> None:
        """Close the connection at once, without waiting for anything that its caller should do."""
        self._deaf = True
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    # -- what comes in -------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._message_is_new = False
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._refuse(
                _HEAD_TOO_LONG
                if isinstance(error.__context__, _HeadTooLong)
                else refuse("invalid_request", "This is not an HTTP/1.1 request that can be read.")
            )
        else:
            if self.message_since is not None and not self._message_is_new:
                self._count(len(data))

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # An offer to speak something else may be passed over (RFC 9110, 7.8), and Java's client makes
            # one with every first request. But the parser takes what follows for that something else:
            # another one is told how the body is framed, and reads on.
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
            framing = [header for header in self.headers if header[0] in _FRAMING]
            head = b"".join(b"%b: %b\r\n" % header for header in framing)
            self._told_twice = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % head)
            self._told_twice = False
            self._feed(data[upgrade.args[0] :])

    def _count(self, size_bytes: int) -> None:
        self._message_bytes += size_bytes
        if self._within_head:
            self._head_bytes += size_bytes
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(_HEAD_TOO_LONG)
        elif self._message_bytes > MESSAGE_BYTES_MAX:
            self.give_up()

    def on_message_begin(self) -> None:
        if self._told_twice:
            return
        super().on_message_begin()
        self.scope[CONNECTION_IN_SCOPE] = self  # type: ignore[typeddict-unknown-key]  # servers may add to it
        self.message_since = self._all.now
        self._within_head = self._message_is_new = True
        self._head_bytes = self._message_bytes = 0

    def on_url(self, url: bytes) -> None:
        if not self._told_twice:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        # What comes after the body (trailers) is not part of what the request was judged by.
        if self._within_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._told_twice:
            return
        if self.parser.get_http_version() not in ("1.1", "1.0"):
            raise ValueError("a version that is not spoken here")
        # Again, since what comes in one piece may be longer than that and has not been counted.
        if len(self.url) + sum(map(len, chain.from_iterable(self.headers))) > HEAD_BYTES_MAX:
            raise _HeadTooLong
        if not self.url.startswith(b"/"):
            self._check_absolute_target()
        super().on_headers_complete()
        self._within_head = False
        self.idle_since = None
        if self.pipeline:
            # uvicorn stops reading here, and would not see the caller of the running request hang up.
            self.flow.resume_reading()
            if len(self.pipeline) > PIPELINED_MAX:
                self.give_up()

    def _check_absolute_target(self) -> None:
        # RFC 9112, 3.2.2: the target's authority counts and Host is ignored. Only Host is looked at
        # behind this, so the two have to be the same; else this is no request that can be read.
        absolute = _ABSOLUTE_TARGET.match(self.url)
        hosts = [value for name, value in self.headers if name == b"host"]
        if absolute is None or hosts != [absolute[1]]:
            raise ValueError("the target is neither a path nor this Host's")

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self.pipeline and self.flow.read_paused:
            # Sent ahead of its turn and over its bound: paused, it would hide that the caller hangs up.
            self.give_up()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the parser's opinion; the body is still to come
        self.message_since = None
        super().on_message_complete()

    # -- what goes out -------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unread_since = self._all.now

    def resume_writing(self) -> None:
        super().resume_writing()
        self.unread_since = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def respond(self, status: int, head: bytes, body: bytes) -> bool:
        """Write the whole response of the running request at once.

        `head` holds header lines, each with its CRLF, Content-Length among them. False where it has to
        go the ordinary way, through ASGI's `send`: because the caller reads too slowly, say. Two
        messages cost two system calls and two packets, which is a fifth of what a request costs.
        """
        cycle = self._running
        if cycle is None or cycle.response_started or self.flow.write_paused:
            return False
        if self.transport.is_closing():
            # uvicorn would take it for a fault of ours, and log it, that nothing was answered.
            cycle.disconnected = True
        if cycle.disconnected:
            return True
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        self.transport.write(
            b"".join(
                (
                    STATUS_LINE[status],
                    self._all.default_head(self.server_state.default_headers),
                    head,
                    b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n",
                    b"" if cycle.scope["method"] == "HEAD" else body,
                )
            )
        )
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()
        return True

    def on_response_complete(self) -> None:
        # As uvicorn's own, but for its timer: the sweep is what ends an idle connection.
        self.server_state.total_requests += 1
        self.answers += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._running = None
            self.idle_since = self._all.now

    def _refuse(self, rendered: Rendered) -> None:
        """Answer what cannot be read, after the requests before it, and close."""
        self._deaf = True
        within_body = self.message_since is not None and not self._within_head
        if within_body and self.cycle.response_started:
            # Its answer did not wait for the body.
            self.cycle.keep_alive = False
            if self.cycle.response_complete:
                self.transport.close()
            return
        if within_body and self.pipeline:
            self.pipeline.popleft()  # its turn had not come
        elif within_body:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._running = None
        before = self.pipeline[0][0] if self.pipeline else self._running
        if before is not None:
            before.keep_alive = False
            return
        body = rendered.body_without_receipt
        retry = b"" if rendered.retry_after_s is None else b"retry-after: %d\r\n" % rendered.retry_after_s
        self.transport.write(
            b"%b%bcontent-type: application/json\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n%b"
            % (
                STATUS_LINE[rendered.status],
                self._all.default_head(self.server_state.default_headers),
                len(body),
                retry,
                body,
            )
        )
        self.transport.close()
