"""Operations: one row for everything that a caller can ask the plane to do.

A row says what an operation takes, what it can answer, where REST has it and what its receipt calls
it. The REST routes, the OpenAPI document and the reference page are derived from these rows; the
other surfaces are tested against them. `Operation.read` turns what a caller sent, however it came,
into a command, so that the rules for values are the same on every surface.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from leaseplane.dids import DID_PATTERN, check_actor
from leaseplane.limits import (
    ACTOR_DID_BYTES_MAX,
    INSTANCE_CHARS_MAX,
    LEASE_ID_CHARS_MAX,
    NOTE_CHARS_MAX,
    PARK_MS_MAX,
    REASON_CHARS_MAX,
    RESOURCE_BYTES_MAX,
)
from leaseplane.model import (
    Access,
    AccessFixed,
    Acquire,
    Break,
    Broken,
    Command,
    Deadlock,
    Granted,
    Held,
    IdempotencyMismatch,
    Listed,
    ListWaits,
    NotHeld,
    NotHolder,
    Outcome,
    ReadTrust,
    Release,
    Released,
    StaleLease,
    TooMany,
    TrustShown,
    Withdraw,
    Withdrawn,
)
from leaseplane.resources import (
    NAME_PATTERN,
    RESOURCE_PATTERN,
    TEXT_PATTERN,
    check_instance,
    check_lease_id,
    check_note,
    check_reason,
    check_resource,
)

MemberSource: TypeAlias = Literal["body", "query", "query or body"]
ReceiptOp: TypeAlias = Literal["coordination.lease", "coordination.release", "coordination.wait"]


class RequestRefused(ValueError):
    """What a caller sent is no request; answered as `invalid_request`, with `field` where one is at fault."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


# -- what a request holds ----------------------------------------------------------------------

Resource = Annotated[
    str,
    Meta(
        min_length=1,
        description=f"The name of what is leased: `scheme:rest` or a plain name, 1 to {RESOURCE_BYTES_MAX} "
        "bytes of UTF-8, compared byte by byte.",
        examples=["lock:deploy/production"],
        extra_json_schema={"maxLength": RESOURCE_BYTES_MAX, "pattern": RESOURCE_PATTERN},
    ),
]
ActorDid = Annotated[
    str,
    Meta(
        min_length=1,
        description=f"The agent that asks: a DID of at most {ACTOR_DID_BYTES_MAX} bytes.",
        examples=["did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"],
        extra_json_schema={"maxLength": ACTOR_DID_BYTES_MAX, "pattern": DID_PATTERN},
    ),
]
Instance = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=INSTANCE_CHARS_MAX,
        description="Which part of the agent asks. Keeps two processes of one agent apart. "
        "Absent: the agent as a whole.",
        examples=["ci.1"],
        extra_json_schema={"pattern": NAME_PATTERN},
    ),
]
WantedAccess = Annotated[
    Access,
    Meta(
        description="What the lease is for. A new lease without it is a `write`; asking again without it "
        "keeps the mode."
    ),
]
MaxWaitMs = Annotated[
    int,
    Meta(
        ge=0,
        le=PARK_MS_MAX,
        description="Keep the request open for up to this many milliseconds, instead of refusing it at once.",
        examples=[60_000],
    ),
]
LeaseId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=LEASE_ID_CHARS_MAX,
        description="The id of the lease that is meant, as its grant told it.",
        extra_json_schema={"pattern": TEXT_PATTERN},
    ),
]
Note = Annotated[
    str,
    Meta(
        max_length=NOTE_CHARS_MAX,
        description="What the lease is for; shown to those who wait and in the console.",
        examples=["rolling out 4.2"],
        extra_json_schema={"pattern": TEXT_PATTERN},
    ),
]
Reason = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=REASON_CHARS_MAX,
        description="Why the operator ends the lease; kept in the ledger.",
        examples=["agent is stuck"],
        extra_json_schema={"pattern": TEXT_PATTERN},
    ),
]


class LeaseRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """Ask for an exclusive lease, or renew the one that the asker holds already."""

    resource: Resource
    actor_did: ActorDid
    instance: Instance | UnsetType = UNSET
    access: WantedAccess | UnsetType = UNSET
    max_wait_ms: MaxWaitMs | UnsetType = UNSET
    lease_id: LeaseId | UnsetType = UNSET
    note: Note | UnsetType = UNSET
    ttl_ms: Annotated[
        Any,
        Meta(description="Accepted, whatever it holds, and changes nothing: a lease runs the standard term."),
    ] = UNSET

    def command(self) -> Acquire:
        check_resource(self.resource)
        check_actor(self.actor_did)
        instance, access, lease_id, note = self.instance, self.access, self.lease_id, self.note
        if instance is not UNSET:
            check_instance(instance)
        if lease_id is not UNSET:
            check_lease_id(lease_id)
        if note is not UNSET:
            check_note(note)
        return Acquire(
            self.resource,
            self.actor_did,
            "" if instance is UNSET else instance,
            None if access is UNSET else access,
            0 if self.max_wait_ms is UNSET else self.max_wait_ms,
            None if lease_id is UNSET else lease_id,
            None if note is UNSET else note or None,
        )


class ReleaseRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """Let go of a lease that the caller holds."""

    resource: Resource
    actor_did: ActorDid
    instance: Instance | UnsetType = UNSET
    lease_id: LeaseId | UnsetType = UNSET

    def command(self) -> Release:
        check_resource(self.resource)
        check_actor(self.actor_did)
        if self.instance is not UNSET:
            check_instance(self.instance)
        if self.lease_id is not UNSET:
            check_lease_id(self.lease_id)
        return Release(
            self.resource,
            self.actor_did,
            None if self.instance is UNSET else self.instance,
            None if self.lease_id is UNSET else self.lease_id,
        )


class WaitRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """Show the queue of waiting agents, narrowed to one resource, to one agent, or to both."""

    resource: Resource | UnsetType = UNSET
    actor_did: ActorDid | UnsetType = UNSET

    def command(self) -> ListWaits:
        if self.resource is not UNSET:
            check_resource(self.resource)
        if self.actor_did is not UNSET:
            check_actor(self.actor_did)
        return ListWaits(
            None if self.resource is UNSET else self.resource,
            None if self.actor_did is UNSET else self.actor_did,
        )


class WithdrawRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """Give up one's place in the queue of a resource."""

    resource: Resource
    actor_did: ActorDid
    instance: Instance | UnsetType = UNSET

    def command(self) -> Withdraw:
        check_resource(self.resource)
        check_actor(self.actor_did)
        if self.instance is not UNSET:
            check_instance(self.instance)
        return Withdraw(self.resource, self.actor_did, "" if self.instance is UNSET else self.instance)


class TrustRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """Read what leases have done to one agent's standing."""

    actor_did: ActorDid

    def command(self) -> ReadTrust:
        check_actor(self.actor_did)
        return ReadTrust(self.actor_did)


class BreakRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """End a lease as the operator, or without `leaseId` every lease of the resource."""

    resource: Resource
    reason: Reason
    lease_id: LeaseId | UnsetType = UNSET

    def command(self) -> Break:
        check_resource(self.resource)
        check_reason(self.reason)
        if self.lease_id is not UNSET:
            check_lease_id(self.lease_id)
        return Break(self.resource, self.reason, None if self.lease_id is UNSET else self.lease_id)


Request: TypeAlias = (
    LeaseRequest | ReleaseRequest | WaitRequest | WithdrawRequest | TrustRequest | BreakRequest
)


# -- the rows ----------------------------------------------------------------------------------


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a caller can ask for."""

    name: str
    method: Literal["GET", "POST", "DELETE"]
    path: str
    request: type[Request]
    command: type
    outcomes: tuple[type[Outcome], ...]
    source: MemberSource
    """Where its members come from."""
    read_only: bool
    keyed: bool
    """Whether an Idempotency-Key makes a repeat answer what the first one answered."""
    receipt_op: ReceiptOp | None
    """What its receipts call it, or None: its answers carry none."""
    tool: str
    """Its dotted name where it is no HTTP request: the path in the receipts of an embedded plane."""
    sentence: str

    def read(self, members: Mapping[str, object]) -> Command:
        """Turn the members that a caller sent into a checked command.

        Unknown members are ignored. Raises `RequestRefused` where a known one is missing, of another
        type (a boolean is no number, and null is of no type here) or out of its range, and
        `resources.NameRefused` where a name breaks its grammar.
        """
        # Only the known ones are shown to msgspec, which fails on a name with half of a surrogate pair.
        known = {name: members[name] for name in self.request.__struct_encode_fields__ if name in members}
        try:
            request = msgspec.convert(known, self.request)
        except msgspec.ValidationError as refusal:
            raise _refused(self, members, str(refusal)) from None
        return request.command()


LEASE: Final = Operation(
    name="coordination.lease",
    method="POST",
    path="/api/v1/acp/coordination/lease",
    request=LeaseRequest,
    command=Acquire,
    outcomes=(Granted, Held, Deadlock, StaleLease, TooMany, IdempotencyMismatch, AccessFixed),
    source="body",
    read_only=False,
    keyed=True,
    receipt_op="coordination.lease",
    tool="coordination.lease.acquire",
    sentence="Ask for an exclusive lease, or renew the one held already.",
)
RELEASE: Final = Operation(
    name="coordination.release",
    method="POST",
    path="/api/v1/acp/coordination/release",
    request=ReleaseRequest,
    command=Release,
    outcomes=(Released, NotHeld, NotHolder, StaleLease, TooMany, IdempotencyMismatch),
    source="body",
    read_only=False,
    keyed=True,
    receipt_op="coordination.release",
    tool="coordination.lease.release",
    sentence="Let go of a lease that the caller holds.",
)
WAIT: Final = Operation(
    name="coordination.wait",
    method="GET",
    path="/api/v1/acp/coordination/wait",
    request=WaitRequest,
    command=ListWaits,
    outcomes=(Listed,),
    source="query",
    read_only=True,
    keyed=False,
    receipt_op="coordination.wait",
    tool="coordination.wait",
    sentence="Show the queue of waiting agents and the deadlock pairs.",
)
WITHDRAW: Final = Operation(
    name="coordination.withdraw",
    method="DELETE",
    path="/api/v1/acp/coordination/wait",
    request=WithdrawRequest,
    command=Withdraw,
    outcomes=(Withdrawn,),
    source="query or body",
    read_only=False,
    keyed=False,
    receipt_op=None,
    tool="coordination.withdraw",
    sentence="Give up a wait; its parked requests are answered `lease_held`.",
)
TRUST: Final = Operation(
    name="trust",
    method="GET",
    path="/api/v1/acp/trust",
    request=TrustRequest,
    command=ReadTrust,
    outcomes=(TrustShown,),
    source="query",
    read_only=True,
    keyed=False,
    receipt_op=None,
    tool="trust",
    sentence="Read one agent's trust score, and how many of its leases were released and ran out.",
)
BREAK: Final = Operation(
    name="coordination.break",
    method="POST",
    path="/api/v1/acp/coordination/break",
    request=BreakRequest,
    command=Break,
    outcomes=(Broken, NotHeld, StaleLease, TooMany, IdempotencyMismatch),
    source="body",
    read_only=False,
    keyed=True,
    receipt_op=None,
    tool="coordination.break",
    sentence="End a lease as the operator: named in the ledger, no trust moves.",
)

OPERATIONS: Final = (LEASE, RELEASE, WAIT, WITHDRAW, TRUST, BREAK)


# -- saying what is wrong with a request -------------------------------------------------------

_MISSING: Final = r"missing required field `(\w+)`"
_AT_FAULT: Final = r"at `\$\.(\w+)`"

ACCEPTED: Final = {
    "resource": f"a string of 1 to {RESOURCE_BYTES_MAX} bytes",
    "actorDid": f"a string, a DID of at most {ACTOR_DID_BYTES_MAX} bytes",
    "instance": f"a string of 1 to {INSTANCE_CHARS_MAX} characters",
    "access": 'one of "read", "write" and "delete"',
    "maxWaitMs": f"a whole number of milliseconds from 0 to {PARK_MS_MAX}",
    "leaseId": f"a string of 1 to {LEASE_ID_CHARS_MAX} characters",
    "note": f"a string of at most {NOTE_CHARS_MAX} characters",
    "reason": f"a string of 1 to {REASON_CHARS_MAX} characters",
    "ttlMs": "anything",
}
"""What each member may hold, for the refusals and for the reference page."""


def _refused(operation: Operation, members: Mapping[str, object], complaint: str) -> RequestRefused:
    missing = re.search(_MISSING, complaint)
    if missing is not None:
        field = missing[1]
        return RequestRefused(f"{field} is missing: send {ACCEPTED[field]}.", field)
    at_fault = re.search(_AT_FAULT, complaint)
    assert at_fault is not None, f"msgspec names the member at fault: {operation.name}"
    field = at_fault[1]
    if members[field] is None:
        return RequestRefused(f"{field} is null: send {ACCEPTED[field]}, or leave the member out.", field)
    return RequestRefused(f"{field} has to be {ACCEPTED[field]}.", field)
