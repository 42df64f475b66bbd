"""Responses: a status and a body on their way out, with the headers that every answer carries."""

import asyncio
from typing import Final, Protocol

from leaseplane.answers import Rendered
from leaseplane.limits import REFUSED_BODY_DRAINED_BYTES_MAX, REFUSED_BODY_DRAINED_MS_MAX
from leaseplane.surfaces.rest.asgi import Headers, Message, Receive, Scope, Send
from leaseplane.surfaces.rest.connections import CONNECTION_IN_SCOPE

JSON_TYPE: Final = b"application/json"
SECURITY_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
NO_HEADERS: Final = ()
HEADERS_IN_SCOPE: Final = "leaseplane.headers"
"""Where the ASGI scope holds headers that every answer to this request carries, if any."""
_SECURITY_HEAD: Final = b"".join(b"%b: %b\r\n" % header for header in SECURITY_HEADERS)


class Connection(Protocol):
    """What takes a whole response at once, or says that it cannot just now."""

    def respond(self, status: int, head: bytes, body: bytes) -> bool: ...


async def respond(
    scope: Scope,
    send: Send,
    status: int,
    body: bytes,
    *,
    extra: Headers = NO_HEADERS,
    content_type: bytes = JSON_TYPE,
) -> None:
    """Answer a request with one status and one body, in one write where the connection can."""
    if HEADERS_IN_SCOPE in scope:
        extra = (*scope[HEADERS_IN_SCOPE], *extra)
    connection: Connection | None = scope.get(CONNECTION_IN_SCOPE)
    if connection is not None:
        head = b"content-type: %b\r\ncontent-length: %d\r\n%b%b" % (
            content_type,
            len(body),
            _SECURITY_HEAD,
            b"".join([b"%b: %b\r\n" % header for header in extra]),
        )
        if connection.respond(status, head, body):
            return
    await send(_start(status, len(body), extra, content_type))
    await send({"type": "http.response.body", "body": body})


async def respond_and_drain(scope: Scope, send: Send, receive: Receive, rendered: Rendered) -> None:
    """Refuse a request of which more is still on its way, and close its connection gently.

    Closing while the caller still sends makes its system throw the answer away unread (RFC 9112, 9.6).
    So some more is read and dropped, within a bound of bytes and of time.
    """
    body = rendered.body_without_receipt
    extra = (*scope.get(HEADERS_IN_SCOPE, NO_HEADERS), (b"connection", b"close"))
    await send(_start(rendered.status, len(body), extra, JSON_TYPE))
    await send({"type": "http.response.body", "body": body, "more_body": True})
    drained_bytes = 0
    try:
        async with asyncio.timeout(REFUSED_BODY_DRAINED_MS_MAX / 1000):
            while drained_bytes <= REFUSED_BODY_DRAINED_BYTES_MAX:
                message = await receive()
                if message["type"] == "http.disconnect" or not message["more_body"]:
                    break
                drained_bytes += len(message["body"])
    except TimeoutError:
        pass
    await send({"type": "http.response.body", "body": b""})


def _start(status: int, length_bytes: int, extra: Headers, content_type: bytes) -> Message:
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [
            (b"content-type", content_type),
            (b"content-length", b"%d" % length_bytes),
            *SECURITY_HEADERS,
            *extra,
        ],
    }
