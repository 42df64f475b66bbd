"""Samples: one outcome of each kind, as the reference shows it.

They are rendered by the same code as real answers, so what the documents show is what is sent.
"""

from typing import Final

import msgspec

from leaseplane.model import (
    AccessFixed,
    Broken,
    CycleEdge,
    Deadlock,
    DeadlockView,
    Granted,
    Held,
    Holder,
    IdempotencyMismatch,
    LeaseView,
    Listed,
    NotHeld,
    NotHolder,
    Outcome,
    Released,
    StaleLease,
    Stampede,
    TooMany,
    Trust,
    TrustShown,
    WaitView,
    Withdrawn,
)
from leaseplane.operations import BREAK, LEASE, RELEASE, TRUST, WAIT, WITHDRAW, Operation

ADA: Final = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
BOB: Final = "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"
CARL: Final = "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"
PAGE: Final = "doc:handbook"
DEPLOY: Final = "lock:deploy/production"
SCHEMA: Final = "lock:db/schema"

_GRANTED_WALL_MS: Final = 1_767_225_600_000
_LEASE: Final = LeaseView(
    lease_id="lease-19b76daa800",
    resource=DEPLOY,
    holder=Holder(ADA),
    granted_wall_ms=_GRANTED_WALL_MS,
    expires_wall_ms=_GRANTED_WALL_MS + 30_000,
    ttl_ms=30_000,
    fence=1_767_225_600_000,
    access="write",
    note="rolling out 4.2",
)

OUTCOMES: Final[dict[type, Outcome]] = {
    type(outcome): outcome
    for outcome in (
        Granted(_LEASE),
        Held(
            resource=DEPLOY,
            holder=Holder(ADA),
            note="rolling out 4.2",
            expires_wall_ms=_GRANTED_WALL_MS + 30_000,
            held_since_wall_ms=_GRANTED_WALL_MS,
            holders=(),
            stampede=Stampede((BOB,), 50),
            position=1,
            retry_after_ms=42,
        ),
        Deadlock(
            resource=DEPLOY,
            holder=Holder(ADA),
            waiting_on=SCHEMA,
            cycle=(CycleEdge(BOB, DEPLOY, ADA), CycleEdge(ADA, SCHEMA, BOB)),
        ),
        StaleLease(DEPLOY),
        NotHolder(DEPLOY, Holder(ADA)),
        NotHeld(DEPLOY),
        Released(
            lease_id=_LEASE.lease_id,
            resource=DEPLOY,
            holder=Holder(ADA),
            fence=_LEASE.fence,
            trust_halves=101,
            granted_wall_ms=_GRANTED_WALL_MS,
            expires_wall_ms=_GRANTED_WALL_MS + 30_000,
        ),
        Listed(
            waiting=(
                WaitView(
                    DEPLOY,
                    Holder(BOB),
                    Holder(ADA),
                    1,
                    _GRANTED_WALL_MS + 1_000,
                    _GRANTED_WALL_MS + 2_500,
                    True,
                ),
            ),
            deadlocks=(DeadlockView(Holder(BOB), DEPLOY, Holder(ADA), SCHEMA, _GRANTED_WALL_MS + 3_000),),
        ),
        Withdrawn(existed=True),
        TrustShown(ADA, Trust(halves=101, released=1)),
        Broken(DEPLOY, (_LEASE,), "agent is stuck"),
        TooMany("waiters", 20_000),
        IdempotencyMismatch(),
        AccessFixed(),
    )
}

_HELD: Final = OUTCOMES[Held]
assert isinstance(_HELD, Held)

FURTHER: Final[dict[type, tuple[tuple[str, Outcome], ...]]] = {
    Held: (
        (
            "where several hold it to read",
            msgspec.structs.replace(
                _HELD,
                resource=PAGE,
                note=None,
                holders=(Holder(ADA), Holder(BOB)),
                stampede=Stampede((CARL,), 50),
            ),
        ),
    ),
}
"""Answers of a kind that has another form, each with the case in which it has it."""

REQUESTS: Final[dict[Operation, dict[str, object]]] = {
    LEASE: {"resource": DEPLOY, "actorDid": ADA, "note": "rolling out 4.2", "maxWaitMs": 60_000},
    RELEASE: {"resource": DEPLOY, "actorDid": ADA, "leaseId": _LEASE.lease_id},
    WAIT: {"resource": DEPLOY},
    WITHDRAW: {"resource": DEPLOY, "actorDid": BOB},
    TRUST: {"actorDid": ADA},
    BREAK: {"resource": DEPLOY, "reason": "agent is stuck"},
}
"""The members of one request to each operation."""
