"""What is a request and what is not: bodies, queries, headers, paths and methods."""

import json
from typing import Any

import pytest
from tests.surfaces.rest.wire import BREAK, LEASE, RELEASE, TRUST, WAIT, ScriptedEngine, Server

from leaseplane.model import Acquire, ListWaits, Release, Withdraw
from leaseplane.surfaces.rest.samples import ADA, BOB

MINIMAL = {"resource": "lock:x", "actorDid": ADA}


def refused(server: Server, engine: ScriptedEngine, body: bytes) -> dict[str, Any]:
    response = server.ask("POST", LEASE, body)
    assert response.status == 400, response
    assert response.json["ok"] is False and response.json["error"] == "invalid_request"
    assert engine.asked == []
    return response.json


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"null",
        b"[]",
        b'"text"',
        b"1",
        b"{",
        b"{}{}",
        b'{"resource":"lock:x","actorDid":"%b",}' % ADA.encode(),
        b"{'resource':'lock:x'}",
        b'{"resource":NaN}',
        b'{"ttlMs":Infinity,"resource":"lock:x","actorDid":"%b"}' % ADA.encode(),
        b'{"ttlMs":-Infinity,"resource":"lock:x","actorDid":"%b"}' % ADA.encode(),
        b'{"resource":"lock:\xff"}',
        b'{"resource":"lock:\xed\xa0\x80"}',
        b'\xef\xbb\xbf{"resource":"lock:x","actorDid":"%b"}' % ADA.encode(),
        json.dumps(MINIMAL).encode("utf-16"),
        b'{"resource":"lock:\x01x","actorDid":"%b"}' % ADA.encode(),
        b'{"resource":"lock:x","actorDid":"%b","ttlMs":01}' % ADA.encode(),
        b'{"resource":"lock:x","resource":"lock:x","actorDid":"%b"}' % ADA.encode(),
        b'{"resource":"lock:x","resour\\u0063e":"lock:x","actorDid":"%b"}' % ADA.encode(),
        b'{"resource":"lock:x","actorDid":"%b","x":{"y":[{"z":1,"z":2}]}}' % ADA.encode(),
        b'{"resource":"lock:x","actorDid":"%b","ttlMs":%b}' % (ADA.encode(), b"[" * 16 + b"]" * 16),
        b"[" * 30_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    ],
)
def test_a_body_that_is_not_one_plain_object_is_refused(
    scripted: Server, engine: ScriptedEngine, body: bytes
) -> None:
    assert "field" not in refused(scripted, engine, body)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("resource", None),
        ("resource", 1),
        ("resource", ""),
        ("resource", ["lock:x"]),
        ("resource", "lock:\ud800"),
        ("resource", "file:a//b"),
        ("resource", "x" * 513),
        ("actorDid", None),
        ("actorDid", "ada"),
        ("actorDid", "did:key:zzz"),
        ("actorDid", {"did": ADA}),
        ("instance", ""),
        ("instance", None),
        ("instance", "x" * 65),
        ("instance", "a\nb"),
        ("access", "own"),
        ("access", "WRITE"),
        ("access", None),
        ("maxWaitMs", -1),
        ("maxWaitMs", 300_001),
        ("maxWaitMs", True),
        ("maxWaitMs", "5"),
        ("maxWaitMs", 1.5),
        ("maxWaitMs", 10**400),
        ("maxWaitMs", None),
        ("leaseId", ""),
        ("leaseId", None),
        ("leaseId", 7),
        ("leaseId", "x" * 65),
        ("note", 5),
        ("note", "x" * 201),
        ("note", "a\x00b"),
        ("note", "\udc00"),
    ],
)
def test_a_known_member_of_a_wrong_kind_is_refused_and_named(
    scripted: Server, engine: ScriptedEngine, member: str, value: Any
) -> None:
    body = refused(scripted, engine, json.dumps({**MINIMAL, member: value}).encode())
    assert body["field"] == member
    assert body["message"].endswith((".", "”", '"'))


@pytest.mark.parametrize("member", ["resource", "actorDid"])
def test_a_missing_member_is_named(scripted: Server, engine: ScriptedEngine, member: str) -> None:
    body = refused(
        scripted, engine, json.dumps({**MINIMAL, member: None} | {}).replace("null", '""').encode()
    )
    assert body["field"] == member
    without = {name: value for name, value in MINIMAL.items() if name != member}
    assert refused(scripted, engine, json.dumps(without).encode())["field"] == member


@pytest.mark.parametrize(
    "ttl",
    ["null", "0", "-1", "1e999", '"soon"', "true", "[]", '{"a":{"b":[1]}}', '"\\ud800"', "9" * 5_000, "1.5"],
)
def test_a_ttl_is_accepted_whatever_it_holds(scripted: Server, engine: ScriptedEngine, ttl: str) -> None:
    response = scripted.ask("POST", LEASE, f'{{"ttlMs":{ttl},{json.dumps(MINIMAL)[1:]}'.encode())
    assert response.status == 200, response
    assert [command for _, command, _, _ in engine.asked] == [Acquire("lock:x", ADA)]


def test_unknown_members_are_ignored(scripted: Server, engine: ScriptedEngine) -> None:
    body = {**MINIMAL, "actor_did": BOB, "Resource": "lock:z", "": None, "x": [1, {"y": None}]}
    assert scripted.ask("POST", LEASE, body).status == 200
    assert engine.asked[0][1] == Acquire("lock:x", ADA)


def test_an_unknown_member_is_ignored_though_its_name_is_no_text(
    scripted: Server, engine: ScriptedEngine
) -> None:
    members = json.dumps(MINIMAL)[1:]
    for unknown in ('"\\ud800":1', '"\\udfff":{}', '"ttlMs":{"\\ud800":"\\ud800"}', '"x":["\\udc00"]'):
        response = scripted.ask("POST", LEASE, f"{{{unknown},{members}".encode())
        assert response.status == 200, response
    assert scripted.ask("DELETE", WAIT, f'{{"\\ud800":1,{members}'.encode()).status == 200


def test_every_member_arrives(scripted: Server, engine: ScriptedEngine) -> None:
    body = {
        **MINIMAL,
        "instance": "p.1",
        "access": "read",
        "maxWaitMs": 1000.0,
        "leaseId": "L",
        "note": "“é” 🙂",
    }
    assert scripted.ask("POST", LEASE, body).status == 200
    assert engine.asked[0][1] == Acquire("lock:x", ADA, "p.1", "read", 1000, "L", "“é” 🙂")
    assert scripted.ask("POST", RELEASE, {**MINIMAL, "instance": "p", "leaseId": "L"}).status == 200
    assert engine.asked[1][1] == Release("lock:x", ADA, "p", "L")


def test_nesting_of_sixteen_is_fine_and_brackets_in_strings_are_no_nesting(
    scripted: Server, engine: ScriptedEngine
) -> None:
    deep = "[" * 15 + "]" * 15
    text = json.dumps({**MINIMAL, "note": "[{" * 50 + '\\"[' + "\\"})
    assert scripted.ask("POST", LEASE, f'{{"ttlMs":{deep},{text[1:]}'.encode()).status == 200


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", "text/plain", "x-www", ""]
)
def test_a_body_is_json_whatever_its_content_type(
    scripted: Server, engine: ScriptedEngine, content_type: str
) -> None:
    assert scripted.ask("POST", LEASE, MINIMAL, content_type=content_type).status == 200


def test_an_encoded_body_is_refused(scripted: Server, engine: ScriptedEngine) -> None:
    response = scripted.ask("POST", LEASE, MINIMAL, content_encoding="gzip")
    assert (response.status, response.json["field"]) == (400, "Content-Encoding")
    assert scripted.ask("POST", LEASE, MINIMAL, content_encoding="identity").status == 200


# -- queries -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "command"),
    [
        ("", ListWaits()),
        ("?", ListWaits()),
        ("?&&", ListWaits()),
        ("?x=1&_=2", ListWaits()),
        ("?resource=lock:a%2Fb", ListWaits("lock:a/b")),
        ("?resource=a+b%20c%2Bd", ListWaits("a b c+d")),
        ("?resource=%C3%A9", ListWaits("é")),
        (f"?resource=lock:x&actorDid={ADA}", ListWaits("lock:x", ADA)),
        (f"?actorDid={ADA.replace(':', '%3A')}", ListWaits(None, ADA)),
    ],
)
def test_queries_are_read_as_forms_write_them(
    scripted: Server, engine: ScriptedEngine, query: str, command: ListWaits
) -> None:
    assert scripted.ask("GET", WAIT + query).status == 200
    assert engine.asked[0][1] == command


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("?resource=lock:x&resource=lock:x", "resource"),
        ("?resource=lock:x&resour%63e=lock:y", "resource"),
        ("?resource", "resource"),
        ("?resource=", "resource"),
        ("?resource=%", None),
        ("?resource=%zz", None),
        ("?resource=%ff", None),
        ("?resource=%ED%A0%80", None),
        ("?resource=a%00b", "resource"),
        ("?actorDid=ada", "actorDid"),
    ],
)
def test_a_query_that_can_be_read_in_two_ways_is_refused(
    scripted: Server, engine: ScriptedEngine, query: str, field: str | None
) -> None:
    response = scripted.ask("GET", WAIT + query)
    assert (response.status, response.json["error"]) == (400, "invalid_request")
    assert response.json.get("field") == field
    assert engine.asked == []


def test_withdrawing_takes_query_body_or_both(scripted: Server, engine: ScriptedEngine) -> None:
    wanted = Withdraw("lock:x", ADA, "p")
    query = f"?resource=lock:x&actorDid={ADA}"
    assert scripted.ask("DELETE", f"{WAIT}{query}&instance=p").status == 200
    assert scripted.ask("DELETE", WAIT, {**MINIMAL, "instance": "p"}).status == 200
    assert scripted.ask("DELETE", f"{WAIT}?actorDid={ADA}", {**MINIMAL, "instance": "p"}).status == 200
    assert [command for _, command, _, _ in engine.asked] == [wanted] * 3
    differing = scripted.ask("DELETE", f"{WAIT}?resource=lock:y", MINIMAL)
    assert (differing.status, differing.json["field"]) == (400, "resource")
    assert scripted.ask("DELETE", WAIT).json["field"] == "resource"


def test_a_query_changes_nothing_where_the_body_counts(scripted: Server, engine: ScriptedEngine) -> None:
    assert scripted.ask("POST", f"{LEASE}?resource=lock:y&x=%zz", MINIMAL).status == 200
    _, command, facts, _ = engine.asked[0]
    assert (command, facts.path) == (Acquire("lock:x", ADA), LEASE)


# -- headers -----------------------------------------------------------------------------------


def test_the_idempotency_key_goes_along_where_it_counts(scripted: Server, engine: ScriptedEngine) -> None:
    assert scripted.ask("POST", LEASE, MINIMAL, idempotency_key='"a b"').status == 200
    assert scripted.ask("POST", RELEASE, MINIMAL, idempotency_key="~" * 255).status == 200
    assert scripted.ask("GET", WAIT, idempotency_key="ignored").status == 200
    assert scripted.ask("POST", LEASE, MINIMAL).status == 200
    assert [key for _, _, _, key in engine.asked] == ['"a b"', "~" * 255, None, None]


@pytest.mark.parametrize("key", ["x" * 256, "é", "a\tb"])
def test_a_bad_idempotency_key_is_refused(scripted: Server, engine: ScriptedEngine, key: str) -> None:
    response = scripted.ask("POST", LEASE, MINIMAL, idempotency_key=key)
    assert (response.status, response.json["field"]) == (400, "Idempotency-Key")
    assert engine.asked == []


@pytest.mark.parametrize("line", ["Idempotency-Key: a\r\nIdempotency-Key: a", "Idempotency-Key:"])
def test_an_idempotency_key_that_is_empty_or_comes_twice_is_refused(
    scripted: Server, engine: ScriptedEngine, line: str
) -> None:
    wire = scripted.wire()
    body = json.dumps(MINIMAL).encode()
    head = scripted.head("POST", LEASE) + line.encode() + b"\r\n"
    wire.send(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    response = wire.response()
    assert response is not None
    assert (response.status, response.json["field"]) == (400, "Idempotency-Key")
    wire.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("127.0.0.1:7411", 200),
        ("[::1]", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("evil.example:7411", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.nip.io", 403),
        ("127.0.0.2", 403),
        ("0.0.0.0", 403),
        ("localhost.", 403),
        ("localhost:", 403),
        ("localhost:x", 403),
        ("user@localhost", 403),
        ("localhost, evil.example", 403),
        ("http://localhost", 403),
    ],
)
@pytest.mark.parametrize("target", ["/healthz", WAIT, "/nowhere"])
def test_every_route_checks_host(
    scripted: Server, engine: ScriptedEngine, host: str, status: int, target: str
) -> None:
    response = scripted.ask("GET", target, host=host)
    if status == 403:
        assert (response.status, response.json["error"]) == (403, "forbidden")
    else:
        assert response.status == (404 if target == "/nowhere" else 200)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("https://127.0.0.1", 200),
        ("http://[::1]:7411", 200),
        ("null", 403),
        ("https://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("http://localhost@evil.example", 403),
        ("http://localhost/evil.example", 403),
        ("file://", 403),
        ("moz-extension://localhost", 403),
        ("localhost", 403),
    ],
)
def test_every_route_checks_origin(
    scripted: Server, engine: ScriptedEngine, origin: str, status: int
) -> None:
    for target in ("/healthz", WAIT):
        response = scripted.ask("GET", target, origin=origin)
        assert response.status == status
        assert response.header("access-control-allow-origin") is None
        if status == 403:
            assert response.json["error"] == "forbidden"


def test_a_request_names_one_host(scripted: Server, engine: ScriptedEngine) -> None:
    for lines in (b"", b"Host: localhost\r\nHost: localhost\r\n"):
        wire = scripted.wire()
        wire.send(b"GET /healthz HTTP/1.1\r\n" + lines + b"\r\n")
        response = wire.response()
        assert response is not None
        assert (response.status, response.json["field"]) == (400, "Host")
        wire.close()


# -- paths and methods -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        "/",
        f"{LEASE}/",
        f"/{LEASE}",
        "/api/v1/acp/coordination/%6cease",
        "/api/v1/acp/coordination/../coordination/lease",
        "/API/V1/acp/coordination/lease",
        "/metrics/x",
        "/.well-known/",
    ],
)
def test_what_is_not_there_is_told_as_json(scripted: Server, engine: ScriptedEngine, target: str) -> None:
    response = scripted.ask("POST", target, MINIMAL)
    assert (response.status, response.json["error"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("GET", LEASE, "POST, OPTIONS"),
        ("PUT", RELEASE, "POST, OPTIONS"),
        ("HEAD", BREAK, "POST, OPTIONS"),
        ("POST", WAIT, "DELETE, GET, HEAD, OPTIONS"),
        ("PATCH", TRUST, "GET, HEAD, OPTIONS"),
        ("DELETE", "/metrics", "GET, HEAD, OPTIONS"),
        ("TRACE", "/healthz", "GET, HEAD, OPTIONS"),
    ],
)
def test_another_method_is_told_what_there_is(
    scripted: Server, engine: ScriptedEngine, method: str, target: str, allow: str
) -> None:
    response = scripted.ask(method, target)
    assert response.status == 405 and response.header("allow") == allow
    if method != "HEAD":
        assert response.json["error"] == "method_not_allowed"
    options = scripted.ask("OPTIONS", target, key=None)
    assert (options.status, options.body, options.header("allow")) == (204, b"", allow)


def test_head_is_get_without_the_body(scripted: Server, engine: ScriptedEngine) -> None:
    wire = scripted.wire()
    for target in ("/healthz", WAIT, "/openapi.json"):
        wire.send(scripted.request("HEAD", target) + scripted.request("GET", target))
        head, get = wire.response("HEAD"), wire.response("GET")
        assert head is not None and get is not None
        assert (head.status, head.body) == (200, b"") and get.body != b""
        assert head.header("content-length") == get.header("content-length")
    wire.close()
