"""Bodies: what goes over the wire, member by member.

Members are those of the contract and are written in camelCase; what is UNSET is absent from the
JSON. The OpenAPI document and the schemas of the tools are derived from these types.
"""

from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

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


class LeaseBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A lease as its holder is told of it."""

    lease_id: str
    resource: str
    holder: str
    granted_at: str
    expires_at: str
    ttl_ms: int
    fence: int
    renewed: bool | UnsetType = UNSET
    access: Access
    instance: str | UnsetType = UNSET
    note: str | UnsetType = UNSET


class GrantedBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A lease was granted, or the one held already was renewed."""

    ok: Literal[True] = True
    lease: LeaseBody
    renewed: Literal[True] | UnsetType = UNSET
    waiting: int | UnsetType = UNSET
    receipt: str | UnsetType = UNSET


class StampedeBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who of the queue is first in line, and how long an asker should wait before it asks again."""

    admitted: tuple[str, ...]
    wait_ms: int


class HeldBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Someone else holds the resource, or stands ahead. `instance` and `note` are the holder's."""

    ok: Literal[False] = False
    error: Literal["lease_held"] = "lease_held"
    message: str
    holder: str | UnsetType = UNSET
    instance: str | UnsetType = UNSET
    note: str | UnsetType = UNSET
    holders: tuple[str, ...] | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    stampede: StampedeBody
    position: int
    retry_after_ms: int
    receipt: str | UnsetType = UNSET


class CycleEdgeBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One step of a cycle: an agent, the resource that it waits for, and who holds that."""

    actor_did: str
    waits_for: str
    held_by: str


class DeadlockBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The wait would close a cycle. `holder` is on the cycle and itself waits on `waitingOn`."""

    ok: Literal[False] = False
    error: Literal["deadlock"] = "deadlock"
    message: str
    holder: str
    instance: str | UnsetType = UNSET
    waiting_on: str
    cycle: tuple[CycleEdgeBody, ...]
    receipt: str | UnsetType = UNSET


class StaleLeaseBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The named lease is not the caller's current one. Nothing was changed."""

    ok: Literal[False] = False
    error: Literal["stale_lease"] = "stale_lease"
    message: str
    receipt: str | UnsetType = UNSET


class NotHolderBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Another agent or instance holds the resource. `instance` is the holder's."""

    ok: Literal[False] = False
    error: Literal["not_holder"] = "not_holder"
    message: str
    holder: str
    instance: str | UnsetType = UNSET
    receipt: str | UnsetType = UNSET


class NotHeldBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Nobody holds the resource."""

    ok: Literal[False] = False
    error: Literal["not_held"] = "not_held"
    message: str
    receipt: str | UnsetType = UNSET


class ReleasedLeaseBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The lease that was let go of."""

    lease_id: str
    resource: str
    holder: str
    fence: int
    instance: str | UnsetType = UNSET


class ReleasedBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The lease is over; `trust` is the holder's score after it."""

    ok: Literal[True] = True
    released: ReleasedLeaseBody
    trust: int | float
    receipt: str | UnsetType = UNSET


class WaitBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One live wait. `instance` is the waiter's; `holder` is absent where nobody holds the resource."""

    resource: str
    actor_did: str
    instance: str | UnsetType = UNSET
    holder: str | UnsetType = UNSET
    position: int
    since: str
    last_asked_at: str
    parked: bool


class DeadlockPairBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One refused wait: `actorDid` asked for `resource`, whose `holder` was waiting on `waitingOn`."""

    actor_did: str
    instance: str | UnsetType = UNSET
    resource: str
    holder: str
    waiting_on: str
    at: str


class ListedBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The queue, oldest wait first, and the deadlock pairs."""

    ok: Literal[True] = True
    waiting: tuple[WaitBody, ...]
    deadlocks: tuple[DeadlockPairBody, ...]
    receipt: str | UnsetType = UNSET


class WithdrawnBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The wait is over; `withdrawn` says whether there was one."""

    ok: Literal[True] = True
    withdrawn: bool


class TrustBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An agent's score, and how many of its leases it released and let run out."""

    ok: Literal[True] = True
    actor_did: str
    score: int | float
    released: int
    expired: int


class BrokenBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The leases that the operator ended. No trust moved."""

    ok: Literal[True] = True
    resource: str
    reason: str
    broken: tuple[LeaseBody, ...]


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is wrong and what to do. `field` is the member, parameter or header at fault."""

    ok: Literal[False] = False
    error: ErrorCode
    message: str
    field: str | UnsetType = UNSET
    quota: str | UnsetType = UNSET
    bound: str | UnsetType = UNSET
    limit: int | UnsetType = UNSET
