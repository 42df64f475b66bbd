"""The queue: what a refusal tells, who keeps a place, and how a freed resource is handed over.

A freed resource is free and whoever asks first gets it, except that requests which are kept open
(parked) are served in the very step that makes the resource grantable. Pollers who stand ahead of
a parked request keep their chance for as long as they were told to stay away and a little longer;
then, or as soon as anyone else asks, the parked one is served.
"""

import binascii
from typing import Final

import msgspec

from leaseplane.limits import (
    ADMITTED_MAX,
    HOLDERS_PER_RESOURCE_MAX,
    POLLING_GRACE_MS,
    WAIT_DOUBLINGS_MAX,
    WAIT_MS_BASE,
)
from leaseplane.model import (
    Access,
    Deadlock,
    Granted,
    Held,
    Holder,
    Lease,
    LeaseView,
    Outcome,
    Parked,
    Reply,
    Stampede,
    Wait,
)
from leaseplane.resources import collides
from leaseplane.store.contract import DeadlockPair, Event

from . import leases
from .deadlock import blocking_leases, find_cycle, wait_closed_by
from .room import Room
from .state import State


def wait_ms(live_waiters: int) -> int:
    """min(800, 25 · 2^n), computed without ever raising two to a large power."""
    return WAIT_MS_BASE << min(live_waiters, WAIT_DOUBLINGS_MAX)


def retry_after_ms(position: int, jti: str) -> int:
    """The same curve over the asker's own position, spread by a quarter either way.

    By the whole queue's length, who has just let go would tend to win again and old waiters would
    starve. The spread is drawn from the receipt's random id, so that the rules stay free of chance.
    """
    base_ms = wait_ms(position)
    return base_ms * 3 // 4 + binascii.crc32(jti.encode()) % (base_ms // 2 + 1)


_STRENGTH: Final[dict[Access, int]] = {"read": 0, "write": 1, "delete": 2}


def access_of_place(asked: Access, parked: tuple[Parked, ...]) -> Access:
    """The access that serves the last ask and every parked request: a writer may read, a reader not write."""
    return max((asked, *(request.access for request in parked)), key=_STRENGTH.__getitem__)


# -- places ------------------------------------------------------------------------------------


def refusal(state: State, room: Room, wait: Wait, jti: str) -> Held:
    """What a waiter is told: who holds it, the stampede's figures, its own position and back-off."""
    others = [lease for lease in room.leases.values() if lease.holder != wait.waiter]
    first = others[0] if others else None
    admitted: list[str] = []
    for ahead in room.in_order():
        if len(admitted) == ADMITTED_MAX:
            break
        admitted.append(ahead.waiter.actor)
    position = room.position(wait)
    return Held(
        resource=room.resource,
        holder=first.holder if first else None,
        note=first.note if first else None,
        expires_wall_ms=first.ends_wall_ms if first else None,
        held_since_wall_ms=first.granted_wall_ms if first else None,
        holders=tuple(room.leases) if len(room.leases) > 1 else (),
        stampede=Stampede(tuple(admitted), wait_ms(len(room.waits))),
        position=position,
        retry_after_ms=retry_after_ms(position, jti),
    )


def ask_again(
    state: State,
    room: Room,
    waiter: Holder,
    access: Access,
    note: str | None,
    jti: str,
    parked: Parked | None,
) -> Held:
    """Take a place at the end of the queue, or keep the one there is; returns what the asker is told.

    Where the request is parked, it is kept open at this place and the refusal is not sent.
    """
    now = state.now
    before = room.waits.get(waiter)
    kept = before.parked if before else ()
    kept = (*kept, parked) if parked else kept
    wait = Wait(
        workspace=room.workspace,
        resource=room.resource,
        waiter=waiter,
        access=access_of_place(access, kept),
        asked_access=access,
        seq=before.seq if before else state.next_seq(),
        since_wall_ms=before.since_wall_ms if before else now.wall_ms,
        asked_wall_ms=now.wall_ms,
        asked_boot_ms=now.boot_ms,
        chance_boot_ms=before.chance_boot_ms if before else 0,
        note=note if note is not None or before is None else before.note,
        edge=True,
        parked=kept,
    )
    state.put_wait(room, wait)
    told = refusal(state, room, wait, jti)
    _told(state, room, wait, told)
    return told


def _told(state: State, room: Room, wait: Wait, told: Held) -> None:
    """Remember how long this refusal lets the waiter stay away without losing its chance. A later,
    shorter wait does not take back what an earlier answer gave."""
    longest_ms = max(told.stampede.wait_ms, told.retry_after_ms)
    chance_boot_ms = state.now.boot_ms + longest_ms + POLLING_GRACE_MS
    state.keep_chance(room, wait, max(wait.chance_boot_ms, chance_boot_ms))


def deliver(state: State, room: Room, parked: tuple[Parked, ...], outcome: Outcome) -> None:
    """Answer these parked requests with one outcome."""
    for request in parked:
        state.deliver(room, request, Reply(outcome, request.jti, state.now.wall_ms // 1000))


def withdraw(state: State, room: Room, wait: Wait) -> None:
    """The wait ends by its waiter's wish; its parked requests are told how things stand."""
    for request in wait.parked:
        deliver(state, room, (request,), refusal(state, room, wait, request.jti))
    state.end_wait(room, wait)
    serve(state, room)


def refuse_deadlock(state: State, room: Room, waiter: Holder, deadlock: Deadlock, jti: str) -> None:
    """Record a refusal as deadlock: the waiter's place ends, and the pair is listed for a while."""
    if _end_as_deadlock(state, room, waiter, deadlock, jti):
        serve(state, room)


def _end_as_deadlock(state: State, room: Room, waiter: Holder, deadlock: Deadlock, jti: str) -> bool:
    """True where this ended a place in the queue: then `serve` has to be called next."""
    wait = room.waits.get(waiter)
    parked = wait.parked if wait else ()
    # One event for each receipt that will say `deadlock`, so that each of them can be proven.
    for receipt in dict.fromkeys((jti, *(request.jti for request in parked))):
        state.record(
            Event(
                kind="coordination.deadlock",
                workspace=room.workspace,
                resource=room.resource,
                actor=waiter.actor,
                at_wall_ms=state.now.wall_ms,
                instance=waiter.instance,
                jti=receipt,
            )
        )
    state.put_deadlock(
        room.workspace,
        DeadlockPair(
            asker=waiter,
            resource=room.resource,
            holder=deadlock.holder,
            waiting_on=deadlock.waiting_on,
            at_wall_ms=state.now.wall_ms,
            until_boot_ms=state.now.boot_ms + state.terms.lease_ms,
            seq=state.next_seq(),
        ),
    )
    if wait is not None:
        deliver(state, room, parked, deadlock)
        state.end_wait(room, wait)
    return wait is not None


def time_out(state: State, room: Room, wait: Wait) -> None:
    """Requests whose `maxWaitMs` is over are answered, the oldest first. Each counts as an ask: it is
    granted where it can be by now, and keeps its place otherwise. A resource that is only kept for
    pollers goes to the first parked one, as at any other ask."""
    over = [request for request in wait.parked if request.until_boot_ms <= state.now.boot_ms]
    asked = over[0].access
    access = access_of_place(asked, wait.parked)
    state.put_wait(room, msgspec.structs.replace(wait, access=access, asked_access=asked))
    serve(state, room, someone_else_asks=True)
    for jti in dict.fromkeys(request.jti for request in over):
        place = room.waits.get(wait.waiter)
        if place is None or all(request.jti != jti for request in place.parked):
            return
        # Repeats under one Idempotency-Key share their receipt's id, and with it their answer.
        asking = tuple(request for request in place.parked if request.jti == jti)
        left = tuple(request for request in place.parked if request.jti != jti)
        place = msgspec.structs.replace(
            place,
            access=access_of_place(asking[0].access, left),
            asked_access=asking[0].access,
            asked_boot_ms=state.now.boot_ms,
            asked_wall_ms=state.now.wall_ms,
            parked=left,
        )
        if is_blocked(room, place.waiter, place.access):
            blocking = blocking_leases(room, place.waiter, place.access, place)
            deadlock = find_cycle(state, room, place.waiter, blocking)
            if deadlock is not None:
                refuse_deadlock(state, room, place.waiter, deadlock, jti)
                return
            state.put_wait(room, place)
            told = refusal(state, room, place, jti)
            _told(state, room, place, told)
            deliver(state, room, asking, told)
        else:
            place = msgspec.structs.replace(place, parked=(*asking, *left))
            state.put_wait(room, place)
            hand_over(state, room, place)


def hang_up(state: State, room: Room, holder: Holder, request_id: str) -> None:
    """The caller of a parked request is gone. With the last request of a place the wait ends; a
    hand-over whose last recipient is gone before any mark is undone. Call `serve` next."""
    wait = room.waits.get(holder)
    for request in wait.parked if wait is not None else ():
        if request.request_id == request_id:
            assert wait is not None
            _drop_parked(state, room, wait, request)
            return
    lease = room.leases.get(holder)
    if lease is None or all(request.request_id != request_id for request in lease.handed):
        return
    gone = (*lease.gone, request_id)
    if all(request.request_id in gone for request in lease.handed):
        leases.undo(state, room, lease)
    else:
        state.put_lease(room, msgspec.structs.replace(lease, gone=gone))


def _drop_parked(state: State, room: Room, wait: Wait, gone: Parked) -> None:
    left = tuple(request for request in wait.parked if request is not gone)
    if left:
        access = access_of_place(wait.asked_access, left)
        state.put_wait(room, msgspec.structs.replace(wait, access=access, parked=left))
    else:
        state.end_wait(room, wait)
    scope = gone.idempotency
    if scope is not None and all(request.idempotency != scope for request in left):
        # Nothing was answered under this key, so a repeat is a first ask again.
        state.put_idempotency(room.workspace, scope, None)


# -- granting ----------------------------------------------------------------------------------


def is_blocked(room: Room, holder: Holder, access: Access) -> bool:
    """Whether this access cannot be granted now: it collides, or would overtake a waiting writer while
    readers hold."""
    if room.leases_colliding(holder, access):
        return True
    if access != "read" or not room.leases:
        return False
    return any(writer.waiter != holder for writer in room.writers_ahead(room.waits.get(holder), 2))


def grant(state: State, room: Room, holder: Holder, access: Access, note: str | None, jti: str) -> Granted:
    """Grant to one who asks now. Where it has parked requests here, too, the oldest of them is answered
    with the grant, and the others and this ask as renewals."""
    wait = room.waits.get(holder)
    if wait is not None:
        state.end_wait(room, wait)
    parked = wait.parked if wait is not None else ()
    lease = leases.begin(state, room, holder, access, note, parked[0].jti if parked else jti)
    view = leases.view(state, lease)
    renewal = Granted(view, True, len(room.waits))
    _deliver_grant(state, room, parked, view)
    if _close_cycles(state, room, lease) or wait is not None:
        # A place has ended: readers who stood behind it may be let in to this reader.
        serve(state, room)
    return renewal if parked else Granted(view)


def hand_over(state: State, room: Room, wait: Wait) -> None:
    """Grant to a place of parked requests. Call `serve` next, or go on with it."""
    state.end_wait(room, wait)
    first = wait.parked[0]
    lease = leases.begin(state, room, wait.waiter, wait.access, wait.note, first.jti, wait.parked)
    _deliver_grant(state, room, wait.parked, leases.view(state, lease))
    _close_cycles(state, room, lease)


def _deliver_grant(state: State, room: Room, parked: tuple[Parked, ...], view: LeaseView) -> None:
    """The oldest request, and whatever repeats it, is answered with the grant, the others as renewals."""
    for request in parked:
        is_first = request.jti == parked[0].jti
        outcome = Granted(view) if is_first else Granted(view, True, len(room.waits))
        deliver(state, room, (request,), outcome)


def _close_cycles(state: State, room: Room, granted: Lease) -> bool:
    """A grant may close a cycle: the waits on it for what was granted end, and the grant stands.

    True where a place in the queue ended. It does not serve whom that lets in: their grants may close
    cycles in turn, and a thousand of them one inside the other would go deeper than Python's stack.
    """
    has_ended = False
    while (closed := wait_closed_by(state, room, granted)) is not None:
        wait, deadlock = closed
        if wait.parked:
            has_ended |= _end_as_deadlock(state, room, wait.waiter, deadlock, wait.parked[0].jti)
        else:
            # A poller is told at its next ask, which is decided afresh; until then it is no edge.
            state.put_wait(room, msgspec.structs.replace(wait, edge=False))
    return has_ended


def serve(state: State, room: Room, *, someone_else_asks: bool = False) -> None:
    """Hand the resource to the parked requests at the head of its queue, as far as it is grantable.

    Pollers ahead of a parked request hold it back while they have their chance, unless
    `someone_else_asks`: then what the pollers would lose anyway goes to the one who queued. Readers who
    are parked one behind the other are served together, whatever lost its chance ahead of them.
    """
    passed: set[int] = set()
    while True:
        wait, kept_boot_ms, pollers = _first_parked_grantable(room, passed)
        if wait is None:
            return
        if not someone_else_asks and kept_boot_ms is not None and kept_boot_ms > state.now.boot_ms:
            state.arm(room, kept_boot_ms)
            return
        passed.update(poller.seq for poller in pollers)
        hand_over(state, room, wait)


def kept_until_boot_ms(room: Room) -> int | None:
    """Until when the resource is kept for pollers ahead of a parked request that could have it."""
    _, kept_boot_ms, _ = _first_parked_grantable(room, set())
    return kept_boot_ms


def _first_parked_grantable(room: Room, passed: set[int]) -> tuple[Wait | None, int | None, list[Wait]]:
    """The parked wait that is next, if it is grantable; until when pollers hold it back; those pollers.

    Pollers in `passed` have lost their chance in this step.
    """
    if not room.has_parked() or len(room.leases) >= HOLDERS_PER_RESOURCE_MAX:
        return None, None, []
    pollers: list[Wait] = []
    for wait in room.in_order():
        if wait.seq in passed:
            continue
        if room.leases_colliding(wait.waiter, wait.access):
            # Nobody overtakes one who cannot be served yet.
            return None, None, []
        if room.leases and wait.access != "read" and not wait.parked:
            # The only reader, who polls to go on to write: while readers hold, no reader overtakes it.
            return None, None, []
        if wait.parked:
            pollers = [poller for poller in pollers if collides(room.semantics, poller.access, wait.access)]
            return wait, max((poller.chance_boot_ms for poller in pollers), default=None), pollers
        pollers.append(wait)
    raise AssertionError("a room with parked requests has a parked wait")
