"""The REST surface: an ASGI application that turns requests into commands and answers into responses.

A request passes the door (Host, Origin), then is looked up by its exact path and method, read within
its bounds, authenticated, turned into a command, authorised, and asked of the engine. There is no
middleware: the order is the code of `_operate`.
"""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Final, NamedTuple, Protocol

import msgspec

from leaseplane.answers import Rendered, refuse
from leaseplane.clock import Clock
from leaseplane.identity.access import ActorMismatch, Forbidden, Gate, Unauthenticated, authorise
from leaseplane.limits import (
    BODY_BYTES_MAX,
    CREDENTIAL_CACHED_MS_MAX,
    PARKED_ANSWERED_MS_MAX,
    TROUBLE_TOLD_AGAIN_MS,
    TROUBLE_TOLD_MS_MIN,
)
from leaseplane.model import (
    Acquire,
    AuthorityUnavailable,
    Command,
    OutcomeUnknown,
    Principal,
    RequestFacts,
)
from leaseplane.operations import OPERATIONS, Operation, RequestRefused
from leaseplane.resources import NameRefused, check_idempotency_key
from leaseplane.surfaces.rest.asgi import Application, Headers, Message, Receive, Scope, Send
from leaseplane.surfaces.rest.door import Door
from leaseplane.surfaces.rest.json_object import read_object
from leaseplane.surfaces.rest.metrics import Metrics
from leaseplane.surfaces.rest.query import read_query
from leaseplane.surfaces.rest.responses import (
    HEADERS_IN_SCOPE,
    JSON_TYPE,
    NO_HEADERS,
    respond,
    respond_and_drain,
)

logger = logging.getLogger("leaseplane.rest")


class Answered(Protocol):
    """What the engine answers: a status, a complete JSON body, and a hint for Retry-After."""

    @property
    def status(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def retry_after_s(self) -> int | None: ...


class Engine(Protocol):
    """The commit path, as this surface sees it."""

    async def ask(
        self,
        principal: Principal,
        command: Command,
        request: RequestFacts,
        idempotency_key: str | None = None,
    ) -> Answered: ...
    def ready(self) -> None: ...
    def stats(self) -> Mapping[str, int | float]: ...
    async def stop(self) -> None: ...


class _HungUp(Exception):
    """The caller is gone: nobody is left to be answered."""


class _BodyTooLarge(Exception):
    """The body is over its bound; the rest of it has not been read."""


class _Parked(NamedTuple):
    """Whose a parked request is, and what is done when that one's credential counts no more."""

    principal: Principal
    credential_void: asyncio.Future[None]


_READ: Final = frozenset(
    (b"host", b"origin", b"idempotency-key", b"content-encoding", b"content-length", b"accept")
)
_MANY: Final = frozenset((b"accept", b"content-encoding"))
"""Of those that are read, the ones that may come on several lines (RFC 9110, 5.3)."""

_UNAUTHENTICATED_HEADERS: Final = ((b"www-authenticate", b'Bearer realm="leaseplane"'),)
_CROSS_ORIGIN: Final = (
    (b"access-control-expose-headers", b"retry-after"),
    (b"access-control-max-age", b"600"),
    (b"vary", b"origin"),
)
_CROSS_ORIGIN_REQUEST_HEADERS: Final = (
    b"authorization, content-digest, content-type, idempotency-key, signature, signature-input"
)
_EMPTY_DIGEST: Final = sha256(b"").hexdigest()
_encode: Final = msgspec.json.encode


class RestSurface:
    """The REST surface of one plane.

    `engine` decides, `gate` knows who asks, `door` whom the server is called by. `jwks` and
    `did_document` (of the Host that it is asked under) make the two key documents, `openapi` is the
    finished OpenAPI document. A path that is not of this surface goes to `elsewhere`, behind the door
    too; without one it is `not_found`. `scheme` is what callers use to reach the server: `https`
    behind a proxy that ends TLS.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        gate: Gate,
        clock: Clock,
        door: Door,
        jwks: Callable[[], Mapping[str, object]],
        did_document: Callable[[str], Mapping[str, object]],
        openapi: bytes,
        elsewhere: Application | None = None,
        scheme: str = "http",
    ) -> None:
        self._engine = engine
        self._gate = gate
        self._clock = clock
        self._door = door
        self._elsewhere = elsewhere
        self._scheme = scheme
        self._stopping = False
        self._parked: dict[asyncio.Task[Answered], _Parked] = {}
        self._credentials_timer: asyncio.TimerHandle | None = None
        self._trouble: tuple[str, int] | None = None
        self._metrics = Metrics(engine.stats, lambda: len(self._parked))
        self._operations: dict[tuple[bytes, str], Operation] = {}
        for operation in OPERATIONS:
            self._operations[operation.path.encode(), operation.method] = operation
            if operation.method == "GET":
                self._operations[operation.path.encode(), "HEAD"] = operation
        self._documents: dict[bytes, Callable[[Mapping[bytes, bytes]], tuple[int, bytes, bytes]]] = {
            b"/healthz": lambda _: (200, JSON_TYPE, b'{"ok":true}'),
            b"/readyz": self._readiness,
            b"/metrics": self._exposition,
            b"/openapi.json": lambda _: (200, JSON_TYPE, openapi),
            b"/.well-known/jwks.json": lambda _: (200, JSON_TYPE, _encode(jwks())),
            b"/.well-known/did.json": lambda found: (
                200,
                JSON_TYPE,
                _encode(did_document(found[b"host"].decode())),
            ),
        }
        self._allow: dict[bytes, bytes] = {path: b"GET, HEAD, OPTIONS" for path in self._documents}
        for path in {path for path, _ in self._operations}:
            methods = sorted(method for at, method in self._operations if at == path)
            self._allow[path] = ", ".join((*methods, "OPTIONS")).encode()

    async def stop(self) -> None:
        """Have the engine answer what is parked and finish what is under way. What comes later gets 503."""
        self._stopping = True
        logger.info("stopping; parked requests to be answered: %d", len(self._parked))
        await self._engine.stop()
        if self._parked:
            # What the engine has answered is on its way out; nobody waits for the rest.
            await asyncio.wait(tuple(self._parked), timeout=PARKED_ANSWERED_MS_MAX / 1000)
        for asking in self._parked:
            asking.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        assert scope["type"] == "http", "the server offers neither WebSocket nor lifespan"
        found: dict[bytes, bytes] = {}
        twice: bytes | None = None
        for name, value in scope["headers"]:
            if name in _READ:
                if name not in found:
                    found[name] = value
                elif name in _MANY:
                    found[name] = b"%b, %b" % (found[name], value)
                else:
                    twice = name
        refusal = self._door.refusal(found.get(b"host"), found.get(b"origin"))
        if twice is not None:
            header = twice.decode().title()
            refusal = refuse("invalid_request", f"The header {header} appears twice.", field=header)
        if refusal is not None:
            await respond(scope, send, refusal.status, refusal.body_without_receipt)
            return
        if b"origin" in found and self._door.is_allowed_origin(found[b"origin"]):
            scope[HEADERS_IN_SCOPE] = ((b"access-control-allow-origin", found[b"origin"]), *_CROSS_ORIGIN)
        path, method = scope["raw_path"], scope["method"]
        operation = self._operations.get((path, method))
        if operation is not None:
            await self._operate(operation, scope, found, receive, send)
        elif path not in self._allow:
            if self._elsewhere is not None:
                await _pass_on(self._elsewhere, scope, receive, send)
            else:
                refusal = refuse(
                    "not_found", "There is nothing at this path. /openapi.json lists what there is."
                )
                await respond(scope, send, refusal.status, refusal.body_without_receipt)
        elif method == "OPTIONS":
            await self._tell_options(path, scope, send)
        elif path in self._documents and method in ("GET", "HEAD"):
            await self._show(path, found, scope, send)
        else:
            allow = self._allow[path]
            refusal = refuse("method_not_allowed", f"This path takes {allow.decode()}.")
            await respond(
                scope, send, refusal.status, refusal.body_without_receipt, extra=((b"allow", allow),)
            )

    async def _operate(
        self, operation: Operation, scope: Scope, found: Mapping[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        extra: Headers = NO_HEADERS
        try:
            answered = await self._answer(operation, scope, found, receive)
        except _HungUp:
            return
        except Exception as failure:
            self._tell_operator(failure)
            rendered = _failure(operation, failure)
            status, body, retry_after_s = (
                rendered.status,
                rendered.body_without_receipt,
                rendered.retry_after_s,
            )
            if isinstance(failure, _BodyTooLarge):
                self._metrics.count(operation.name, status, body)
                await respond_and_drain(scope, send, receive, rendered)
                return
            if isinstance(failure, Unauthenticated):
                extra = _UNAUTHENTICATED_HEADERS
        else:
            status, body, retry_after_s = answered.status, answered.body, answered.retry_after_s
        self._metrics.count(operation.name, status, body)
        if retry_after_s is not None:
            extra = (*extra, (b"retry-after", b"%d" % retry_after_s))
        await respond(scope, send, status, body, extra=extra)

    async def _answer(
        self, operation: Operation, scope: Scope, found: Mapping[bytes, bytes], receive: Receive
    ) -> Answered:
        headers: Headers = scope["headers"]
        method: str = scope["method"]
        body = await _read_body(headers, found, receive)
        # Nothing of the body is looked at before it is known who sent it.
        principal = self._gate.authenticate(
            method, self._target_uri(scope, found), headers, body, self._clock.now()
        )
        command = operation.read(_members(operation, scope["query_string"], body, found))
        authorise(principal, command)
        facts = RequestFacts(method, operation.path, sha256(body).hexdigest() if body else _EMPTY_DIGEST)
        key = None
        if operation.keyed and b"idempotency-key" in found:
            key = found[b"idempotency-key"].decode("latin-1")
            check_idempotency_key(key)
        if type(command) is Acquire and command.max_wait_ms:
            return await self._park(principal, self._engine.ask(principal, command, facts, key), receive)
        return await self._engine.ask(principal, command, facts, key)

    def _target_uri(self, scope: Scope, found: Mapping[bytes, bytes]) -> str:
        query = scope["query_string"]
        path = scope["raw_path"].decode("ascii")
        uri = f"{self._scheme}://{found[b'host'].decode('ascii')}{path}"
        return f"{uri}?{query.decode('ascii')}" if query else uri

    async def _park(self, principal: Principal, ask: Awaitable[Answered], receive: Receive) -> Answered:
        asking = asyncio.ensure_future(ask)
        assert isinstance(asking, asyncio.Task)
        hanging_up = asyncio.create_task(_disconnected(receive))
        credential_void = asyncio.get_running_loop().create_future()
        self._parked[asking] = _Parked(principal, credential_void)
        if self._credentials_timer is None:
            self._look_at_credentials_later()
        try:
            await asyncio.wait((asking, hanging_up, credential_void), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                if credential_void.done():
                    raise Unauthenticated("This credential was revoked while its request was parked.")
                raise _HungUp
            return asking.result()
        finally:
            del self._parked[asking]
            hanging_up.cancel()
            if not asking.done():
                # The engine takes back a hand-over that nobody will hear of; only then is this over.
                asking.cancel()
                await asyncio.wait((asking,))
                if not asking.cancelled() and asking.exception() is not None:
                    logger.warning("a parked request hung up and its withdrawal failed", exc_info=False)

    def _look_at_credentials_later(self) -> None:
        self._credentials_timer = asyncio.get_running_loop().call_later(
            CREDENTIAL_CACHED_MS_MAX / 1000, self._look_at_credentials
        )

    def _look_at_credentials(self) -> None:
        """End the parked requests of those who would not be let in any more: revoking is for them too."""
        now = self._clock.now()
        # By credential, and not by principal: thousands may be parked with one, and this is looked at often.
        parked_with: dict[tuple[str, str], list[_Parked]] = {}
        for parked in self._parked.values():
            principal = parked.principal
            parked_with.setdefault((principal.credential, principal.workspace), []).append(parked)
        for those in parked_with.values():
            try:
                is_void = not self._gate.still_admits(those[0].principal, now)
            except AuthorityUnavailable:
                # Nobody can tell, and nobody new is let in meanwhile. The next look comes soon.
                break
            if is_void:
                for parked in those:
                    if not parked.credential_void.done():
                        parked.credential_void.set_result(None)
        self._credentials_timer = None
        if self._parked:
            self._look_at_credentials_later()

    async def _tell_options(self, path: bytes, scope: Scope, send: Send) -> None:
        headers = [(b"allow", self._allow[path])]
        if HEADERS_IN_SCOPE in scope:
            # A browser asks before it sends what an allowed page wants to (Fetch, 3.3).
            headers += scope[HEADERS_IN_SCOPE]
            headers.append((b"access-control-allow-methods", self._allow[path]))
            headers.append((b"access-control-allow-headers", _CROSS_ORIGIN_REQUEST_HEADERS))
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body"})

    async def _show(self, path: bytes, found: Mapping[bytes, bytes], scope: Scope, send: Send) -> None:
        try:
            status, content_type, body = self._documents[path](found)
        except Exception as failure:
            self._tell_operator(failure)
            rendered = _failure(None, failure)
            status, content_type, body = rendered.status, JSON_TYPE, rendered.body_without_receipt
        await respond(scope, send, status, body, content_type=content_type)

    def _tell_operator(self, failure: Exception) -> None:
        """Put into the log why the authority is unavailable, or whether a commit stands is not known.

        Callers are told only what that means to them; and there are too many of them for a line each.
        """
        if self._stopping or not isinstance(failure, AuthorityUnavailable | OutcomeUnknown):
            return
        reason, now_boot_ms = str(failure), self._clock.now().boot_ms
        if self._trouble is not None:
            told, told_boot_ms = self._trouble
            pause_ms = TROUBLE_TOLD_AGAIN_MS if reason == told else TROUBLE_TOLD_MS_MIN
            if now_boot_ms < told_boot_ms + pause_ms:
                return
        self._trouble = (reason, now_boot_ms)
        unknown = isinstance(failure, OutcomeUnknown)
        logger.error("%s: %s", "outcome unknown" if unknown else "authority unavailable", reason)

    def _readiness(self, found: Mapping[bytes, bytes]) -> tuple[int, bytes, bytes]:
        if self._stopping:
            raise AuthorityUnavailable("the server is stopping")
        self._engine.ready()
        return 200, JSON_TYPE, b'{"ok":true}'

    def _exposition(self, found: Mapping[bytes, bytes]) -> tuple[int, bytes, bytes]:
        content_type, body = self._metrics.exposition(found.get(b"accept", b"").decode("latin-1"))
        return 200, content_type, body


# -- reading a request -------------------------------------------------------------------------


async def _read_body(headers: Headers, found: Mapping[bytes, bytes], receive: Receive) -> bytes:
    length = found.get(b"content-length")
    if length is None:
        if not any(name == b"transfer-encoding" for name, _ in headers):
            return b""
    elif int(length) > BODY_BYTES_MAX:
        raise _BodyTooLarge
    message = await receive()
    if message["type"] == "http.disconnect":
        raise _HungUp
    body: bytes = message["body"]
    while message["more_body"] and len(body) <= BODY_BYTES_MAX:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _HungUp
        body += message["body"]
    if len(body) > BODY_BYTES_MAX:
        raise _BodyTooLarge
    return body


def _members(
    operation: Operation, query: bytes, body: bytes, found: Mapping[bytes, bytes]
) -> Mapping[str, object]:
    if body and operation.source != "query" and found.get(b"content-encoding", b"identity") != b"identity":
        raise RequestRefused("Send the body as it is, without Content-Encoding.", "Content-Encoding")
    if operation.source == "body":
        return read_object(body)
    members = read_query(query)
    if operation.source == "query or body" and body:
        for name, value in read_object(body).items():
            if members.setdefault(name, value) != value:
                raise RequestRefused("The query and the body say different things.", name[:64])
    return members


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _pass_on(application: Application, scope: Scope, receive: Receive, send: Send) -> None:
    started = False

    async def send_and_note(message: Message) -> None:
        nonlocal started
        started = True
        await send(message)

    try:
        await application(scope, receive, send_and_note)
    except Exception as failure:
        rendered = _failure(None, failure)
        # What has begun cannot be answered anew: the server closes a connection left in the middle.
        if not started:
            await respond(scope, send, rendered.status, rendered.body_without_receipt)


# -- what is no outcome -------------------------------------------------------------------------


def _failure(operation: Operation | None, failure: Exception) -> Rendered:
    """What a caller is told of something that is no outcome."""
    if isinstance(failure, NameRefused | RequestRefused):
        return refuse("invalid_request", failure.message, field=failure.field)
    if isinstance(failure, Unauthenticated):
        return refuse("unauthenticated", str(failure))
    if isinstance(failure, ActorMismatch):
        return refuse("actor_mismatch", str(failure))
    if isinstance(failure, Forbidden):
        return refuse("forbidden", str(failure))
    if isinstance(failure, _BodyTooLarge):
        return refuse("body_too_large", f"The body is over {BODY_BYTES_MAX} bytes. Send a smaller one.")
    if isinstance(failure, AuthorityUnavailable):
        return refuse(
            "authority_unavailable",
            "The lease authority cannot be reached. Nothing was granted and nothing was changed: ask again.",
            retry_after_s=1,
        )
    if isinstance(failure, OutcomeUnknown):
        return refuse(
            "outcome_unknown",
            "The decision may or may not stand. Repeat the request with the same Idempotency-Key to learn "
            "which; without one, ask for the lease again, which renews it where it was granted.",
        )
    # An exception's own text may quote what was sent, keys and all; its type and its place do not.
    logger.error(
        "%s failed with %s\n%s",
        operation.name if operation is not None else "a document",
        type(failure).__qualname__,
        "".join(traceback.format_tb(failure.__traceback__)),
    )
    if operation is None or operation.read_only:
        return refuse(
            "internal_error", "A fault in the plane. Nothing was changed; its operator finds it in the log."
        )
    return refuse(
        "internal_error",
        "A fault in the plane; its operator finds it in the log. The decision may or may not stand: repeat "
        "the request with the same Idempotency-Key to learn which.",
    )
