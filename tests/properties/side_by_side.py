"""Two worlds, the same random commands, and every answer compared.

The one side is the model, the other any world. What each may choose for itself is made equal first: ids
are matched when they are granted, fences only have to grow in the same steps, the jitter of a back-off
and the choice among several cycles are checked for being allowed and then told to the model, since what
a poller was told decides how long its chance lasts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.properties.naive_nouns import Request, Who
from tests.properties.naive_world import NaiveAsk, NaiveWorld
from tests.properties.story import brief, place_of, sentence
from tests.scenarios.agents import did, name
from tests.scenarios.player import actor_of, around, check_always, millis, outcome_of
from tests.scenarios.world import TERM_MS, Answer, Capability, Op, ParkedAsk, World

T = TypeVar("T")

AGENTS: Final = [did(n) for n in "ABC"]
INSTANCES: Final = ["", "p.1", "p.2", "q"]
RESOURCES: Final = ["lock:x", "lock:y", "file:f"]
ACCESSES: Final = [None, None, "read", "read", "write", "delete"]
PARK_MS: Final = [100, 1_000, 5_000, 29_999, 30_000, 60_000]
STEP_MS: Final = [1, 1, 40, 60, 249, 250, 300, 1_000, 5_000, 14_999, 29_999, 30_001]
AFTER_REBOOT_MS: Final = 1_300
"""CHOICE: how long a poller's chance lasts across a reboot is not said, so it is let pass."""

KEYED: Final = ["lease", "park", "release"]
KEYS: Final = ["k1", "k2"]
GIVING_UP: Final[list[Op]] = ["withdraw", "withdraw", "release", "break"]
UPHEAVAL_MS: Final = [0, 1, 5_000, 29_999, 30_000]
UPHEAVALS: Final[list[Capability | None]] = [None, None, None, "step_wall", "restart", "reboot"]

whos = st.tuples(st.sampled_from(AGENTS), st.sampled_from(["", "", "", *INSTANCES]))
resources = st.sampled_from(["file:f", *RESOURCES])
accesses = st.sampled_from(ACCESSES)
park_times = st.sampled_from(PARK_MS)
numbers = st.integers(0, 23)


@dataclass(eq=False)
class Twin:
    """One request that was sent to both."""

    body: dict[str, Any]
    real: ParkedAsk
    model: ParkedAsk
    told: bool = False

    @property
    def place(self) -> str:
        return place_of(self.body)

    @property
    def request(self) -> Request:
        assert isinstance(self.model, NaiveAsk)
        return self.model.request


@dataclass
class Held:
    """A lease as its holder knows it: by the answers that it got."""

    resource: str
    who: tuple[str, str]
    access: str
    fence: int
    ends_ms: int


class SideBySide(RuleBasedStateMachine):
    """One history on both sides."""

    make_world: Callable[[], World] = NaiveWorld

    def __init__(self) -> None:
        super().__init__()
        self.real = type(self).make_world()
        self.model = NaiveWorld()
        self.model.told_retry = self.jitter_that_was_told
        self.model.told_cycle = self.cycle_that_was_told
        self.lacks = self.real.lacks
        self.twins: list[Twin] = []
        self.keyed: list[tuple[Op, dict[str, Any], str]] = []
        self.ids: dict[str, str] = {}
        self.fences: dict[str, list[tuple[int, int]]] = {}
        self.held: dict[str, Held] = {}
        self.now_ms = 0
        self.wall_apart_ms: float | None = None
        self.clocks_agree = True
        self.answer_now: Answer | None = None
        self.story: list[str] = []

    def teardown(self) -> None:
        self.real.close()

    # -- what the model is told -------------------------------------------------------------------

    def real_answer_to(self, request: Request) -> Answer | None:
        found = [t.real.answer() for t in self.twins if t.request is request]
        return next((a for a in found if a), None) if found else self.answer_now

    def jitter_that_was_told(self, base: int, request: Request) -> int:
        answer = self.real_answer_to(request)
        told = answer.body.get("retryAfterMs", base) if answer else base
        return int(told) if told in around(base) else base

    def cycle_that_was_told(self, cycles: list[tuple[str, str]], request: Request) -> int:
        answer = self.real_answer_to(request)
        told = (answer.body.get("holder", ""), answer.body.get("waitingOn", "")) if answer else ("", "")
        return cycles.index(told) if told in cycles else 0

    # -- the history so far, in the language of the scenarios ---------------------------------------

    def tell(self, command: str, answer: Answer | None = None, otherwise: str = "") -> None:
        self.story.append(
            f"  at {self.now_ms}ms  {command}  {brief(answer) if answer else otherwise}".rstrip()
        )

    # -- comparing --------------------------------------------------------------------------------

    def compare(self, what: str, real: Answer, model: Answer, gone: bool = False) -> None:
        check_always(real)
        one, other = self.normal(real, gone), self.normal(model, gone)
        assert one == other, f"{what}\n  world {shown(one)}\n  model {shown(other)}"
        self.learn(real, model)

    def normal(self, answer: Answer, gone: bool) -> dict[str, Any]:
        """The answer without what each side may choose."""
        body = {
            k: v
            for k, v in answer.body.items()
            if k not in ("message", "renewed", "retryAfterMs", "cycle", "receipt")
        }
        word = outcome_of(answer)
        if word in ("not_holder", "deadlock"):
            body = without(body, "instance")
        if word == "invalid_request":
            return {"status": answer.status, "error": word}
        if word == "lease_held":
            body["holders"] = [actor_of(h) for h in body.get("holders", [])]
            body["stampede"] = {
                **body["stampede"],
                "admitted": [*map(actor_of, body["stampede"]["admitted"])],
            }
            if gone:
                body = {k: body.get(k) for k in ("error", "holder")}
        for inner in ("lease", "released"):
            if inner in body:
                body[inner] = without(body[inner], "leaseId", "fence", "grantedAt", "expiresAt")
        if "broken" in body:
            body["broken"] = [(row["resource"], row["holder"], row.get("instance")) for row in body["broken"]]
            body = without(body, "resource")
        return {"status": answer.status, **without(body, "expiresAt", "heldSince")}

    def learn(self, real: Answer, model: Answer) -> None:
        """Match ids, fences and times of an answer that is the same otherwise."""
        for inner in ("lease", "released"):
            if inner in real.body:
                self.match(real.body[inner], model.body[inner])
        for one, other in zip(real.body.get("broken", []), model.body.get("broken", []), strict=True):
            self.match(one, other)
        for one, other in (
            (real.body, model.body),
            (real.body.get("lease", {}), model.body.get("lease", {})),
        ):
            for member in ("grantedAt", "expiresAt", "heldSince"):
                if member in one and member in other:
                    self.match_times(one[member], other[member])

    def match(self, one: dict[str, Any], other: dict[str, Any]) -> None:
        expected = self.ids.setdefault(other["leaseId"], one["leaseId"])
        assert expected == one["leaseId"], f"lease {one['leaseId']} where {expected} was expected"
        assert list(self.ids.values()).count(expected) == 1, f"lease id {expected} given twice"
        pairs = self.fences.setdefault(one["resource"], [])
        if (one["fence"], other["fence"]) not in pairs:
            pairs.append((one["fence"], other["fence"]))
            pairs.sort()
            models = [m for _, m in pairs]
            assert models == sorted(models), f"the fences of {one['resource']} do not grow: {pairs}"
            assert len({r for r, _ in pairs}) == len(pairs) == len(set(models)), f"a fence twice: {pairs}"

    def match_times(self, one: str, other: str) -> None:
        if not self.clocks_agree:
            return
        apart = millis(one) - millis(other)
        if self.wall_apart_ms is None:
            self.wall_apart_ms = apart
        assert apart == self.wall_apart_ms, f"{one} is {apart - self.wall_apart_ms} ms off"

    def witness(self, answer: Answer, since_ms: int) -> None:
        """Keep the books of the holders, and see that nobody holds beside a writer.

        An answer that came while time passed came at `since_ms` or later; what it gave lasts at least
        for one term from then.
        """
        word = outcome_of(answer)
        self.held = {i: h for i, h in self.held.items() if h.ends_ms > self.now_ms}
        if word in ("released", "broken"):
            rows = answer.body["broken"] if word == "broken" else [answer.body["released"]]
            ended = [(row["resource"], row["holder"]) for row in rows]
            # By agent, not by id: an upgrade that nobody has heard of yet ends its read lease, too.
            self.held = {i: h for i, h in self.held.items() if (h.resource, h.who[0]) not in ended}
        if word not in ("granted", "renewed"):
            return
        lease = answer.body["lease"]
        who = (lease["holder"], lease.get("instance", ""))
        place = (lease["resource"], who)
        before = {i: h for i, h in self.held.items() if (h.resource, h.who) == place}
        if any(h.fence > lease["fence"] for h in before.values()):
            return  # handed to a parked request and upgraded in the same step; the upgrade was heard first
        if word == "granted":
            self.held = {i: h for i, h in self.held.items() if i not in before}
            for other in self.held.values():
                together = other.access == lease["access"] == "read" and other.resource.startswith("file:")
                assert other.resource != lease["resource"] or together, f"{shown(other)} holds it still"
        self.held[lease["leaseId"]] = Held(*place, lease["access"], lease["fence"], since_ms + TERM_MS)

    # -- asking both ------------------------------------------------------------------------------

    def ask(self, op: Op, body: dict[str, Any], key: str | None = None) -> Answer:
        body = self.sayable(body)
        model_body = dict(body)
        if "leaseId" in body:
            body = {**body, "leaseId": self.ids.get(body["leaseId"], "lease-of-nobody")}
        self.answer_now = self.real.ask(op, body, idempotency_key=key)
        self.tell(sentence(op, model_body, key), self.answer_now)
        model = self.model.ask(op, model_body, idempotency_key=key)
        self.compare(f"{op} {shown(body)}", self.answer_now, model)
        if op != "lease" or not (key and self.repeats(op, model_body, key)):
            self.witness(self.answer_now, self.now_ms)
        self.hear(withdrawn=op == "withdraw")
        return self.answer_now

    def sayable(self, body: dict[str, Any]) -> dict[str, Any]:
        return without(body, "instance") if "instance" in self.lacks else body

    def repeats(self, op: Op, body: dict[str, Any], key: str) -> bool:
        return (op, body, key) in self.keyed

    def park(self, body: dict[str, Any], key: str | None = None) -> None:
        body = self.sayable(body)
        real = self.real.park(body, idempotency_key=key)
        self.answer_now = real.answer()
        self.tell(sentence("lease", body, key), self.answer_now, "parked")
        twin = Twin(body, real, self.model.park(body, idempotency_key=key))
        self.twins.append(twin)
        twin.told = bool(key and self.repeats("lease", body, key) and real.answer())
        self.hear()

    def hear(self, withdrawn: bool = False, since_ms: int | None = None) -> None:
        """Compare what parked requests have been answered."""
        for twin in sorted(self.twins, key=lambda t: t.request.number):
            real, model = twin.real.answer(), twin.model.answer()
            if twin.request.frozen:
                continue
            what = f"parked {shown(twin.body)}"
            assert (real is None) == (model is None), f"{what}\n  world {shown(real)}\n  model {shown(model)}"
            if real and model:
                if real is not self.answer_now:
                    self.tell(f"{twin.place} is answered {brief(real)}")
                self.compare(what, real, model, gone=withdrawn)
                if not twin.told:
                    self.witness(real, self.now_ms if since_ms is None else since_ms)
        self.twins = [t for t in self.twins if t.real.answer() is None]

    def run_for(self, ms: int) -> None:
        self.real.advance(ms)
        self.model.advance(ms)
        self.now_ms += ms
        self.hear(since_ms=self.now_ms - ms)

    # -- the commands: what is rare shares a rule, so that histories grow long enough to be interesting --

    @initialize()
    def begin(self) -> None:
        """Nothing but the fresh planes."""

    @rule(who=whos, resource=resources, access=accesses)
    def asks(self, who: Who, resource: str, access: str | None) -> None:
        self.polls(who, resource, access)

    @rule(who=whos, resource=resources, access=accesses, ms=park_times)
    def parks(self, who: Who, resource: str, access: str | None, ms: int) -> None:
        self.stays(who, resource, access, ms)

    @precondition(lambda self: self.holders())
    @rule(n=numbers, m=numbers, access=accesses, ms=park_times, stay=st.booleans())
    def a_holder_wants_what_is_held(self, n: int, m: int, access: str | None, ms: int, stay: bool) -> None:
        who, _ = nth(self.holders(), n)
        _, resource = nth(self.holders(), m)
        if stay:
            self.stays(who, resource, access, ms)
        else:
            self.polls(who, resource, access)

    @precondition(lambda self: self.readers())
    @rule(n=numbers, ms=park_times, stay=st.booleans())
    def a_reader_wants_to_write(self, n: int, ms: int, stay: bool) -> None:
        who, resource = nth(self.readers(), n)
        if stay:
            self.stays(who, resource, "write", ms)
        else:
            self.polls(who, resource, "write")

    @precondition(lambda self: self.waiters())
    @rule(n=numbers, access=accesses)
    def a_waiter_asks_again(self, n: int, access: str | None) -> None:
        self.polls(*nth(self.waiters(), n), access)

    @precondition(lambda self: self.holders())
    @rule(n=numbers)
    def a_holder_releases(self, n: int) -> None:
        self.ask("release", members(*nth(self.holders(), n)))

    @precondition(lambda self: self.ids)
    @rule(n=numbers, own=st.booleans(), who=whos, access=accesses, release=st.booleans())
    def an_id_is_used(self, n: int, own: bool, who: Who, access: str | None, release: bool) -> None:
        lease_id, actor, resource = self.lease_of_old(n)
        body = members((actor if own else who[0], who[1]), resource) | {"leaseId": lease_id}
        if release and "lease_id" not in self.lacks:
            self.ask("release", body)
        elif not release:
            self.ask("lease", body | ({"access": access} if access else {}))

    @rule(
        n=numbers,
        who=whos,
        resource=resources,
        what=st.sampled_from(["withdraw", "withdraw", "release", "break"]),
    )
    def gives_up(self, n: int, who: Who, resource: str, what: Op) -> None:
        if what == "withdraw" and self.waiters() and n:
            who, resource = nth(self.waiters(), n)
        if what != "break":
            self.ask(what, members(who, resource))
        elif "break" not in self.lacks:
            self.ask("break", {"resource": resource, "reason": "stuck"})

    @precondition(lambda self: self.twins and "hang_up" not in self.lacks)
    @rule(n=numbers)
    def hangs_up(self, n: int) -> None:
        twin = nth(self.twins, n)
        self.twins.remove(twin)
        self.tell(f"{twin.place} hangs up")
        twin.real.hang_up()
        twin.model.hang_up()
        self.hear()

    @precondition(lambda self: self.twins and not {"freeze", "kill_parker", "break"} & set(self.lacks))
    @rule(n=numbers, m=numbers, ms=st.sampled_from([0, 1, 50]))
    def dies_at_the_hand_over(self, n: int, m: int, ms: int) -> None:
        """Freeze one or two parked requests, end the leases they wait for, let them die."""
        chosen = [nth(self.twins, n).request, nth(self.twins, m).request]
        lost = [t for t in self.twins if t.request in chosen]
        if any(t.request.until <= self.model.boot + ms + 1 for t in lost):
            return
        for twin in lost:
            self.tell(f"{twin.place} freezes")
        self.real.freeze(*(t.real for t in lost))
        self.model.freeze(*(t.model for t in lost))
        self.free_for(chosen[0])
        if ms:
            self.run_for(ms)
        self.compare_lists()
        self.tell(" and ".join(twin.place for twin in lost) + (" die" if len(lost) > 1 else " dies"))
        self.real.kill_parker(*(t.real for t in lost))
        self.model.kill_parker(*(t.model for t in lost))
        self.twins = [t for t in self.twins if t not in lost]
        self.hear()

    def free_for(self, request: Request) -> None:
        """End what keeps this request waiting; its own read lease stays."""
        for who, resource in self.holders():
            if resource == request.resource and who != request.who:
                self.ask("release", members(who, resource))

    @precondition(lambda self: "idempotency" not in self.lacks)
    @rule(
        who=whos, resource=resources, key=st.sampled_from(["k1", "k2"]), op=st.sampled_from(KEYED), n=numbers
    )
    def asks_with_a_key(self, who: Who, resource: str, key: str, op: str, n: int) -> None:
        if self.keyed and n % 2:
            self.again(*nth(self.keyed[-3:], n // 2))
        elif op != "park":
            self.again("lease" if op == "lease" else "release", members(who, resource), key)
        elif "park" not in self.lacks:
            self.again("lease", members(who, resource) | {"maxWaitMs": 5_000}, key)

    @rule(what=st.sampled_from(UPHEAVALS), ms=st.sampled_from(UPHEAVAL_MS))
    def something_happens_to_the_plane(self, what: Capability | None, ms: int) -> None:
        if what is None or what in self.lacks:
            return
        if what == "step_wall":
            self.clocks_agree = False
            step_ms = ms * 1_000 if ms % 2 else -ms * 1_000
            self.tell(f"the wall clock steps {step_ms}ms")
            self.real.step_wall(step_ms)
            self.model.step_wall(step_ms)
            return
        self.twins = []
        if what == "restart":
            self.tell(f"the plane is down for {ms}ms")
            self.real.restart(ms)
            self.model.restart(ms)
            self.now_ms += ms
            return
        self.clocks_agree = False
        self.tell("the machine reboots")
        self.real.reboot()
        self.model.reboot()
        for held in self.held.values():
            if held.ends_ms > self.now_ms:
                held.ends_ms = self.now_ms + TERM_MS
        self.run_for(AFTER_REBOOT_MS)

    @rule(ms=st.sampled_from(STEP_MS))
    def time_passes(self, ms: int) -> None:
        self.run_for(ms)

    @precondition(lambda self: self.dues())
    @rule(n=numbers, off=st.sampled_from([-1, 0, 0, 1]))
    def time_passes_until_something_is_due(self, n: int, off: int) -> None:
        self.run_for(max(1, nth(self.dues()[:3], n) + off - self.model.boot))

    # -- parts of commands ------------------------------------------------------------------------

    def polls(self, who: Who, resource: str, access: str | None) -> None:
        answer = self.ask("lease", members(who, resource, access))
        if outcome_of(answer) == "lease_held":
            rows = self.real.ask("wait", {"resource": resource, "actorDid": who[0]}).body["waiting"]
            assert answer.body["position"] in [row["position"] for row in rows], (
                "refused, and not in the queue"
            )

    def stays(self, who: Who, resource: str, access: str | None, ms: int) -> None:
        if "park" not in self.lacks:
            self.park(members(who, resource, access) | {"maxWaitMs": ms})

    def again(self, op: Op, body: dict[str, Any], key: str) -> None:
        if "maxWaitMs" in body:
            self.park(body, key)
        else:
            self.ask(op, body, key)
        if (op, body, key) not in self.keyed:
            self.keyed.append((op, body, key))

    def waiters(self) -> list[tuple[Who, str]]:
        return [(w.who, w.resource) for w in self.model.room(None).waits]

    def holders(self) -> list[tuple[Who, str]]:
        return [(x.who, x.resource) for x in self.model.room(None).leases]

    def readers(self) -> list[tuple[Who, str]]:
        return [(x.who, x.resource) for x in self.model.room(None).leases if x.access == "read"]

    def dues(self) -> list[int]:
        dues = set(self.model.room(None).dues())
        return sorted(due for due in dues if due > self.model.boot)

    def lease_of_old(self, n: int) -> tuple[str, str, str]:
        """The model's id, holder and resource of a lease that was told, the latest first."""
        lease_id = nth(list(self.ids)[::-1], n)
        current = [x for x in self.model.room(None).leases if x.id == lease_id]
        if current:
            return lease_id, current[0].who[0], current[0].resource
        return lease_id, nth(AGENTS, n), nth(RESOURCES, n)

    # -- what can be seen at any time -------------------------------------------------------------

    @invariant()
    def compare_lists(self) -> None:
        real, model = self.real.ask("wait", {}), self.model.ask("wait", {})
        waiting = [[without(row, "since", "lastAskedAt") for row in a.body["waiting"]] for a in (real, model)]
        assert waiting[0] == waiting[1], (
            f"the queue\n  world {shown(waiting[0])}\n  model {shown(waiting[1])}"
        )
        for one, other in zip(real.body["waiting"], model.body["waiting"], strict=True):
            self.match_times(one["since"], other["since"])
            self.match_times(one["lastAskedAt"], other["lastAskedAt"])
        for resource in RESOURCES:
            places = sorted(r["position"] for r in real.body["waiting"] if r["resource"] == resource)
            assert places == list(range(1, len(places) + 1)), f"the places of {resource} are {places}"
        pairs = [[without(row, "at") for row in a.body["deadlocks"]] for a in (real, model)]
        assert pairs[0] == pairs[1], f"the deadlocks\n  world {shown(pairs[0])}\n  model {shown(pairs[1])}"

    @invariant()
    def compare_trust(self) -> None:
        for agent in AGENTS:
            real, model = (
                self.real.ask("trust", {"actorDid": agent}),
                self.model.ask("trust", {"actorDid": agent}),
            )
            assert real.body == model.body, f"trust\n  world {shown(real.body)}\n  model {shown(model.body)}"
            assert 0 <= real.body["score"] <= 100, f"a score of {real.body['score']}"


def members(who: Who, resource: str, access: str | None = None) -> dict[str, Any]:
    body: dict[str, Any] = {"resource": resource, "actorDid": who[0]}
    body |= {"instance": who[1]} if who[1] else {}
    return body | ({"access": access} if access else {})


def nth(rows: list[T], n: int) -> T:
    return rows[n % len(rows)]


def without(members: dict[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in members.items() if k not in names}


def shown(value: Any) -> str:
    text = str(value)
    for agent in AGENTS:
        text = text.replace(agent, name(agent))
    return text
