"""REST over a real plane: the contract's section 3, as a client sees it."""

import hashlib
import json
import threading
import time
from typing import Any

import rfc8785
from tests.scenarios.agents import did, private_key
from tests.surfaces.rest.wire import BREAK, LEASE, RELEASE, TRUST, WAIT, Response, Server

from leaseplane.identity.signatures import sign_request
from leaseplane.receipts.base64url import decode
from leaseplane.surfaces.rest.samples import ADA, BOB


def asking(resource: str, actor: str = ADA, **members: Any) -> dict[str, Any]:
    return {"resource": resource, "actorDid": actor, **members}


def stated(response: Response) -> dict[str, Any]:
    """What the receipt of a response states; that it is signed is tested where receipts are."""
    payload = decode(response.json["receipt"].split(".")[1].encode())
    return json.loads(payload)


def test_a_free_resource_is_granted(plane: Server) -> None:
    before_ms = int(time.time() * 1000)
    response = plane.ask("POST", LEASE, asking("lock:free", note="why", ttlMs="whatever"))
    assert response.status == 200
    body = response.json
    assert body["ok"] is True
    lease = body["lease"]
    assert set(lease) == {
        "leaseId", "resource", "holder", "grantedAt", "expiresAt", "ttlMs", "fence", "renewed", "access",
        "note",
    }  # fmt: skip
    assert (lease["resource"], lease["holder"], lease["ttlMs"]) == ("lock:free", ADA, 30_000)
    assert (lease["renewed"], lease["access"], lease["note"]) == (False, "write", "why")
    assert before_ms <= lease["fence"] < 2**53
    assert len(lease["grantedAt"]) == len("2026-01-01T00:00:00.000Z") and lease["grantedAt"].endswith("Z")
    assert response.header("retry-after") is None


def test_asking_again_renews(plane: Server) -> None:
    first = plane.ask("POST", LEASE, asking("lock:renewed")).json
    again = plane.ask("POST", LEASE, asking("lock:renewed", ttlMs=None)).json
    assert again["lease"]["leaseId"] == first["lease"]["leaseId"]
    assert again["lease"]["fence"] == first["lease"]["fence"]
    assert (again["renewed"], again["lease"]["renewed"], again["waiting"]) == (True, True, 0)
    assert "waiting" not in first and "renewed" not in first


def test_a_held_resource_is_refused_with_its_holder(plane: Server) -> None:
    lease = plane.ask("POST", LEASE, asking("lock:held", instance="ci", note="rolling out")).json["lease"]
    response = plane.ask("POST", LEASE, asking("lock:held", BOB))
    assert response.status == 409
    body = response.json
    assert (body["ok"], body["error"], body["holder"]) == (False, "lease_held", ADA)
    assert (body["instance"], body["note"]) == ("ci", "rolling out")
    assert body["stampede"] == {"admitted": [BOB], "waitMs": 50}
    assert (body["position"], body["expiresAt"]) == (1, lease["expiresAt"])
    assert 0 < body["retryAfterMs"] <= 100
    assert response.header("retry-after") == "1"
    assert ADA in body["message"] and "1st in line" in body["message"]


def test_every_answer_carries_a_receipt_of_its_request_and_its_body(plane: Server) -> None:
    sent = json.dumps(asking("lock:receipts")).encode()
    granted = plane.ask("POST", LEASE, sent)
    refused = plane.ask("POST", LEASE, asking("lock:receipts", BOB))
    listed = plane.ask("GET", f"{WAIT}?resource=lock:receipts")
    for response, op, outcome in (
        (granted, "coordination.lease", "granted"),
        (refused, "coordination.lease", "refused"),
        (listed, "coordination.wait", "listed"),
    ):
        statement = stated(response)
        assert (statement["op"], statement["outcome"]) == (op, outcome)
        body = response.json
        del body["receipt"]
        digest = hashlib.sha256(rfc8785.dumps(body)).hexdigest()
        assert statement["answer"] == {"status": response.status, "digest": digest}
    assert stated(granted)["request"] == {
        "method": "POST",
        "path": LEASE,
        "digest": hashlib.sha256(sent).hexdigest(),
    }
    assert stated(listed)["request"] == {
        "method": "GET",
        "path": WAIT,
        "digest": hashlib.sha256(b"").hexdigest(),
    }


def test_release_in_the_contracts_order(plane: Server) -> None:
    nobody = plane.ask("POST", RELEASE, asking("lock:released"))
    assert (nobody.status, nobody.json["error"]) == (409, "not_held")
    lease = plane.ask("POST", LEASE, asking("lock:released", instance="one")).json["lease"]
    other = plane.ask("POST", RELEASE, asking("lock:released", BOB))
    assert (other.status, other.json["error"], other.json["holder"]) == (409, "not_holder", ADA)
    assert other.json["instance"] == "one"
    stale = plane.ask("POST", RELEASE, asking("lock:released", instance="one", leaseId="nonesuch"))
    assert (stale.status, stale.json["error"]) == (409, "stale_lease")
    done = plane.ask("POST", RELEASE, asking("lock:released", leaseId=lease["leaseId"]))
    assert done.status == 200
    assert done.json["released"] == {
        "leaseId": lease["leaseId"],
        "resource": "lock:released",
        "holder": ADA,
        "fence": lease["fence"],
        "instance": "one",
    }
    assert done.json["trust"] == plane.ask("GET", f"{TRUST}?actorDid={ADA}").json["score"]


def test_a_cycle_is_refused_and_spelled_out(plane: Server) -> None:
    # Nodes of their own in the wait graph: elsewhere in this module Bob waits for Ada.
    ada, bob = {"actor": ADA, "instance": "cycle"}, {"actor": BOB, "instance": "cycle"}
    plane.ask("POST", LEASE, asking("lock:x", **ada))
    plane.ask("POST", LEASE, asking("lock:y", **bob))
    assert plane.ask("POST", LEASE, asking("lock:y", **ada)).json["error"] == "lease_held"
    response = plane.ask("POST", LEASE, asking("lock:x", **bob))
    body = response.json
    assert (response.status, body["error"]) == (409, "deadlock")
    assert (body["holder"], body["waitingOn"]) == (ADA, "lock:y")
    assert body["cycle"] == [
        {"actorDid": BOB, "waitsFor": "lock:x", "heldBy": ADA},
        {"actorDid": ADA, "waitsFor": "lock:y", "heldBy": BOB},
    ]
    pairs = plane.ask("GET", f"{WAIT}?resource=lock:x").json["deadlocks"]
    assert [(pair["actorDid"], pair["holder"], pair["waitingOn"]) for pair in pairs] == [(BOB, ADA, "lock:y")]


def test_the_queue_is_listed_narrowed_and_left(plane: Server) -> None:
    plane.ask("POST", LEASE, asking("file:a b+c.py", ADA))
    plane.ask("POST", LEASE, asking("file:a b+c.py", BOB))
    [wait] = plane.ask("GET", f"{WAIT}?resource=file:a+b%2Bc.py&actorDid={BOB}").json["waiting"]
    assert set(wait) == {"resource", "actorDid", "holder", "position", "since", "lastAskedAt", "parked"}
    assert (wait["resource"], wait["holder"], wait["position"]) == ("file:a b+c.py", ADA, 1)
    assert plane.ask("GET", f"{WAIT}?resource=file:other.py").json["waiting"] == []
    left = plane.ask("DELETE", f"{WAIT}?resource=file:a%20b%2Bc.py&actorDid={BOB}")
    assert (left.status, left.json) == (200, {"ok": True, "withdrawn": True})
    again = plane.ask("DELETE", WAIT, {"resource": "file:a b+c.py", "actorDid": BOB})
    assert (again.status, again.json) == (200, {"ok": True, "withdrawn": False})


def test_a_parked_request_gets_the_lease_when_it_is_let_go(plane: Server) -> None:
    plane.ask("POST", LEASE, asking("lock:parked", ADA))
    wire = plane.wire()
    wire.send(plane.request("POST", LEASE, json.dumps(asking("lock:parked", BOB, maxWaitMs=20_000)).encode()))
    wait_until(lambda: plane.ask("GET", f"{WAIT}?resource=lock:parked").json["waiting"] != [])
    plane.ask("POST", RELEASE, asking("lock:parked", ADA))
    response = wire.response()
    assert response is not None and response.status == 200
    assert response.json["lease"]["holder"] == BOB
    wire.close()


def test_hanging_up_ends_a_parked_wait_also_with_another_request_behind_it(plane: Server) -> None:
    plane.ask("POST", LEASE, asking("lock:hung-up", ADA))
    parked = plane.request("POST", LEASE, json.dumps(asking("lock:hung-up", BOB, maxWaitMs=60_000)).encode())
    for ahead in (b"", plane.request("GET", "/healthz")):
        wire = plane.wire()
        wire.send(parked + ahead)
        wait_until(lambda: plane.ask("GET", f"{WAIT}?resource=lock:hung-up").json["waiting"] != [])
        wire.close()
        wait_until(lambda: plane.ask("GET", f"{WAIT}?resource=lock:hung-up").json["waiting"] == [], 1.0)


def test_a_parked_request_that_is_withdrawn_is_answered(plane: Server) -> None:
    plane.ask("POST", LEASE, asking("lock:withdrawn", ADA))
    answers: list[Response] = []
    parked = threading.Thread(
        target=lambda: answers.append(
            plane.ask("POST", LEASE, asking("lock:withdrawn", BOB, maxWaitMs=60_000))
        )
    )
    parked.start()
    wait_until(lambda: plane.ask("GET", f"{WAIT}?resource=lock:withdrawn").json["waiting"] != [])
    assert plane.ask("DELETE", f"{WAIT}?resource=lock:withdrawn&actorDid={BOB}").json["withdrawn"] is True
    parked.join(5)
    assert (answers[0].status, answers[0].json["error"]) == (409, "lease_held")


def test_the_same_key_answers_the_same_and_refuses_another_body(plane: Server) -> None:
    headers = {"idempotency_key": "once"}
    first = plane.ask("POST", LEASE, asking("lock:once"), **headers)
    again = plane.ask("POST", LEASE, asking("lock:once"), **headers)
    assert again.json["lease"] == first.json["lease"] and again.json["lease"]["renewed"] is False
    other = plane.ask("POST", LEASE, asking("lock:other"), **headers)
    assert (other.status, other.json["error"], other.json["field"]) == (
        400,
        "invalid_request",
        "Idempotency-Key",
    )


def test_the_operator_breaks_a_lease(plane: Server) -> None:
    lease = plane.ask("POST", LEASE, asking("lock:broken", ADA)).json["lease"]
    breaking = {"resource": "lock:broken", "reason": "agent is stuck"}
    assert plane.ask("POST", BREAK, breaking).json["error"] == "forbidden"
    response = plane.ask("POST", BREAK, breaking, key="operator")
    assert response.status == 200
    assert [each["leaseId"] for each in response.json["broken"]] == [lease["leaseId"]]
    assert "receipt" not in response.json
    assert plane.ask("POST", LEASE, asking("lock:broken", BOB)).status == 200


def test_a_bound_key_names_its_agent_only(plane: Server) -> None:
    assert plane.ask("POST", LEASE, asking("lock:bound", ADA), key="ada").status == 200
    other = plane.ask("POST", RELEASE, asking("lock:bound", BOB), key="ada")
    assert (other.status, other.json["error"]) == (403, "actor_mismatch")


def wait_until(condition: Any, within_s: float = 5) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.005)


def signed(
    plane: Server, method: str, target: str, body: bytes, nonce: str, signer: str = "signer"
) -> dict[str, str]:
    """The headers of a request that an agent signs with its own key."""
    fields = sign_request(
        method,
        f"http://127.0.0.1:{plane.port}{target}",
        body,
        private_key=private_key(signer),
        created_s=int(time.time()),
        nonce=nonce,
    )
    return {name.decode().replace("-", "_"): value.decode() for name, value in fields}


def test_an_agent_that_signs_needs_no_key_and_names_itself_only(plane: Server) -> None:
    signer = did("signer")
    body = json.dumps(asking("lock:signed", signer)).encode()
    headers = signed(plane, "POST", LEASE, body, "n1")
    granted = plane.ask("POST", LEASE, body, None, **headers)
    assert (granted.status, granted.json["lease"]["holder"]) == (200, signer)
    assert (stated(granted)["auth"], stated(granted)["workspace"]) == ("http-signature", "acme")
    # The same agent, the same workspace: a key that may name anyone finds its lease.
    assert plane.ask("POST", LEASE, asking("lock:signed", signer)).json["renewed"] is True

    def code(*sent: Any, **with_headers: str) -> tuple[int, str]:
        response = plane.ask(*sent, **with_headers)
        return response.status, response.json["error"]

    assert code("POST", LEASE, body, None, **headers) == (401, "unauthenticated")  # a replay
    headers = signed(plane, "POST", LEASE, body, "n2")
    other_body = json.dumps(asking("lock:other", signer)).encode()
    assert code("POST", LEASE, other_body, None, **headers) == (401, "unauthenticated")
    assert code("POST", RELEASE, body, None, **headers) == (401, "unauthenticated")
    headers = signed(plane, "POST", LEASE, body, "n3")
    assert code("POST", LEASE, body, **headers) == (401, "unauthenticated")  # with a key, too
    for_another = json.dumps(asking("lock:signed", ADA)).encode()
    headers = signed(plane, "POST", LEASE, for_another, "n4")
    assert code("POST", LEASE, for_another, None, **headers) == (403, "actor_mismatch")
    headers = signed(plane, "POST", LEASE, body, "n5", "a stranger")
    assert code("POST", LEASE, body, None, **headers) == (401, "unauthenticated")


def test_a_signature_covers_the_query(plane: Server) -> None:
    target = f"{WAIT}?resource=lock:signed%2Fquery"
    headers = signed(plane, "GET", target, b"", "q1")
    assert plane.ask("GET", f"{WAIT}?resource=lock:signed", None, None, **headers).status == 401
    headers = signed(plane, "GET", target, b"", "q2")
    listed = plane.ask("GET", target, None, None, **headers)
    assert (listed.status, listed.json["waiting"]) == (200, [])
    assert stated(listed)["resource"] == "lock:signed/query"
