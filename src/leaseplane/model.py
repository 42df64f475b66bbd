"""The nouns of the plane: who asks, what is asked, what is held, and what is answered.

Everything here is a frozen value. One type per outcome: a refusal is a value like a grant, and
nothing that cannot be said of an outcome can be written into it. Times named `…_boot_ms` are
milliseconds of the machine's boot clock, which decides; times named `…_wall_ms` are milliseconds
since 1970 UTC, which only inform.

`gc=False`: frozen values made of frozen values form no cycle, so the garbage collector, which would
look at each of them again and again, need not know of any.
"""

from typing import Literal, TypeAlias

import msgspec

Access: TypeAlias = Literal["read", "write", "delete"]
Auth: TypeAlias = Literal["http-signature", "api-key-bound", "api-key", "test-key", "local"]


class Moment(msgspec.Struct, frozen=True, gc=False):
    """One instant on both clocks. The boot clock decides, the wall clock is shown."""

    boot_ms: int
    wall_ms: int


# -- who asks ----------------------------------------------------------------------------------


class Principal(msgspec.Struct, frozen=True, gc=False):
    """An authenticated caller: its workspace, how it was known, and whom it may name."""

    workspace: str
    auth: Auth
    credential: str
    """Which credential was shown; scopes idempotency keys. Never the secret itself."""
    actor: str | None = None
    """The only DID it may name, or None: any of its workspace."""
    operator: bool = False


class Holder(msgspec.Struct, frozen=True, gc=False, order=True):
    """Who holds or waits: an agent's DID and which part of it."""

    actor: str
    instance: str = ""

    @property
    def node(self) -> "Node":
        """The wait graph's node: instances that share the part before the first dot wait as one."""
        return Node(self.actor, self.instance.partition(".")[0])


class Node(msgspec.Struct, frozen=True, gc=False, order=True):
    """One node of the wait graph: a DID and the part of the instance before its first dot."""

    actor: str
    root: str = ""


# -- what is held, who waits -------------------------------------------------------------------


class Lease(msgspec.Struct, frozen=True, gc=False):
    """One holding of one resource, as stored."""

    workspace: str
    resource: str
    lease_id: str
    holder: Holder
    access: Access
    fence: int
    granted_wall_ms: int
    granted_boot_ms: int
    ends_boot_ms: int
    ends_wall_ms: int
    note: str | None = None
    handed: "tuple[Parked, ...]" = ()
    """The parked requests that this lease was handed to, as long as no answer is marked as leaving.
    Empty: it reached its holder, or was never handed over."""
    gone: tuple[str, ...] = ()
    """Those of them, by their ids, whose callers are gone."""
    upgraded_from: "Lease | None" = None
    """The read lease that an unmarked upgrade replaced, given back if the hand-over is undone."""


class Parked(msgspec.Struct, frozen=True, gc=False):
    """One request kept open for a place in a queue."""

    request_id: str
    process_id: str
    """The process that keeps the connection; proven dead by a lock that the kernel frees."""
    until_boot_ms: int
    jti: str
    """The id of the receipt that its answer will carry. Repeats under one Idempotency-Key share it."""
    access: Access = "write"
    """What it asks for; its place has the strongest of all that are parked there."""
    idempotency: "IdempotencyScope | None" = None


class Wait(msgspec.Struct, frozen=True, gc=False):
    """One live place in the queue of one resource."""

    workspace: str
    resource: str
    waiter: Holder
    access: Access
    """The strongest of its last ask and of what its parked requests ask for."""
    asked_access: Access
    """What its last ask was for."""
    seq: int
    """The order of first asking, over the whole plane."""
    since_wall_ms: int
    asked_wall_ms: int
    asked_boot_ms: int
    """When it last asked."""
    chance_boot_ms: int
    """Until when a poller obeying the longest wait it was told may come back and still find its turn."""
    note: str | None = None
    edge: bool = True
    """False once a grant elsewhere closed a cycle through this wait: no edge until it asks again."""
    parked: tuple[Parked, ...] = ()


class Trust(msgspec.Struct, frozen=True, gc=False):
    """What leases have done to one agent's standing. Half points: 101 is a score of 50.5."""

    halves: int
    released: int = 0
    expired: int = 0


# -- what is asked -----------------------------------------------------------------------------


class Acquire(msgspec.Struct, frozen=True, gc=False):
    """Ask for a lease, or, if the asker holds one already, for its renewal."""

    resource: str
    actor: str
    instance: str = ""
    access: Access | None = None
    max_wait_ms: int = 0
    lease_id: str | None = None
    note: str | None = None


class Release(msgspec.Struct, frozen=True, gc=False):
    """Let go of a lease that the caller holds."""

    resource: str
    actor: str
    instance: str | None = None
    lease_id: str | None = None


class ListWaits(msgspec.Struct, frozen=True, gc=False):
    """Show the queue and the deadlock pairs of the workspace, narrowed where a name is given."""

    resource: str | None = None
    actor: str | None = None


class Withdraw(msgspec.Struct, frozen=True, gc=False):
    """Give up a wait."""

    resource: str
    actor: str
    instance: str = ""


class ReadTrust(msgspec.Struct, frozen=True, gc=False):
    """Read one agent's trust score."""

    actor: str


class Break(msgspec.Struct, frozen=True, gc=False):
    """An operator ends a lease, or with no `lease_id` all leases of the resource. No trust moves."""

    resource: str
    reason: str
    lease_id: str | None = None


Command: TypeAlias = Acquire | Release | ListWaits | Withdraw | ReadTrust | Break


class RequestFacts(msgspec.Struct, frozen=True, gc=False):
    """What a receipt says of the request: its method, its path without the query, its body's SHA-256."""

    method: str
    path: str
    digest: str


class IdempotencyScope(msgspec.Struct, frozen=True, gc=False):
    """Where one Idempotency-Key counts: one credential, one actor, one path."""

    credential: str
    actor: str
    path: str
    key: str


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One command on its way to the authority, with everything that is not the rules' to invent."""

    principal: Principal
    command: Command
    jti: str
    """Fresh and random: the id of the receipt, of the ledger event, and the source of all jitter."""
    request_id: str
    """Fresh: names this request while it is parked. Its receipt's id may be shared by a repeat."""
    process_id: str
    request: RequestFacts
    idempotency_key: str | None = None


# -- what is answered --------------------------------------------------------------------------


class LeaseView(msgspec.Struct, frozen=True, gc=False):
    """A lease as it is told to its holder."""

    lease_id: str
    resource: str
    holder: Holder
    granted_wall_ms: int
    expires_wall_ms: int
    ttl_ms: int
    fence: int
    access: Access
    note: str | None = None


class Granted(msgspec.Struct, frozen=True, gc=False, tag="granted"):
    """A new lease (`renewed` false), or the one held already with a new end (`renewed` true)."""

    lease: LeaseView
    renewed: bool = False
    waiting: int = 0
    """How many wait for it; told on renewal."""


class Stampede(msgspec.Struct, frozen=True, gc=False):
    admitted: tuple[str, ...]
    wait_ms: int


class Held(msgspec.Struct, frozen=True, gc=False, tag="lease_held"):
    """Refused: someone else holds it, or stands ahead. `holder` is None where nobody holds it any more."""

    resource: str
    holder: Holder | None
    note: str | None
    expires_wall_ms: int | None
    held_since_wall_ms: int | None
    holders: tuple[Holder, ...]
    """All holders, in order of beginning; told where there are several."""
    stampede: Stampede
    position: int
    retry_after_ms: int


class CycleEdge(msgspec.Struct, frozen=True, gc=False):
    actor: str
    waits_for: str
    held_by: str


class Deadlock(msgspec.Struct, frozen=True, gc=False, tag="deadlock"):
    """Refused: the wait would close a cycle through the asker."""

    resource: str
    holder: Holder
    """Who holds what was asked for, and is on the cycle."""
    waiting_on: str
    """The resource that this holder itself is waiting on."""
    cycle: tuple[CycleEdge, ...]


class StaleLease(msgspec.Struct, frozen=True, gc=False, tag="stale_lease"):
    """Refused: the named lease is not the caller's current one."""

    resource: str


class NotHolder(msgspec.Struct, frozen=True, gc=False, tag="not_holder"):
    """Refused: another agent or instance holds it."""

    resource: str
    holder: Holder


class NotHeld(msgspec.Struct, frozen=True, gc=False, tag="not_held"):
    """Refused: nobody holds it."""

    resource: str


class Released(msgspec.Struct, frozen=True, gc=False, tag="released"):
    lease_id: str
    resource: str
    holder: Holder
    fence: int
    trust_halves: int
    granted_wall_ms: int
    expires_wall_ms: int


class WaitView(msgspec.Struct, frozen=True, gc=False):
    resource: str
    waiter: Holder
    holder: Holder | None
    position: int
    since_wall_ms: int
    asked_wall_ms: int
    parked: bool


class DeadlockView(msgspec.Struct, frozen=True, gc=False):
    asker: Holder
    resource: str
    holder: Holder
    waiting_on: str
    at_wall_ms: int


class Listed(msgspec.Struct, frozen=True, gc=False, tag="listed"):
    waiting: tuple[WaitView, ...]
    deadlocks: tuple[DeadlockView, ...]


class Withdrawn(msgspec.Struct, frozen=True, gc=False, tag="withdrawn"):
    """The wait is over; `existed` says whether there was one."""

    existed: bool


class TrustShown(msgspec.Struct, frozen=True, gc=False, tag="trust"):
    actor: str
    trust: Trust


class Broken(msgspec.Struct, frozen=True, gc=False, tag="broken"):
    resource: str
    leases: tuple[LeaseView, ...]
    reason: str


class TooMany(msgspec.Struct, frozen=True, gc=False, tag="too_many"):
    """Refused: a bound of the workspace is reached. Nothing was granted and no place taken."""

    bound: str
    limit: int


class IdempotencyMismatch(msgspec.Struct, frozen=True, gc=False, tag="idempotency_mismatch"):
    """Refused as invalid_request: the same key came with another body."""


class AccessFixed(msgspec.Struct, frozen=True, gc=False, tag="access_fixed"):
    """Refused as invalid_request: a renewal by leaseId cannot turn a read lease into another."""


Outcome: TypeAlias = (
    Granted
    | Held
    | Deadlock
    | StaleLease
    | NotHolder
    | NotHeld
    | Released
    | Listed
    | Withdrawn
    | TrustShown
    | Broken
    | TooMany
    | IdempotencyMismatch
    | AccessFixed
)


class Reply(msgspec.Struct, frozen=True, gc=False):
    """An outcome together with what its receipt will say of itself."""

    outcome: Outcome
    jti: str
    iat_s: int


class Pending(msgspec.Struct, frozen=True, gc=False):
    """The request is parked: its reply comes when its place does."""

    request_id: str
    workspace: str
    resource: str
    holder: Holder
    until_boot_ms: int


# -- failures ----------------------------------------------------------------------------------


class AuthorityUnavailable(Exception):
    """The authority could not be reached. Nothing was granted, nothing was changed."""


class OutcomeUnknown(Exception):
    """The decision may or may not stand: repeat with the same Idempotency-Key to learn which."""
