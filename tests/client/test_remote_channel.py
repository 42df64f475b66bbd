"""Asking a server over HTTP: what does not come back as an answer."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from leaseplane.surfaces.cli.remote import Remote

from leaseplane.model import AuthorityUnavailable, OutcomeUnknown
from leaseplane.secret import Secret

KEY = Secret("lpk_very_secret")


@contextmanager
def answering(response: bytes | None) -> Iterator[tuple[str, list[bytes]]]:
    """A server of one request: it answers `response`, or None: nothing, and keeps the connection."""
    received: list[bytes] = []
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                received.append(whole_request(connection))
                if response is None:
                    over.wait(10)
                else:
                    connection.sendall(response)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/under", received
        over.set()
        thread.join()


def whole_request(connection: socket.socket) -> bytes:
    request = b""
    while b"\r\n\r\n" not in request:
        request += connection.recv(65_536)
    head, _, body = request.partition(b"\r\n\r\n")
    length = next((line for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), b":0")
    while len(body) < int(length.partition(b":")[2]):
        body += connection.recv(65_536)
    return head + b"\r\n\r\n" + body


def http(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


def test_what_is_sent() -> None:
    with answering(http("409 Conflict", b'{"ok":false}')) as (url, received):
        assert Remote(url, KEY).ask("POST", "/api", {"a": "ä"}) == (409, b'{"ok":false}')
    head, _, body = received[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /under/api HTTP/1.1\r\n")
    assert b"Authorization: Bearer lpk_very_secret" in head
    assert body == b'{"a": "\\u00e4"}'


def test_without_a_key_and_members() -> None:
    with answering(http("200 OK", b"{}")) as (url, received):
        Remote(url, None).ask("GET", "/x")
    assert b"Authorization" not in received[0]
    assert received[0].endswith(b"\r\n\r\n")


@pytest.mark.parametrize("response", [None, b"", http("200 OK", b"{}")[:-1], b"SSH-2.0-x\r\n"])
def test_no_answer_leaves_the_outcome_unknown(response: bytes | None) -> None:
    with answering(response) as (url, _), pytest.raises(OutcomeUnknown, match="may or may not") as raised:
        Remote(url, KEY, timeout_s=0.2).ask("POST", "/api", {})
    assert "very_secret" not in repr(raised.value)


@pytest.mark.parametrize(
    "response",
    [http("200 OK", b"<html>"), http("200 OK", b"[1]"), http("302 Found", b""), http("200 OK", b'{"a":NaN')],
)
def test_what_is_no_plane(response: bytes) -> None:
    with answering(response) as (url, _), pytest.raises(AuthorityUnavailable, match="is not a plane"):
        Remote(url, KEY).ask("GET", "/api")


def test_a_name_that_is_not_known() -> None:
    with pytest.raises(AuthorityUnavailable, match="cannot be reached"):
        Remote("http://nowhere.invalid", KEY).ask("GET", "/api")
