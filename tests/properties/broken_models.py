"""Models with one fault each. Every one of them has to be noticed, or the tests could not fail."""

from typing import Any, ClassVar, Final

from tests.properties.naive import Body, Lease, Request, Room, Wait, Who, curve
from tests.properties.naive_world import NaiveWorld
from tests.scenarios.world import TERM_MS, Answer, ParkedAsk


class WaitsNeverDie(Room):
    def is_dead(self, wait: Wait) -> bool:
        return False


class WaitsDieLate(Room):
    def is_dead(self, wait: Wait) -> bool:
        return not wait.parked and wait.asked + TERM_MS < self.world.boot


class ParkedWaitsDie(Room):
    def is_dead(self, wait: Wait) -> bool:
        return wait.asked + TERM_MS <= self.world.boot


class LeasesEndLate(Room):
    def is_over(self, lease: Lease) -> bool:
        return lease.ends < self.world.boot


class LeasesEndEarly(Room):
    def is_over(self, lease: Lease) -> bool:
        return lease.ends <= self.world.boot + 1


class ReadersOvertake(Room):
    def writers_ahead(self, wait: Wait) -> list[Wait]:
        return []


class TrustFallsTwice(Room):
    def move_trust(self, actor: str, halves: int) -> None:
        super().move_trust(actor, 2 * halves if halves < 0 else halves)


class TrustHasNoBounds(Room):
    def move_trust(self, actor: str, halves: int) -> None:
        super().move_trust(actor, halves)
        released, expired = self.counts[actor]
        self.halves[actor] = 100 + released - 10 * expired


class EveryInstanceIsANode(Room):
    def node(self, who: Who) -> Who:
        return who


class EveryAgentIsANode(Room):
    def node(self, who: Who) -> Who:
        return who[0], ""


class OnlyTheFirstHolderBlocks(Room):
    def edges(self, wait: Wait) -> list[Lease]:
        return super().edges(wait)[:1]


class OnlyEightWaitersAreEdges(Room):
    def edges(self, wait: Wait) -> list[Lease]:
        queue = self.queue(wait.resource)
        return super().edges(wait) if wait not in queue[8:] else []


class GrantsCloseCyclesUnseen(Room):
    def closed_by_grant(self, waiter: Wait) -> None:
        return


class PollersHaveNoChance(Room):
    def kept_from(self, wait: Wait) -> bool:
        return False


class PollersKeepTheirChanceForEver(Room):
    def kept_from(self, wait: Wait) -> bool:
        return any(not w.parked for w in self.ahead(wait))


class AnyoneMayTakeWhatIsKept(Room):
    def kept_first(self, resource: str) -> Wait | None:
        return None


class AskingAgainLosesThePlace(Room):
    def place(self, request: Request) -> Wait:
        wait = super().place(request)
        if not wait.parked:
            wait.seq = self.world.next_number()
        return wait


class TheLastParkedComesFirst(Room):
    def next_parked(self, resource: str, hurry: bool) -> list[Wait]:
        return [w for w in self.queue(resource) if w.parked and not self.obstacles(w)][-1:]


class RenewalsMoveTheFence(Room):
    def renew(self, lease: Lease, request: Request) -> None:
        lease.fence = self.world.next_number()
        super().renew(lease, request)


class RenewalsAddUp(Room):
    def renew(self, lease: Lease, request: Request) -> None:
        super().renew(lease, request)
        lease.ends += 1


class RefusedUpgradesRenew(Room):
    def held(self, wait: Wait, request: Request) -> Answer:
        own = self.own(wait.resource, wait.who)
        if own:
            own.ends = self.world.boot + TERM_MS
        return super().held(wait, request)


class HangingUpKeepsThePlace(Room):
    def gone(self, requests: list[Request]) -> None:
        for wait in self.waits:
            wait.parked = [p for p in wait.parked if p not in requests]
        self.settle()


class HandOversAreNotUndone(Room):
    def gone(self, requests: list[Request]) -> None:
        for lease in self.leases:
            lease.unmarked = []
        super().gone(requests)


class UpgradesUndoneAreLost(Room):
    def gone(self, requests: list[Request]) -> None:
        for lease in self.leases:
            lease.before = None
        super().gone(requests)


class AnyIdMayRelease(Room):
    def release(self, body: Body) -> Answer:
        return super().release({k: v for k, v in body.items() if k != "leaseId"})


class WithdrawnRequestsHang(Room):
    def withdraw(self, body: Body) -> Answer:
        parked = [w.parked for w in self.waits if w.who[0] == body["actorDid"]]
        answer = super().withdraw(body)
        for request in (r for row in parked for r in row):
            request.answer = None
        return answer


class PositionsCountFromZero(Room):
    def held(self, wait: Wait, request: Request) -> Answer:
        answer = super().held(wait, request)
        return Answer(answer.status, answer.body | {"position": answer.body["position"] - 1})


class WaitMsWithoutTheAsker(Room):
    def held(self, wait: Wait, request: Request) -> Answer:
        answer = super().held(wait, request)
        stampede = answer.body["stampede"] | {"waitMs": curve(max(0, len(self.queue(wait.resource)) - 1))}
        return Answer(answer.status, answer.body | {"stampede": stampede})


class RestartsForget(NaiveWorld):
    def restart(self, down_ms: int) -> None:
        super().restart(down_ms)
        for room in self.rooms.values():
            room.waits = []


class RestartsRenew(NaiveWorld):
    def restart(self, down_ms: int) -> None:
        super().restart(down_ms)
        for lease in (x for room in self.rooms.values() for x in room.leases):
            lease.ends = self.boot + TERM_MS


class RebootsDoNotRenew(NaiveWorld):
    def reboot(self) -> None:
        self.restart(0)


class WallClockDecides(NaiveWorld):
    def step_wall(self, ms: int) -> None:
        super().step_wall(ms)
        for room in self.rooms.values():
            for lease in room.leases:
                lease.ends -= ms
            room.settle()


class RepeatsAreDecidedAgain(NaiveWorld):
    def repeated(self, *_: Any) -> None:
        return None


class RepeatsOfDeadGrantsAreGrants(NaiveWorld):
    def same_again(self, room: Room, record: Any, body: Body) -> Answer:
        return (
            record.answer if record.answer and record.body == body else super().same_again(room, record, body)
        )


class OneConnectionSpeaksForAll(NaiveWorld):
    def park(self, body: Body, *, key: str | None = None, idempotency_key: str | None = None) -> ParkedAsk:
        handle = super().park(body, key=key, idempotency_key=idempotency_key)
        handle.request.connections = 1  # type: ignore[attr-defined]
        return handle


def with_rules(broken: type[Room]) -> type[NaiveWorld]:
    class World(NaiveWorld):
        rules: ClassVar[type[Room]] = broken

    return World


BROKEN: Final[dict[str, type[NaiveWorld]]] = {
    broken.__name__: broken if issubclass(broken, NaiveWorld) else with_rules(broken)
    for broken in list(globals().values())
    if isinstance(broken, type) and broken.__module__ == __name__ and issubclass(broken, NaiveWorld | Room)
}
"""Every broken model, by the name of its fault."""
