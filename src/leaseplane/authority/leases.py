"""Granting a lease, renewing it, and the ways in which one ends.

A lease ends in exactly one of these: release, expiry, an operator's break, the step from a read
lease on to a stronger one, or a hand-over that reached nobody and is undone. Release and expiry
move trust, once; the others move none. Each grant and each end is an event for the ledger, in the
same transaction. Whoever ends a lease calls `waiting.serve` next.
"""

import msgspec

from leaseplane.model import Access, Holder, Lease, LeaseView, Parked
from leaseplane.store.contract import Event

from . import trust
from .room import Room
from .state import State


def view(state: State, lease: Lease) -> LeaseView:
    """The lease as its holder is told of it."""
    return LeaseView(
        lease_id=lease.lease_id,
        resource=lease.resource,
        holder=lease.holder,
        granted_wall_ms=lease.granted_wall_ms,
        expires_wall_ms=lease.ends_wall_ms,
        ttl_ms=state.terms.lease_ms,
        fence=lease.fence,
        access=lease.access,
        note=lease.note,
    )


def begin(
    state: State,
    room: Room,
    holder: Holder,
    access: Access,
    note: str | None,
    jti: str,
    handed: tuple[Parked, ...] = (),
) -> Lease:
    """Store a new lease with a new fence. A read lease of the same holder ends by it, without trust moving.

    `handed` names the parked requests that it is handed to, until one of their answers is marked.
    """
    before = room.leases.get(holder)
    if before is not None:
        assert before.access == "read", "only a reader goes on to a stronger access"
        _end(state, room, before, "coordination.upgrade")
    fence = state.next_fence()
    ends_boot_ms, ends_wall_ms = _next_end(state, state.now.boot_ms)
    lease = Lease(
        workspace=room.workspace,
        resource=room.resource,
        # The fence never repeats, so neither does a name made of it.
        lease_id=f"lease-{fence:x}",
        holder=holder,
        access=access,
        fence=fence,
        granted_wall_ms=state.now.wall_ms,
        granted_boot_ms=state.now.boot_ms,
        ends_boot_ms=ends_boot_ms,
        ends_wall_ms=ends_wall_ms,
        note=note,
        handed=handed,
        upgraded_from=before if handed else None,
    )
    state.put_lease(room, lease)
    _record(state, lease, "coordination.lease", jti=jti)
    return lease


def renew(state: State, room: Room, lease: Lease, note: str | None) -> Lease:
    """The same lease with a full term from now, or what the operator's cap on one holding leaves of it."""
    ends_boot_ms, ends_wall_ms = _next_end(state, lease.granted_boot_ms)
    if ends_boot_ms < lease.ends_boot_ms:
        # The cap was lowered meanwhile. Its holder was told this end, so it never comes earlier.
        ends_boot_ms, ends_wall_ms = lease.ends_boot_ms, lease.ends_wall_ms
    renewed = msgspec.structs.replace(
        lease,
        ends_boot_ms=ends_boot_ms,
        ends_wall_ms=ends_wall_ms,
        note=lease.note if note is None else note,
        # Whoever renews it has it, even if the hand-over's own answer is still on its way.
        handed=(),
        gone=(),
        upgraded_from=None,
    )
    state.put_lease(room, renewed)
    return renewed


def mark(state: State, room: Room, lease: Lease) -> None:
    """A hand-over's answer is about to leave: from here on the lease stands like any other."""
    state.put_lease(room, msgspec.structs.replace(lease, handed=(), gone=(), upgraded_from=None))


def release(state: State, room: Room, lease: Lease, jti: str) -> int:
    """Its holder lets go. Returns the holder's new trust, in half points."""
    _end(state, room, lease, "coordination.release", jti=jti)
    after = trust.after_release(state.trust(room.workspace, lease.holder.actor))
    state.put_trust(room.workspace, lease.holder.actor, after)
    return after.halves


def expire(state: State, room: Room, lease: Lease) -> None:
    """Its end has come. A hand-over that was never marked reached nobody, so it is undone instead."""
    assert lease.ends_boot_ms <= state.now.boot_ms, "never before its end"
    if lease.handed:
        undo(state, room, lease)
        return
    _end(state, room, lease, "coordination.expiry")
    after = trust.after_expiry(state.trust(room.workspace, lease.holder.actor))
    state.put_trust(room.workspace, lease.holder.actor, after)


def break_off(state: State, room: Room, lease: Lease, reason: str) -> None:
    """An operator ends it, and says why. No trust moves."""
    _end(state, room, lease, "coordination.break", reason=reason)


def undo(state: State, room: Room, lease: Lease) -> None:
    """A hand-over that reached nobody is taken back: no trust moves, and a read lease that it replaced
    is given back with the end that it had. Whoever repeats the request under its key asks anew."""
    _end(state, room, lease, "coordination.undone")
    for request in lease.handed:
        if request.idempotency is not None:
            state.put_idempotency(room.workspace, request.idempotency, None)
    if lease.upgraded_from is not None:
        state.put_lease(room, lease.upgraded_from)
        _record(state, lease.upgraded_from, "coordination.restored")
        if lease.upgraded_from.ends_boot_ms <= state.now.boot_ms:
            expire(state, room, lease.upgraded_from)


def _next_end(state: State, granted_boot_ms: int) -> tuple[int, int]:
    """One term from now on both clocks, cut where the operator's cap on one holding says so."""
    term_ms = state.terms.lease_ms
    if state.terms.hold_ms_max:
        term_ms = min(term_ms, granted_boot_ms + state.terms.hold_ms_max - state.now.boot_ms)
    return state.now.boot_ms + term_ms, state.now.wall_ms + term_ms


def _end(
    state: State, room: Room, lease: Lease, kind: str, jti: str | None = None, reason: str | None = None
) -> None:
    state.end_lease(room, lease)
    _record(state, lease, kind, jti, reason)


def _record(state: State, lease: Lease, kind: str, jti: str | None = None, reason: str | None = None) -> None:
    state.record(
        Event(
            kind=kind,
            workspace=lease.workspace,
            resource=lease.resource,
            actor=lease.holder.actor,
            at_wall_ms=state.now.wall_ms,
            instance=lease.holder.instance,
            lease_id=lease.lease_id,
            fence=lease.fence,
            access=lease.access,
            jti=jti,
            reason=reason,
            note=lease.note,
        )
    )
