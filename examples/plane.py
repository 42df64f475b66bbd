"""A plane, asked over HTTP with the standard library alone. Copy this file beside your own program.

LEASEPLANE_URL says where the plane is (default: http://127.0.0.1:7411) and LEASEPLANE_API_KEY shows
that you may ask it (default: the key that `leaseplane serve` keeps for this machine in its data folder).
"""

import http.client
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

LEASE = "/api/v1/acp/coordination/lease"
RELEASE = "/api/v1/acp/coordination/release"
WAIT = "/api/v1/acp/coordination/wait"
TRUST = "/api/v1/acp/trust"
KEYS = "/.well-known/jwks.json"


class Answer(NamedTuple):
    """What the plane said. A refusal is an answer like a grant: 200 or 409, and the body says why."""

    status: int
    body: dict[str, Any]
    raw: bytes
    """The body as it came, its receipt included: this is what `leaseplane verify` takes."""

    @property
    def receipt(self) -> str:
        return str(self.body["receipt"])


def acquire(resource: str, actor: str, **more: Any) -> Answer:
    """Ask for the lease of `resource`; with `maxWaitMs`, be parked until it is free or that is over."""
    return ask("POST", LEASE, {"resource": resource, "actorDid": actor, **more})


def release(lease: dict[str, Any]) -> Answer:
    """Let go of a lease that was granted."""
    names = {"resource": lease["resource"], "actorDid": lease["holder"], "leaseId": lease["leaseId"]}
    return ask("POST", RELEASE, names)


def waiting(resource: str) -> list[dict[str, Any]]:
    """The queue of `resource`."""
    found: list[dict[str, Any]] = ask("GET", f"{WAIT}?{urlencode({'resource': resource})}").body["waiting"]
    return found


def trust(actor: str) -> float:
    """What its leases have done to this agent's standing: 0 to 100, 50 at first."""
    return float(ask("GET", f"{TRUST}?{urlencode({'actorDid': actor})}").body["score"])


def ask(method: str, path: str, members: dict[str, Any] | None = None) -> Answer:
    """Send one request. Raises OSError where the plane cannot be reached."""
    url = urlsplit(os.environ.get("LEASEPLANE_URL") or "http://127.0.0.1:7411")
    make = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    # A parked request is answered in five minutes at the latest.
    connection = make(url.hostname or "", url.port, timeout=330)
    try:
        headers = {"Authorization": f"Bearer {api_key()}", "Content-Type": "application/json"}
        connection.request(method, url.path + path, json.dumps(members) if members else None, headers)
        response = connection.getresponse()
        raw = response.read()
        return Answer(response.status, json.loads(raw), raw)
    finally:
        connection.close()


def api_key() -> str:
    """The key from the environment, or the one kept for this machine."""
    if key := os.environ.get("LEASEPLANE_API_KEY"):
        return key
    if data := os.environ.get("LEASEPLANE_DATA"):
        folder = Path(data)
    elif sys.platform == "darwin":
        folder = Path.home() / "Library/Application Support/leaseplane"
    else:
        folder = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "leaseplane"
    return (folder / "api-key").read_text().strip()
