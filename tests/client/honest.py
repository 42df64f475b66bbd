"""An honest authority of one resource in forty lines, and somebody who does the steps of `asking` against it.

Virtual time, no I/O. The one who does the steps can let any one of them go wrong: a request that is *lost*,
one that is *applied but unanswered*, and a caller who gives up while a request is still on its way, or when
it has arrived already.
"""

import json
from collections.abc import Generator
from typing import Any, Literal, TypeAlias

from leaseplane.client.asking import INTERRUPTED, Aside, Chance, Event, HangUp, Join, Pause, Send, Step
from leaseplane.client.channel import Answer, Request
from leaseplane.model import AuthorityUnavailable, OutcomeUnknown

TTL_MS = 30_000
US, OTHER = "us.1", "other"
CHANCE = Chance(iter(map(str, range(10_000))).__next__, lambda: 0.5)

Fault: TypeAlias = Literal[
    "lost", "applied but unanswered", "given up on its way", "given up when it arrived"
]


class HonestAuthority:
    """Grants one resource to one at a time, keeps a queue, and hands over to who is parked."""

    def __init__(self, holder: str | None, free_at_ms: float) -> None:
        self.now_ms = 0
        self.holder = holder
        self.free_at_ms = free_at_ms
        self.lease = 0
        self.ends_ms = float("inf")
        self.waits = False
        self.parked_until_ms: float | None = None
        self.answers: dict[str, Answer] = {}
        self.refused_as: dict[str, object] | None = None

    def pass_time(self, ms: float) -> None:
        self.now_ms += int(ms)
        if self.holder == OTHER and self.now_ms >= self.free_at_ms:
            self.holder = None
        if self.holder == US and self.now_ms >= self.ends_ms:
            self.holder = None

    def ask(self, request: Request) -> Answer | None:
        """Its answer; None where it is parked."""
        members = request.members
        key = request.idempotency_key
        if key in self.answers:
            return self.answers[str(key)]
        match request.operation.name:
            case "coordination.lease":
                answer = self.lease_asked(members)
            case "coordination.release":
                answer = self.released(members)
            case _:
                self.waits, self.parked_until_ms = False, None
                answer = told(200, ok=True, withdrawn=True)
        if answer is not None and key is not None:
            self.answers[key] = answer
        return answer

    def lease_asked(self, members: dict[str, object]) -> Answer | None:
        if members.get("leaseId") not in (None, f"lease-{self.lease}") or (
            "leaseId" in members and self.holder != US
        ):
            return told(409, ok=False, error="stale_lease", message="stale")
        if self.holder in (None, US):
            return self.granted()
        if self.refused_as is not None:
            self.waits = False
            return told(409, ok=False, **self.refused_as)
        self.waits = True
        if members.get("maxWaitMs"):
            self.parked_until_ms = self.now_ms + int(str(members["maxWaitMs"]))
            return None
        return self.held()

    def granted(self) -> Answer:
        renewed = self.holder == US
        self.lease += not renewed
        self.holder, self.waits, self.parked_until_ms = US, False, None
        self.ends_ms = self.now_ms + TTL_MS
        lease = {"leaseId": f"lease-{self.lease}", "fence": self.lease, "ttlMs": TTL_MS, "renewed": renewed}
        return told(200, ok=True, lease=lease)

    def held(self) -> Answer:
        return told(
            409, ok=False, error="lease_held", message="held", holder="did:example:other", position=1,
            retryAfterMs=40, stampede={"admitted": [], "waitMs": 50},
        )  # fmt: skip

    def released(self, members: dict[str, object]) -> Answer:
        if self.holder is None:
            return told(409, ok=False, error="not_held", message="nobody")
        if self.holder != US:
            return told(409, ok=False, error="not_holder", message="other", holder="did:example:other")
        self.holder = None
        return told(200, ok=True, released={}, trust=50.5)

    def parked_answer(self, until_ms: float) -> Answer | None:
        """Let time pass until the parked request is answered, at most until then."""
        while self.now_ms < until_ms:
            if self.parked_until_ms is None:
                return self.granted() if self.holder == US else self.held()
            if self.holder is None:
                return self.granted()
            due = min(until_ms, self.parked_until_ms, self.free_at_ms)
            self.pass_time(max(1, due - self.now_ms))
            if self.holder is not None and self.now_ms >= self.parked_until_ms:
                # The place is kept.
                self.parked_until_ms = None
                return self.held()
        return None


def told(status: int, **members: Any) -> Answer:
    return Answer(status, json.dumps(members).encode())


class Doer:
    """Does the steps, with one fault in one of them."""

    def __init__(self, authority: HonestAuthority, fault: Fault | None = None, at_step: int = 0) -> None:
        self.authority = authority
        self.fault = fault
        self.at_step = at_step
        self.steps: list[Step] = []
        self.happened = False
        self._on_its_way: Request | None = None
        self._answer: Answer | None = None

    def run(self, generator: Generator[Step, Event, Any]) -> Any:
        """What it came to. Raises what it raises."""
        step = next(generator)
        while True:
            fault = self.fault if len(self.steps) == self.at_step else None
            self.steps.append(step)
            event = self.do(step, fault)
            try:
                step = generator.send((event, self.authority.now_ms))
            except StopIteration as stop:
                return stop.value

    def do(self, step: Step, fault: Fault | None) -> Any:
        authority = self.authority
        match step:
            case Send():
                return self.send(step.request, fault)
            case Aside() if fault == "lost":
                self.happened = True
                return AuthorityUnavailable("lost")
            case Aside():
                answer = authority.ask(step.request)
                if fault == "applied but unanswered":
                    self.happened = True
                    return OutcomeUnknown("unanswered")
                return answer
            case Join():
                if self._on_its_way is not None:
                    # It arrives only now, after what was sent aside.
                    request, self._on_its_way = self._on_its_way, None
                    self._answer = authority.ask(request)
                if self._answer is None:
                    self._answer = authority.parked_answer(authority.now_ms + step.ms)
                return self._answer
            case HangUp():
                self._on_its_way = None
                authority.waits, authority.parked_until_ms = False, None
                return None
            case Pause():
                if fault in ("given up on its way", "given up when it arrived"):
                    self.happened = True
                    return INTERRUPTED
                authority.pass_time(step.ms)
                return None

    def send(self, request: Request, fault: Fault | None) -> Any:
        authority = self.authority
        self._answer = None
        if fault is not None:
            self.happened = True
        match fault:
            case "lost":
                return OutcomeUnknown("lost")
            case "given up on its way":
                self._on_its_way = request
                return INTERRUPTED
            case "given up when it arrived":
                self._answer = authority.ask(request)
                return INTERRUPTED
        answer = authority.ask(request)
        if answer is None:
            answer = authority.parked_answer(float("inf"))
        if fault == "applied but unanswered":
            return OutcomeUnknown("unanswered")
        return answer
