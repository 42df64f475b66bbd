"""Every error of the contract can be met, has its status, and gives nothing away."""

import json
import logging

import pytest
from tests.surfaces.rest.wire import BREAK, LEASE, TRUST, WAIT, ScriptedEngine, Server

from leaseplane.answers import CODE_OF, refuse
from leaseplane.bodies import STATUS_OF
from leaseplane.model import AuthorityUnavailable, Granted, OutcomeUnknown, TooMany
from leaseplane.surfaces.rest.openapi import FAILURES
from leaseplane.surfaces.rest.samples import ADA, BOB, OUTCOMES

MINIMAL = {"resource": "lock:x", "actorDid": ADA}
CONTRACT = {
    "invalid_request": 400, "unauthenticated": 401, "actor_mismatch": 403, "forbidden": 403, "not_found": 404,
    "method_not_allowed": 405, "lease_held": 409, "deadlock": 409, "stale_lease": 409, "not_holder": 409,
    "not_held": 409, "body_too_large": 413, "quota_exhausted": 429, "too_many": 429,
    "authority_unavailable": 503, "outcome_unknown": 504,
}  # fmt: skip


def test_codes_and_statuses_are_the_contracts() -> None:
    assert {**CONTRACT, "internal_error": 500} == STATUS_OF
    assert set(FAILURES) | {code for code in CODE_OF.values() if code} == set(STATUS_OF)


def test_every_code_can_be_met(scripted: Server, engine: ScriptedEngine) -> None:
    met = {
        scripted.ask("POST", LEASE, b"{").json["error"],
        scripted.ask("POST", LEASE, MINIMAL, key=None).json["error"],
        scripted.ask("POST", LEASE, {**MINIMAL, "actorDid": BOB}, key="ada").json["error"],
        scripted.ask("POST", LEASE, MINIMAL, key="operator").json["error"],
        scripted.ask("GET", "/nowhere").json["error"],
        scripted.ask("PUT", LEASE).json["error"],
        scripted.ask("POST", LEASE, b" " * 65_537).json["error"],
    }
    for outcome, code in CODE_OF.items():
        engine.outcome = OUTCOMES[outcome]
        response = scripted.ask("POST", LEASE, MINIMAL)
        assert response.status == (200 if code is None else STATUS_OF[code])
        assert response.json.get("error") == code
        met.add(response.json.get("error"))
    for raised in (AuthorityUnavailable("x"), OutcomeUnknown("x"), KeyError("x")):
        engine.raises = raised
        response = scripted.ask("POST", LEASE, MINIMAL)
        assert response.status == STATUS_OF[response.json["error"]]
        met.add(response.json["error"])
    # Lease calls are not metered; only a sandbox's key has a quota, and the sandbox comes later.
    assert met - {None} == set(STATUS_OF) - {"quota_exhausted"}


def test_a_quota_is_named() -> None:
    rendered = refuse("quota_exhausted", "All 35 calls are used.", quota="calls", retry_after_s=60)
    assert (rendered.status, rendered.retry_after_s) == (429, 60)
    assert json.loads(rendered.body_without_receipt)["quota"] == "calls"


def test_what_can_be_retried_says_when(scripted: Server, engine: ScriptedEngine) -> None:
    engine.outcome = TooMany("waiters", 20_000)
    response = scripted.ask("POST", LEASE, MINIMAL)
    assert (response.status, response.header("retry-after")) == (429, "1")
    assert (response.json["bound"], response.json["limit"]) == ("waiters", 20_000)
    engine.raises = AuthorityUnavailable("database is locked")
    response = scripted.ask("POST", LEASE, MINIMAL)
    assert (response.status, response.header("retry-after")) == (503, "1")
    assert "No" in response.json["message"] or "Nothing was granted" in response.json["message"]


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer x", "Basic {key}", "{key}", "Bearer {key}x", "Bearer {key} {key}"]
)
def test_without_a_credential_nothing_is_looked_at(
    scripted: Server, engine: ScriptedEngine, authorization: str
) -> None:
    shown = authorization.format(key=scripted.keys["any"])
    for method, target in (("POST", LEASE), ("GET", WAIT), ("DELETE", WAIT), ("GET", TRUST), ("POST", BREAK)):
        response = scripted.ask(method, target, b"not json", key=None, authorization=shown)
        assert (response.status, response.json["error"]) == (401, "unauthenticated")
        assert response.header("www-authenticate") == 'Bearer realm="leaseplane"'
        assert scripted.keys["any"] not in response.json["message"]
    assert engine.asked == []


def test_a_key_shown_twice_is_refused(scripted: Server, engine: ScriptedEngine) -> None:
    wire = scripted.wire()
    again = f"Authorization: Bearer {scripted.keys['any']}\r\n\r\n".encode()
    wire.send(scripted.head("GET", WAIT) + again)
    response = wire.response()
    assert response is not None and response.status == 401
    wire.close()


def test_a_fault_is_told_without_its_text_and_logged_without_secrets(
    scripted: Server, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    secret = scripted.keys["any"]
    engine.raises = ValueError(f"cannot digest {secret}")
    with caplog.at_level(logging.DEBUG):
        response = scripted.ask("POST", LEASE, MINIMAL)
    assert (response.status, response.json["error"]) == (500, "internal_error")
    assert "may or may not stand" in response.json["message"]
    assert b"digest" not in response.body and b"Traceback" not in response.body
    assert "ValueError" in caplog.text and "in ask" in caplog.text
    assert secret not in caplog.text
    engine.raises = None
    assert scripted.ask("POST", LEASE, MINIMAL).status == 200


def test_a_fault_elsewhere_is_told_as_json(serve) -> None:  # type: ignore[no-untyped-def]
    async def broken(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        assert scope["path"] == "/mcp"
        raise RuntimeError("oh")

    server = serve(elsewhere=broken)
    response = server.ask("GET", "/mcp")
    assert (response.status, response.json["error"]) == (500, "internal_error")
    assert server.ask("GET", "/mcp", host="evil.example").status == 403


def test_answers_carry_the_security_headers(scripted: Server, engine: ScriptedEngine) -> None:
    for response in (
        scripted.ask("POST", LEASE, MINIMAL),
        scripted.ask("GET", "/nowhere"),
        scripted.ask("GET", "/metrics"),
        scripted.ask("POST", LEASE, b" " * 65_537),
    ):
        assert response.header("cache-control") == "no-store"
        assert response.header("x-content-type-options") == "nosniff"
        assert response.header("content-security-policy") == "default-src 'none'; frame-ancestors 'none'"
        assert response.header("cross-origin-resource-policy") == "same-origin"
        assert response.header("date") is not None
        assert response.header("server") is None


def test_health_readiness_and_metrics(scripted: Server, engine: ScriptedEngine) -> None:
    assert scripted.ask("GET", "/healthz", key=None).json == {"ok": True}
    assert scripted.ask("GET", "/readyz", key=None).json == {"ok": True}
    engine.not_ready = AuthorityUnavailable("disk full")
    unready = scripted.ask("GET", "/readyz", key=None)
    assert (unready.status, unready.json["error"]) == (503, "authority_unavailable")
    assert scripted.ask("GET", "/healthz", key=None).status == 200

    engine.outcome = OUTCOMES[Granted]
    before = counted(scripted, "coordination.lease", "ok")
    refused_before = counted(scripted, "coordination.lease", "invalid_request")
    scripted.ask("POST", LEASE, MINIMAL)
    scripted.ask("POST", LEASE, {**MINIMAL, "note": '"error":"deadlock"', "access": 1})
    assert counted(scripted, "coordination.lease", "ok") == before + 1
    assert counted(scripted, "coordination.lease", "invalid_request") == refused_before + 1
    text = scripted.ask("GET", "/metrics", key=None).body.decode()
    assert "leaseplane_transactions_total 3.0" in text and "leaseplane_parked_now 0.0" in text


@pytest.mark.parametrize(
    "accept",
    [
        "text/plain; version=x",
        "application/openmetrics-text; version=1.x",
        "application/openmetrics-text; version=2.x",
        "text/plain; version=\u00b2",
        "\u00ff",
    ],
)
def test_metrics_are_shown_whatever_accept_holds(
    scripted: Server, engine: ScriptedEngine, accept: str
) -> None:
    response = scripted.ask("GET", "/metrics", key=None, accept=accept)
    assert response.status == 200 and b"leaseplane_parked_now" in response.body


def counted(server: Server, operation: str, result: str) -> float:
    line = f'leaseplane_rest_answers_total{{operation="{operation}",result="{result}"}} '
    text = server.ask("GET", "/metrics", key=None).body.decode()
    return next((float(each.removeprefix(line)) for each in text.splitlines() if each.startswith(line)), 0)


def test_key_documents(scripted: Server, engine: ScriptedEngine) -> None:
    assert scripted.ask("GET", "/.well-known/jwks.json", key=None).json == {"keys": []}
    document = scripted.ask("GET", "/.well-known/did.json", key=None, host="localhost:1").json
    assert document == {"id": "did:web:localhost:1"}
