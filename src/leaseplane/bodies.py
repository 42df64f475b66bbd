"""Bodies: what goes over the wire, member by member.

Members are those of the contract and are written in camelCase; what is UNSET is absent from the
JSON. The OpenAPI document and the schemas of the tools are derived from these types.
"""

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from leaseplane.limits import ADMITTED_MAX, POSITION_EXACT_MAX, WAIT_MS_MAX, WHOLE_NUMBER_MAX
from leaseplane.model import Access

ErrorCode: TypeAlias = Literal[
    "invalid_request",
    "unauthenticated",
    "actor_mismatch",
    "forbidden",
    "not_found",
    "method_not_allowed",
    "lease_held",
    "deadlock",
    "stale_lease",
    "not_holder",
    "not_held",
    "body_too_large",
    "quota_exhausted",
    "too_many",
    "internal_error",
    "authority_unavailable",
    "outcome_unknown",
]

STATUS_OF: Final[dict[ErrorCode, int]] = {
    "invalid_request": 400,
    "unauthenticated": 401,
    "actor_mismatch": 403,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "lease_held": 409,
    "deadlock": 409,
    "stale_lease": 409,
    "not_holder": 409,
    "not_held": 409,
    "body_too_large": 413,
    "quota_exhausted": 429,
    "too_many": 429,
    "internal_error": 500,
    "authority_unavailable": 503,
    "outcome_unknown": 504,
}


# -- values that occur in several bodies -------------------------------------------------------

Time = Annotated[
    str, Meta(description="RFC 3339, UTC, with milliseconds.", extra_json_schema={"format": "date-time"})
]
Ms = Annotated[int, Meta(ge=0, description="Milliseconds.")]
Did = Annotated[str, Meta(description="The DID of an agent.")]
Resource = Annotated[str, Meta(description="The name of what is leased.")]
HolderInstance = Annotated[str, Meta(description="Which part of that agent it is, where it said so.")]
Message = Annotated[
    str, Meta(description="What is wrong and what to do. For people; its wording may change.")
]
Fence = Annotated[
    int,
    Meta(
        ge=1,
        le=WHOLE_NUMBER_MAX,
        description="The fencing number of the grant: a later grant of the same resource has a larger one.",
    ),
]
Position = Annotated[
    int,
    Meta(
        ge=1,
        description=f"The place in the queue, from 1; exact up to {POSITION_EXACT_MAX} and perhaps a lower "
        "bound beyond.",
    ),
]
Score = Annotated[
    float, Meta(ge=0, le=100, multiple_of=0.5, description="A trust score; whole where it is a whole number.")
]
Receipt = Annotated[
    str,
    Meta(
        description="A signed statement of this answer: a compact JWS (EdDSA), checked with the keys of "
        "/.well-known/jwks.json. It digests this body without this member, in RFC 8785 form."
    ),
]


# -- the bodies --------------------------------------------------------------------------------


class LeaseBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """A lease as its holder is told of it."""

    lease_id: str
    resource: Resource
    holder: Did
    granted_at: Time
    expires_at: Time
    ttl_ms: Ms
    fence: Fence
    renewed: bool | UnsetType = UNSET
    access: Access
    instance: HolderInstance | UnsetType = UNSET
    note: str | UnsetType = UNSET


class GrantedBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """A lease was granted, or the one held already was renewed."""

    ok: Literal[True] = True
    lease: LeaseBody
    renewed: Literal[True] | UnsetType = UNSET
    waiting: int | UnsetType = UNSET
    receipt: Receipt | UnsetType = UNSET


class StampedeBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """Who of the queue is first in line, and how long an asker should wait before it asks again."""

    admitted: Annotated[tuple[Did, ...], Meta(max_length=ADMITTED_MAX)]
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX, description="min(800, 25 · 2^n), n waiters.")]


class HeldBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """Someone else holds the resource, or stands ahead. `instance` and `note` are the holder's."""

    ok: Literal[False] = False
    error: Literal["lease_held"] = "lease_held"
    message: Message
    holder: Did | UnsetType = UNSET
    instance: HolderInstance | UnsetType = UNSET
    note: str | UnsetType = UNSET
    holders: tuple[Did, ...] | UnsetType = UNSET
    held_since: Time | UnsetType = UNSET
    expires_at: Time | UnsetType = UNSET
    stampede: StampedeBody
    position: Position
    retry_after_ms: Ms
    receipt: Receipt | UnsetType = UNSET


class CycleEdgeBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """One step of a cycle: an agent, the resource that it waits for, and who holds that."""

    actor_did: Did
    waits_for: Resource
    held_by: Did


class DeadlockBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """The wait would close a cycle. `holder` is on the cycle and itself waits on `waitingOn`."""

    ok: Literal[False] = False
    error: Literal["deadlock"] = "deadlock"
    message: Message
    holder: Did
    instance: HolderInstance | UnsetType = UNSET
    waiting_on: Resource
    cycle: tuple[CycleEdgeBody, ...]
    receipt: Receipt | UnsetType = UNSET


class StaleLeaseBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """The named lease is not the caller's current one. Nothing was changed."""

    ok: Literal[False] = False
    error: Literal["stale_lease"] = "stale_lease"
    message: Message
    receipt: Receipt | UnsetType = UNSET


class NotHolderBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """Another agent or instance holds the resource. `instance` is the holder's."""

    ok: Literal[False] = False
    error: Literal["not_holder"] = "not_holder"
    message: Message
    holder: Did
    instance: HolderInstance | UnsetType = UNSET
    receipt: Receipt | UnsetType = UNSET


class NotHeldBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """Nobody holds the resource."""

    ok: Literal[False] = False
    error: Literal["not_held"] = "not_held"
    message: Message
    receipt: Receipt | UnsetType = UNSET


class ReleasedLeaseBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """The lease that was let go of."""

    lease_id: str
    resource: Resource
    holder: Did
    fence: Fence
    instance: HolderInstance | UnsetType = UNSET


class ReleasedBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """The lease is over; `trust` is the holder's score after it."""

    ok: Literal[True] = True
    released: ReleasedLeaseBody
    trust: Score
    receipt: Receipt | UnsetType = UNSET


class WaitBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """One live wait. `instance` is the waiter's; `holder` is absent where nobody holds the resource."""

    resource: Resource
    actor_did: Did
    instance: HolderInstance | UnsetType = UNSET
    holder: Did | UnsetType = UNSET
    position: Position
    since: Time
    last_asked_at: Time
    parked: bool


class DeadlockPairBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """One refused wait: `actorDid` asked for `resource`, whose `holder` was waiting on `waitingOn`."""

    actor_did: Did
    instance: HolderInstance | UnsetType = UNSET
    resource: Resource
    holder: Did
    waiting_on: Resource
    at: Time


class ListedBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """The queue, oldest wait first, and the deadlock pairs."""

    ok: Literal[True] = True
    waiting: tuple[WaitBody, ...]
    deadlocks: tuple[DeadlockPairBody, ...]
    receipt: Receipt | UnsetType = UNSET


class WithdrawnBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """The wait is over; `withdrawn` says whether there was one."""

    ok: Literal[True] = True
    withdrawn: bool


class TrustBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """An agent's score, and how many of its leases it released and let run out."""

    ok: Literal[True] = True
    actor_did: Did
    score: Score
    released: int
    expired: int


class BrokenBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """The leases that the operator ended. No trust moved."""

    ok: Literal[True] = True
    resource: Resource
    reason: str
    broken: tuple[LeaseBody, ...]


class ErrorBody(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """What is wrong and what to do. `field` is the member, parameter or header at fault."""

    ok: Literal[False] = False
    error: ErrorCode
    message: Message
    field: str | UnsetType = UNSET
    quota: str | UnsetType = UNSET
    bound: str | UnsetType = UNSET
    limit: int | UnsetType = UNSET
