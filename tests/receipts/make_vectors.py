"""Writes the published vectors of the receipt profile: `python -m tests.receipts.make_vectors`.

`test_vectors.py` compares the files with this script.
"""

import json
from pathlib import Path
from typing import Any

from tests.receipts.bad_vectors import bad
from tests.receipts.vector_parts import (
    ASKED,
    AUTHS,
    BODIES,
    GRANT,
    LEASE,
    NOW_S,
    OLD,
    PLANE,
    RESOURCE,
    ROTATED_S,
    SETS,
    Key,
    canonical,
    payload_of,
    receipt,
    sha,
)

FOLDER = Path(__file__).parent / "vectors"


def good() -> list[dict[str, Any]]:
    vectors = []

    def add(name: str, payload: dict[str, Any], key: Key = PLANE, **more: Any) -> None:
        vectors.append(
            {
                "name": name,
                "receipt": receipt(payload, key),
                "keys": "plane",
                "nowS": NOW_S,
                "payload": payload,
                "expect": {
                    "code": "valid",
                    "auth": payload["auth"],
                    "selfIssued": payload["auth"] == "local" or more.get("selfIssued", False),
                },
                **more,
            }
        )

    for kind, body in BODIES.items():
        op, outcome, code = kind
        payload = payload_of(*kind)
        name = f"{op} {outcome} {code}" if code else f"{op} {outcome}"
        request_body = "" if op == "coordination.wait" else ASKED.decode()
        add(name, payload, body=json.dumps(body), requestBody=request_body)
        whole = json.dumps({"receipt": receipt(payload), **body}, indent=2)
        add(f"{name}, as a whole response body", payload)
        vectors[-1]["receipt"] = whole
    for auth in AUTHS:
        add(f"auth {auth}", payload_of(*GRANT, auth=auth))
    add("keys of an embedded plane", payload_of(*GRANT), selfIssued=True)
    add("before a rotation", payload_of(*GRANT, iat=ROTATED_S - 1), OLD)
    add("the last second of a retired key", payload_of(*GRANT, iat=ROTATED_S + 5), OLD)
    add("dated 60 s ahead", payload_of(*GRANT, iat=NOW_S + 60))
    add("years later", payload_of(*GRANT), nowS=NOW_S + 10**9)
    add("the key among odd ones", payload_of(*GRANT), keys="plane among odd ones")
    add("the longest names", payload_of(*GRANT) | LONGEST)
    add("names beyond ASCII", payload_of(*GRANT, resource="doc:übung/🦆", workspace="büro"))
    unnarrowed = payload_of("coordination.wait", "listed", None)
    del unnarrowed["resource"], unnarrowed["actorDid"]
    add("a list for no one in particular", unnarrowed)
    arguments = {"resource": RESOURCE, "ttlMs": 1.5, "note": "é"}
    tool = {"method": "tools/call", "path": "coordination.lease.acquire", "digest": sha(canonical(arguments))}
    add("a tool call", payload_of(*GRANT, request=tool), requestBody=json.dumps(arguments, indent=1))
    return vectors


LONGEST: dict[str, Any] = {
    "iss": "https:" + "i" * 250,
    "jti": "j" * 64,
    "workspace": "w" * 63,
    "actorDid": "did:key:" + "z" * 248,
    "resource": "lock:" + '"' * 507,
    "lease": LEASE | {"leaseId": "l" * 64, "fence": 2**53 - 1},
    "iat": NOW_S,
    "request": {"method": "POST", "path": "/" + "p" * 127, "digest": sha(ASKED)},
}

GOOD_BY_NAME: dict[str, dict[str, Any]] = {vector["name"]: vector for vector in good()}


def files() -> dict[str, str]:
    """Every vector file's name and content."""
    parts = {"keys.json": SETS, "good.json": good(), "bad.json": bad()}
    return {name: json.dumps(part, indent=1) + "\n" for name, part in parts.items()}


if __name__ == "__main__":
    for file_name, content in files().items():
        (FOLDER / file_name).write_text(content, encoding="utf-8")
