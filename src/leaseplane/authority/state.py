"""The working set of the authority: rows read when they are first needed, and what has changed.

Between transactions it may be kept as a cache, as long as nobody else has written to the store;
`forget` drops it when somebody has, or when a commit failed. Within one, every row is read before
it is changed, so that memory and `Rows` never disagree about what is not yet applied.
"""

from collections.abc import Mapping

import msgspec

from leaseplane.limits import (
    DEADLOCKS_LISTED_PER_WORKSPACE_MAX,
    FENCE_CLOCK_US_MAX,
    IDEMPOTENCY_KEPT_MS,
    ROOMS_CACHED_MAX,
    TRUST_START_HALVES,
    WHOLE_NUMBER_MAX,
)
from leaseplane.model import Holder, IdempotencyScope, Lease, Moment, Node, Parked, Reply, Trust, Wait
from leaseplane.resources import SemanticsClass, class_of
from leaseplane.store.contract import (
    Changes,
    Counts,
    DeadlockPair,
    Delivery,
    Event,
    IdempotencyRecord,
    Place,
    RoomRow,
    Rows,
)

from .room import Room, deadline_boot_ms


class Terms(msgspec.Struct, frozen=True):
    """What the operator fixed for this plane."""

    lease_ms: int
    hold_ms_max: int = 0
    """The longest that one holding may be renewed for in all; 0: no cap."""
    classes: Mapping[str, SemanticsClass] = msgspec.field(default_factory=dict)


class State:
    """All that the rules read and write, for one transaction after another."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.changes = Changes()
        self._rows: Rows | None = None
        self.forget()

    def forget(self) -> None:
        """Drop everything that was read or changed."""
        self.changes = Changes()
        self._deliveries: list[Delivery] = []
        self._idempotency: dict[tuple[str, IdempotencyScope], IdempotencyRecord | None] = {}
        self._rooms: dict[Place, Room] = {}
        self._nodes: dict[tuple[str, Node], dict[tuple[str, Holder], None]] = {}
        self._trust: dict[tuple[str, str], Trust | None] = {}
        self._counts: dict[str, Counts] = {}
        self._deadlocks: dict[str, dict[tuple[Holder, str], DeadlockPair]] = {}
        self._last_fence: int | None = None
        self._last_seq: int | None = None

    def begin(self, rows: Rows, now: Moment) -> None:
        """Work on these rows from here on; `now` is the time of everything decided until `end`."""
        assert not self.changes, "the changes of the transaction before were neither ended nor forgotten"
        if len(self._rooms) + len(self._nodes) + len(self._trust) > ROOMS_CACHED_MAX:
            self.forget()
        self._rows = rows
        self.now = now

    def apply(self) -> None:
        """Hand what has changed so far to the rows, still inside the transaction."""
        if self.changes:
            self.rows.apply(self.changes)
            self._deliveries += self.changes.deliveries
            self.changes = Changes()

    def end(self) -> list[Delivery]:
        """Apply the rest; returns the replies to parked requests, to be delivered after the commit."""
        self.apply()
        deliveries, self._deliveries = self._deliveries, []
        self._idempotency = {}
        self._rows = None
        return deliveries

    @property
    def rows(self) -> Rows:
        assert self._rows is not None, "no transaction is open"
        return self._rows

    # -- rooms ---------------------------------------------------------------------------------

    def room(self, workspace: str, resource: str) -> Room:
        place = (workspace, resource)
        room = self._rooms.get(place)
        if room is None:
            room = Room(
                workspace,
                resource,
                class_of(resource, self.terms.classes),
                self.terms.lease_ms,
                self.rows.room(workspace, resource),
            )
            self._rooms[place] = room
        return room

    def queued_rooms(self, workspace: str) -> list[Room]:
        """The resources of a workspace that have a queue."""
        self.apply()
        return [self.room(workspace, resource) for resource in self.rows.queued_resources(workspace)]

    def arm(self, room: Room, boot_ms: int) -> None:
        """Have the alarm look at this resource at that time, or before."""
        if room.alarm_boot_ms is None or boot_ms < room.alarm_boot_ms:
            room.alarm_boot_ms = boot_ms
            self._room_changed(room)

    def rearm(self, room: Room, also_boot_ms: int | None) -> None:
        """Set the alarm to the earliest end in this room, or to `also_boot_ms` where that is earlier."""
        first = room.first_end_boot_ms()
        if also_boot_ms is not None and (first is None or also_boot_ms < first):
            first = also_boot_ms
        if first != room.alarm_boot_ms:
            room.alarm_boot_ms = first
            self._room_changed(room)

    def _room_changed(self, room: Room) -> None:
        row = None
        if room.leases or room.waits:
            assert room.alarm_boot_ms is not None, "whatever is held or waited for ends at some time"
            row = RoomRow(room.alarm_boot_ms, bool(room.waits))
        else:
            room.alarm_boot_ms = None
        self.changes.rooms[room.workspace, room.resource] = row

    # -- leases --------------------------------------------------------------------------------

    def put_lease(self, room: Room, lease: Lease) -> None:
        """Store a new lease or a new state of one, and have the alarm know of its end."""
        if lease.holder not in room.leases:
            self._count(room.workspace, leases=1)
        room.put_lease(lease)
        self.changes.leases[room.workspace, room.resource, lease.holder] = lease
        self.arm(room, lease.ends_boot_ms)

    def end_lease(self, room: Room, lease: Lease) -> None:
        room.end_lease(lease.holder)
        self._count(room.workspace, leases=-1)
        self.changes.leases[room.workspace, room.resource, lease.holder] = None
        if not room.leases and not room.waits:
            self._room_changed(room)

    def next_fence(self) -> int:
        """Larger than every fence before it. The wall clock is its floor, so that a plane whose folder
        was restored from a backup or copied does not fall back. In microseconds: a million grants a
        second are never reached, so the fences never run ahead of the clock."""
        if self._last_fence is None:
            self._last_fence = self.rows.last_fence()
        floor_us = self.now.wall_ms * 1000
        # A clock that was set centuries ahead must not use the fences up.
        self._last_fence = max(self._last_fence + 1, floor_us if floor_us < FENCE_CLOCK_US_MAX else 0)
        assert self._last_fence <= WHOLE_NUMBER_MAX, "the fences are used up"
        self.changes.last_fence = self._last_fence
        return self._last_fence

    # -- waits ---------------------------------------------------------------------------------

    def put_wait(self, room: Room, wait: Wait) -> None:
        """Take a place in the queue, or store a new state of one, and have the alarm know of its deadline."""
        before = room.waits.get(wait.waiter)
        self._node(room.workspace, wait.waiter.node)[room.resource, wait.waiter] = None
        parked = len(wait.parked) - (len(before.parked) if before else 0)
        self._count(room.workspace, waits=0 if before else 1, parked=parked)
        first = not room.waits
        room.put_wait(wait)
        self.changes.waits[room.workspace, room.resource, wait.waiter] = wait
        deadline = deadline_boot_ms(wait, self.terms.lease_ms)
        self.arm(room, deadline)
        if first:
            self._room_changed(room)

    def keep_chance(self, room: Room, wait: Wait, chance_boot_ms: int) -> None:
        """Note until when this waiter may stay away. That moves neither its place nor any alarm."""
        wait = msgspec.structs.replace(wait, chance_boot_ms=chance_boot_ms)
        room.restate_wait(wait)
        self.changes.waits[room.workspace, room.resource, wait.waiter] = wait

    def end_wait(self, room: Room, wait: Wait) -> None:
        self._node(room.workspace, wait.waiter.node).pop((room.resource, wait.waiter), None)
        self._count(room.workspace, waits=-1, parked=-len(wait.parked))
        room.end_wait(wait)
        self.changes.waits[room.workspace, room.resource, wait.waiter] = None
        if not room.waits:
            self._room_changed(room)

    def waits_of(self, workspace: str, node: Node) -> list[tuple[Room, Wait]]:
        """The places that the instances of one node have in queues, in order of first asking."""
        found = []
        for resource, waiter in list(self._node(workspace, node)):
            room = self.room(workspace, resource)
            found.append((room, room.waits[waiter]))
        found.sort(key=lambda pair: pair[1].seq)
        return found

    def _node(self, workspace: str, node: Node) -> dict[tuple[str, Holder], None]:
        key = (workspace, node)
        places = self._nodes.get(key)
        if places is None:
            # The read misses nothing that is not applied yet: whatever changes a wait of this node
            # asks for its places first, so there is no such change.
            places = {}
            for resource in self.rows.resources_waited_for(workspace, node):
                for waiter in self.room(workspace, resource).waits:
                    if waiter.node == node:
                        places[resource, waiter] = None
            self._nodes[key] = places
        return places

    def next_seq(self) -> int:
        if self._last_seq is None:
            self._last_seq = self.rows.last_seq()
        self._last_seq += 1
        self.changes.last_seq = self._last_seq
        return self._last_seq

    # -- bounds, trust, events -----------------------------------------------------------------

    def counts(self, workspace: str) -> Counts:
        counts = self._counts.get(workspace)
        if counts is None:
            counts = self._counts[workspace] = self.rows.counts(workspace)
        return counts

    def _count(
        self, workspace: str, leases: int = 0, waits: int = 0, parked: int = 0, idempotency: int = 0
    ) -> None:
        if not (leases or waits or parked or idempotency):
            return
        counts = self.counts(workspace)
        counts = Counts(
            counts.leases + leases,
            counts.waits + waits,
            counts.parked + parked,
            counts.idempotency + idempotency,
        )
        assert min(counts.leases, counts.waits, counts.parked, counts.idempotency) >= 0
        self._counts[workspace] = self.changes.counts[workspace] = counts

    def trust(self, workspace: str, actor: str) -> Trust:
        """The agent's standing; one who never held a lease has the starting score."""
        key = (workspace, actor)
        if key not in self._trust:
            self._trust[key] = self.rows.trust(workspace, actor)
        return self._trust[key] or Trust(TRUST_START_HALVES)

    def put_trust(self, workspace: str, actor: str, trust: Trust) -> None:
        self._trust[workspace, actor] = self.changes.trust[workspace, actor] = trust

    def record(self, event: Event) -> None:
        """Write to the ledger's outbox."""
        self.changes.events.append(event)

    # -- deadlock pairs ------------------------------------------------------------------------

    def deadlocks(self, workspace: str) -> dict[tuple[Holder, str], DeadlockPair]:
        """The refusals as `deadlock` that may still be listed, oldest first."""
        pairs = self._deadlocks.get(workspace)
        if pairs is None:
            self.apply()
            stored = sorted(self.rows.deadlocks(workspace), key=lambda pair: pair.seq)
            pairs = {(pair.asker, pair.resource): pair for pair in stored}
            self._deadlocks[workspace] = pairs
        return pairs

    def put_deadlock(self, workspace: str, pair: DeadlockPair) -> None:
        pairs = self.deadlocks(workspace)
        self.drop_deadlock(workspace, pair.asker, pair.resource)
        if len(pairs) >= DEADLOCKS_LISTED_PER_WORKSPACE_MAX:
            asker, resource = next(iter(pairs))
            self.drop_deadlock(workspace, asker, resource)
        pairs[pair.asker, pair.resource] = pair
        self.changes.deadlocks[workspace, pair.asker, pair.resource] = pair

    def drop_deadlock(self, workspace: str, asker: Holder, resource: str) -> None:
        if self.deadlocks(workspace).pop((asker, resource), None) is not None:
            self.changes.deadlocks[workspace, asker, resource] = None

    # -- idempotency and deliveries ------------------------------------------------------------

    def idempotency(self, workspace: str, scope: IdempotencyScope) -> IdempotencyRecord | None:
        """The record under this key, if it is still kept."""
        record = self._idempotency_now(workspace, scope)
        if record is not None and record.expires_boot_ms <= self.now.boot_ms:
            self.put_idempotency(workspace, scope, None)
            return None
        return record

    def put_idempotency(
        self, workspace: str, scope: IdempotencyScope, record: IdempotencyRecord | None
    ) -> None:
        known = self._idempotency_now(workspace, scope)
        self._count(workspace, idempotency=(record is not None) - (known is not None))
        self._idempotency[workspace, scope] = self.changes.idempotency[workspace, scope] = record

    def _idempotency_now(self, workspace: str, scope: IdempotencyScope) -> IdempotencyRecord | None:
        """What is under this key, read once in a transaction: most keys are never seen again."""
        key = (workspace, scope)
        if key not in self._idempotency:
            self._idempotency[key] = self.rows.idempotency(workspace, scope)
        return self._idempotency[key]

    def drop_expired_idempotency(self, most: int) -> None:
        """Remove some records that are no longer kept."""
        self.apply()
        expired = list(self.rows.idempotency_expired(self.now.boot_ms, most))
        for workspace, scope in expired:
            self.put_idempotency(workspace, scope, None)

    def deliver(self, room: Room, parked: Parked, reply: Reply) -> None:
        """Send the reply to a parked request on its way."""
        self.changes.deliveries.append(
            Delivery(parked.request_id, parked.process_id, room.workspace, room.resource, reply)
        )
        if parked.idempotency is not None:
            record = self.idempotency(room.workspace, parked.idempotency)
            if record is not None:
                # The time for which an answer is kept begins with the answer.
                expires_boot_ms = self.now.boot_ms + IDEMPOTENCY_KEPT_MS
                self.put_idempotency(
                    room.workspace,
                    parked.idempotency,
                    IdempotencyRecord(record.body_digest, expires_boot_ms, reply),
                )
