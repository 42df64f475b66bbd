"""What a store promises to the engine, and the rows that pass between them.

A store knows rows, not rules. Inside one transaction it answers the reads of `Rows` and takes one
`Changes`; everything in it stands or falls together. The engine may decide the same asks again on
another transaction, so nothing decided is shown to anyone before the commit is known to stand.
"""

from collections.abc import Collection, Iterable
from typing import Protocol

import msgspec

from leaseplane.model import (
    Holder,
    IdempotencyScope,
    Lease,
    Node,
    Reply,
    Trust,
    Wait,
)

Place = tuple[str, str]
"""(workspace, resource)"""


class StoredRoom(msgspec.Struct, frozen=True, gc=False):
    """All that is stored of one resource. `alarm_boot_ms` is never later than its earliest end."""

    leases: tuple[Lease, ...] = ()
    waits: tuple[Wait, ...] = ()
    alarm_boot_ms: int | None = None


class RoomRow(msgspec.Struct, frozen=True, gc=False):
    alarm_boot_ms: int
    queued: bool


class Counts(msgspec.Struct, frozen=True, gc=False):
    """How much one workspace holds of what is bounded."""

    leases: int = 0
    waits: int = 0
    parked: int = 0
    idempotency: int = 0


class DeadlockPair(msgspec.Struct, frozen=True, gc=False):
    """One refusal as `deadlock` that may still be listed."""

    asker: Holder
    resource: str
    holder: Holder
    waiting_on: str
    at_wall_ms: int
    until_boot_ms: int
    seq: int
    """The order of the refusals, counted with that of first asking."""


class IdempotencyRecord(msgspec.Struct, frozen=True, gc=False):
    """What a first request under an Idempotency-Key asked, and its reply once it has one."""

    body_digest: str
    expires_boot_ms: int
    reply: Reply | None = None
    resource: str = ""
    holder: Holder | None = None
    """While there is no reply: the place where the first request is parked."""


class Event(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One row of the ledger's outbox: something that the plane granted, ended or refused as deadlock."""

    kind: str
    workspace: str
    resource: str
    actor: str
    at_wall_ms: int
    instance: str = ""
    lease_id: str | None = None
    fence: int | None = None
    access: str | None = None
    jti: str | None = None
    reason: str | None = None
    note: str | None = None


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """The reply to a parked request, on its way to the process that keeps it open."""

    request_id: str
    process_id: str
    workspace: str
    resource: str
    reply: Reply


class Changes:
    """What one transaction writes. A None is a removal."""

    __slots__ = (
        "counts",
        "deadlocks",
        "deliveries",
        "events",
        "idempotency",
        "last_fence",
        "last_seq",
        "leases",
        "rooms",
        "trust",
        "waits",
    )

    def __init__(self) -> None:
        self.leases: dict[tuple[str, str, Holder], Lease | None] = {}
        self.waits: dict[tuple[str, str, Holder], Wait | None] = {}
        self.rooms: dict[Place, RoomRow | None] = {}
        self.trust: dict[tuple[str, str], Trust] = {}
        self.counts: dict[str, Counts] = {}
        self.deadlocks: dict[tuple[str, Holder, str], DeadlockPair | None] = {}
        self.idempotency: dict[tuple[str, IdempotencyScope], IdempotencyRecord | None] = {}
        self.events: list[Event] = []
        self.deliveries: list[Delivery] = []
        self.last_fence: int | None = None
        self.last_seq: int | None = None

    def __bool__(self) -> bool:
        return bool(
            self.leases
            or self.waits
            or self.rooms
            or self.trust
            or self.counts
            or self.deadlocks
            or self.idempotency
            or self.events
            or self.deliveries
            or self.last_fence is not None
            or self.last_seq is not None
        )


class Rows(Protocol):
    """The reads and the one write of an open transaction. Reads see what `apply` has taken."""

    def room(self, workspace: str, resource: str) -> StoredRoom: ...

    def resources_waited_for(self, workspace: str, node: Node) -> Iterable[str]:
        """The resources that any instance of this node has a place in the queue of."""
        ...

    def queued_resources(self, workspace: str) -> Iterable[str]:
        """The resources of a workspace that have a queue."""
        ...

    def trust(self, workspace: str, actor: str) -> Trust | None: ...

    def counts(self, workspace: str) -> Counts: ...

    def deadlocks(self, workspace: str) -> Iterable[DeadlockPair]:
        """In any order."""
        ...

    def idempotency(self, workspace: str, scope: IdempotencyScope) -> IdempotencyRecord | None: ...

    def idempotency_expired(self, boot_ms: int, most: int) -> Iterable[tuple[str, IdempotencyScope]]: ...

    def due(self, boot_ms: int, most: int) -> list[Place]:
        """The resources whose alarm is due at this time, earliest first."""
        ...

    def places_kept_open_by(self, process_ids: Collection[str]) -> list[Place]:
        """Where these processes keep parked requests, or were handed a lease that is not marked yet."""
        ...

    def last_fence(self) -> int: ...

    def last_seq(self) -> int: ...

    def apply(self, changes: Changes) -> None: ...
