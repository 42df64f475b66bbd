"""Rows in dictionaries: a store without a disk, for playing the rules alone. It knows no rules."""

from collections.abc import Collection, Iterable

from leaseplane.model import Holder, IdempotencyScope, Lease, Node, Trust, Wait
from leaseplane.store.contract import (
    Changes,
    Counts,
    DeadlockPair,
    Event,
    IdempotencyRecord,
    Place,
    RoomRow,
    StoredRoom,
)


class MemoryRows:
    """Fulfils `store.contract.Rows`. Every apply stands at once; there is no commit to lose."""

    def __init__(self) -> None:
        self.rooms: dict[Place, RoomRow] = {}
        self.leases: dict[tuple[str, str, Holder], Lease] = {}
        self.waits: dict[tuple[str, str, Holder], Wait] = {}
        self.waits_of_node: dict[tuple[str, Node], set[tuple[str, Holder]]] = {}
        self.trusts: dict[tuple[str, str], Trust] = {}
        self.all_counts: dict[str, Counts] = {}
        self.pairs: dict[tuple[str, Holder, str], DeadlockPair] = {}
        self.records: dict[tuple[str, IdempotencyScope], IdempotencyRecord] = {}
        self.events: list[Event] = []
        self.fence = 0
        self.seq = 0

    def room(self, workspace: str, resource: str) -> StoredRoom:
        row = self.rooms.get((workspace, resource))
        return StoredRoom(
            tuple(lease for key, lease in self.leases.items() if key[:2] == (workspace, resource)),
            tuple(wait for key, wait in self.waits.items() if key[:2] == (workspace, resource)),
            row.alarm_boot_ms if row else None,
        )

    def resources_waited_for(self, workspace: str, node: Node) -> Iterable[str]:
        return {resource for resource, _ in self.waits_of_node.get((workspace, node), ())}

    def queued_resources(self, workspace: str) -> Iterable[str]:
        return {key[1] for key in self.waits if key[0] == workspace}

    def trust(self, workspace: str, actor: str) -> Trust | None:
        return self.trusts.get((workspace, actor))

    def counts(self, workspace: str) -> Counts:
        return self.all_counts.get(workspace, Counts())

    def deadlocks(self, workspace: str) -> Iterable[DeadlockPair]:
        return [pair for key, pair in self.pairs.items() if key[0] == workspace]

    def idempotency(self, workspace: str, scope: IdempotencyScope) -> IdempotencyRecord | None:
        return self.records.get((workspace, scope))

    def idempotency_expired(self, boot_ms: int, most: int) -> Iterable[tuple[str, IdempotencyScope]]:
        return [key for key, record in self.records.items() if record.expires_boot_ms <= boot_ms][:most]

    def due(self, boot_ms: int, most: int) -> list[Place]:
        due = [
            (row.alarm_boot_ms, place) for place, row in self.rooms.items() if row.alarm_boot_ms <= boot_ms
        ]
        return [place for _, place in sorted(due)][:most]

    def next_alarm_boot_ms(self) -> int | None:
        return min((row.alarm_boot_ms for row in self.rooms.values()), default=None)

    def places_kept_open_by(self, process_ids: Collection[str]) -> list[Place]:
        kept = [(key, wait.parked) for key, wait in self.waits.items()]
        kept += [(key, lease.handed) for key, lease in self.leases.items()]
        return sorted(
            {
                key[:2]
                for key, requests in kept
                if any(request.process_id in process_ids for request in requests)
            }
        )

    def last_fence(self) -> int:
        return self.fence

    def last_seq(self) -> int:
        return self.seq

    def apply(self, changes: Changes) -> None:
        for target, changed in (
            (self.rooms, changes.rooms),
            (self.leases, changes.leases),
            (self.waits, changes.waits),
            (self.trusts, changes.trust),
            (self.all_counts, changes.counts),
            (self.pairs, changes.deadlocks),
            (self.records, changes.idempotency),
        ):
            for key, row in changed.items():
                if row is None:
                    target.pop(key, None)
                else:
                    target[key] = row
        for (workspace, resource, holder), wait in changes.waits.items():
            places = self.waits_of_node.setdefault((workspace, holder.node), set())
            (places.discard if wait is None else places.add)((resource, holder))
        self.events += changes.events
        self.fence = self.fence if changes.last_fence is None else changes.last_fence
        self.seq = self.seq if changes.last_seq is None else changes.last_seq
