"""One command to its outcome.

`settle` first lets everything happen that is due, so that every request is answered as if the
alarm had already run; `decide` then needs no thought for what is over. Both work on a `State` in an
open transaction and are pure: run again on the same rows, they say the same.
"""

from collections.abc import Collection
from itertools import groupby
from typing import assert_never

import msgspec

from leaseplane.limits import (
    HOLDERS_PER_RESOURCE_MAX,
    IDEMPOTENCY_KEPT_MS,
    IDEMPOTENCY_PER_WORKSPACE_MAX,
    IDEMPOTENCY_SWEPT_MAX,
    LEASES_PER_WORKSPACE_MAX,
    PARKED_PER_PLACE_MAX,
    PARKED_PER_WORKSPACE_MAX,
    POLLING_GRACE_MS,
    SETTLE_RESOURCES_MAX,
    WAITS_PER_WORKSPACE_MAX,
)
from leaseplane.model import (
    Access,
    AccessFixed,
    Acquire,
    Ask,
    Break,
    Broken,
    DeadlockView,
    Granted,
    Held,
    Holder,
    IdempotencyMismatch,
    IdempotencyScope,
    Lease,
    Listed,
    ListWaits,
    NotHeld,
    NotHolder,
    Outcome,
    Parked,
    Pending,
    ReadTrust,
    Release,
    Released,
    Reply,
    StaleLease,
    TooMany,
    TrustShown,
    Wait,
    WaitView,
    Withdraw,
    Withdrawn,
)
from leaseplane.store.contract import IdempotencyRecord

from . import leases, waiting
from .deadlock import blocking_leases, find_cycle
from .room import Room, deadline_boot_ms
from .state import State

# -- what is due -------------------------------------------------------------------------------


def settle(state: State) -> bool:
    """Let what is due by now happen, the earliest alarm first. False where more is left for the next call."""
    due = state.rows.due(state.now.boot_ms, SETTLE_RESOURCES_MAX)
    for workspace, resource in due:
        settle_room(state, state.room(workspace, resource))
    # Nobody has to wait for this: a record that is not kept any more is not answered from either.
    state.drop_expired_idempotency(IDEMPOTENCY_SWEPT_MAX)
    return len(due) < SETTLE_RESOURCES_MAX


def settle_room(state: State, room: Room) -> None:
    """Everything of this resource whose time has come, in the order of the times.

    At one instant leases end first, then waits die, then time-outs are answered in the order of the
    queue: who times out at the end of the lease that it waits for may still have it, and is told a
    position in which the dead do not count.
    """
    now_ms = state.now.boot_ms
    due: list[tuple[int, int, int, Holder]] = [
        (lease.ends_boot_ms, 0, lease.fence, lease.holder)
        for lease in room.leases.values()
        if _is_over(state, lease)
    ]
    for deadline_ms, late in room.waits_due(now_ms):
        due.append((deadline_ms, 2 if late.parked else 1, late.seq, late.waiter))
    due.sort()
    for _, together in groupby(due, key=lambda each: each[0]):
        timed_out: list[Holder] = []
        for _, kind, _, holder in together:
            if kind == 0:
                lease = room.leases.get(holder)
                if lease is not None and _is_over(state, lease):
                    leases.expire(state, room, lease)
                continue
            wait = _wait_due(state, room, holder)
            if wait is not None and wait.parked:
                timed_out.append(holder)
            elif wait is not None:
                state.end_wait(room, wait)
        # Served only when all that ends at this instant has ended: a reader whose own lease ends with
        # those it waited for has lost it, and does not go on from it.
        waiting.serve(state, room)
        for holder in timed_out:
            wait = _wait_due(state, room, holder)
            if wait is not None:
                waiting.time_out(state, room, wait)
                waiting.serve(state, room)
    waiting.serve(state, room)
    state.rearm(room, waiting.kept_until_boot_ms(room))


def _wait_due(state: State, room: Room, waiter: Holder) -> Wait | None:
    """This waiter's wait, unless it was served or put off by what happened just before."""
    wait = room.waits.get(waiter)
    if wait is None or deadline_boot_ms(wait, state.terms.lease_ms) > state.now.boot_ms:
        return None
    return wait


def _is_over(state: State, lease: Lease) -> bool:
    return lease.ends_boot_ms <= state.now.boot_ms


# -- one ask -----------------------------------------------------------------------------------


def decide(state: State, ask: Ask) -> Reply | Pending:
    """The outcome of one ask, with everything it changes written to the state.

    An Idempotency-Key that was seen before answers what it answered then, joins a request that is
    still parked, and is refused with another body.
    """
    if ask.idempotency_key is None or not isinstance(ask.command, Acquire | Release | Break):
        return _reply(state, ask, _outcome(state, ask, None))
    workspace = ask.principal.workspace
    actor = "" if isinstance(ask.command, Break) else ask.command.actor
    scope = IdempotencyScope(ask.principal.credential, actor, ask.request.path, ask.idempotency_key)
    record = state.idempotency(workspace, scope)
    if record is not None:
        if record.body_digest != ask.request.digest:
            return _reply(state, ask, IdempotencyMismatch())
        if record.reply is not None:
            return _repeat(state, ask, record.reply)
        joined = _join(state, ask, scope, record)
        if joined is not None:
            return joined
    elif state.counts(workspace).idempotency >= IDEMPOTENCY_PER_WORKSPACE_MAX:
        return _reply(state, ask, TooMany("idempotency_keys", IDEMPOTENCY_PER_WORKSPACE_MAX))
    expires_boot_ms = state.now.boot_ms + IDEMPOTENCY_KEPT_MS
    result = _reply(state, ask, _outcome(state, ask, scope))
    if isinstance(result, Pending):
        record = IdempotencyRecord(ask.request.digest, expires_boot_ms, None, result.resource, result.holder)
        state.put_idempotency(workspace, scope, record)
    elif not isinstance(result.outcome, TooMany | AccessFixed):
        record = IdempotencyRecord(ask.request.digest, expires_boot_ms, result)
        state.put_idempotency(workspace, scope, record)
    return result


def _reply(state: State, ask: Ask, outcome: Outcome | Pending) -> Reply | Pending:
    if isinstance(outcome, Pending):
        return outcome
    return Reply(outcome, ask.jti, state.now.wall_ms // 1000)


def _repeat(state: State, ask: Ask, first: Reply) -> Reply | Pending:
    """What the first request was answered; a grant only for as long as its lease is the current one."""
    if isinstance(first.outcome, Granted):
        granted = first.outcome.lease
        room = state.room(ask.principal.workspace, granted.resource)
        lease = room.lease_named(granted.lease_id)
        if lease is None:
            return _reply(state, ask, StaleLease(granted.resource))
        if lease.handed:
            leases.mark(state, room, lease)
    return first


def _join(
    state: State, ask: Ask, scope: IdempotencyScope, record: IdempotencyRecord
) -> Reply | Pending | None:
    """Park beside the first request under this key, to be given the very same answer."""
    assert record.holder is not None, "a record without a reply says where its request is parked"
    room = state.room(ask.principal.workspace, record.resource)
    wait = room.waits.get(record.holder)
    first = next((request for request in wait.parked if request.idempotency == scope), None) if wait else None
    if wait is None or first is None:
        return None
    if state.counts(room.workspace).parked >= PARKED_PER_WORKSPACE_MAX:
        return _reply(state, ask, TooMany("parked_requests", PARKED_PER_WORKSPACE_MAX))
    if len(wait.parked) >= PARKED_PER_PLACE_MAX:
        return _reply(state, ask, TooMany("parked_requests_of_one_place", PARKED_PER_PLACE_MAX))
    joined = msgspec.structs.replace(first, request_id=ask.request_id, process_id=ask.process_id)
    state.put_wait(room, msgspec.structs.replace(wait, parked=(*wait.parked, joined)))
    return Pending(ask.request_id, room.workspace, room.resource, wait.waiter, first.until_boot_ms)


def _outcome(state: State, ask: Ask, scope: IdempotencyScope | None) -> Outcome | Pending:
    workspace = ask.principal.workspace
    command = ask.command
    match command:
        case Acquire():
            return acquire(state, state.room(workspace, command.resource), command, ask, scope)
        case Release():
            return release(state, state.room(workspace, command.resource), command, ask.jti)
        case Withdraw():
            room = state.room(workspace, command.resource)
            wait = room.waits.get(Holder(command.actor, command.instance))
            if wait is not None:
                waiting.withdraw(state, room, wait)
            return Withdrawn(wait is not None)
        case Break():
            return break_off(state, state.room(workspace, command.resource), command)
        case ListWaits():
            return list_waits(state, workspace, command)
        case ReadTrust():
            return TrustShown(command.actor, state.trust(workspace, command.actor))
        case _:
            assert_never(command)


# -- acquire -----------------------------------------------------------------------------------


def acquire(
    state: State, room: Room, command: Acquire, ask: Ask, scope: IdempotencyScope | None
) -> Outcome | Pending:
    """Renew what the asker holds, grant what is free, refuse what would close a cycle, else queue."""
    asker = Holder(command.actor, command.instance)
    if command.lease_id is not None:
        named = room.lease_named(command.lease_id)
        if named is None or named.holder.actor != command.actor:
            return StaleLease(room.resource)
        if named.access == "read" and command.access not in (None, "read"):
            return AccessFixed()
        return _renewed(state, room, named, command)
    state.drop_deadlock(room.workspace, asker, room.resource)
    mine = room.leases.get(asker)
    if mine is not None and not _goes_further(mine, command.access):
        return _renewed(state, room, mine, command)
    place = room.waits.get(asker)
    if place is not None and room.is_first_parked(place) and command.access is not None:
        # It may be served in a moment, and then with enough for what is asked for now.
        access = waiting.access_of_place(command.access, place.parked)
        place = msgspec.structs.replace(place, access=access, asked_access=command.access)
        state.put_wait(room, place)
    if room.has_parked() and not room.stands_ahead_of_parked(place):
        waiting.serve(state, room, someone_else_asks=True)
        mine = room.leases.get(asker)
        if mine is not None and not _goes_further(mine, command.access):
            return _renewed(state, room, mine, command)
    place = room.waits.get(asker)
    # Asking again without an access keeps the mode, of a place in the queue as of a lease.
    asked: Access = command.access or (place.access if place is not None else "write")
    access = waiting.access_of_place(asked, place.parked if place is not None else ())
    if not waiting.is_blocked(room, asker, access):
        if len(room.leases) >= HOLDERS_PER_RESOURCE_MAX:
            return TooMany("holders_of_one_resource", HOLDERS_PER_RESOURCE_MAX)
        if mine is None and state.counts(room.workspace).leases >= LEASES_PER_WORKSPACE_MAX:
            return TooMany("leases", LEASES_PER_WORKSPACE_MAX)
        return waiting.grant(state, room, asker, access, command.note, ask.jti)
    deadlock = find_cycle(state, room, asker, blocking_leases(room, asker, access, place))
    if deadlock is not None:
        waiting.refuse_deadlock(state, room, asker, deadlock, ask.jti)
        return deadlock
    return _queue(state, room, asker, asked, command, ask, scope)


def _goes_further(mine: Lease, access: Access | None) -> bool:
    """Whether this asks for more than is held. Asking without an access keeps the one there is."""
    return mine.access == "read" and access in ("write", "delete")


def _renewed(state: State, room: Room, lease: Lease, command: Acquire) -> Granted:
    renewed = leases.renew(state, room, lease, command.note)
    return Granted(leases.view(state, renewed), True, len(room.waits))


def _queue(
    state: State,
    room: Room,
    asker: Holder,
    access: Access,
    command: Acquire,
    ask: Ask,
    scope: IdempotencyScope | None,
) -> Held | TooMany | Pending:
    counts = state.counts(room.workspace)
    place = room.waits.get(asker)
    if place is None and counts.waits >= WAITS_PER_WORKSPACE_MAX:
        return TooMany("waiters", WAITS_PER_WORKSPACE_MAX)
    if not command.max_wait_ms:
        return waiting.ask_again(state, room, asker, access, command.note, ask.jti, None)
    if counts.parked >= PARKED_PER_WORKSPACE_MAX:
        return TooMany("parked_requests", PARKED_PER_WORKSPACE_MAX)
    if place is not None and len(place.parked) >= PARKED_PER_PLACE_MAX:
        return TooMany("parked_requests_of_one_place", PARKED_PER_PLACE_MAX)
    until_boot_ms = state.now.boot_ms + command.max_wait_ms
    parked = Parked(ask.request_id, ask.process_id, until_boot_ms, ask.jti, access, scope)
    waiting.ask_again(state, room, asker, access, command.note, ask.jti, parked)
    return Pending(ask.request_id, room.workspace, room.resource, asker, until_boot_ms)


# -- release, break ----------------------------------------------------------------------------


def release(state: State, room: Room, command: Release, jti: str) -> Outcome:
    """Let go of a lease that the caller holds, and of no other. Checked in the contract's order."""
    if not room.leases:
        return NotHeld(room.resource)
    mine = [lease for lease in room.leases.values() if lease.holder.actor == command.actor]
    if command.instance is not None or command.lease_id is None:
        # A leaseId without an instance speaks for the whole agent; anything else for one instance.
        instance = command.instance or ""
        mine = [lease for lease in mine if lease.holder.instance == instance]
    if not mine:
        return NotHolder(room.resource, next(iter(room.leases)))
    named = next((lease for lease in mine if command.lease_id in (None, lease.lease_id)), None)
    if named is None:
        return StaleLease(room.resource)
    trust_halves = leases.release(state, room, named, jti)
    waiting.serve(state, room)
    return Released(
        lease_id=named.lease_id,
        resource=room.resource,
        holder=named.holder,
        fence=named.fence,
        trust_halves=trust_halves,
        granted_wall_ms=named.granted_wall_ms,
        expires_wall_ms=named.ends_wall_ms,
    )


def break_off(state: State, room: Room, command: Break) -> Broken | NotHeld | StaleLease:
    """End the named lease, or all leases of the resource, without moving trust."""
    if not room.leases:
        return NotHeld(room.resource)
    broken = [lease for lease in room.leases.values() if command.lease_id in (None, lease.lease_id)]
    if not broken:
        return StaleLease(room.resource)
    for lease in broken:
        leases.break_off(state, room, lease, command.reason)
    waiting.serve(state, room)
    return Broken(room.resource, tuple(leases.view(state, lease) for lease in broken), command.reason)


# -- what happened to a parked request ---------------------------------------------------------


def mark(state: State, pending: Pending, granted: Granted) -> bool:
    """A hand-over's answer is about to be written: True if its lease is still the caller's."""
    room = state.room(pending.workspace, pending.resource)
    lease = room.lease_named(granted.lease.lease_id)
    if lease is None or _is_over(state, lease):
        return False
    if lease.handed:
        leases.mark(state, room, lease)
    return True


def is_kept(state: State, pending: Pending) -> bool:
    """Whether this parked request has its place still, or a hand-over that is not marked yet."""
    room = state.room(pending.workspace, pending.resource)
    wait = room.waits.get(pending.holder)
    lease = room.leases.get(pending.holder)
    known = (wait.parked if wait is not None else ()) + (lease.handed if lease is not None else ())
    return any(request.request_id == pending.request_id for request in known)


def hang_up(state: State, pending: Pending) -> None:
    """The caller of a parked request is gone."""
    room = state.room(pending.workspace, pending.resource)
    waiting.hang_up(state, room, pending.holder, pending.request_id)
    waiting.serve(state, room)


def dismiss(state: State, pending: Pending) -> None:
    """The plane is being stopped: a parked request is answered as at its time-out, and its place is kept."""
    room = state.room(pending.workspace, pending.resource)
    wait = room.waits.get(pending.holder)
    if wait is None:
        return
    ended = tuple(
        msgspec.structs.replace(request, until_boot_ms=state.now.boot_ms)
        if request.request_id == pending.request_id
        else request
        for request in wait.parked
    )
    if ended != wait.parked:
        wait = msgspec.structs.replace(wait, parked=ended)
        state.put_wait(room, wait)
        waiting.time_out(state, room, wait)
        waiting.serve(state, room)


def bury(state: State, dead: Collection[str]) -> None:
    """These processes are proven dead: everything that they kept open is withdrawn or undone.

    All of it first, and only then is anything handed on: not to another request of the dead.
    """
    rooms = [state.room(*place) for place in state.rows.places_kept_open_by(dead)]
    for room in rooms:
        parked = [
            (wait.waiter, request.request_id)
            for wait in room.waits.values()
            for request in wait.parked
            if request.process_id in dead
        ]
        handed = [
            (lease.holder, request.request_id)
            for lease in room.leases.values()
            for request in lease.handed
            if request.process_id in dead
        ]
        for holder, request_id in parked + handed:
            waiting.hang_up(state, room, holder, request_id)
    for room in rooms:
        waiting.serve(state, room)


def reboot(state: State, room: Room) -> None:
    """The machine was restarted, or another takes over: whatever is not recorded as ended gets a full
    term, once, since its holder may still believe in it."""
    now, term_ms = state.now, state.terms.lease_ms
    for lease in list(room.leases.values()):
        full = msgspec.structs.replace(
            lease,
            granted_boot_ms=now.boot_ms,
            ends_boot_ms=now.boot_ms + term_ms,
            ends_wall_ms=now.wall_ms + term_ms,
        )
        if full.upgraded_from is not None:
            # It may be given back, with an end on the clock that counts now.
            given_back = msgspec.structs.replace(
                full.upgraded_from,
                granted_boot_ms=full.granted_boot_ms,
                ends_boot_ms=full.ends_boot_ms,
                ends_wall_ms=full.ends_wall_ms,
            )
            full = msgspec.structs.replace(full, upgraded_from=given_back)
        state.put_lease(room, full)
    for wait in list(room.waits.values()):
        state.put_wait(
            room,
            msgspec.structs.replace(
                wait,
                asked_boot_ms=now.boot_ms,
                chance_boot_ms=now.boot_ms + POLLING_GRACE_MS,
                parked=tuple(
                    msgspec.structs.replace(request, until_boot_ms=now.boot_ms + term_ms)
                    for request in wait.parked
                ),
            ),
        )
    state.rearm(room, waiting.kept_until_boot_ms(room))


# -- listing -----------------------------------------------------------------------------------


def list_waits(state: State, workspace: str, command: ListWaits) -> Listed:
    """The queue, oldest wait first, and the deadlock pairs that still stand."""
    found: list[tuple[int, WaitView]] = []
    for room in state.queued_rooms(workspace):
        if command.resource not in (None, room.resource):
            continue
        for position, wait in enumerate(room.in_order(), 1):
            if command.actor not in (None, wait.waiter.actor):
                continue
            others = [holder for holder in room.leases if holder != wait.waiter]
            holder = next(iter(others or room.leases), None)
            view = WaitView(
                resource=room.resource,
                waiter=wait.waiter,
                holder=holder,
                position=position,
                since_wall_ms=wait.since_wall_ms,
                asked_wall_ms=wait.asked_wall_ms,
                parked=bool(wait.parked),
            )
            found.append((wait.seq, view))
    found.sort(key=lambda pair: pair[0])
    return Listed(
        waiting=tuple(view for _, view in found),
        deadlocks=tuple(_standing_deadlocks(state, workspace, command)),
    )


def _standing_deadlocks(state: State, workspace: str, command: ListWaits) -> list[DeadlockView]:
    standing = []
    for pair in list(state.deadlocks(workspace).values()):
        holds = pair.holder in state.room(workspace, pair.resource).leases
        still_waits = any(
            room.resource == pair.waiting_on for room, _ in state.waits_of(workspace, pair.holder.node)
        )
        if pair.until_boot_ms <= state.now.boot_ms or not holds or not still_waits:
            state.drop_deadlock(workspace, pair.asker, pair.resource)
        elif command.resource in (None, pair.resource) and command.actor in (None, pair.asker.actor):
            standing.append(
                DeadlockView(pair.asker, pair.resource, pair.holder, pair.waiting_on, pair.at_wall_ms)
            )
    return standing
