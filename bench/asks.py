"""What is asked in a benchmark: names, agents, and the requests made of them."""

import json
from collections.abc import Sequence
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.load import Expected, post
from leaseplane.dids import did_key_of
from leaseplane.operations import LEASE, RELEASE

_RECEIPT = b'"receipt":"ey'

GRANTED = Expected(200, b'"renewed":false', _RECEIPT)
RENEWED = Expected(200, b'"renewed":true', _RECEIPT)
HELD = Expected(409, b'"error":"lease_held"', _RECEIPT)
RELEASED = Expected(200, b'"released":{', _RECEIPT)
ECHOED = Expected(200, b'"actorDid":')


def agents(number: int) -> list[str]:
    """So many agents, the same ones in every run: a `did:key` each, as agents have them."""
    dids = []
    for at in range(number):
        private_key = Ed25519PrivateKey.from_private_bytes(sha256(b"agent %d" % at).digest())
        dids.append(did_key_of(private_key.public_key().public_bytes_raw()))
    return dids


def names(label: str, number: int) -> list[str]:
    """So many names of resources, in no order, as in a plane that many use."""
    return [f"lock:bench/{sha256(f'{label} {at}'.encode()).hexdigest()[:24]}" for at in range(number)]


def acquire(
    resource: str, actor: str, api_key: str, *, max_wait_ms: int = 0, idempotency_key: str = ""
) -> bytes:
    """One request for a lease."""
    members: dict[str, object] = {"resource": resource, "actorDid": actor, "ttlMs": 30_000}
    if max_wait_ms:
        members["maxWaitMs"] = max_wait_ms
    headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
    return post(LEASE.path, json.dumps(members).encode(), api_key, headers)


def release(resource: str, actor: str, api_key: str) -> bytes:
    """One request to let go of a lease."""
    return post(RELEASE.path, json.dumps({"resource": resource, "actorDid": actor}).encode(), api_key)


def one_each(resources: Sequence[str], actors: Sequence[str]) -> list[tuple[str, str]]:
    """Each resource with an agent, the agents in turn."""
    return [(resource, actors[at % len(actors)]) for at, resource in enumerate(resources)]
