"""The channel to a plane at a URL: HTTP on threads, so that nobody who asks has to stay for the answer.

A request whose caller gives up (an interrupt, a cancelled task, a time-out) has to be waited for all the
same, since its outcome says what there is to clean up, and by then the caller's thread or event loop may be
gone. So each request has a thread to itself until it is answered, and each thread keeps one connection. A
thread that has been idle for a while ends; all are daemons.
"""

import os
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from leaseplane import __version__
from leaseplane.client.channel import Answer, PlaneClosed, Request
from leaseplane.client.connection import BrokenOff, Connection, Place, Response, told
from leaseplane.clock import Clock
from leaseplane.limits import CONNECTION_IDLE_MS_MAX
from leaseplane.model import AuthorityUnavailable, OutcomeUnknown
from leaseplane.promise import Promise

if TYPE_CHECKING:
    # Slow to import, and whoever has a credential has done so.
    import ssl

    from leaseplane.client.credential import Credential

_LOCATION_CHARS_TOLD: Final = 200


class RemoteChannel:
    """The plane at `url`, an http or https URL. For use from any number of threads.

    Redirects are not followed, no proxy of the environment is used, and certificates are verified: by
    `tls`, or by what the machine trusts. `credential` is asked for each request anew; None shows none.

    A request that found a kept connection closed is sent once more on a new one where that does no harm:
    one that only reads, one under an Idempotency-Key, a withdrawal. Anything else is not repeated.
    """

    def __init__(
        self,
        url: str,
        credential: "Credential | None",
        *,
        clock: Clock,
        tls: "ssl.SSLContext | None" = None,
        idle_ms: int = CONNECTION_IDLE_MS_MAX,
    ) -> None:
        self.url = url.rstrip("/")
        self.place = Place.of(url)
        self._credential = credential
        self.clock = clock
        self.tls = tls
        self._idle_s = idle_ms / 1_000
        self._lock = threading.Lock()
        # The one that was used last is used next, so that those that are not needed end.
        self._idle: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._is_closed = False
        _channels.add(self)

    def send(self, request: Request, *, timeout_ms: int) -> "Exchange":
        """Send a request, without blocking.

        It fails where no answer has come `timeout_ms` after the time for which it may be parked. Its
        result is an `Answer` of any status but those that say nothing: `AuthorityUnavailable` is raised
        where nothing was changed (not reached, not a plane, a plane without its authority, hung up before
        it was sent), `OutcomeUnknown` where it was sent and what came of it is not known.
        """
        operation, members = request.operation, request.members
        target, body = self.place.path + operation.path, b""
        if operation.source == "body":
            body = _encoded(members)
        elif members:
            target = f"{target}?{_query(members)}"
        parked_ms = members.get("maxWaitMs", 0)
        return self._start(
            _Asked(
                operation.method,
                target,
                body,
                self._credential,
                request.idempotency_key,
                (parked_ms if isinstance(parked_ms, int) else 0) + timeout_ms,
                changes=not operation.read_only,
                # A withdrawal that is repeated finds nothing, and that is all that it is for.
                is_repeatable=operation.method != "POST" or request.idempotency_key is not None,
            )
        )

    def fetch(self, path: str, *, timeout_ms: int) -> "Exchange":
        """Read one of the documents that a plane shows to everyone, which are JSON objects, too."""
        target = self.place.path + path
        return self._start(
            _Asked(
                "GET",
                target,
                b"",
                None,
                None,
                timeout_ms,
                changes=False,
                is_repeatable=True,
                is_document=True,
            )
        )

    def _start(self, asked: "_Asked") -> "Exchange":
        exchange = Exchange(asked)
        worker: _Worker | None = None
        with self._lock:
            if not self._is_closed:
                if self._idle:
                    self._idle.pop().give(exchange)
                    return exchange
                worker = _Worker(self, exchange)
                self._workers.add(worker)
        if worker is None:
            raise PlaneClosed
        try:
            threading.Thread(target=worker.run, name="leaseplane-remote", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._workers.discard(worker)
            exchange.set_exception(
                AuthorityUnavailable(f"nothing was sent to {self.url}, for want of a thread: {error}")
            )
        return exchange

    def still(self) -> AbstractContextManager[bool]:
        """Nobody waits for a client."""
        return nullcontext(True)

    def close(self) -> None:
        """Hang up what is under way, and end the threads that are idle. Nothing is sent afterwards."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            busy = [worker.exchange for worker in self._workers if worker.exchange is not None]
        for worker in idle:
            worker.give(None)
        for exchange in busy:
            exchange.hang_up()

    # -- for its threads ---------------------------------------------------------------------------

    def is_idle(self, worker: "_Worker") -> bool:
        """Have it among the idle, to be given the next request; False: there is none to come."""
        with self._lock:
            if self._is_closed:
                return False
            self._idle.append(worker)
            return True

    def next_for(self, worker: "_Worker") -> "Exchange | None":
        """Wait for what an idle one is given; None where it is to end."""
        if not worker.given.acquire(timeout=self._idle_s):
            with self._lock:
                if worker in self._idle:
                    self._idle.remove(worker)
                    return None
            # It was given one in this very moment.
            worker.given.acquire()
        return worker.exchange

    def has_ended(self, worker: "_Worker") -> None:
        """Forget one that has ended."""
        with self._lock:
            self._workers.discard(worker)

    def begin_anew_in_a_child(self) -> None:
        """After a fork, in the child: the threads are the parent's, and so is what they are doing."""
        workers = self._workers
        self._lock = threading.Lock()
        self._idle = []
        self._workers = set()
        for worker in workers:
            worker.connection.forget()
            if worker.exchange is not None:
                worker.exchange.forget()


_channels: "weakref.WeakSet[RemoteChannel]" = weakref.WeakSet()


def _forked() -> None:
    for channel in list(_channels):
        channel.begin_anew_in_a_child()


os.register_at_fork(after_in_child=_forked)


class _Worker:
    """One thread, its connection, and what it is doing or is to do next."""

    __slots__ = ("_channel", "connection", "exchange", "given")

    def __init__(self, channel: RemoteChannel, exchange: "Exchange") -> None:
        self._channel = channel
        self.connection = Connection(channel.place, channel.clock, channel.tls)
        self.exchange: Exchange | None = exchange
        self.given = threading.Lock()
        self.given.acquire()

    def give(self, exchange: "Exchange | None") -> None:
        """Have an idle one do this next, or end."""
        self.exchange = exchange
        self.given.release()

    def run(self) -> None:
        """Do what it was made for, and what it is given, until there is nothing more."""
        channel, exchange = self._channel, self.exchange
        while exchange is not None:
            answer, failure = exchange.outcome(channel, self.connection)
            # First, so that who is told of the answer and asks again finds this thread and its connection.
            self.exchange = None
            goes_on = channel.is_idle(self)
            exchange.settle(answer, failure)
            exchange = channel.next_for(self) if goes_on else None
        self.connection.close()
        channel.has_ended(self)


class Exchange(Promise[Answer]):
    """A request under way, and its answer."""

    __slots__ = ("_asked", "_connection", "_hung_up", "_is_over", "_state")

    def __init__(self, asked: "_Asked") -> None:
        super().__init__()
        self._asked = asked
        self._state = threading.Lock()
        self._connection: Connection | None = None
        self._hung_up = False
        self._is_over = False

    def hang_up(self) -> None:
        """The caller is gone: what is not sent yet will not be, and a parked request is withdrawn.

        It fails with `AuthorityUnavailable` where nothing was sent and otherwise with `OutcomeUnknown`,
        unless its answer is there already. For any thread; does not block.
        """
        with self._state:
            self._hung_up = True
            if self._is_over:
                return
            if self._connection is not None:
                # Its thread is told by the end of the connection.
                self._connection.hang_up()
                return
            self._is_over = True
        self.set_exception(AuthorityUnavailable("the caller hung up before anything was sent"))

    def forget(self) -> None:
        """In a forked child: the thread is the parent's, and so is the answer."""
        if not self.done():
            # Whoever was to be told is the parent's, too, and the locks may be held by its threads.
            super().__init__()
            self._state = threading.Lock()
            self._is_over = True
            self.set_exception(OutcomeUnknown("this was asked by the process that this one was forked from"))

    # -- for its thread ----------------------------------------------------------------------------

    def outcome(
        self, channel: RemoteChannel, connection: Connection
    ) -> tuple[Answer | None, BaseException | None]:
        """Ask, and give the answer or why there is none; neither where the caller hung up first."""
        try:
            response = self._exchanged(channel, connection)
            return None if response is None else self._asked.answer(channel.url, response), None
        except BaseException as failure:
            # Whatever it is: whoever waits must not wait for ever.
            return None, failure

    def _exchanged(self, channel: RemoteChannel, connection: Connection) -> Response | None:
        asked, url = self._asked, channel.url
        is_repeat = False
        while True:
            request = asked.encoded(channel.place, channel.clock.now().wall_ms // 1_000)
            try:
                connection.open()
            except OSError as error:
                if is_repeat:
                    raise asked.unanswered(url, told(error)) from None
                raise AuthorityUnavailable(
                    f"the server at {url} cannot be reached: {told(error)}; see that it runs, and that "
                    "LEASEPLANE_URL names it"
                ) from None
            with self._state:
                if self._hung_up:
                    if not is_repeat:
                        return None
                    raise asked.unanswered(url, "the caller hung up")
                self._connection = connection
            was_kept = connection.is_kept
            try:
                return connection.exchange(request, asked.answered_ms_max)
            except BrokenOff as broken:
                if self._hung_up:
                    raise asked.unanswered(url, "the caller hung up") from None
                if not (was_kept and broken.nothing_came and asked.is_repeatable):
                    raise asked.unanswered(url, broken.reason) from None
                is_repeat = True

    def settle(self, answer: Answer | None, failure: BaseException | None) -> None:
        """Be answered, or fail, unless its caller hung up before it was sent."""
        with self._state:
            self._connection = None
            if self._is_over:
                return
            self._is_over = True
        try:
            if answer is not None:
                self.set_result(answer)
            else:
                assert failure is not None, "it has an answer, or a reason why not"
                self.set_exception(failure)
        except Exception:
            # Of one that was told: an event loop that is closed, say. The thread has to go on.
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


class _Asked(msgspec.Struct, frozen=True, gc=False):
    """One request as it goes over the wire, and what its answers mean."""

    method: str
    target: str
    body: bytes
    credential: "Credential | None"
    idempotency_key: str | None
    answered_ms_max: int
    changes: bool
    """Whether something is changed by it, so that without an answer its outcome is unknown."""
    is_repeatable: bool
    is_document: bool = False
    """Whether it is for a document, which has no member `ok`."""

    def encoded(self, place: Place, now_s: int) -> bytes:
        """Head and body. Raises `AuthorityUnavailable` where a header cannot be sent."""
        headers = {
            "Host": place.authority,
            "Accept": "application/json",
            "User-Agent": f"leaseplane/{__version__}",
        }
        if self.body:
            headers["Content-Type"] = "application/json"
            headers["Content-Length"] = str(len(self.body))
        if self.idempotency_key is not None:
            headers["Idempotency-Key"] = self.idempotency_key
        if self.credential is not None:
            url = f"{place.scheme}://{place.authority}{self.target}"
            headers |= dict(self.credential.headers(self.method, url, self.body, now_s=now_s))
        for name, value in headers.items():
            if not (value.isascii() and value.isprintable()):
                # Its value is not told, since it may be a key.
                raise AuthorityUnavailable(
                    f"the header {name} cannot be sent: it may hold printable ASCII characters only"
                )
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{self.method} {self.target} HTTP/1.1\r\n{fields}\r\n".encode("ascii") + self.body

    def unanswered(self, url: str, reason: str) -> AuthorityUnavailable | OutcomeUnknown:
        """The exception where it was sent, and nothing came back that a plane says."""
        if self.changes:
            return OutcomeUnknown(
                f"the server at {url} did not answer: {reason}; what was asked for may or may not be done"
            )
        return AuthorityUnavailable(f"the server at {url} did not answer: {reason}")

    def answer(self, url: str, response: Response) -> Answer:
        """What a response says; raises where it does not come from a plane, or says that nothing is known."""
        status = response.status
        if 300 <= status < 400:
            raise AuthorityUnavailable(
                f"what answers at {url} is not a plane: it sends elsewhere{_place_of(response)} "
                f"(status {status}); set LEASEPLANE_URL to where the plane itself is"
            )
        try:
            body = msgspec.json.decode(response.body)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict) or not (self.is_document or isinstance(body.get("ok"), bool)):
            if status >= 500 or response.may_be_cut:
                # A server in front of it says so also when it had passed the request on.
                raise self.unanswered(url, f"what came back is not a plane's (status {status})")
            raise AuthorityUnavailable(
                f"what answers at {url} is not a plane (status {status}); see LEASEPLANE_URL"
            )
        match status, body.get("error"):
            case 503, "authority_unavailable":
                raise AuthorityUnavailable(body.get("message"))
            case 504, "outcome_unknown":
                raise OutcomeUnknown(body.get("message"))
        return Answer(status, response.body, response.retry_after_s)


def _place_of(response: Response) -> str:
    # Without its query, which is where other systems put what is secret.
    location = (response.location or "").partition("?")[0][:_LOCATION_CHARS_TOLD]
    return f" to {location}" if location.isascii() and location.isprintable() and location else ""


def _encoded(members: Mapping[str, object]) -> bytes:
    try:
        return msgspec.json.encode(members)
    except UnicodeEncodeError:
        # Half of a surrogate pair, as an argument that is not UTF-8 has it. JSON can say it, and the plane
        # says what is wrong.
        import json

        return json.dumps(members).encode("ascii")


def _query(members: Mapping[str, object]) -> str:
    return "&".join(
        f"{name}={quote(str(value), safe='', errors='surrogatepass')}" for name, value in members.items()
    )
