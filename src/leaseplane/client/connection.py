"""Connections: HTTP/1.1 to one server, one request at a time, on a socket that is kept.

What comes back is read by httptools, the parser that the server uses as well. For an answer of ours the
standard library's client takes four times the CPU time (measured: 70 and 17 µs, with the sending) and ten
times as long to import (13 and 1 ms); it neither says whether the first byte of an answer had come when a
connection broke off, nor lets another thread hang up in the middle.
"""

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import httptools
import msgspec

from leaseplane.clock import Clock
from leaseplane.limits import ANSWER_BYTES_MAX, CONNECT_MS_MAX, HEAD_BYTES_MAX

if TYPE_CHECKING:
    import ssl

_READ_BYTES: Final = 64 * 1024
_LAST_LOOK_S: Final = 0.001
"""A time-out of nothing would be taken for a socket that does not block. And what came while the machine
was suspended is seen."""


class Place(msgspec.Struct, frozen=True):
    """Where a server is: what a URL says of it."""

    scheme: str
    host: str
    port: int
    authority: str
    """What the header `Host` names it by."""
    path: str
    """What stands in front of every path of it; without a slash at its end."""

    @classmethod
    def of(cls, url: str) -> "Place":
        """The place of an http or https URL, which the settings have checked."""
        parts = urlsplit(url)
        assert parts.scheme in ("http", "https") and parts.hostname, "settings let only whole URLs through"
        host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode("ascii")
        authority = f"[{host}]" if ":" in host else host
        if parts.port is not None:
            authority = f"{authority}:{parts.port}"
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return cls(parts.scheme, host, port, authority, parts.path.rstrip("/"))


class Response(msgspec.Struct, frozen=True, gc=False):
    """What a server answered, whole."""

    status: int
    body: bytes
    location: str | None
    retry_after_s: int | None
    may_be_cut: bool
    """Whether it ended with the connection, so that nothing says where it should have ended."""


class BrokenOff(Exception):
    """The request may have reached the server, and no whole answer came back; it is told why.

    `nothing_came` where the connection ended before the first byte of an answer. On a connection that had
    been idle the server may have closed it before it saw the request.
    """

    def __init__(self, reason: str, *, nothing_came: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.nothing_came = nothing_came


class Connection:
    """One connection, of one thread; `hang_up` is for any.

    Certificates are checked by `tls`, which is made for an https place the first time it is needed. No
    proxy is used, and nothing is read from the environment.
    """

    __slots__ = ("_clock", "_guard", "_place", "_socket", "_tls", "_waits", "is_kept")

    def __init__(self, place: Place, clock: Clock, tls: "ssl.SSLContext | None" = None) -> None:
        self._place = place
        self._clock = clock
        self._tls = tls
        self._socket: socket.socket | None = None
        # Held while the socket is closed, and while it is shut down by another thread: in between its
        # number may already be that of something else.
        self._guard = threading.Lock()
        self._waits: tuple[type[OSError], ...] = (BlockingIOError,)
        self.is_kept = False
        """Whether it has been used before, so that the server may have closed it meanwhile."""

    def open(self) -> None:
        """Be connected: as it is where the server still keeps it, otherwise anew. Raises `OSError`."""
        if self._socket is not None:
            if self._is_idle(self._socket):
                return
            self.close()
        self.is_kept = False
        connected = _connected(self._place, self._clock)
        if self._place.scheme == "https":
            try:
                connected = self._secured(connected)
            except BaseException:
                connected.close()
                raise
        self._socket = connected

    def _is_idle(self, kept: socket.socket) -> bool:
        # An answer that nobody asked for, or the end: either way it cannot be used again. TLS may have
        # something to read that is neither.
        kept.settimeout(0)
        try:
            kept.recv(1)
        except self._waits:
            return True
        except OSError:
            return False
        return False

    def _secured(self, connected: socket.socket) -> socket.socket:
        import ssl

        if self._tls is None:
            self._tls = ssl.create_default_context()
        self._waits = (BlockingIOError, ssl.SSLWantReadError)
        return self._tls.wrap_socket(connected, server_hostname=self._place.host)

    def exchange(self, request: bytes, answered_ms_max: int) -> Response:
        """Send a whole request and read its answer. Raises `BrokenOff`; the connection is closed then."""
        kept = self._socket
        assert kept is not None, "it is open"
        until_boot_ms = self._clock.now().boot_ms + answered_ms_max
        reading = _Reading()
        parser = httptools.HttpResponseParser(reading)
        reading.parser = parser
        keep = False
        try:
            self._send(kept, request, until_boot_ms)
            self._read(kept, parser, reading, until_boot_ms)
            keep = reading.is_whole and reading.can_be_kept
            return reading.response()
        except OSError as error:
            raise BrokenOff(
                told(error), nothing_came=not (isinstance(error, TimeoutError) or reading.has_begun)
            ) from None
        finally:
            # They refer to one another.
            reading.parser = None
            self.is_kept = keep
            if not keep:
                self.close()

    def _send(self, kept: socket.socket, request: bytes, until_boot_ms: int) -> None:
        kept.settimeout(self._left_s(until_boot_ms))
        # A server that does not want to read it all may have said why.
        with suppress(BrokenPipeError, ConnectionResetError):
            kept.sendall(request)

    def _read(
        self,
        kept: socket.socket,
        parser: httptools.HttpResponseParser,
        reading: "_Reading",
        until_boot_ms: int,
    ) -> None:
        while not reading.is_whole:
            kept.settimeout(self._left_s(until_boot_ms))
            data = kept.recv(_READ_BYTES)
            if not data:
                if reading.ends_with_the_connection():
                    return
                raise BrokenOff("it closed the connection", nothing_came=not reading.has_begun)
            reading.has_begun = True
            try:
                parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                if isinstance(error.__context__, BrokenOff):
                    raise error.__context__ from None
                raise BrokenOff("what it sent is not HTTP") from None

    def _left_s(self, until_boot_ms: int) -> float:
        return max((until_boot_ms - self._clock.now().boot_ms) / 1_000, _LAST_LOOK_S)

    def hang_up(self) -> None:
        """End it at once, from any thread: whoever reads from it is told that it is closed."""
        with self._guard:
            if self._socket is not None:
                # The other end may have been quicker. Not the method of a TLS socket, which would take from
                # the reader what it reads by.
                with suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Be closed; in a forked child this ends nothing for the parent."""
        with self._guard:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def forget(self) -> None:
        """In a forked child: drop its copy of the socket, whoever held the lock in the parent.

        A copy that is kept would keep the connection open when the parent has died.
        """
        self._guard = threading.Lock()
        self.close()


def _connected(place: Place, clock: Clock) -> socket.socket:
    until_boot_ms = clock.now().boot_ms + CONNECT_MS_MAX
    failed: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(
        place.host, place.port, type=socket.SOCK_STREAM
    ):
        made = socket.socket(family, kind, protocol)
        try:
            left_ms = until_boot_ms - clock.now().boot_ms
            if left_ms <= 0:
                raise TimeoutError
            # Also what a TLS handshake takes at most, a step.
            made.settimeout(left_ms / 1_000)
            made.connect(address)
            # Each request is one write; nothing is gained by waiting for more to send.
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            made.close()
            # The first address is the one that was meant.
            failed = failed or error
        else:
            return made
    raise failed or OSError("it has no address")


class _Reading:
    """What the parser tells of one answer, within its bounds."""

    __slots__ = (
        "_body",
        "_head_bytes",
        "_head_is_whole",
        "_headers",
        "_status",
        "can_be_kept",
        "has_begun",
        "is_whole",
        "parser",
    )

    def __init__(self) -> None:
        self.has_begun = False
        self.is_whole = False
        self.can_be_kept = False
        self.parser: httptools.HttpResponseParser | None = None
        self._status = 0
        self._begin()

    def _begin(self) -> None:
        self._head_bytes = 0
        self._head_is_whole = False
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()

    def on_message_begin(self) -> None:
        if self.is_whole:
            raise BrokenOff("it sent more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_BYTES_MAX:
            raise BrokenOff("the head of its answer is too long")
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        assert self.parser is not None, "it is what calls this"
        self._head_is_whole = True
        self._status = self.parser.get_status_code()
        # Once the answer is whole, the parser has forgotten it.
        self.can_be_kept = self.parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        if len(self._body) + len(data) > ANSWER_BYTES_MAX:
            raise BrokenOff("its answer is too long")
        self._body += data

    def on_message_complete(self) -> None:
        if self._status < 200:
            # An interim response (RFC 9110, 15.2): the answer is still to come.
            self._begin()
        else:
            self.is_whole = True

    def ends_with_the_connection(self) -> bool:
        """Whether the end of the connection is that of the answer (RFC 9112, 6.3)."""
        framed = self._headers.keys() & {b"content-length", b"transfer-encoding"}
        return self._head_is_whole and not framed

    def response(self) -> Response:
        retry_after = self._headers.get(b"retry-after", b"")
        location = self._headers.get(b"location")
        return Response(
            self._status,
            bytes(self._body),
            None if location is None else location.decode("latin-1"),
            int(retry_after) if retry_after.isdigit() and len(retry_after) < 10 else None,
            not self.is_whole,
        )


def told(error: OSError) -> str:
    """Why something failed on the way to a server, in words that follow a colon."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    # Those of `ssl`, which is imported only where it is needed.
    not_trusted = getattr(error, "verify_message", None)
    if not_trusted:
        return f"its certificate is not trusted ({not_trusted})"
    tls = getattr(error, "reason", None)
    if isinstance(tls, str):
        return f"TLS failed ({tls.lower().replace('_', ' ')})"
    if error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error) or type(error).__name__
