"""What the vectors are made of: keys that are no one's, answers, and signing with nothing but JSON,
base64 and Ed25519. On purpose without the package: a vector that the package had written would agree
with it also where both are wrong.
"""

import base64
import hashlib
import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

NOW_S = 1_800_000_000
ROTATED_S = 1_799_000_000
ISSUER = "urn:leaseplane:vectors"

TYPE = "leaseplane-receipt+jws"


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Key:
    def __init__(self, name: str) -> None:
        self.private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())
        self.public = self.private.public_key().public_bytes_raw()
        self.kid = kid_of(self.public)

    def jwk(self, **more: Any) -> dict[str, Any]:
        return {"kty": "OKP", "crv": "Ed25519", "x": b64(self.public), "kid": self.kid, "use": "sig", **more}

    def header(self, **more: Any) -> dict[str, Any]:
        return {"alg": "EdDSA", "kid": self.kid, "typ": TYPE, **more}


def kid_of(public: bytes) -> str:
    members = f'{{"crv":"Ed25519","kty":"OKP","x":"{b64(public)}"}}'
    return b64(hashlib.sha256(members.encode()).digest())


OLD = Key("leaseplane vectors: before the rotation")
PLANE = Key("leaseplane vectors: in use")
FOREIGN = Key("leaseplane vectors: not the plane's")

SMALL_ORDER = bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f")
SHORT = PLANE.public[:31]
SETS: dict[str, Any] = {
    "plane": {"keys": [OLD.jwk(iat=1, nbf=0, exp=ROTATED_S + 5), PLANE.jwk(iat=ROTATED_S, nbf=ROTATED_S)]},
    "plane among odd ones": {
        "keys": [
            {"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "rsa"},
            {"kty": "OKP"},
            {},
            {"kid": None, "keys": []},
            PLANE.jwk(),
        ]
    },
    "other plane": {"keys": [FOREIGN.jwk()]},
    "empty": {"keys": []},
    "null": None,
    "list": [PLANE.jwk()],
    "without keys": {},
    "keys is an object": {"keys": {"0": PLANE.jwk()}},
    "a key is null": {"keys": [None, PLANE.jwk()]},
    "twice": {"keys": [PLANE.jwk(), PLANE.jwk(exp=NOW_S)]},
    "x too short": {"keys": [PLANE.jwk() | {"x": b64(SHORT)}]},
    "x padded": {"keys": [PLANE.jwk() | {"x": b64(PLANE.public) + "="}]},
    "x is a number": {"keys": [PLANE.jwk() | {"x": 7}]},
    "x of another key": {"keys": [PLANE.jwk() | {"x": b64(FOREIGN.public)}]},
    "x of small order": {"keys": [PLANE.jwk() | {"x": b64(SMALL_ORDER), "kid": kid_of(SMALL_ORDER)}]},
    "another curve": {"keys": [PLANE.jwk() | {"crv": "X25519"}]},
    "another kty": {"keys": [PLANE.jwk() | {"kty": "EC"}]},
    "for encryption": {"keys": [PLANE.jwk() | {"use": "enc"}]},
    "for another alg": {"keys": [PLANE.jwk(alg="ES256")]},
    "to sign": {"keys": [PLANE.jwk(key_ops=["sign"])]},
    "private": {"keys": [PLANE.jwk(d=b64(bytes(32)))]},
    "nbf is text": {"keys": [PLANE.jwk(nbf="0")]},
    "exp is a fraction": {"keys": [PLANE.jwk(exp=2e9 + 0.5)]},
    "exp is null": {"keys": [PLANE.jwk(exp=None)]},
}

# -- answers -----------------------------------------------------------------------------------

RESOURCE = "lock:deploy/production"
ALICE = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
BOB = "did:web:bob.example"
LEASE = {
    "leaseId": "ls_0001",
    "fence": 1_800_000_000_123,
    "grantedAt": "2027-01-15T08:00:00.000Z",
    "expiresAt": "2027-01-15T08:00:30.000Z",
}
FULL_LEASE = {
    **LEASE,
    "resource": RESOURCE,
    "holder": ALICE,
    "ttlMs": 30_000,
    "renewed": False,
    "access": "write",
    "note": 'with "quotes", a \\ and é 🦆 \u2028',
}
ASKED = b'{ "resource": "lock:deploy/production", "actorDid": "%s" }' % ALICE.encode()
REFUSED_BODY = {"ok": False, "holder": BOB, "message": "see holder"}
BODIES: dict[tuple[str, str, str | None], dict[str, Any]] = {
    ("coordination.lease", "granted", None): {"ok": True, "lease": FULL_LEASE},
    ("coordination.lease", "renewed", None): {
        "ok": True,
        "lease": FULL_LEASE | {"renewed": True},
        "waiting": 3,
    },
    ("coordination.lease", "refused", "lease_held"): REFUSED_BODY
    | {"error": "lease_held", "stampede": {"admitted": [ALICE], "waitMs": 50}},
    ("coordination.lease", "refused", "deadlock"): REFUSED_BODY
    | {"error": "deadlock", "waitingOn": "lock:db", "cycle": []},
    ("coordination.lease", "refused", "stale_lease"): REFUSED_BODY | {"error": "stale_lease"},
    ("coordination.release", "released", None): {"ok": True, "released": {"fence": 1}, "trust": 50.5},
    ("coordination.release", "refused", "not_held"): {"ok": False, "error": "not_held"},
    ("coordination.release", "refused", "not_holder"): REFUSED_BODY | {"error": "not_holder"},
    ("coordination.release", "refused", "stale_lease"): REFUSED_BODY | {"error": "stale_lease"},
    ("coordination.wait", "listed", None): {"ok": True, "waiting": [], "deadlocks": []},
}
PATHS = {
    "coordination.lease": "/api/v1/acp/coordination/lease",
    "coordination.release": "/api/v1/acp/coordination/release",
    "coordination.wait": "/api/v1/acp/coordination/wait",
}
AUTHS = ("http-signature", "api-key-bound", "api-key", "test-key", "local")


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def canonical(value: Any) -> bytes:
    """RFC 8785 for these bodies: ASCII names, no float but 50.5."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def payload_of(op: str, outcome: str, code: str | None, **more: Any) -> dict[str, Any]:
    request = b"" if op == "coordination.wait" else ASKED
    payload: dict[str, Any] = {
        "v": 1,
        "iss": ISSUER,
        "jti": "jti-0001",
        "iat": NOW_S,
        "op": op,
        "outcome": outcome,
        "workspace": "local",
        "actorDid": ALICE,
        "auth": "api-key-bound",
        "resource": RESOURCE,
        "request": {
            "method": "GET" if op == "coordination.wait" else "POST",
            "path": PATHS[op],
            "digest": sha(request),
        },
        "answer": {
            "status": 409 if outcome == "refused" else 200,
            "digest": sha(canonical(BODIES[op, outcome, code])),
        },
    }
    if code is not None:
        payload["code"] = code
    if outcome in ("granted", "renewed", "released"):
        payload["lease"] = LEASE
    return payload | more


GRANT = ("coordination.lease", "granted", None)
REFUSAL = ("coordination.lease", "refused", "lease_held")


def sign(header: str | bytes, payload: str | bytes, key: Key = PLANE) -> str:
    segments = [b64(part if isinstance(part, bytes) else part.encode()) for part in (header, payload)]
    signing_input = ".".join(segments)
    return f"{signing_input}.{b64(key.private.sign(signing_input.encode()))}"


def receipt(payload: dict[str, Any], key: Key = PLANE) -> str:
    return sign(json.dumps(key.header()), json.dumps(payload, ensure_ascii=False), key)
