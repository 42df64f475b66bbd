"""Connections that are slow, endless, mean or gone: each is answered or closed, and others are served."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.surfaces.rest.conftest import Serve
from tests.surfaces.rest.wire import LEASE, QUICK, WAIT, ScriptedEngine, Server, Wire

from leaseplane.identity.api_keys import key_id_of
from leaseplane.identity.registry import open_registry
from leaseplane.limits import HEAD_BYTES_MAX, MESSAGE_BYTES_MAX, PIPELINED_MAX, REVOKED_WITHIN_MS
from leaseplane.model import Held
from leaseplane.store.folder import DataFolder
from leaseplane.surfaces.rest.connections import ConnectionBounds
from leaseplane.surfaces.rest.door import Door
from leaseplane.surfaces.rest.samples import ADA, OUTCOMES
from leaseplane.surfaces.rest.server import connections_within, listen_on

BODY = json.dumps({"resource": "lock:x", "actorDid": ADA}).encode()
PARKING = json.dumps({"resource": "lock:x", "actorDid": ADA, "maxWaitMs": 60_000}).encode()


def closed_after_s(wire: Wire) -> float:
    started_s = time.monotonic()
    assert wire.is_closed(), "bytes came instead of the end"
    return time.monotonic() - started_s


def trickle(wire: Wire, data: bytes, every_s: float = 0.02) -> float:
    """Send byte by byte until the server closes; how long it took."""
    started_s = time.monotonic()
    wire.socket.settimeout(every_s)
    for byte in data:
        try:
            wire.send(bytes([byte]))
            if wire.socket.recv(1) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    else:
        raise AssertionError("all of it was taken")
    return time.monotonic() - started_s


# -- slow --------------------------------------------------------------------------------------


def test_a_connection_that_says_nothing_is_closed(serve: Serve) -> None:
    assert 0.3 <= closed_after_s(serve().wire()) < 3


def test_a_slow_header_is_closed_however_steadily_it_comes(serve: Serve) -> None:
    server = serve()
    assert 0.25 <= trickle(server.wire(), server.request("POST", LEASE, BODY)) < 3


def test_a_slow_body_is_closed_and_nothing_was_asked(serve: Serve) -> None:
    server = serve()
    wire = server.wire()
    wire.send(server.head("POST", LEASE) + b"content-length: 500\r\n\r\n")
    assert 0.25 <= trickle(wire, b" " * 500) < 3
    assert server.engine.asked == []


def test_a_slow_second_request_is_closed_too(serve: Serve) -> None:
    server = serve()
    wire = server.wire()
    wire.send(server.request("POST", LEASE, BODY) + b"POST /")
    assert wire.response() is not None
    assert 0.2 <= closed_after_s(wire) < 3


def test_an_idle_connection_is_kept_longer_and_then_closed(serve: Serve) -> None:
    server = serve()
    wire = server.wire()
    wire.send(server.request("POST", LEASE, BODY))
    assert wire.response() is not None
    time.sleep(0.4)  # longer than a request may take to be complete
    wire.send(server.request("POST", LEASE, BODY))
    assert wire.response() is not None
    assert 0.55 <= closed_after_s(wire) < 3


def test_a_caller_that_does_not_read_its_answers_is_closed(serve: Serve) -> None:
    server = serve(openapi=b'"' + b"x" * 6_000_000 + b'"')
    wire = server.wire()
    wire.send(server.request("GET", "/openapi.json", key=None) * 3)
    wait_for(lambda: len(server.rest.server_state.connections) == 1)
    wait_for(lambda: not server.rest.server_state.connections)


def test_a_caller_that_does_not_read_makes_room_for_another(serve: Serve) -> None:
    server = serve(ConnectionBounds(connections=1), openapi=b'"' + b"x" * 6_000_000 + b'"')
    server.wire().send(server.request("GET", "/openapi.json", key=None) * 3)
    wait_for(lambda: server.rest.server_state.total_requests == 1)
    fresh = server.wire()
    fresh.send(server.request("GET", "/healthz"))
    assert (fresh.response("GET") or pytest.fail()).status == 200


def test_a_parked_request_is_not_slow(serve: Serve) -> None:
    server = serve()
    server.engine.parks = True
    wire = server.wire()
    wire.send(server.request("POST", LEASE, PARKING))
    wire.socket.settimeout(0.8)
    with pytest.raises(TimeoutError):
        wire.response()
    assert not server.engine.hung_up.is_set()


# -- large -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [65_537, 300_000, 900_000])
def test_a_large_body_is_answered_before_it_is_read(
    scripted: Server, engine: ScriptedEngine, size_bytes: int
) -> None:
    wire = scripted.wire()
    wire.send(scripted.request("POST", LEASE, b" " * size_bytes))
    response = wire.response()
    assert response is not None
    assert (response.status, response.json["error"]) == (413, "body_too_large")
    assert response.header("connection") == "close"
    assert wire.is_closed()


def test_a_huge_body_is_refused_by_its_announcement(scripted: Server, engine: ScriptedEngine) -> None:
    wire = scripted.wire()
    wire.send(scripted.head("POST", LEASE) + b"content-length: 9000000000\r\n\r\n")
    response = wire.response()
    assert response is not None and response.status == 413
    assert closed_after_s(wire) < 2


def test_64_kib_are_taken(scripted: Server, engine: ScriptedEngine) -> None:
    assert scripted.ask("POST", LEASE, BODY + b" " * (65_536 - len(BODY))).status == 200
    assert scripted.ask("POST", LEASE, BODY + b" " * (65_537 - len(BODY))).status == 413


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


def test_chunks_are_put_together(scripted: Server, engine: ScriptedEngine) -> None:
    head = scripted.head("POST", LEASE) + b"transfer-encoding: chunked\r\n\r\n"
    wire = scripted.wire()
    wire.send(head + chunked(*(bytes([byte]) for byte in BODY)))
    wire.send(head + chunked(BODY + b" " * (65_536 - len(BODY))))
    for _ in range(2):
        response = wire.response()
        assert response is not None and response.status == 200
    wire.send(head + chunked(*[b" " * 1_000] * 66))
    response = wire.response()
    assert response is not None and response.status == 413


def test_endless_chunks_end(scripted: Server, engine: ScriptedEngine) -> None:
    wire = scripted.wire()
    wire.send(scripted.head("POST", LEASE) + b"transfer-encoding: chunked\r\n\r\n")
    sent = 0
    with pytest.raises(OSError):
        while sent < 100 * MESSAGE_BYTES_MAX:
            wire.send(b"1000\r\n" + b" " * 4_096 + b"\r\n")
            sent += 4_096
    assert sent < 4 * MESSAGE_BYTES_MAX


@pytest.mark.parametrize("part", [b"x-%d: " + b"y" * 1_000 + b"\r\n", b"z" * 1_000])
def test_an_endless_header_ends(scripted: Server, engine: ScriptedEngine, part: bytes) -> None:
    wire = scripted.wire()
    wire.send(b"GET /healthz HTTP/1.1\r\nx: ")
    # Far more than the buffers of two sockets hold, which take some megabytes before anyone reads.
    with pytest.raises(OSError):
        for _ in range(1_000 * HEAD_BYTES_MAX // len(part)):
            wire.send(part.replace(b"%d", b"a"))


def test_a_header_over_its_bound_is_refused_though_it_comes_at_once(
    scripted: Server, engine: ScriptedEngine
) -> None:
    wire = scripted.wire()
    wire.send(scripted.request("GET", "/healthz", x_filler="y" * HEAD_BYTES_MAX))
    response = wire.response() or pytest.fail()
    assert (response.status, response.json["error"]) == (400, "invalid_request")
    assert str(HEAD_BYTES_MAX) in response.json["message"]
    assert wire.is_closed()


def test_a_long_header_that_is_within_its_bound_is_read(scripted: Server, engine: ScriptedEngine) -> None:
    assert scripted.ask("GET", "/healthz", x_filler="y" * 40_000).status == 200


def test_trailers_are_no_headers(scripted: Server, engine: ScriptedEngine) -> None:
    wire = scripted.wire()
    key = scripted.keys["any"].encode()
    head = scripted.head("POST", LEASE, key=None) + b"transfer-encoding: chunked\r\n\r\n"
    body = b"%x\r\n%b\r\n0\r\nauthorization: Bearer %b\r\nhost: evil\r\n\r\n" % (len(BODY), BODY, key)
    wire.send(head + body)
    response = wire.response()
    assert response is not None and response.status == 401
    assert engine.asked == []


def test_deep_json_costs_no_one_anything(scripted: Server, engine: ScriptedEngine) -> None:
    for body in (b"[" * 65_000, b'{"a":' * 13_000, b'[{"a":' * 10_000):
        assert scripted.ask("POST", LEASE, body).status == 400
    wire = scripted.wire()
    wire.send(scripted.request("POST", LEASE, b"[" * 100_000))
    response = wire.response()
    assert response is not None and response.status == 413
    assert scripted.ask("POST", LEASE, BODY).status == 200


# -- expectations, pipelines, upgrades ---------------------------------------------------------


def test_a_body_that_is_expected_is_asked_for(scripted: Server, engine: ScriptedEngine) -> None:
    wire = scripted.wire()
    wire.send(scripted.head("POST", LEASE, expect="100-continue") + b"content-length: %d\r\n\r\n" % len(BODY))
    assert (wire.response() or pytest.fail()).status == 100
    wire.send(BODY)
    assert (wire.response() or pytest.fail()).status == 200


def test_a_body_that_is_too_large_is_not_asked_for(scripted: Server, engine: ScriptedEngine) -> None:
    wire = scripted.wire()
    wire.send(scripted.head("POST", LEASE, expect="100-continue") + b"content-length: 65537\r\n\r\n")
    assert (wire.response() or pytest.fail()).status == 413


def test_requests_sent_ahead_are_answered_in_order(scripted: Server, engine: ScriptedEngine) -> None:
    wire = scripted.wire()
    targets = [WAIT, "/healthz", "/nowhere", LEASE]
    wire.send(b"".join(scripted.request("GET", target) for target in targets))
    assert [(wire.response() or pytest.fail()).status for _ in targets] == [200, 200, 404, 405]


def test_more_requests_ahead_than_anyone_needs_are_not_kept(
    scripted: Server, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    flood = scripted.wire()
    flood.send(scripted.request("GET", "/healthz", key=None) * (PIPELINED_MAX + 2))
    flood.is_closed()
    engine.parks = True
    wire = scripted.wire()
    wire.send(scripted.request("POST", LEASE, PARKING))
    assert engine.parked.wait(2)
    wire.send(scripted.request("GET", "/healthz") * (PIPELINED_MAX + 2))
    assert wire.is_closed()
    assert engine.hung_up.wait(1)
    # Strangers can do this as often as they like, and shall not write the log by it.
    assert caplog.records == []


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_an_upgrade_is_passed_over(scripted: Server, engine: ScriptedEngine, size: int) -> None:
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2_settings": "AAEAAEAA"}
    chunks = scripted.head("POST", LEASE, **offer, transfer_encoding="chunked") + b"\r\n" + chunked(BODY)
    sent = b"".join(
        (
            scripted.request("POST", LEASE, BODY, **offer),
            chunks,
            scripted.request("GET", "/healthz", connection="Upgrade", upgrade="websocket"),
            scripted.request("POST", LEASE, b"[]", **offer),
            scripted.request("POST", LEASE, BODY),
        )
    )
    wire = scripted.wire()
    for start in range(0, len(sent), size):
        wire.send(sent[start : start + size])
    assert [(wire.response() or pytest.fail()).status for _ in range(5)] == [200, 200, 200, 400, 200]
    assert len(engine.asked) == 3


def test_http_1_0_is_answered_and_closed(scripted: Server, engine: ScriptedEngine) -> None:
    wire = scripted.wire()
    wire.send(scripted.request("GET", "/healthz").replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert (wire.response() or pytest.fail()).status == 200
    assert wire.is_closed()


# -- mean --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        b"content-length: 2\r\ncontent-length: 2\r\n",
        b"content-length: 2\r\ncontent-length: 3\r\n",
        b"content-length: 2, 2\r\n",
        b"content-length: +2\r\n",
        b"content-length: -2\r\n",
        b"content-length: 0x2\r\n",
        b"content-length: 99999999999999999999999\r\n",
        b"content-length: 2\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 2\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"content-length : 2\r\n",
        b" content-length: 2\r\n",
        b"content\x00-length: 2\r\n",
        b"x: a\rb\r\n",
        b"no colon\r\n",
    ],
)
def test_what_has_two_readings_is_not_read(scripted: Server, engine: ScriptedEngine, lines: bytes) -> None:
    wire = scripted.wire()
    wire.send(scripted.head("POST", LEASE) + lines + b"\r\n{}" + scripted.request("POST", LEASE, BODY))
    response = wire.response()
    assert response is not None
    assert (response.status, response.json["error"]) == (400, "invalid_request")
    assert wire.is_closed()
    assert engine.asked == []


@pytest.mark.parametrize(
    "first_line",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0",
        b"GET /healthz",
        b"GET /healthz HTTP/9.9",
        b"get /healthz HTTP/1.1",
        b"GET healthz HTTP/1.1",
        b"GET /h\xc3\xa9 HTTP/1.1",
        b"CONNECT localhost:80 HTTP/1.1",
        b"GET http://evil.example/healthz HTTP/1.1",
        b"GET http://user@localhost/healthz HTTP/1.1",
        b"GET ftp://localhost/healthz HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
    ],
)
def test_what_is_no_request_is_told_as_json(
    scripted: Server, engine: ScriptedEngine, first_line: bytes
) -> None:
    wire = scripted.wire()
    wire.send(first_line + b"\r\nHost: localhost\r\n\r\n")
    response = wire.response()
    assert response is not None
    assert (response.status, response.json["error"]) == (400, "invalid_request")
    assert response.header("connection") == "close" and wire.is_closed()


def test_an_absolute_target_of_this_host_is_taken(scripted: Server, engine: ScriptedEngine) -> None:
    wire = scripted.wire()
    wire.send(b"GET http://localhost/healthz?x HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (wire.response() or pytest.fail()).status == 200


GARBAGE = (
    b"\x00\x01garbage\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\ntransfer-encoding: chunked\r\n\r\nx",
)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_ends_the_connection_after_the_requests_before_it(
    scripted: Server, engine: ScriptedEngine, garbage: bytes
) -> None:
    for before in (1, 3):
        wire = scripted.wire()
        wire.send(scripted.request("POST", LEASE, BODY) * before + garbage)
        responses = [wire.response() or pytest.fail() for _ in range(before)]
        assert [response.status for response in responses] == [200] * before
        assert responses[-1].header("connection") == "close" and wire.is_closed()


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_behind_a_parked_request_is_not_its_answer(
    scripted: Server, engine: ScriptedEngine, garbage: bytes
) -> None:
    engine.parks = True
    wire = scripted.wire()
    wire.send(scripted.request("POST", LEASE, PARKING))
    assert engine.parked.wait(2)
    wire.send(garbage)
    wire.socket.settimeout(0.1)
    with pytest.raises(TimeoutError):
        wire.response()
    wire.close()
    assert engine.hung_up.wait(1)


@pytest.mark.parametrize("target", [LEASE, "/nowhere"])
def test_garbage_within_a_body_is_told_once(scripted: Server, engine: ScriptedEngine, target: str) -> None:
    wire = scripted.wire()
    wire.send(scripted.head("POST", target) + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n")
    if target == "/nowhere":
        assert (wire.response() or pytest.fail()).status == 404
    wire.send(b"nonsense\r\n")
    if target == LEASE:
        assert (wire.response() or pytest.fail()).status == 400
    assert wire.is_closed()
    assert engine.asked == []


# -- hanging up --------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [b"", b"GET /hea", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"])
@pytest.mark.parametrize("how", ["close", "half", "reset"])
def test_hanging_up_is_noticed_while_parked(
    scripted: Server, engine: ScriptedEngine, ahead: bytes, how: str
) -> None:
    engine.parks = True
    wire = scripted.wire()
    wire.send(scripted.request("POST", LEASE, PARKING) + ahead)
    assert engine.parked.wait(2)
    if how == "half":
        wire.socket.shutdown(socket.SHUT_WR)
    elif how == "reset":
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        wire.close()
    else:
        wire.close()
    assert engine.hung_up.wait(1)
    wire.close()
    assert scripted.ask("GET", "/healthz").status == 200


def test_a_parked_request_ends_with_its_key(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    server.engine.parks = True
    revoked, kept = server.wire(), server.wire()
    revoked.send(server.request("POST", LEASE, PARKING, key="ada"))
    kept.send(server.request("POST", LEASE, PARKING))
    wait_for(lambda: len(server.engine.asked) == 2)
    registry = open_registry(DataFolder.open(tmp_path / "data0"), os.urandom)
    registry.revoke_key(key_id_of(server.keys["ada"]), 0)
    registry.close()
    revoked.socket.settimeout(REVOKED_WITHIN_MS / 1000)
    response = revoked.response() or pytest.fail()
    assert (response.status, response.json["error"]) == (401, "unauthenticated")
    assert response.header("www-authenticate") is not None
    assert server.engine.hung_up.is_set()
    kept.socket.settimeout(0.1)
    with pytest.raises(TimeoutError):
        kept.response()


def test_hanging_up_elsewhere_does_no_harm(scripted: Server, engine: ScriptedEngine) -> None:
    for sent in (
        b"",
        b"POST",
        scripted.head("POST", LEASE),
        scripted.head("POST", LEASE) + b"content-length: 9\r\n\r\n{",
    ):
        wire = scripted.wire()
        wire.send(sent)
        wire.close()
    assert scripted.ask("POST", LEASE, BODY).status == 200
    assert len(engine.asked) == 1


# -- many --------------------------------------------------------------------------------------


def test_when_there_is_no_room_idle_connections_make_it(serve: Serve) -> None:
    server = serve(ConnectionBounds(connections=20))
    kept = server.wire()
    kept.send(server.request("GET", "/healthz"))
    assert kept.response("GET") is not None
    silent = [server.wire() for _ in range(19)]
    fresh = server.wire()
    fresh.send(server.request("GET", "/healthz"))
    assert (fresh.response("GET") or pytest.fail()).status == 200
    assert all(wire.is_closed() for wire in silent)


def test_when_all_connections_are_in_use_another_is_told(serve: Serve) -> None:
    server = serve(ConnectionBounds(connections=2))
    server.engine.parks = True
    parked = [server.wire(), server.wire()]
    for wire in parked:
        wire.send(server.request("POST", LEASE, PARKING))
    wait_for(lambda: len(server.engine.asked) == 2)
    another = server.wire()
    response = another.response()
    assert response is not None
    assert (response.status, response.json["error"]) == (503, "authority_unavailable")
    assert response.header("retry-after") == "1" and another.is_closed()
    assert not server.engine.hung_up.is_set()


def test_connections_leave_files_to_the_rest() -> None:
    assert connections_within(1_024) == 896
    assert connections_within(10) == 1
    assert connections_within(10**6) == 16_384


# -- allowed names -----------------------------------------------------------------------------


def test_an_allowed_host_is_let_in(serve: Serve) -> None:
    server = serve(door=Door(["Plane.example", "other.example:8443"]))
    for host, status in (
        ("plane.example", 200), ("PLANE.example:1", 200), ("other.example:8443", 200), ("other.example", 403),
    ):  # fmt: skip
        assert server.ask("GET", "/healthz", host=host).status == status
    assert server.ask("GET", "/healthz", origin="https://plane.example").status == 200
    for name in ("http://plane.example", "a b", "plane.example/", "é.example", ""):
        with pytest.raises(ValueError):
            Door([name])


def test_an_allowed_origin_may_call_and_read(serve: Serve) -> None:
    server = serve(door=Door([], ["https://App.example"]))
    response = server.ask("POST", LEASE, BODY, origin="https://app.example")
    assert response.status == 200
    assert response.header("access-control-allow-origin") == "https://app.example"
    assert response.header("vary") == "origin"
    refused = server.ask("POST", LEASE, b" " * 65_537, origin="https://app.example")
    assert (refused.status, refused.header("vary")) == (413, "origin")
    preflight = server.ask("OPTIONS", LEASE, key=None, origin="https://app.example")
    assert preflight.status == 204
    assert "authorization" in (preflight.header("access-control-allow-headers") or "")
    assert "POST" in (preflight.header("access-control-allow-methods") or "")
    assert server.ask("GET", "/healthz", origin="https://evil.example").status == 403


# -- the end -----------------------------------------------------------------------------------


def test_an_orderly_end_answers_what_is_parked(serve: Serve) -> None:
    server = serve(ConnectionBounds())
    server.engine.parks = True
    server.engine.outcome = OUTCOMES[Held]
    parked, idle, slow = server.wire(), server.wire(), server.wire()
    parked.send(server.request("POST", LEASE, PARKING))
    idle.send(server.request("GET", "/healthz"))
    assert idle.response("GET") is not None
    slow.send(server.head("POST", LEASE) + b"content-length: 99\r\n\r\n{")
    assert server.engine.parked.wait(2)
    started_s = time.monotonic()
    server.rest.stop()
    response = parked.response()
    assert response is not None
    assert (response.status, response.json["error"]) == (409, "lease_held")
    assert response.header("connection") == "close"
    assert parked.is_closed() and idle.is_closed() and slow.is_closed()
    assert time.monotonic() - started_s < 2
    with pytest.raises(OSError):
        server.wire()


PROGRAM = """
import asyncio, socket, sys
sys.path.insert(0, {path!r})
from leaseplane.surfaces.rest.connections import ConnectionBounds
from leaseplane.surfaces.rest.server import RestServer, listen_on, raise_open_files
class Surface:
    async def stop(self):
        print("stopping", flush=True)
    async def __call__(self, scope, receive, send):
        await send({{"type": "http.response.start", "status": 204, "headers": []}})
        await send({{"type": "http.response.body"}})
sockets = listen_on("127.0.0.1", 0)
server = RestServer(Surface(), ConnectionBounds())
print(sockets[0].getsockname()[1], raise_open_files(), flush=True)
asyncio.run(server.serve(sockets))
print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_an_orderly_end(number: signal.Signals) -> None:
    program = PROGRAM.format(path=next(path for path in sys.path if path.endswith("src")))
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port, open_files = map(int, process.stdout.readline().split())
        assert open_files >= 256
        wire = Wire(port)
        wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (wire.response() or pytest.fail()).status == 204
        process.send_signal(number)
        out, err = process.communicate(timeout=10)
        wire.close()
        assert (process.returncode, out.split(), err) == (0, ["stopping", "ended"], "")


def test_listening_on_a_taken_port_says_so() -> None:
    [taken] = listen_on("127.0.0.1", 0)
    with taken, pytest.raises(OSError):
        listen_on("127.0.0.1", taken.getsockname()[1])


def test_localhost_is_one_port_on_every_address() -> None:
    sockets = listen_on("localhost", 0)
    assert len({each.getsockname()[1] for each in sockets}) == 1
    for each in sockets:
        each.close()


def wait_for(condition: Any) -> None:
    deadline_s = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


assert QUICK.complete_ms < QUICK.idle_ms, "as the tests above have it"
