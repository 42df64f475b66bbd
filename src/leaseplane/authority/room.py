"""One resource in memory: who holds it, and its queue in order.

The queue's order is the order of first asking, except that the readers who want to go on to
`write` stand ahead of everyone for as long as they hold their read lease. Every question that a
refusal asks of a queue (how many, which position, who is first) costs O(log n) or less here, so
that the ten-thousandth waiter is refused as cheaply as the tenth.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator

from leaseplane.model import Access, Holder, Lease, Wait
from leaseplane.resources import SemanticsClass, collides
from leaseplane.store.contract import StoredRoom


def deadline_boot_ms(wait: Wait, term_ms: int) -> int:
    """When this wait has its next turn of fate: the first time-out of its parked requests, or,
    where none is parked, one lease term after it last asked."""
    if wait.parked:
        return min(parked.until_boot_ms for parked in wait.parked)
    return wait.asked_boot_ms + term_ms


class Room:
    """The leases and the queue of one resource of one workspace."""

    __slots__ = (
        "_deadlines",
        "_parked_seqs",
        "_seqs",
        "_term_ms",
        "_upgraders",
        "_waits_by_seq",
        "_writer_seqs",
        "alarm_boot_ms",
        "leases",
        "resource",
        "semantics",
        "waits",
        "workspace",
    )

    def __init__(
        self, workspace: str, resource: str, semantics: SemanticsClass, term_ms: int, stored: StoredRoom
    ) -> None:
        self.workspace = workspace
        self.resource = resource
        self.semantics = semantics
        self.alarm_boot_ms = stored.alarm_boot_ms
        self.leases: dict[Holder, Lease] = {}
        """In order of fence: the first is the holder who began first."""
        self.waits: dict[Holder, Wait] = {}
        self._term_ms = term_ms
        self._seqs: list[int] = []
        self._waits_by_seq: dict[int, Wait] = {}
        self._parked_seqs: list[int] = []
        self._writer_seqs: list[int] = []
        self._upgraders: dict[int, None] = {}
        self._deadlines: list[tuple[int, int]] = []
        for lease in sorted(stored.leases, key=lambda lease: lease.fence):
            self.leases[lease.holder] = lease
        for wait in stored.waits:
            self.put_wait(wait)

    # -- leases --------------------------------------------------------------------------------

    def put_lease(self, lease: Lease) -> None:
        """Store a new lease or a new state of one."""
        known = lease.holder in self.leases
        self.leases[lease.holder] = lease
        if not known and len(self.leases) > 1:
            # A read lease given back by an undone upgrade has an older fence than its neighbours.
            by_fence = sorted(self.leases.values(), key=lambda held: held.fence)
            self.leases = {held.holder: held for held in by_fence}
        self._note_upgrader(lease.holder)

    def end_lease(self, holder: Holder) -> None:
        del self.leases[holder]
        self._note_upgrader(holder)

    def lease_named(self, lease_id: str) -> Lease | None:
        for lease in self.leases.values():
            if lease.lease_id == lease_id:
                return lease
        return None

    def leases_colliding(self, holder: Holder, access: Access) -> list[Lease]:
        """The leases of others that exclude this access, the one that began first at the front."""
        return [
            lease
            for lease in self.leases.values()
            if lease.holder != holder and collides(self.semantics, lease.access, access)
        ]

    # -- the queue -----------------------------------------------------------------------------

    def put_wait(self, wait: Wait) -> None:
        """Take a place in the queue, or store a new state of a place that keeps its order."""
        before = self.waits.get(wait.waiter)
        if before is None:
            insort(self._seqs, wait.seq)
        self.waits[wait.waiter] = wait
        self._waits_by_seq[wait.seq] = wait
        _keep(self._parked_seqs, wait.seq, bool(wait.parked))
        _keep(self._writer_seqs, wait.seq, wait.access != "read")
        deadline = deadline_boot_ms(wait, self._term_ms)
        if before is None:
            self._note_upgrader(wait.waiter)
        elif deadline >= deadline_boot_ms(before, self._term_ms):
            # Who asks again only moves its deadline on. The earlier one that is there is looked at
            # when it comes, and replaced then.
            return
        heapq.heappush(self._deadlines, (deadline, wait.seq))
        if len(self._deadlines) > 64 and len(self._deadlines) > 4 * len(self.waits):
            self._deadlines = [(deadline_boot_ms(w, self._term_ms), w.seq) for w in self.waits.values()]
            heapq.heapify(self._deadlines)

    def restate_wait(self, wait: Wait) -> None:
        """Store a new state of a place that differs in nothing that the queue is ordered or timed by."""
        assert self.waits[wait.waiter].seq == wait.seq
        self.waits[wait.waiter] = wait
        self._waits_by_seq[wait.seq] = wait

    def end_wait(self, wait: Wait) -> None:
        del self.waits[wait.waiter]
        del self._waits_by_seq[wait.seq]
        del self._seqs[bisect_left(self._seqs, wait.seq)]
        _keep(self._parked_seqs, wait.seq, False)
        _keep(self._writer_seqs, wait.seq, False)
        self._upgraders.pop(wait.seq, None)

    def in_order(self) -> Iterator[Wait]:
        """The waits, the head of the queue first. The room must not change while this is read."""
        upgraders = sorted(self._upgraders)
        for seq in upgraders:
            yield self._waits_by_seq[seq]
        for seq in self._seqs:
            if seq not in self._upgraders:
                yield self._waits_by_seq[seq]

    def position(self, wait: Wait) -> int:
        """Its place in the queue, from 1."""
        if wait.seq in self._upgraders:
            return 1 + sum(1 for seq in self._upgraders if seq < wait.seq)
        overtaken = sum(1 for seq in self._upgraders if seq > wait.seq)
        return 1 + bisect_left(self._seqs, wait.seq) + overtaken

    def has_parked(self) -> bool:
        return bool(self._parked_seqs)

    def stands_ahead_of_parked(self, wait: Wait | None) -> bool:
        """Whether this is a place of a poller that comes before every parked one."""
        return wait is not None and not wait.parked and self._is_ahead_of_other_parked(wait)

    def is_first_parked(self, wait: Wait) -> bool:
        """Whether this place is parked, and comes before every other that is."""
        return bool(wait.parked) and self._is_ahead_of_other_parked(wait)

    def _is_ahead_of_other_parked(self, wait: Wait) -> bool:
        # Of the parked places in order of first asking the first two are enough: one may be its own.
        others = [seq for seq in self._parked_seqs[:2] if seq != wait.seq][:1]
        others += [seq for seq in self._upgraders if seq != wait.seq and self._waits_by_seq[seq].parked]
        return all(self._ahead(wait.seq, seq) for seq in others)

    def writers_ahead(self, wait: Wait | None, most: int) -> list[Wait]:
        """The first waiting writers ahead of this place, or ahead of the queue's end for None."""
        ahead: list[Wait] = []
        for seq in sorted(self._upgraders):
            if len(ahead) < most and (wait is None or self._ahead(seq, wait.seq)):
                ahead.append(self._waits_by_seq[seq])
        for seq in self._writer_seqs:
            if len(ahead) >= most or (wait is not None and not self._ahead(seq, wait.seq)):
                break
            if seq not in self._upgraders:
                ahead.append(self._waits_by_seq[seq])
        return ahead

    def waits_due(self, boot_ms: int) -> list[tuple[int, Wait]]:
        """The waits whose deadline has come, with it; each is looked at again before it is acted on."""
        due: list[tuple[int, Wait]] = []
        looked_at: list[tuple[int, int]] = []
        while self._deadlines and self._deadlines[0][0] <= boot_ms:
            _, seq = heapq.heappop(self._deadlines)
            wait = self._waits_by_seq.get(seq)
            if wait is None:
                continue
            deadline = deadline_boot_ms(wait, self._term_ms)
            looked_at.append((deadline, seq))
            if deadline <= boot_ms:
                due.append((deadline, wait))
        for entry in looked_at:
            heapq.heappush(self._deadlines, entry)
        return due

    def first_end_boot_ms(self) -> int | None:
        """The earliest end of a lease or deadline of a wait, exactly."""
        ends = [lease.ends_boot_ms for lease in self.leases.values()]
        while self._deadlines:
            deadline, seq = self._deadlines[0]
            wait = self._waits_by_seq.get(seq)
            exact = None if wait is None else deadline_boot_ms(wait, self._term_ms)
            if exact == deadline:
                ends.append(deadline)
                break
            heapq.heappop(self._deadlines)
            if exact is not None:
                heapq.heappush(self._deadlines, (exact, seq))
        return min(ends, default=None)

    # -- inside --------------------------------------------------------------------------------

    def _ahead(self, seq: int, other: int) -> bool:
        """Whether place `seq` comes before place `other`."""
        return (seq not in self._upgraders, seq) < (other not in self._upgraders, other)

    def _note_upgrader(self, holder: Holder) -> None:
        wait = self.waits.get(holder)
        if wait is None:
            return
        if holder in self.leases:
            self._upgraders[wait.seq] = None
        else:
            self._upgraders.pop(wait.seq, None)


def _keep(seqs: list[int], seq: int, wanted: bool) -> None:
    """Have `seq` in this sorted list exactly if it is wanted there."""
    at = bisect_left(seqs, seq)
    there = at < len(seqs) and seqs[at] == seq
    if wanted and not there:
        seqs.insert(at, seq)
    elif there and not wanted:
        del seqs[at]
