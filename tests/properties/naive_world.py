"""The naive model as a world: the clocks, the connections, the credentials, the idempotency keys, and
what is invalid before any rule is asked.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.properties.naive import Room
from tests.properties.naive_nouns import STRENGTH, Body, Request, refusal
from tests.scenarios.world import TERM_MS, Answer, Capability, Op, ParkedAsk


class NaiveAsk:
    """One connection that carries a request; a repeat under the same key joins it with another."""

    def __init__(self, world: "NaiveWorld", room: Room, request: Request) -> None:
        self.world, self.room, self.request, self.open = world, room, request, True

    def answer(self) -> Answer | None:
        return self.request.answer if self.open and not self.request.frozen else None

    def hang_up(self) -> None:
        if self.open and (self.answer() is None):
            self.open = False
            self.request.connections -= 1
            if not self.request.connections:
                self.world.lose([self])


@dataclass(eq=False)
class Record:
    """What an Idempotency-Key stands for."""

    body: Body
    request: Request | None
    answer: Answer | None
    at: int


class NaiveWorld:
    """The model as a world: the clocks, the credentials, and the idempotency keys."""

    lacks: ClassVar[dict[Capability, str]] = {}
    grace = 250
    rules: ClassVar[type[Room]] = Room

    def __init__(self) -> None:
        self.boot, self.wall, self.number = 1_000_000, 1_790_000_000_000, 0
        self.rooms: dict[str, Room] = {}
        self.records: dict[tuple[str, str, str, str], Record] = {}
        self.told_retry: Callable[[int, Request], int] = lambda base, request: base
        self.told_cycle: Callable[[list[tuple[str, str]], Request], int] = lambda cycles, request: 0

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def jitter(self, base: int, request: Request) -> int:
        return self.told_retry(base, request)

    def pick(self, cycles: list[tuple[str, str]], request: Request) -> int:
        return self.told_cycle(cycles, request)

    def room(self, key: str | None) -> Room:
        name = (key or "").removeprefix("workspace:") if (key or "").startswith("workspace:") else ""
        return self.rooms.setdefault(name, self.rules(self))

    def ask(
        self, op: Op, body: Body, *, key: str | None = None, idempotency_key: str | None = None
    ) -> Answer:
        if op == "lease":
            answer = self.park(body, key=key, idempotency_key=idempotency_key).answer()
            assert answer is not None, "use park() for a request that may be parked"
            return answer
        room = self.room(key)
        if wrong := fault(op, body, key):
            return wrong
        record = self.repeated(op, body, key, idempotency_key)
        if record:
            return self.same_again(room, record, body)
        commands = {"release": room.release, "wait": room.list_waits, "withdraw": room.withdraw}
        answer = (commands | {"trust": room.trust, "break": room.break_})[op](body)
        room.settle()
        self.note_answers()
        if idempotency_key and answer.status in (200, 409):
            scope = (key or "", body.get("actorDid", ""), op, idempotency_key)
            self.records[scope] = Record(body, None, answer, self.boot)
        return answer

    def park(self, body: Body, *, key: str | None = None, idempotency_key: str | None = None) -> ParkedAsk:
        room, now = self.room(key), self.boot
        wrong = fault("lease", body, key)
        if wrong:
            return NaiveAsk(self, room, Request(0, body, "", ("", ""), "", now, answer=wrong))
        record = self.repeated("lease", body, key, idempotency_key)
        if record and record.body == body and record.request and record.request.answer is None:
            record.request.connections += 1
            return NaiveAsk(self, room, record.request)
        resource, who = body["resource"], (body["actorDid"], body.get("instance", ""))
        kept = [x.access for x in [room.own(resource, who)] if x]
        kept += [w.access for w in room.queue(resource) if w.who == who]
        access = body.get("access") or (kept or ["write"])[0]
        until = now + (body.get("maxWaitMs") or TERM_MS)
        request = Request(self.next_number(), body, resource, who, access, until)
        if record:
            request.answer = self.same_again(room, record, body)
            return NaiveAsk(self, room, request)
        room.acquire(request)
        room.settle()
        if idempotency_key:
            scope = (key or "", who[0], "lease", idempotency_key)
            self.records[scope] = Record(body, request, None, now)
        return NaiveAsk(self, room, request)

    def repeated(self, op: Op, body: Body, key: str | None, idempotency_key: str | None) -> Record | None:
        """The record that this key stands for, if an answer that is kept (200, 409) came or is pending."""
        self.note_answers()
        record = self.records.get((key or "", body.get("actorDid", ""), op, idempotency_key or ""))
        if not record:
            return None
        if record.answer and (record.answer.status not in (200, 409) or self.boot >= record.at + 600_000):
            return None
        return record

    def note_answers(self) -> None:
        """Keep the answers that have come by now with their keys; their ten minutes begin."""
        for record in self.records.values():
            if record.answer is None and record.request and record.request.answer:
                record.answer, record.at = record.request.answer, self.boot

    def same_again(self, room: Room, record: Record, body: Body) -> Answer:
        if record.body != body or record.answer is None:
            return refusal(400, "invalid_request", field="Idempotency-Key")
        lease = record.answer.body.get("lease")
        if lease and not any(x.id == lease["leaseId"] for x in room.leases):
            return refusal(409, "stale_lease")
        return record.answer

    def advance(self, ms: int) -> None:
        target = self.boot + ms
        while self.boot < target:
            dues = [due for room in self.rooms.values() for due in room.dues() if self.boot < due < target]
            step = min([*dues, target]) - self.boot
            self.boot, self.wall = self.boot + step, self.wall + step
            for room in self.rooms.values():
                room.settle()
            self.note_answers()

    def step_wall(self, ms: int) -> None:
        self.wall += ms

    def restart(self, down_ms: int) -> None:
        for room in self.rooms.values():
            room.gone(
                [p for w in room.waits for p in w.parked] + [r for x in room.leases for r in x.unmarked]
            )
        self.records = {k: r for k, r in self.records.items() if r.answer or (r.request and r.request.answer)}
        self.boot, self.wall = self.boot + down_ms, self.wall + down_ms
        for room in self.rooms.values():
            room.settle()

    def reboot(self) -> None:
        self.restart(0)
        for room in self.rooms.values():
            for lease in room.leases:
                lease.ends, lease.ends_wall = self.boot + TERM_MS, self.wall + TERM_MS
            for wait in room.waits:
                wait.asked = self.boot

    def freeze(self, *parked: ParkedAsk) -> None:
        for handle in parked:
            assert isinstance(handle, NaiveAsk)
            handle.request.frozen = True

    def kill_parker(self, *parked: ParkedAsk) -> None:
        self.lose([handle for handle in parked if isinstance(handle, NaiveAsk) and handle.open])

    def lose(self, handles: list[NaiveAsk]) -> None:
        gone = [h.request for h in handles]
        for handle in handles:
            handle.open = False
        rooms = {id(h.room): h.room for h in handles}.values()
        for room in rooms:
            room.gone(gone)
        # CHOICE: what was decided under a key is repeated, even if nobody heard it, unless it was undone.
        current = {x.id for room in rooms for x in room.leases}
        self.records = {
            k: r
            for k, r in self.records.items()
            if r.request not in gone
            or (r.request.answer and r.request.answer.body.get("lease", {}).get("leaseId") in current)
        }

    def close(self) -> None:
        self.rooms.clear()


# -- what is invalid before any rule is asked --------------------------------------------------------


def fault(op: Op, body: Body, key: str | None) -> Answer | None:
    """The refusal of a request that breaks the form, or that names another agent than its key may."""
    needed = {"lease": ("resource", "actorDid"), "trust": ("actorDid",), "break": ("resource", "reason")}
    for member in needed.get(op, () if op == "wait" else ("resource", "actorDid")):
        if not isinstance(body.get(member), str):
            return refusal(400, "invalid_request", field=member)
    checks: dict[str, Callable[[Any], bool]] = {
        "resource": resource_is_sound,
        "actorDid": lambda v: bool(re.fullmatch(r"did:[a-z0-9]+:[A-Za-z0-9._:%-]+", v)) and len(v) <= 256,
        "access": lambda v: v in STRENGTH,
        "instance": lambda v: text_is_sound(v, 1, 64),
        "note": lambda v: text_is_sound(v, 0, 200),
        "leaseId": lambda v: isinstance(v, str),
        "maxWaitMs": lambda v: isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= 300_000,
    }
    for member, sound in checks.items():
        if member in body and not sound(body[member]):
            return refusal(400, "invalid_request", field=member)
    if (key or "").startswith("bound:") and body.get("actorDid") != (key or "")[6:]:
        return refusal(403, "actor_mismatch")
    if (op == "break") != (key == "operator") and not (op == "break" and key is None) and op in needed:
        return None if op == "trust" else refusal(403, "forbidden")
    return None


def text_is_sound(value: Any, least: int, most: int) -> bool:
    return isinstance(value, str) and least <= len(value) <= most and not any(map(is_invisible, value))


def is_invisible(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf")


def resource_is_sound(name: str) -> bool:
    scheme, colon, rest = name.partition(":")
    if not 1 <= len(name.encode()) <= 512 or name != name.strip() or any(map(is_invisible, name)):
        return False
    if any(c.isspace() and c != " " for c in name) or unicodedata.normalize("NFC", name) != name:
        return False
    if colon and not (rest and re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme)):
        return False
    return scheme != "file" or not colon or ("\\" not in rest and not {"", ".", ".."} & set(rest.split("/")))
