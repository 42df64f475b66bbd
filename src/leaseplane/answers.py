"""Answers: how every outcome reads on the wire.

`render` turns an outcome into its status and its body. The body is written by `encode_answer`, so
that its bytes already are the canonical form (RFC 8785) that receipts digest; the same
outcome always gives the same bytes, which is why every time in a message comes from the outcome and
none from a clock. Whoever answers puts the member `receipt` in afterwards.

`refuse` writes the errors that no outcome stands for: those of the surface, of identity, and of an
authority that cannot be reached.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from leaseplane.bodies import (
    STATUS_OF,
    BrokenBody,
    CycleEdgeBody,
    DeadlockBody,
    DeadlockPairBody,
    ErrorBody,
    ErrorCode,
    GrantedBody,
    HeldBody,
    LeaseBody,
    ListedBody,
    NotHeldBody,
    NotHolderBody,
    ReleasedBody,
    ReleasedLeaseBody,
    StaleLeaseBody,
    StampedeBody,
    TrustBody,
    WaitBody,
    WithdrawnBody,
)
from leaseplane.model import (
    AccessFixed,
    Broken,
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
    TooMany,
    TrustShown,
    WaitView,
    Withdrawn,
)
from leaseplane.receipts.canonical import encode_answer


class Rendered(msgspec.Struct, frozen=True, gc=False):
    """A status and a body, complete but for its receipt; `retry_after_s` goes into the Retry-After header."""

    status: int
    body_without_receipt: bytes
    retry_after_s: int | None = None


# -- values ------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _second_text(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")


# What is decided in one transaction has one time, and its receipts tell it once more.
@lru_cache(maxsize=256)
def time_text(wall_ms: int) -> str:
    """An instant as the contract writes it: RFC 3339, UTC, with milliseconds."""
    second, ms = divmod(wall_ms, 1000)
    return f"{_second_text(second)}{ms:03d}Z"


def score_of(halves: int) -> int | float:
    """A trust score: a whole number where it is one, so that its JSON is canonical as it stands."""
    return halves >> 1 if halves & 1 == 0 else halves / 2


def _ordinal(position: int) -> str:
    if position % 100 in (11, 12, 13):
        return f"{position}th"
    return f"{position}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(position % 10, 'th') }"


def _name(holder: Holder) -> str:
    return f"{holder.actor} (instance {holder.instance})" if holder.instance else holder.actor


def _lease_body(lease: LeaseView, renewed: bool | UnsetType) -> LeaseBody:
    return LeaseBody(
        lease_id=lease.lease_id,
        resource=lease.resource,
        holder=lease.holder.actor,
        granted_at=time_text(lease.granted_wall_ms),
        expires_at=time_text(lease.expires_wall_ms),
        ttl_ms=lease.ttl_ms,
        fence=lease.fence,
        renewed=renewed,
        access=lease.access,
        instance=lease.holder.instance or UNSET,
        note=lease.note or UNSET,
    )


# -- one function per outcome ------------------------------------------------------------------


def _granted(outcome: Granted) -> Rendered:
    if outcome.renewed:
        body = GrantedBody(lease=_lease_body(outcome.lease, True), renewed=True, waiting=outcome.waiting)
    else:
        body = GrantedBody(lease=_lease_body(outcome.lease, False))
    return Rendered(200, encode_answer(body))


def _held(outcome: Held) -> Rendered:
    holder, note, expires_at = outcome.holder, outcome.note, outcome.expires_wall_ms
    ends = UNSET if expires_at is None else time_text(expires_at)
    since = outcome.held_since_wall_ms
    again = f"Ask again in {outcome.retry_after_ms} ms, or send maxWaitMs to be kept in line"
    if holder is None:
        message = f"Nobody holds {outcome.resource} now, and this wait for it is over. {again}."
    else:
        held_by = _name(holder)
        if note:
            held_by = f"{held_by} for “{note}”"
        if len(outcome.holders) > 1:
            held_by = f"{held_by} and {len(outcome.holders) - 1} more"
        if since is not None:
            held_by = f"{held_by} since {time_text(since)}"
        if ends is not UNSET:
            held_by = f"{held_by}; the lease ends at {ends} unless it is renewed"
        message = (
            f"{outcome.resource} is held by {held_by}. You are {_ordinal(outcome.position)} in line. {again}."
        )
    body = HeldBody(
        message=message,
        holder=UNSET if holder is None else holder.actor,
        instance=UNSET if holder is None else holder.instance or UNSET,
        note=note or UNSET,
        holders=tuple(each.actor for each in outcome.holders) if len(outcome.holders) > 1 else UNSET,
        held_since=UNSET if since is None else time_text(since),
        expires_at=ends,
        stampede=StampedeBody(admitted=outcome.stampede.admitted, wait_ms=outcome.stampede.wait_ms),
        position=outcome.position,
        retry_after_ms=outcome.retry_after_ms,
    )
    return Rendered(409, encode_answer(body), _whole_seconds(outcome.retry_after_ms))


def _whole_seconds(ms: int) -> int:
    # Retry-After knows whole seconds only (RFC 9110, 10.2.3); 0 would invite a busy loop.
    return max(1, -(-ms // 1000))


_EDGES_TOLD_MAX: Final = 8
"""A longer cycle is spelled out in `cycle`; its message names the beginning."""


def _deadlock(outcome: Deadlock) -> Rendered:
    body = DeadlockBody(
        message=_ways_out(outcome),
        holder=outcome.holder.actor,
        instance=outcome.holder.instance or UNSET,
        waiting_on=outcome.waiting_on,
        cycle=tuple(
            CycleEdgeBody(actor_did=edge.actor, waits_for=edge.waits_for, held_by=edge.held_by)
            for edge in outcome.cycle
        ),
    )
    return Rendered(409, encode_answer(body))


def _ways_out(outcome: Deadlock) -> str:
    ways = "; ".join(f"{edge.held_by} releases {edge.waits_for}" for edge in outcome.cycle[:_EDGES_TOLD_MAX])
    if len(outcome.cycle) > _EDGES_TOLD_MAX:
        ways = f"{ways}; or one of {len(outcome.cycle) - _EDGES_TOLD_MAX} more does alike, see cycle"
    return (
        f"Waiting for {outcome.resource} would never end: {_name(outcome.holder)} holds it and itself waits "
        f"on {outcome.waiting_on}, around to you. Any one of these ends it: {ways}; or one that waits gives "
        "up its wait (DELETE /api/v1/acp/coordination/wait). You are not in the queue: let go of what you "
        "hold of this cycle and ask again, or do other work first."
    )


def _stale_lease(outcome: StaleLease) -> Rendered:
    message = (
        f"That leaseId is not your current lease of {outcome.resource}: it ended, or was never yours. "
        "Nothing was changed. Stop acting under it, and ask without leaseId for a new lease."
    )
    return Rendered(409, encode_answer(StaleLeaseBody(message=message)))


def _not_holder(outcome: NotHolder) -> Rendered:
    message = (
        f"{outcome.resource} is held by {_name(outcome.holder)}, not by you. Nothing was released. Only its "
        "holder can let go of it: name the instance that holds it, or the leaseId of its grant."
    )
    body = NotHolderBody(
        message=message, holder=outcome.holder.actor, instance=outcome.holder.instance or UNSET
    )
    return Rendered(409, encode_answer(body))


def _not_held(outcome: NotHeld) -> Rendered:
    message = (
        f"Nobody holds {outcome.resource}: it was released already, or the lease ran out. There is nothing "
        "to let go of; if you were still working on it, stop, and ask for a new lease."
    )
    return Rendered(409, encode_answer(NotHeldBody(message=message)))


def _released(outcome: Released) -> Rendered:
    body = ReleasedBody(
        released=ReleasedLeaseBody(
            lease_id=outcome.lease_id,
            resource=outcome.resource,
            holder=outcome.holder.actor,
            fence=outcome.fence,
            instance=outcome.holder.instance or UNSET,
        ),
        trust=score_of(outcome.trust_halves),
    )
    return Rendered(200, encode_answer(body))


def _listed(outcome: Listed) -> Rendered:
    body = ListedBody(
        waiting=tuple(_wait_body(wait) for wait in outcome.waiting),
        deadlocks=tuple(_pair_body(pair) for pair in outcome.deadlocks),
    )
    return Rendered(200, encode_answer(body))


def _wait_body(wait: WaitView) -> WaitBody:
    return WaitBody(
        resource=wait.resource,
        actor_did=wait.waiter.actor,
        instance=wait.waiter.instance or UNSET,
        holder=UNSET if wait.holder is None else wait.holder.actor,
        position=wait.position,
        since=time_text(wait.since_wall_ms),
        last_asked_at=time_text(wait.asked_wall_ms),
        parked=wait.parked,
    )


def _pair_body(pair: DeadlockView) -> DeadlockPairBody:
    return DeadlockPairBody(
        actor_did=pair.asker.actor,
        instance=pair.asker.instance or UNSET,
        resource=pair.resource,
        holder=pair.holder.actor,
        waiting_on=pair.waiting_on,
        at=time_text(pair.at_wall_ms),
    )


def _withdrawn(outcome: Withdrawn) -> Rendered:
    return Rendered(200, encode_answer(WithdrawnBody(withdrawn=outcome.existed)))


def _trust(outcome: TrustShown) -> Rendered:
    trust = outcome.trust
    body = TrustBody(
        actor_did=outcome.actor,
        score=score_of(trust.halves),
        released=trust.released,
        expired=trust.expired,
    )
    return Rendered(200, encode_answer(body))


def _broken(outcome: Broken) -> Rendered:
    body = BrokenBody(
        resource=outcome.resource,
        reason=outcome.reason,
        broken=tuple(_lease_body(lease, UNSET) for lease in outcome.leases),
    )
    return Rendered(200, encode_answer(body))


def _too_many(outcome: TooMany) -> Rendered:
    return refuse(
        "too_many",
        f"This workspace has reached its bound of {outcome.limit} {outcome.bound}. Nothing was granted and "
        "no place in a queue was taken. Release or withdraw what is not needed, and ask again later.",
        bound=outcome.bound,
        limit=outcome.limit,
        retry_after_s=1,
    )


def _idempotency_mismatch(outcome: IdempotencyMismatch) -> Rendered:
    return refuse(
        "invalid_request",
        "This Idempotency-Key came with another body before. Nothing was done: send the body of the first "
        "request again, or a new key.",
        field="Idempotency-Key",
    )


def _access_fixed(outcome: AccessFixed) -> Rendered:
    return refuse(
        "invalid_request",
        "A renewal by leaseId keeps the access that was granted. Leave access out to renew, or ask without "
        "leaseId to go from read to write.",
        field="access",
    )


_RENDER: Final[dict[type, Callable[[Any], Rendered]]] = {
    Granted: _granted,
    Held: _held,
    Deadlock: _deadlock,
    StaleLease: _stale_lease,
    NotHolder: _not_holder,
    NotHeld: _not_held,
    Released: _released,
    Listed: _listed,
    Withdrawn: _withdrawn,
    TrustShown: _trust,
    Broken: _broken,
    TooMany: _too_many,
    IdempotencyMismatch: _idempotency_mismatch,
    AccessFixed: _access_fixed,
}


def render(outcome: Outcome) -> Rendered:
    """The status and body of an outcome. The same outcome always renders to the same bytes."""
    return _RENDER[type(outcome)](outcome)


def refuse(
    code: ErrorCode,
    message: str,
    *,
    field: str | None = None,
    quota: str | None = None,
    bound: str | None = None,
    limit: int | None = None,
    retry_after_s: int | None = None,
) -> Rendered:
    """An error that carries no receipt, with the status that its code has in the contract."""
    body = ErrorBody(
        error=code,
        message=message,
        field=field or UNSET,
        quota=quota or UNSET,
        bound=bound or UNSET,
        limit=UNSET if limit is None else limit,
    )
    return Rendered(STATUS_OF[code], encode_answer(body), retry_after_s)


BODY_OF: Final[dict[type, type[msgspec.Struct]]] = {
    Granted: GrantedBody,
    Held: HeldBody,
    Deadlock: DeadlockBody,
    StaleLease: StaleLeaseBody,
    NotHolder: NotHolderBody,
    NotHeld: NotHeldBody,
    Released: ReleasedBody,
    Listed: ListedBody,
    Withdrawn: WithdrawnBody,
    TrustShown: TrustBody,
    Broken: BrokenBody,
    TooMany: ErrorBody,
    IdempotencyMismatch: ErrorBody,
    AccessFixed: ErrorBody,
}
"""Which body each outcome is written as; the reference is derived from it."""

CODE_OF: Final[dict[type, ErrorCode | None]] = {
    Granted: None,
    Held: "lease_held",
    Deadlock: "deadlock",
    StaleLease: "stale_lease",
    NotHolder: "not_holder",
    NotHeld: "not_held",
    Released: None,
    Listed: None,
    Withdrawn: None,
    TrustShown: None,
    Broken: None,
    TooMany: "too_many",
    IdempotencyMismatch: "invalid_request",
    AccessFixed: "invalid_request",
}
"""Which error each outcome is, or None for what was asked."""

assert BODY_OF.keys() == CODE_OF.keys() == _RENDER.keys()
