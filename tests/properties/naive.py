"""A naive model of the rules: obvious, slow, and written from the contract alone.

It keeps plain lists and computes everything else (places, edges, cycles, who is next) afresh at every
step. `naive_world.py` gives it clocks and connections. Where the contract leaves a choice, the line says
`CHOICE`.
"""

from collections.abc import Iterator

from tests.properties.naive_nouns import (
    SHARED_READ,
    Body,
    Clocks,
    Lease,
    Pair,
    Request,
    Wait,
    Who,
    curve,
    ended,
    refusal,
    stamp,
)
from tests.scenarios.world import TERM_MS, Answer


class Room:
    """One workspace and its rules."""

    def __init__(self, world: Clocks) -> None:
        self.world = world
        self.leases: list[Lease] = []
        self.waits: list[Wait] = []
        self.pairs: list[Pair] = []
        self.halves: dict[str, int] = {}
        self.counts: dict[str, list[int]] = {}

    # -- what can be seen ------------------------------------------------------------------------

    def holders(self, resource: str) -> list[Lease]:
        return sorted((x for x in self.leases if x.resource == resource), key=lambda x: x.fence)

    def own(self, resource: str, who: Who) -> Lease | None:
        return next((x for x in self.holders(resource) if x.who == who), None)

    def queue(self, resource: str) -> list[Wait]:
        """Live waits, upgrades of living read leases first, then in order of first asking."""
        waits = [w for w in self.waits if w.resource == resource]
        return sorted(waits, key=lambda w: (self.own(resource, w.who) is None, w.seq))

    def ahead(self, wait: Wait) -> list[Wait]:
        key = (self.own(wait.resource, wait.who) is None, wait.seq)
        return [w for w in self.queue(wait.resource) if (self.own(w.resource, w.who) is None, w.seq) < key]

    def collide(self, resource: str, one: str, other: str) -> bool:
        shared = resource.partition(":")[0] in SHARED_READ and ":" in resource
        return not (shared and one == other == "read")

    def others(self, wait: Wait) -> list[Lease]:
        return [x for x in self.holders(wait.resource) if x.who != wait.who]

    def colliding(self, wait: Wait) -> list[Lease]:
        return [x for x in self.others(wait) if self.collide(wait.resource, wait.access, x.access)]

    def writers_ahead(self, wait: Wait) -> list[Wait]:
        return [w for w in self.ahead(wait) if w.access != "read"]

    def obstacles(self, wait: Wait) -> list[Lease]:
        """The holders that keep this wait from being granted; a waiting writer lends its holders."""
        colliding = self.colliding(wait)
        return colliding or (self.others(wait) if self.writers_ahead(wait) else [])

    # -- the wait graph, by brute force ----------------------------------------------------------

    def node(self, who: Who) -> Who:
        return who[0], who[1].partition(".")[0]

    def edges(self, wait: Wait) -> list[Lease]:
        found = self.colliding(wait)
        if not found:
            found = [x for w in self.writers_ahead(wait) for x in self.colliding(w) if x.who != wait.who]
        unique = {x.id: x for x in found if self.node(x.who) != self.node(wait.who)}
        return sorted(unique.values(), key=lambda x: x.fence)

    def reaches(self, start: Who, goal: Who, seen: frozenset[Who] = frozenset()) -> bool:
        if start == goal:
            return True
        return start not in seen and any(
            self.reaches(self.node(x.who), goal, seen | {start})
            for w in self.waits
            if w.edge and self.node(w.who) == start
            for x in self.edges(w)
        )

    def cycles(self, wait: Wait) -> list[tuple[Lease, Wait]]:
        """Who is on a cycle through this wait, and by which wait of its own; first holder, oldest wait."""
        return [
            (x, w)
            for x in self.edges(wait)
            for w in sorted(self.waits, key=lambda w: w.seq)
            if w.edge and self.node(w.who) == self.node(x.who)
            if any(self.reaches(self.node(y.who), self.node(wait.who)) for y in self.edges(w))
        ]

    def spell_out(self, wait: Wait, holder: Lease, next_wait: Wait) -> list[Body]:
        paths = [[(wait, holder), (next_wait, y)] for y in self.edges(next_wait)]
        while paths:
            path = paths.pop(0)
            end = self.node(path[-1][1].who)
            if end == self.node(wait.who):
                return [{"actorDid": w.who[0], "waitsFor": w.resource, "heldBy": x.who[0]} for w, x in path]
            if end not in [self.node(w.who) for w, _ in path]:
                onward = [w for w in self.waits if w.edge and self.node(w.who) == end]
                paths += [[*path, (w, x)] for w in onward for x in self.edges(w)]
        raise AssertionError("a cycle that is none")

    def deadlock(self, wait: Wait, request: Request) -> Answer | None:
        cycles = self.cycles(wait)
        if not cycles:
            return None
        # CHOICE: of several cycles any may be told; alone, the model tells the first holder's oldest wait.
        holder, next_wait = cycles[self.world.pick([(x.who[0], w.resource) for x, w in cycles], request)]
        now = self.world.boot
        pair = Pair(wait.who, wait.resource, holder.who, next_wait.resource, now, self.world.wall)
        self.pairs.append(pair)
        cycle = self.spell_out(wait, holder, next_wait)
        members = {"holder": holder.who[0], "waitingOn": next_wait.resource, "cycle": cycle}
        return refusal(409, "deadlock", **members)

    # -- answers ---------------------------------------------------------------------------------

    def told(self, lease: Lease, renewed: bool) -> Answer:
        body: Body = {"leaseId": lease.id, "resource": lease.resource, "holder": lease.who[0]}
        body |= {"grantedAt": stamp(lease.granted_wall), "expiresAt": stamp(lease.ends_wall)}
        body |= {"ttlMs": TERM_MS, "fence": lease.fence, "renewed": renewed, "access": lease.access}
        body |= {"instance": lease.who[1]} if lease.who[1] else {}
        body |= {"note": lease.note} if lease.note is not None else {}
        waiting = {"waiting": len(self.queue(lease.resource))} if renewed else {}
        return Answer(200, {"ok": True, "lease": body, **waiting})

    def held(self, wait: Wait, request: Request) -> Answer:
        queue = self.queue(wait.resource)
        members: Body = {}
        # CHOICE: for an upgrade `holder` is another; `holders` lists all, the asker too.
        holders = self.others(wait)
        everyone = self.holders(wait.resource)
        if holders:
            first = holders[0]
            members = {"holder": first.who[0], "expiresAt": stamp(first.ends_wall)}
            members |= {"heldSince": stamp(first.granted_wall)}
            members |= {"instance": first.who[1]} if first.who[1] else {}
            members |= {"note": first.note} if first.note is not None else {}
            members |= {"holders": [x.who[0] for x in everyone]} if len(everyone) > 1 else {}
        position = queue.index(wait) + 1 if wait in queue else len(queue) + 1
        retry = self.world.jitter(curve(position), request)
        wait_ms = curve(len(queue))
        # CHOICE: a later, shorter wait does not take back the chance that an earlier answer gave.
        wait.chance = max(wait.chance, self.world.boot + max(wait_ms, retry) + self.world.grace)
        stampede = {"admitted": [w.who[0] for w in queue[:8]], "waitMs": wait_ms}
        return refusal(409, "lease_held", stampede=stampede, position=position, retryAfterMs=retry, **members)

    # -- grants ----------------------------------------------------------------------------------

    def grant(self, wait: Wait, request: Request | None = None) -> None:
        """Give the lease to a place: to the request that asks, and to every parked one of that place."""
        world, before = self.world, self.own(wait.resource, wait.who)
        self.waits = [w for w in self.waits if w is not wait]
        if before:
            self.leases.remove(before)
        number = world.next_number()
        times = (world.wall, world.boot + TERM_MS, world.wall + TERM_MS)
        lease_id, access = f"lease-{number}", wait.access
        lease = Lease(wait.resource, lease_id, wait.who, access, number, *times, wait.note, [], before)
        self.leases.append(lease)
        receivers = [*wait.parked, *([request] if request and request not in wait.parked else [])]
        for n, receiver in enumerate(receivers):
            receiver.answer = self.told(lease, renewed=n > 0)
        lease.unmarked = receivers if all(r.frozen for r in receivers) else []
        for waiter in [w for w in self.queue(wait.resource) if w.edge and lease in self.edges(w)]:
            if self.reaches(self.node(wait.who), self.node(waiter.who)):
                self.closed_by_grant(waiter)

    def closed_by_grant(self, waiter: Wait) -> None:
        if not waiter.parked:
            waiter.edge = False
            return
        answer = self.deadlock(waiter, waiter.parked[0])
        self.waits.remove(waiter)
        for parked in waiter.parked:
            parked.answer = answer

    def serve(self, resource: str, hurry: bool = False) -> None:
        """Hand the resource over to whoever is parked and can have it. `hurry`: pollers lose their chance."""
        while heads := self.next_parked(resource, hurry):
            for wait in heads:
                if wait in self.waits:
                    self.grant(wait)
            hurry = False

    def next_parked(self, resource: str, hurry: bool) -> list[Wait]:
        for wait in self.queue(resource):
            if wait.parked and not self.obstacles(wait) and (hurry or not self.kept_from(wait)):
                behind = [w for w in self.queue(resource) if wait in self.ahead(w)]
                if self.collide(resource, wait.access, "read"):
                    return [wait]
                # CHOICE: readers parked one after another are served in one step, even where a polling
                # writer that has lost its chance stands ahead of all of them.
                run = []
                for w in behind:
                    if w.access != "read":
                        break
                    run += [w] if w.parked else []
                return [wait, *run]
            if wait.parked and self.collide(resource, wait.access, "read"):
                return []
        return []

    def kept_from(self, wait: Wait) -> bool:
        """Whether the resource is kept for polling waiters ahead."""
        return any(
            w.chance > self.world.boot and self.collide(wait.resource, w.access, wait.access)
            for w in self.ahead(wait)
            if not w.parked
        )

    # -- time ------------------------------------------------------------------------------------

    def is_over(self, lease: Lease) -> bool:
        return lease.ends <= self.world.boot

    def is_dead(self, wait: Wait) -> bool:
        return not wait.parked and wait.asked + TERM_MS <= self.world.boot

    def dues(self) -> Iterator[int]:
        yield from (x.ends for x in self.leases)
        for wait in self.waits:
            yield from [p.until for p in wait.parked] or [wait.asked + TERM_MS, wait.chance]

    def settle(self) -> None:
        """Do all that is due by now: ends of leases, of waits, hand-overs, then time-outs one by one."""
        now = self.world.boot
        over = sorted((x for x in self.leases if self.is_over(x)), key=lambda x: (x.ends, x.fence))
        for lease in over:
            self.leases.remove(lease)
            self.move_trust(lease.who[0], -10)
        self.waits = [w for w in self.waits if not self.is_dead(w)]
        self.serve_all([x.resource for x in over])
        while late := sorted(
            (p for w in self.waits for p in w.parked if p.until <= now), key=lambda p: (p.until, p.number)
        ):
            self.acquire(late[0])
            self.serve_all()
        self.prune()

    def serve_all(self, first: list[str] | None = None) -> None:
        for resource in [*(first or []), *(w.resource for w in sorted(self.waits, key=lambda w: w.seq))]:
            self.serve(resource)

    def prune(self) -> None:
        self.pairs = [
            p
            for p in self.pairs
            if p.at + TERM_MS > self.world.boot
            and self.own(p.resource, p.holder)
            # CHOICE: "still waits" is said of the holder's node, since that is what closed the cycle.
            and self.node(p.holder) in [self.node(w.who) for w in self.queue(p.waiting_on)]
        ]

    def move_trust(self, actor: str, halves: int) -> None:
        self.halves[actor] = min(200, max(0, self.halves.get(actor, 100) + halves))
        self.counts.setdefault(actor, [0, 0])[halves < 0] += 1

    # -- the commands ----------------------------------------------------------------------------

    def acquire(self, request: Request) -> None:
        """Decide one acquire, fresh or timed out; afterwards it has its answer or is parked."""
        world, body, who = self.world, request.body, request.who
        late = request.until <= world.boot
        if body.get("leaseId") is not None:
            held = self.holders(request.resource)
            same = [x for x in held if x.id == body["leaseId"] and x.who[0] == who[0]]
            if same and same[0].access == "read" and body.get("access") in ("write", "delete"):
                request.answer = refusal(400, "invalid_request", field="access")
            elif same:
                self.renew(same[0], request)
            else:
                request.answer = refusal(409, "stale_lease")
            return
        self.pairs = [p for p in self.pairs if (p.who, p.resource) != (who, request.resource)]
        mine = self.own(request.resource, who)
        if mine and (mine.access != "read" or request.access == "read"):
            self.renew(mine, request)
            return
        kept = self.kept_first(request.resource)
        if kept and who == kept.who and body.get("access"):
            # CHOICE: the first parked one asks once more, for more: what it is given now is enough for both.
            kept.asked_access = request.access
        if kept and who not in [w.who for w in self.ahead(kept)]:
            self.serve(request.resource, hurry=True)
            if request.answer is None:
                self.acquire(request)
            return
        wait = self.place(request)
        if body.get("maxWaitMs") and not late and len(wait.parked) >= 16:
            request.answer = refusal(429, "too_many")
            return
        if late:
            wait.parked.remove(request)
        wait.asked_access, wait.asked, wait.asked_wall = request.access, world.boot, world.wall
        wait.note = body.get("note", wait.note)
        wait.edge = True
        if not self.obstacles(wait):
            self.grant(wait, request)
            return
        refused = self.deadlock(wait, request)
        if refused:
            for receiver in [*wait.parked, request]:
                receiver.answer = refused
            self.waits.remove(wait)
        elif body.get("maxWaitMs") and not late:
            wait.parked.append(request)
        else:
            request.answer = self.held(wait, request)

    def kept_first(self, resource: str) -> Wait | None:
        parked = [w for w in self.queue(resource) if w.parked and not self.obstacles(w)]
        return parked[0] if parked else None

    def place(self, request: Request) -> Wait:
        for wait in self.queue(request.resource):
            if wait.who == request.who:
                return wait
        world, number = self.world, self.world.next_number()
        times = (world.wall, world.boot, world.wall)
        self.waits.append(Wait(request.resource, request.who, request.access, number, *times))
        return self.waits[-1]

    def renew(self, lease: Lease, request: Request) -> None:
        lease.ends, lease.ends_wall = self.world.boot + TERM_MS, self.world.wall + TERM_MS
        lease.note = request.body.get("note", lease.note)  # CHOICE: a new note replaces the old one
        lease.unmarked = []  # CHOICE: its holder has heard of it now, so a hand-over has reached someone
        request.answer = self.told(lease, renewed=True)

    def release(self, body: Body) -> Answer:
        holders, actor, lease_id = self.holders(body["resource"]), body["actorDid"], body.get("leaseId")
        if not holders:
            return refusal(409, "not_held")
        mine = [x for x in holders if x.who[0] == actor]
        if lease_id is None or "instance" in body:
            mine = [x for x in mine if x.who[1] == body.get("instance", "")]
        if not mine:
            return refusal(409, "not_holder", holder=holders[0].who[0])
        chosen = [x for x in mine if lease_id in (None, x.id)]
        if not chosen:
            return refusal(409, "stale_lease")
        self.leases.remove(chosen[0])
        self.move_trust(actor, 1)
        return Answer(200, {"ok": True, "released": ended(chosen[0]), "trust": self.halves[actor] / 2})

    def withdraw(self, body: Body) -> Answer:
        who = (body["actorDid"], body.get("instance", ""))
        found = [w for w in self.queue(body["resource"]) if w.who == who]
        for wait in found:
            # CHOICE: what its parked requests are told is how things stood with their wait counted.
            for parked in wait.parked:
                parked.answer = self.held(wait, parked)
            self.waits.remove(wait)
        return Answer(200, {"ok": True, "withdrawn": bool(found)})

    def break_(self, body: Body) -> Answer:
        lease_id = body.get("leaseId")
        broken = [x for x in self.holders(body["resource"]) if lease_id in (None, x.id)]
        if not broken:
            return refusal(409, "stale_lease" if self.holders(body["resource"]) else "not_held")
        self.leases = [x for x in self.leases if x not in broken]
        return Answer(200, {"ok": True, "broken": [ended(x) for x in broken], "reason": body["reason"]})

    def list_waits(self, body: Body) -> Answer:
        def wanted(resource: str, who: Who) -> bool:
            return body.get("resource") in (None, resource) and body.get("actorDid") in (None, who[0])

        waiting = []
        for w in sorted(self.waits, key=lambda w: w.seq):
            holders = self.others(w) or self.holders(w.resource)
            row: Body = {"resource": w.resource, "actorDid": w.who[0], "parked": bool(w.parked)}
            row |= {"instance": w.who[1]} if w.who[1] else {}
            row |= {"holder": holders[0].who[0]} if holders else {}
            row |= {"position": self.queue(w.resource).index(w) + 1}
            row |= {"since": stamp(w.since_wall), "lastAskedAt": stamp(w.asked_wall)}
            waiting += [row] if wanted(w.resource, w.who) else []
        pairs = [
            {"actorDid": p.who[0], "resource": p.resource, "holder": p.holder[0], "waitingOn": p.waiting_on}
            | {"at": stamp(p.at_wall)}
            | ({"instance": p.who[1]} if p.who[1] else {})
            for p in self.pairs
            if wanted(p.resource, p.who)
        ]
        return Answer(200, {"ok": True, "waiting": waiting, "deadlocks": pairs})

    def trust(self, body: Body) -> Answer:
        released, expired = self.counts.get(body["actorDid"], [0, 0])
        score = self.halves.get(body["actorDid"], 100) / 2
        told = {"actorDid": body["actorDid"], "score": score, "released": released, "expired": expired}
        return Answer(200, {"ok": True, **told})

    # -- what is gone ----------------------------------------------------------------------------

    def gone(self, requests: list[Request]) -> None:
        """These requests reach nobody any more: their places go, and unmarked hand-overs are undone."""
        for wait in [w for w in self.waits if w.parked]:
            wait.parked = [p for p in wait.parked if p not in requests]
            if not wait.parked:
                self.waits.remove(wait)
        for lease in [x for x in self.leases if x.unmarked]:
            lease.unmarked = [r for r in lease.unmarked if r not in requests]
            if not lease.unmarked:
                self.leases.remove(lease)
                self.leases += [lease.before] if lease.before else []
        self.settle()
