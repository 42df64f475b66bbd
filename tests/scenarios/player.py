"""Plays one scenario on one world and compares every answer with what the text says, and with what is
always true: a new grant has a larger fence, a renewal keeps the lease, a refusal tells its numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tests.scenarios.agents import did, name
from tests.scenarios.language import (
    OUTCOMES,
    Answered,
    Clause,
    Happening,
    Look,
    Scenario,
    Send,
    Step,
    Subject,
    Who,
)
from tests.scenarios.world import TERM_MS, Answer, ParkedAsk, World

STATUS: Final = {
    "granted": 200,
    "renewed": 200,
    "released": 200,
    "withdrawn": 200,
    "broken": 200,
    "lease_held": 409,
    "deadlock": 409,
    "stale_lease": 409,
    "not_held": 409,
    "not_holder": 409,
    "invalid_request": 400,
    "actor_mismatch": 403,
    "forbidden": 403,
    "too_many": 429,
}
WHOLE_NUMBER_MAX: Final = 2**53 - 1


class NotAsToldError(AssertionError):
    """The world did something else than the text says."""


def check(holds: object, why: str) -> None:
    if not holds:
        raise NotAsToldError(why)


def wait_ms(n: int) -> int:
    """The published curve: min(800, 25 · 2^n)."""
    return 800 if n >= 5 else 25 * 2**n


def around(base: int) -> range:
    """Where a retry with jitter of ±25 % may lie, rounded to whole ms either way."""
    return range(base * 3 // 4, -(-base * 5 // 4) + 1)


def actor_of(entry: Any) -> str:
    """The DID in a list of agents, which may hold DIDs or objects with `actorDid`."""
    return str(entry["actorDid"] if isinstance(entry, dict) else entry)


def outcome_of(answer: Answer) -> str:
    """The word of the language for an answer."""
    body = answer.body
    if body.get("ok") is not True:
        return str(body.get("error"))
    if "lease" in body:
        return "renewed" if body["lease"]["renewed"] else "granted"
    words = [word for word in ("released", "withdrawn", "broken") if word in body]
    return words[0] if words else "ok"


def check_always(answer: Answer) -> None:
    """What is true of every answer of the routes, whatever the history."""
    body, word = answer.body, outcome_of(answer)
    check(answer.status == STATUS.get(word, 200), f"status {answer.status} for {word}")
    check(body.get("ok") is (answer.status == 200), f"`ok` is {body.get('ok')} with {answer.status}")
    if answer.status != 200:
        check(isinstance(body.get("message"), str) and body["message"], "an error without a message")
    if "lease" in body:
        lease = body["lease"]
        check(lease["ttlMs"] == TERM_MS, f"ttlMs {lease['ttlMs']}")
        check(
            type(lease["fence"]) is int and 0 <= lease["fence"] <= WHOLE_NUMBER_MAX,
            f"fence {lease['fence']!r}",
        )
        check(
            ("waiting" in body) == lease["renewed"], "`waiting` stands beside a renewed lease, and only there"
        )
    if word == "lease_held":
        position, stampede = body["position"], body["stampede"]
        check(position >= 1, f"position {position}")
        check(len(stampede["admitted"]) <= 8, "more than 8 admitted")
        check(stampede["waitMs"] in {wait_ms(n) for n in range(6)}, f"waitMs {stampede['waitMs']}")
        check(
            body["retryAfterMs"] in around(wait_ms(position)),
            f"retryAfterMs {body['retryAfterMs']} at {position}",
        )
        check(("holder" in body) == ("expiresAt" in body), "holder and expiresAt stand together")
        check(("holder" in body) == ("heldSince" in body), "holder and heldSince stand together")
    if word == "deadlock":
        cycle = body["cycle"]
        check(len(cycle) >= 2, "a cycle of one")
        check(cycle[0]["heldBy"] == body["holder"], "the cycle does not begin with the refused wait")
        check(cycle[1]["waitsFor"] == body["waitingOn"], "waitingOn is not what the holder waits for")
        for one, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            check(one["heldBy"] == following["actorDid"], "the cycle does not close")


@dataclass
class Sent:
    """One request that may be parked, and what the text has said of it so far."""

    who: Who
    resource: str
    handle: ParkedAsk
    label: str | None = None
    told: bool = False
    gone: bool = False


class Player:
    """One scenario on one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.now_ms = 0
        self.wall_zero_ms: float | None = None
        self.sent: list[Sent] = []
        self.leases: dict[str, dict[str, Any]] = {}
        self.fences: dict[str, int] = {}
        self.numbered: dict[tuple[str, int], int] = {}
        self.known: dict[str, dict[str, Any]] = {}

    def play(self, scenario: Scenario) -> None:
        for step in scenario.steps:
            try:
                self.play_step(step)
            except NotAsToldError as problem:
                raise NotAsToldError(f"{scenario.file}:{step.line}: {step.text}\n    {problem}") from None
        for sent in self.sent:
            check(
                sent.told or sent.gone or sent.handle.answer() is None,
                f"{scenario.file}:{scenario.line}: {sent.who} was answered, and the text does not say so",
            )

    def play_step(self, step: Step) -> None:
        command = step.command
        if isinstance(command, Answered):
            self.hear(step, command)
            return
        self.run_to(step.at_ms)
        if isinstance(command, Send):
            self.send(command, step.clauses)
        elif isinstance(command, Look):
            self.look(command, step.clauses)
        else:
            self.happen(command)

    def run_to(self, at_ms: int) -> None:
        if at_ms > self.now_ms:
            self.world.advance(at_ms - self.now_ms)
            self.now_ms = at_ms

    # -- requests --------------------------------------------------------------------------------

    def send(self, send: Send, clauses: tuple[Clause, ...]) -> None:
        body: dict[str, Any] = {}
        resource = send.resource
        if send.lease:
            lease = self.leases.get(send.lease)
            check(lease, f"no lease is called {send.lease}")
            assert lease is not None
            resource = resource or lease["resource"]
            body["leaseId"] = lease["leaseId"]
        body["resource"] = resource
        if send.who:
            body["actorDid"] = send.who.did
            body |= {"instance": send.who.instance} if send.who.instance else {}
        body |= send.members
        keys = {"key": send.key, "idempotency_key": send.idempotency_key}
        if send.op == "lease" and body.get("maxWaitMs"):
            assert send.who and resource
            sent = Sent(send.who, resource, self.world.park(body, **keys))
            self.sent.append(sent)
            answer = sent.handle.answer()
            sent.told = answer is not None
            if clauses[0].word == "parked":
                check(answer is None, f"not parked, but answered: {answer}")
                sent.label = next((c.value for c in clauses if c.word == "as"), None)
                return
            check(answer is not None, "parked")
        else:
            answer = self.world.ask(send.op, body, **keys)  # type: ignore[arg-type]
        assert answer is not None
        room = send.key if send.key and send.key.startswith("workspace:") else ""
        self.judge(answer, clauses, send.who, str(resource), room)

    def find(self, subject: Subject) -> Sent:
        """The latest request meant, one that the text has not told the answer of before any other."""
        found = [
            sent
            for sent in self.sent
            if (subject.label is None or sent.label == subject.label)
            and (subject.who is None or sent.who == subject.who)
            and subject.resource in (None, sent.resource)
        ]
        check(found, f"{subject} has no parked request")
        return max(found, key=lambda sent: not sent.told and not sent.gone)

    def hear(self, step: Step, command: Answered) -> None:
        sent = self.find(command.subject)
        if command.still_waits:
            self.run_to(step.at_ms)
            check(sent.handle.answer() is None, f"is answered: {sent.handle.answer()}")
            return
        if step.at_ms > self.now_ms and step.exact:
            self.run_to(step.at_ms - 1)
            check(sent.handle.answer() is None, f"is answered too early: {sent.handle.answer()}")
        self.run_to(step.at_ms)
        answer = sent.handle.answer()
        check(answer is not None, "is not answered")
        assert answer is not None
        sent.told = True
        self.judge(answer, step.clauses, sent.who, sent.resource)

    def happen(self, happening: Happening) -> None:
        sent = [self.find(subject) for subject in happening.subjects]
        if happening.what == "step_wall":
            self.world.step_wall(happening.ms)
            self.wall_zero_ms = None
        elif happening.what == "freeze":
            self.world.freeze(*(s.handle for s in sent))
        elif happening.what == "kill":
            self.world.kill_parker(*(s.handle for s in sent))
        elif happening.what == "hang_up":
            sent[0].handle.hang_up()
        else:
            sent = self.sent
            if happening.what == "reboot":
                self.world.reboot()
                self.wall_zero_ms = None
            else:
                self.world.restart(happening.ms)
                self.now_ms += happening.ms
        for one in sent:
            one.gone = True

    # -- answers ---------------------------------------------------------------------------------

    def judge(
        self, answer: Answer, clauses: tuple[Clause, ...], who: Who | None, resource: str, room: str = ""
    ) -> None:
        word = outcome_of(answer)
        said = next((c.word for c in clauses if c.word in OUTCOMES or c.word in UNUSUAL), None)
        check(said, "the text does not say which answer is expected")
        wanted = UNUSUAL.get(str(said), said)
        check(word == wanted, f"answered {readable(answer)}")
        check_always(answer)
        place = f"{room} {resource}"
        last = self.known.get(place)
        if "lease" in answer.body:
            lease = answer.body["lease"]
            assert who is not None
            check(lease["holder"] == who.did, f"granted to {name(lease['holder'])}")
            check(lease["resource"] == resource, f"granted {lease['resource']!r}")
            if word == "granted" and not any(lease["leaseId"] == x["leaseId"] for x in self.leases.values()):
                check(lease["fence"] > self.fences.get(place, -1), "the fence does not grow")
                self.fences[place] = lease["fence"]
                self.leases[f"={lease['leaseId']}"] = lease
                self.wall_zero_ms = millis(lease["grantedAt"]) - self.now_ms
            if word == "renewed":
                before = self.leases.get(f"={lease['leaseId']}")
                check(before is not None, "a renewal of a lease that was never granted")
                check(before and before["fence"] == lease["fence"], "a renewal with another fence")
            self.known[place] = lease
        for clause in clauses:
            self.judge_clause(clause, answer.body, resource, last)

    def judge_clause(
        self, clause: Clause, body: dict[str, Any], resource: str, last: dict[str, Any] | None
    ) -> None:
        word, value, lease = clause.word, clause.value, body.get("lease", {})
        if word in CHECKS:
            CHECKS[word](body, value)
        elif word == "as":
            self.leases[value] = lease
        elif word == "fence larger":
            check(last and lease["fence"] > last["fence"], "the fence is not larger than before")
        elif word == "fence" and isinstance(value, str):
            check(lease["fence"] == self.leases[value]["fence"], f"not the fence of {value}")
        elif word == "fence":
            actual = self.numbered.setdefault((resource, value), lease["fence"])
            check(actual == lease["fence"], f"not fence {value}")
            order = sorted((n, f) for (r, n), f in self.numbered.items() if r == resource)
            check(order == sorted(order, key=lambda pair: pair[1]), f"fence {value} is out of order")
        elif word == "same lease":
            check(last and lease["leaseId"] == last["leaseId"], "another lease than the one before")
        elif word == "expires in":
            ends = lease.get("expiresAt") or body.get("expiresAt")
            check(isinstance(ends, str), "no expiresAt")
            assert self.wall_zero_ms is not None, "`expires in` needs a grant since the wall clock was set"
            left = millis(str(ends)) - self.wall_zero_ms - self.now_ms
            check(left == value, f"expires in {left} ms")
        else:
            assert word in OUTCOMES or word in UNUSUAL, word

    def look(self, look: Look, clauses: tuple[Clause, ...]) -> None:
        if look.what == "trust":
            assert look.who is not None
            answer = self.world.ask("trust", {"actorDid": look.who.did})
            check(answer.status == 200 and answer.body["actorDid"] == look.who.did, readable(answer))
            for clause in clauses:
                check(answer.body[clause.word] == clause.value, f"{clause.word} {answer.body[clause.word]}")
            return
        query = {"resource": look.resource} if look.resource else {}
        query |= {"actorDid": look.who.did} if look.who else {}
        answer = self.world.ask("wait", query)
        check(answer.status == 200, readable(answer))
        if look.what == "queue":
            seen = [(row["actorDid"], row["resource"]) for row in answer.body["waiting"]]
            said = [(who.did, resource) for who, resource in clauses[0].value]
            shown = " then ".join(f"{name(actor)} on {where}" for actor, where in seen) or "empty"
            check([a for a, _ in seen] == [a for a, _ in said], f"the queue is {shown}")
            check(
                all(s in (None, r) for (_, r), (_, s) in zip(seen, said, strict=True)),
                f"the queue is {shown}",
            )
        else:
            pairs = [
                (p["actorDid"], p["resource"], p["holder"], p["waitingOn"]) for p in answer.body["deadlocks"]
            ]
            wanted = [(a.did, r, h.did, o) for a, r, h, o in clauses[0].value]
            check(pairs == wanted, f"the deadlocks are {[[name(x) for x in p] for p in pairs]}")


# -- expectations that need only the answer ------------------------------------------------------------

UNUSUAL: Final = {"held by nobody": "lease_held", "nothing withdrawn": "withdrawn"}
"""Expectations that say the outcome and more."""


def check_holder(body: dict[str, Any], value: Who) -> None:
    told = body.get("holder")
    check(told == value.did, f"holder is {name(str(told))}")
    if value.instance:
        check(body.get("instance") == value.instance, f"the holder's instance is {body.get('instance')}")


def check_cycle(body: dict[str, Any], value: list[Who]) -> None:
    told = [edge["actorDid"] for edge in body["cycle"]]
    check(told == [who.did for who in value], f"the cycle is {[name(t) for t in told]}")


def same_agents(told: list[Any], value: list[Who], what: str) -> None:
    check(
        [actor_of(t) for t in told] == [w.did for w in value], f"{what} {[name(actor_of(t)) for t in told]}"
    )


def check_member(path: str, where: str = "") -> Callable[[dict[str, Any], Any], None]:
    def compare(body: dict[str, Any], value: Any) -> None:
        inner = body.get(where, {}) if where else body
        told = inner.get(path)
        check(told == value, f"{path} is {told!r}")

    return compare


def check_note(body: dict[str, Any], value: str) -> None:
    told = body.get("lease", body).get("note")
    check(told == value, f"note is {told!r}")


CHECKS: Final[dict[str, Callable[[dict[str, Any], Any], None]]] = {
    "holder": check_holder,
    "holders": lambda body, value: same_agents(body.get("holders", []), value, "holders"),
    "admitted": lambda body, value: same_agents(body["stampede"]["admitted"], value, "admitted"),
    "cycle": check_cycle,
    "waitMs": check_member("waitMs", "stampede"),
    "position": check_member("position"),
    "retryAfterMs": lambda body, value: check(
        body["retryAfterMs"] in around(value), f"{body['retryAfterMs']}"
    ),
    "waitingOn": check_member("waitingOn"),
    "access": check_member("access", "lease"),
    "instance": check_member("instance", "lease"),
    "note": check_note,
    "without note": lambda body, _: check_note(body, None),  # type: ignore[arg-type]
    "field": check_member("field"),
    "waiting": check_member("waiting"),
    "trust": check_member("trust"),
    "broken": lambda body, value: check(value in (None, len(body["broken"])), f"{body['broken']}"),
    "held by nobody": lambda body, _: check("holder" not in body, f"held by {body.get('holder')}"),
    "withdrawn": lambda body, _: check(body["withdrawn"] is True, "nothing was withdrawn"),
    "nothing withdrawn": lambda body, _: check(body["withdrawn"] is False, "something was withdrawn"),
}


def readable(answer: Answer) -> str:
    """An answer for a message, with the agents' names in the place of their DIDs."""
    text = f"{answer.status} {answer.body}"
    for word in set(text.replace("'", " ").split()):
        text = text.replace(word, name(word)) if word.startswith("did:") else text
    return text


def millis(stamp: str) -> float:
    return round(datetime.fromisoformat(stamp).timestamp() * 1_000)


__all__ = ["NotAsToldError", "Player", "check_always", "did", "outcome_of"]
