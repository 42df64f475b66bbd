"""The channel to a plane at a URL: what is sent, what an answer is, and what the lack of one means."""

import datetime
import gc
import ipaddress
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.surfaces.rest.conftest import plane as plane
from tests.surfaces.rest.wire import Server

from leaseplane.client.channel import PlaneClosed, Request
from leaseplane.client.remote import RemoteChannel
from leaseplane.clock import SystemClock
from leaseplane.model import AuthorityUnavailable, OutcomeUnknown
from leaseplane.operations import LEASE, RELEASE, TRUST, WAIT, WITHDRAW

ACTOR = "did:example:a"
KEY = "lpk_very_secret"
PATIENCE_S = 10
PLENTY_MS = 5_000
OK = b'{"ok":true}'


class Bearer:
    def __init__(self, api_key: str = KEY) -> None:
        self._api_key = api_key
        self.asked: list[tuple[str, str, bytes, int]] = []

    def headers(self, method: str, url: str, body: bytes, *, now_s: int) -> list[tuple[str, str]]:
        self.asked.append((method, url, body, now_s))
        return [("Authorization", f"Bearer {self._api_key}")]


def asking(resource: str = "lock:x", key: str | None = None, **members: object) -> Request:
    return Request(LEASE, {"resource": resource, "actorDid": ACTOR, **members}, key)


@contextmanager
def channel_to(url: str, credential: Bearer | None = None, **options: object) -> Iterator[RemoteChannel]:
    channel = RemoteChannel(url, credential or Bearer(), clock=SystemClock(), **options)  # type: ignore[arg-type]
    with closing(channel):
        yield channel


# -- servers that are none ---------------------------------------------------------------------

Answering = Callable[[socket.socket, int], None]
"""What is done with the connection on which the request of this number came."""


class Listening:
    """A server of raw sockets, which notes what it is sent and on which connection."""

    def __init__(self, answering: Answering, tls: ssl.SSLContext | None = None) -> None:
        self._answering = answering
        self._tls = tls
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.requests: list[bytes] = []
        self.on_connection: list[int] = []
        self._open: list[socket.socket] = []
        self.over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()
        self.port = self._listening.getsockname()[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}/under"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(connection)
            number = len(self._open)
            threading.Thread(target=self._serve, args=(connection, number), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._open.append(connection)
            while request := whole_request(connection):
                self.requests.append(request)
                self.on_connection.append(number)
                self._answering(connection, len(self.requests))
        except OSError:
            pass
        finally:
            connection.close()

    def close(self) -> None:
        self.over.set()
        self._listening.close()
        for each in self._open:
            each.close()


@contextmanager
def listening(answering: Answering | bytes, tls: ssl.SSLContext | None = None) -> Iterator[Listening]:
    def once(connection: socket.socket, _: int) -> None:
        assert isinstance(answering, bytes)
        connection.sendall(answering)
        connection.shutdown(socket.SHUT_WR)

    with closing(Listening(once if isinstance(answering, bytes) else answering, tls)) as server:
        yield server


def whole_request(connection: socket.socket) -> bytes:
    request = b""
    while b"\r\n\r\n" not in request:
        data = connection.recv(65_536)
        if not data:
            return b""
        request += data
    head, _, body = request.partition(b"\r\n\r\n")
    length = next((line for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), b":0")
    while len(body) < int(length.partition(b":")[2]):
        body += connection.recv(65_536)
    return head + b"\r\n\r\n" + body


def http(status: str, body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(b"%b\r\n" % header for header in headers)
    return b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status.encode(), lines, len(body), body)


def say_ok(connection: socket.socket, _: int) -> None:
    connection.sendall(http("200 OK", OK))


def say_nothing(connection: socket.socket, _: int) -> None:
    threading.Event().wait(PATIENCE_S)


# -- what is sent ------------------------------------------------------------------------------


def test_what_is_sent() -> None:
    credential = Bearer()
    with (
        listening(http("409 Conflict", b'{"ok":false}', b"retry-after: 2")) as server,
        channel_to(server.url, credential) as channel,
    ):
        sent = channel.send(asking(note="ä", key="k-1"), timeout_ms=PLENTY_MS)
        answer = sent.result()
    assert (answer.status, answer.body, answer.retry_after_s) == (409, b'{"ok":false}', 2)
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /under/api/v1/acp/coordination/lease HTTP/1.1\r\n")
    lines = head.split(b"\r\n")
    assert b"Host: 127.0.0.1:%d" % server.port in lines
    assert b"Authorization: Bearer lpk_very_secret" in lines
    assert b"Idempotency-Key: k-1" in lines
    assert body == '{"resource":"lock:x","actorDid":"did:example:a","note":"ä"}'.encode()
    [(method, url, signed, now_s)] = credential.asked
    assert (method, url, signed) == ("POST", f"{server.url}{LEASE.path}", body)
    assert abs(now_s - SystemClock().now().wall_ms // 1000) < 60


def test_a_query() -> None:
    with listening(say_ok) as server, channel_to(server.url) as channel:
        for operation in (WAIT, TRUST, WITHDRAW):
            channel.send(Request(operation, {"resource": "a&b=ä +%"}), timeout_ms=PLENTY_MS).result()
        channel.send(Request(WAIT, {}), timeout_ms=PLENTY_MS).result()
    first = [request.partition(b" HTTP")[0] for request in server.requests]
    query = b"?resource=a%26b%3D%C3%A4%20%2B%25"
    assert first == [
        b"GET /under/api/v1/acp/coordination/wait" + query,
        b"GET /under/api/v1/acp/trust" + query,
        b"DELETE /under/api/v1/acp/coordination/wait" + query,
        b"GET /under/api/v1/acp/coordination/wait",
    ]
    assert all(request.endswith(b"\r\n\r\n") for request in server.requests)


def test_a_document_is_read_without_a_credential() -> None:
    with listening(http("200 OK", b'{"keys":[]}')) as server, channel_to(server.url) as channel:
        answer = channel.fetch("/.well-known/jwks.json", timeout_ms=PLENTY_MS).result()
    assert answer.body == b'{"keys":[]}'
    assert b"Authorization" not in server.requests[0]


def test_half_a_surrogate_pair_is_for_the_plane_to_refuse(plane: Server) -> None:
    with channel_to(f"http://127.0.0.1:{plane.port}", Bearer(plane.keys["any"])) as channel:
        for request in (asking("lock:\udcff"), Request(WAIT, {"resource": "lock:\udcff"})):
            answer = channel.send(request, timeout_ms=PLENTY_MS).result()
            assert answer.status == 400 and b'"invalid_request"' in answer.body


@pytest.mark.parametrize("bad", ["a\r\nX-Other: 1", "ä", "\0"])
def test_a_header_that_cannot_be_sent(bad: str) -> None:
    with listening(say_ok) as server:
        with channel_to(server.url, Bearer(f"very_secret{bad}")) as channel:
            with pytest.raises(AuthorityUnavailable, match="Authorization cannot be sent") as raised:
                channel.send(asking(), timeout_ms=PLENTY_MS).result()
            assert "very_secret" not in str(raised.value)
        with (
            channel_to(server.url) as channel,
            pytest.raises(AuthorityUnavailable, match="Idempotency-Key cannot be sent"),
        ):
            channel.send(asking(key=bad), timeout_ms=PLENTY_MS).result()
        assert server.requests == []


# -- what an answer is -------------------------------------------------------------------------


def test_a_plane(plane: Server) -> None:
    with channel_to(f"http://127.0.0.1:{plane.port}", Bearer(plane.keys["any"])) as channel:
        granted = channel.send(asking("lock:remote"), timeout_ms=PLENTY_MS)
        assert granted.wait(PATIENCE_S) and granted.result().status == 200
        told = threading.Event()
        held = channel.send(asking("lock:remote", instance="other", maxWaitMs=60_000), timeout_ms=PLENTY_MS)
        held.add_done_callback(told.set)
        assert not held.wait(0.1)
        released = channel.send(
            Request(RELEASE, {"resource": "lock:remote", "actorDid": ACTOR}), timeout_ms=99
        )
        assert released.result().status == 200
        assert told.wait(PATIENCE_S) and held.result().status == 200


def test_one_who_hangs_up_leaves_the_queue(plane: Server) -> None:
    with channel_to(f"http://127.0.0.1:{plane.port}", Bearer(plane.keys["any"])) as channel:
        channel.send(asking("lock:given-up"), timeout_ms=PLENTY_MS).result()
        parked = channel.send(
            asking("lock:given-up", instance="other", maxWaitMs=60_000), timeout_ms=PLENTY_MS
        )
        waits = Request(WAIT, {"resource": "lock:given-up"})
        while b'"position"' not in channel.send(waits, timeout_ms=PLENTY_MS).result().body:
            pass
        parked.hang_up()
        assert parked.wait(PATIENCE_S)
        with pytest.raises(OutcomeUnknown, match="the caller hung up"):
            parked.result()
        while b'"position"' in channel.send(waits, timeout_ms=PLENTY_MS).result().body:
            pass


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + http("200 OK", OK),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n"
        + OK[:5]
        + b"\r\n6\r\n"
        + OK[5:]
        + b"\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n" + OK,
    ],
    ids=["after an interim one", "in chunks", "until the end"],
)
def test_however_it_is_framed(response: bytes) -> None:
    with listening(response) as server, channel_to(server.url) as channel:
        assert channel.send(asking(), timeout_ms=PLENTY_MS).result().body == OK


@pytest.mark.parametrize(
    "response",
    [
        b"",
        http("200 OK", OK)[:-1],
        http("200 OK", OK)[:20],
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n" + OK[:5] + b"\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n" + OK[:-1],
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: %b\r\n" % (b"y" * 1_000) * 100,
        http("500 Internal Server Error", b"<html>"),
        http("502 Bad Gateway", b"<html>upstream lpk"),
        http("503 Service Unavailable", b"upstream connect error or disconnect/reset before headers"),
        http("504 Gateway Timeout", b'{"message":"late"}'),
        http("504 Gateway Timeout", b'{"ok":false,"error":"outcome_unknown","message":"may or may not"}'),
    ],
)
def test_without_an_answer_the_outcome_is_unknown(response: bytes) -> None:
    with listening(response) as server, channel_to(server.url) as channel:
        with pytest.raises(OutcomeUnknown, match="may or may not") as raised:
            channel.send(asking(), timeout_ms=PLENTY_MS).result()
        assert "very_secret" not in repr(raised.value) and "\n" not in str(raised.value)
        # What only reads has changed nothing, whatever became of it.
        if b"outcome_unknown" not in response:
            with pytest.raises(AuthorityUnavailable, match="did not answer"):
                channel.send(Request(WAIT, {}), timeout_ms=PLENTY_MS).result()


@pytest.mark.parametrize(
    "response",
    [
        http("200 OK", b"<html>"),
        http("200 OK", b"[1]"),
        http("200 OK", b"{}"),
        http("200 OK", b'{"ok":NaN}'),
        http("200 OK", b'{"ok":true,"x":"\xff"}'),
        http("200 OK", b'{"ok":true,"x":' + b"[" * 100_000),
        http("404 Not Found", b'{"detail":"Not Found"}'),
        http("407 Proxy Authentication Required", b""),
        http("302 Found", b"", b"location: https://login.example/?token=very_secret"),
        http("301 Moved Permanently", OK),
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
)
def test_what_is_no_plane(response: bytes) -> None:
    with (
        listening(response) as server,
        channel_to(server.url) as channel,
        pytest.raises(AuthorityUnavailable, match="is not a plane") as raised,
    ):
        channel.send(asking(), timeout_ms=PLENTY_MS).result()
    assert "very_secret" not in str(raised.value) and len(server.requests) == 1


def test_a_plane_without_its_authority() -> None:
    body = b'{"ok":false,"error":"authority_unavailable","message":"The disk is full."}'
    with (
        listening(http("503 Service Unavailable", body)) as server,
        channel_to(server.url) as channel,
        pytest.raises(AuthorityUnavailable, match="The disk is full"),
    ):
        channel.send(asking(), timeout_ms=PLENTY_MS).result()


def test_an_answer_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leaseplane.client.connection.ANSWER_BYTES_MAX", 1_000)
    with (
        listening(http("200 OK", b" " * 1_000 + OK)) as server,
        channel_to(server.url) as channel,
        pytest.raises(OutcomeUnknown, match="too long"),
    ):
        channel.send(asking(), timeout_ms=PLENTY_MS).result()


def test_one_that_is_slow_has_a_time() -> None:
    def drip(connection: socket.socket, _: int) -> None:
        for byte in http("200 OK", OK):
            connection.sendall(bytes([byte]))
            threading.Event().wait(0.02)

    with listening(drip) as server, channel_to(server.url) as channel:
        with pytest.raises(OutcomeUnknown, match="took too long"):
            channel.send(asking(), timeout_ms=200).result()
        # The time for which it may be parked comes on top.
        assert channel.send(asking(maxWaitMs=PLENTY_MS), timeout_ms=200).result().body == OK


# -- where there is nobody ---------------------------------------------------------------------


def test_nobody_listens() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    with (
        channel_to(url) as channel,
        pytest.raises(AuthorityUnavailable, match="cannot be reached: connection refused; see"),
    ):
        channel.send(asking(), timeout_ms=PLENTY_MS).result()


def test_a_name_that_is_not_known() -> None:
    with (
        channel_to("http://nowhere.invalid") as channel,
        pytest.raises(AuthorityUnavailable, match="cannot be reached"),
    ):
        channel.send(asking(), timeout_ms=PLENTY_MS).result()


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with listening(say_ok) as server, channel_to(server.url) as channel:
        assert channel.send(asking(), timeout_ms=PLENTY_MS).result().body == OK


# -- TLS ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that nobody but itself vouches for, and its key."""
    private_key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "plane")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private_key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private_key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "plane.pem"
    path.write_bytes(
        private_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.fixture
def served_by(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_a_certificate_that_is_not_trusted(served_by: ssl.SSLContext) -> None:
    with listening(say_ok, served_by) as server, channel_to(server.url) as channel:
        with pytest.raises(AuthorityUnavailable, match="certificate is not trusted"):
            channel.send(asking(), timeout_ms=PLENTY_MS).result()
        assert server.requests == []


def test_one_that_is(served_by: ssl.SSLContext, certificate: Path) -> None:
    tls = ssl.create_default_context(cafile=str(certificate))
    with listening(say_ok, served_by) as server, channel_to(server.url, tls=tls) as channel:
        for _ in range(3):
            assert channel.send(asking(), timeout_ms=PLENTY_MS).result().body == OK
        assert server.on_connection == [1, 1, 1] or len(set(server.on_connection)) == 1


def test_tls_to_a_server_that_speaks_none() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def complain() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=complain)
        thread.start()
        with (
            channel_to(f"https://127.0.0.1:{server.getsockname()[1]}") as channel,
            pytest.raises(AuthorityUnavailable, match="cannot be reached: TLS failed"),
        ):
            channel.send(asking(), timeout_ms=PLENTY_MS).result()
        thread.join(PATIENCE_S)


# -- connections that are kept -----------------------------------------------------------------


def test_one_connection_for_one_after_the_other() -> None:
    with listening(say_ok) as server, channel_to(server.url) as channel:
        for _ in range(50):
            channel.send(asking(), timeout_ms=PLENTY_MS).result()
    assert server.on_connection == [1] * 50


def test_as_many_as_are_under_way() -> None:
    gate = threading.Barrier(5)

    def together(connection: socket.socket, _: int) -> None:
        gate.wait(PATIENCE_S)
        connection.sendall(http("200 OK", OK))

    with listening(together) as server, channel_to(server.url) as channel:
        for _ in range(2):
            under_way = [channel.send(asking(), timeout_ms=PLENTY_MS) for _ in range(5)]
            assert [each.result().body for each in under_way] == [OK] * 5
    assert sorted(server.on_connection[:5]) == [1, 2, 3, 4, 5] == sorted(set(server.on_connection))


def test_what_the_server_closed_while_idle_is_opened_anew() -> None:
    closed = threading.Semaphore(0)

    def say_and_close(connection: socket.socket, _: int) -> None:
        connection.sendall(http("200 OK", OK))
        connection.close()
        closed.release()

    with listening(say_and_close) as server, channel_to(server.url) as channel:
        for _ in range(3):
            # No key, so it would not be repeated: it was never sent on the one that is gone.
            assert channel.send(asking(), timeout_ms=PLENTY_MS).result().body == OK
            assert closed.acquire(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("request_", "is_repeated"),
    [
        (asking(key="k"), True),
        (Request(WAIT, {}), True),
        (Request(WITHDRAW, {"resource": "lock:x", "actorDid": ACTOR}), True),
        (asking(), False),
    ],
    ids=["with a key", "that reads", "that withdraws", "without a key"],
)
def test_a_kept_connection_that_breaks_under_a_request(request_: Request, is_repeated: bool) -> None:
    def second_breaks(connection: socket.socket, number: int) -> None:
        if number == 2:
            connection.shutdown(socket.SHUT_RDWR)
        else:
            connection.sendall(http("200 OK", OK))

    credential = Bearer()
    with listening(second_breaks) as server, channel_to(server.url, credential) as channel:
        channel.send(request_, timeout_ms=PLENTY_MS).result()
        second = channel.send(request_, timeout_ms=PLENTY_MS)
        if is_repeated:
            assert second.result().body == OK
        else:
            with pytest.raises(OutcomeUnknown):
                second.result()
    # Each with a signature of its own, where it is signed: the first one's nonce may be spent.
    assert len(credential.asked) == len(server.requests) == (3 if is_repeated else 2)
    # The same request, so that the plane knows it for a repeat.
    assert len(set(server.requests)) == 1


def test_a_new_connection_that_breaks_is_not_repeated() -> None:
    with listening(b"") as server, channel_to(server.url) as channel, pytest.raises(OutcomeUnknown):
        channel.send(asking(key="k"), timeout_ms=PLENTY_MS).result()
    assert len(server.requests) == 1


# -- hanging up, closing, forking --------------------------------------------------------------


def test_hanging_up_in_the_middle() -> None:
    with listening(say_nothing) as server, channel_to(server.url) as channel:
        sent = channel.send(asking(maxWaitMs=300_000), timeout_ms=PLENTY_MS)
        while not server.requests:
            pass
        sent.hang_up()
        assert sent.wait(PATIENCE_S)
        with pytest.raises(OutcomeUnknown, match="hung up"):
            sent.result()
        sent.hang_up()


def test_hanging_up_before_it_is_sent() -> None:
    asked, goes_on = threading.Event(), threading.Event()

    class Slow(Bearer):
        def headers(self, method: str, url: str, body: bytes, *, now_s: int) -> list[tuple[str, str]]:
            asked.set()
            assert goes_on.wait(PATIENCE_S)
            return super().headers(method, url, body, now_s=now_s)

    with listening(say_ok) as server, channel_to(server.url, Slow()) as channel:
        sent = channel.send(asking(), timeout_ms=PLENTY_MS)
        assert asked.wait(PATIENCE_S)
        sent.hang_up()
        with pytest.raises(AuthorityUnavailable, match="before anything was sent"):
            sent.result()
        goes_on.set()
        assert channel.send(asking("lock:next"), timeout_ms=PLENTY_MS).result().body == OK
    assert [b"lock:next" in request for request in server.requests] == [True]


def test_a_closed_channel() -> None:
    with listening(say_nothing) as server, channel_to(server.url) as channel:
        sent = channel.send(asking(), timeout_ms=PLENTY_MS)
        while not server.requests:
            pass
        channel.close()
        assert sent.wait(PATIENCE_S)
        with pytest.raises(OutcomeUnknown):
            sent.result()
        with pytest.raises(PlaneClosed):
            channel.send(asking(), timeout_ms=PLENTY_MS)


def threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "leaseplane-remote"}


def test_idle_threads_end() -> None:
    with listening(say_ok) as server, channel_to(server.url, idle_ms=20) as channel:
        before = threads()
        channel.send(asking(), timeout_ms=PLENTY_MS).result()
        for each in threads() - before:
            each.join(PATIENCE_S)
            assert not each.is_alive()
        assert channel.send(asking(), timeout_ms=PLENTY_MS).result().body == OK
    for each in threads() - before:
        each.join(PATIENCE_S)
        assert not each.is_alive()


def test_a_thread_outlives_one_who_is_told_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    with listening(say_ok) as server, channel_to(server.url) as channel:

        def fail() -> None:
            raise RuntimeError("Event loop is closed")

        gate = threading.Event()
        server._answering = lambda connection, _: (gate.wait(PATIENCE_S), say_ok(connection, 0))[1]
        sent = channel.send(asking(), timeout_ms=PLENTY_MS)
        sent.add_done_callback(fail)
        gate.set()
        assert sent.result().body == OK
        assert channel.send(asking(), timeout_ms=PLENTY_MS).result().body == OK
    assert [each.exc_type for each in failed] == [RuntimeError]
    assert server.on_connection == [1, 1]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_begins_anew_and_leaves_the_parent_its_connection() -> None:
    gate = threading.Event()

    def answer(connection: socket.socket, number: int) -> None:
        if number == 2:
            gate.wait(PATIENCE_S)
        connection.sendall(http("200 OK", OK))

    with listening(answer) as server, channel_to(server.url) as channel:
        channel.send(asking(), timeout_ms=PLENTY_MS).result()
        under_way = channel.send(asking(), timeout_ms=PLENTY_MS)
        while len(server.requests) < 2:
            pass
        child = os.fork()
        if child == 0:
            status = 1
            try:
                try:
                    under_way.result()
                except OutcomeUnknown:
                    answered = channel.send(asking(), timeout_ms=PLENTY_MS)
                    status = 0 if answered.result().body == OK else 2
                channel.close()
                gc.collect()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        gate.set()
        assert under_way.result().body == OK
        assert channel.send(asking(), timeout_ms=PLENTY_MS).result().body == OK
    # The child's was a connection of its own, and the parent's is the one that it had.
    assert server.on_connection == [1, 1, 2, 1]
