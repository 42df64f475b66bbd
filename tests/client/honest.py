"""An honest authority of one resource, and somebody who does the steps of `asking` against it.

Virtual time, no I/O. The one who does the steps can let any of them go wrong, several in one run: a request
that does not arrive, one that is done but not answered, a connection that breaks while the request is
parked, and a caller who gives up before, while and just after the authority has decided.
"""

import json
import math
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, Literal, TypeAlias

from leaseplane.client.asking import INTERRUPTED, Aside, Chance, Event, HangUp, Join, Pause, Send, Step
from leaseplane.client.channel import Answer, Request
from leaseplane.model import AuthorityUnavailable, OutcomeUnknown

TTL_MS = 30_000
US, OTHER = "us.1", "other"
CHANCE = Chance(iter(map(str, range(10_000_000))).__next__, lambda: 0.5)
KEYLESS = Chance(lambda: None, lambda: 0.5)
NEVER = float("inf")
BREAKS_AFTER_MS = 700

Fault: TypeAlias = Literal[
    "not reached",
    "lost",
    "applied but unanswered",
    "cut off while parked",
    "still on its way",
    "given up on its way",
    "given up when it arrived",
    "given up while parked",
    "given up when it was answered",
]
FAULTS_OF: Final[dict[type[Step], tuple[Fault, ...]]] = {
    Send: (
        "not reached",
        "lost",
        "applied but unanswered",
        "cut off while parked",
        "given up on its way",
        "given up when it arrived",
        "given up while parked",
        "given up when it was answered",
    ),
    Pause: ("given up on its way", "given up when it arrived"),
    Aside: ("not reached", "lost", "applied but unanswered", "given up when it arrived"),
    Join: ("lost", "applied but unanswered", "still on its way"),
    HangUp: (),
}
"""What can become of each step. Once it was given up, nobody gives up again."""

Plan: TypeAlias = dict[int, Fault]
"""What goes wrong in a run, by the number of the step."""


class HonestAuthority:
    """Grants one resource to one at a time, keeps a queue, and hands over to who is parked."""

    def __init__(self, holder: str | None, free_at_ms: float) -> None:
        self.now_ms = 0
        self.holder = holder
        self.free_at_ms = free_at_ms
        self.lease = 0
        self.ends_ms: float = NEVER
        self.waits = False
        self.parked: Request | None = None
        self.parked_until_ms = 0
        self.parked_answer: Answer | None = None
        """Of the request parked last, once it has one."""
        self.answers: dict[str, Answer] = {}
        self.refused_as: dict[str, object] | None = None
        self.too_many_until_ms: float = 0
        self.sends_away_at_ms: float = NEVER
        """When it stops, say: who is parked then is refused before the time, and keeps the place."""

    # -- time ----------------------------------------------------------------------------------

    def pass_time(self, ms: float) -> None:
        until_ms = self.now_ms + math.ceil(ms)
        while True:
            moments_ms = (self.free_at_ms, self.ends_ms, self.sends_away_at_ms)
            due_ms = [at_ms for at_ms in moments_ms if at_ms > self.now_ms]
            if self.parked is not None:
                due_ms.append(self.parked_until_ms)
            self.now_ms = int(min(until_ms, *due_ms))
            if self.holder == OTHER and self.now_ms >= self.free_at_ms:
                self.holder = None
            if self.holder == US and self.now_ms >= self.ends_ms:
                self.holder = None
            if self.parked is not None:
                if self.holder in (None, US):
                    self._answer_parked(self.granted())
                elif self.now_ms >= self.parked_until_ms or self.now_ms == self.sends_away_at_ms:
                    # The place is kept.
                    self._answer_parked(self.held())
            if self.now_ms == until_ms:
                return

    def pass_time_until_parked_is_answered(self, at_most_ms: float = NEVER) -> None:
        until_ms = self.now_ms + at_most_ms
        while self.parked is not None and self.now_ms < until_ms:
            moments_ms = (until_ms, self.parked_until_ms, self.free_at_ms, self.sends_away_at_ms)
            self.pass_time(min(at_ms for at_ms in moments_ms if at_ms > self.now_ms) - self.now_ms)

    def _answer_parked(self, answer: Answer) -> None:
        assert self.parked is not None
        if self.parked.idempotency_key is not None:
            self.answers[self.parked.idempotency_key] = answer
        self.parked, self.parked_answer = None, answer

    # -- requests ------------------------------------------------------------------------------

    def ask(self, request: Request) -> Answer | None:
        """Its answer; None where it is parked, or joins the one that is."""
        members, key = request.members, request.idempotency_key
        if key is not None and key in self.answers:
            return self._still_good(self.answers[key])
        if key is not None and self.parked is not None and self.parked.idempotency_key == key:
            assert self.parked == request, "another request under the same key"
            return None
        match request.operation.name:
            case "coordination.lease":
                answer = self._lease_asked(request)
            case "coordination.release":
                answer = self._released(members)
            case _:
                self.withdraw()
                answer = told(200, ok=True, withdrawn=True)
        if answer is not None and key is not None and answer.status in (200, 409):
            self.answers[key] = answer
        return answer

    def withdraw(self) -> None:
        self.waits = False
        if self.parked is not None:
            self._answer_parked(self.held())

    def _still_good(self, answer: Answer) -> Answer:
        lease = json.loads(answer.body).get("lease")
        if lease is None or (lease["fence"] == self.lease and self.holder == US):
            return answer
        return told(409, ok=False, error="stale_lease", message="a repeated grant whose lease is over")

    def _lease_asked(self, request: Request) -> Answer | None:
        members = request.members
        if "leaseId" in members and (members["leaseId"] != f"lease-{self.lease}" or self.holder != US):
            return told(409, ok=False, error="stale_lease", message="stale")
        if self.holder in (None, US):
            return self.granted()
        if self.refused_as is not None:
            self.waits = False
            return told(409, ok=False, **self.refused_as)
        if self.now_ms < self.too_many_until_ms:
            return told(429, 2, ok=False, error="too_many", message="too many wait")
        self.waits = True
        if members.get("maxWaitMs"):
            if self.parked is not None:
                # Of one that gave up on it, or asks again: one place, and the newer one is told.
                self._answer_parked(self.held())
            self.parked, self.parked_answer = request, None
            self.parked_until_ms = self.now_ms + int(str(members["maxWaitMs"]))
            return None
        return self.held()

    def granted(self) -> Answer:
        renewed = self.holder == US
        self.lease += not renewed
        self.holder, self.waits = US, False
        self.ends_ms = self.now_ms + TTL_MS
        lease = {"leaseId": f"lease-{self.lease}", "fence": self.lease, "ttlMs": TTL_MS, "renewed": renewed}
        return told(200, ok=True, lease=lease)

    def held(self) -> Answer:
        return told(
            409, ok=False, error="lease_held", message="held", holder="did:example:other", position=1,
            retryAfterMs=40, stampede={"admitted": [], "waitMs": 50},
        )  # fmt: skip

    def _released(self, members: dict[str, object]) -> Answer:
        if self.holder is None:
            return told(409, ok=False, error="not_held", message="nobody")
        if self.holder != US:
            return told(409, ok=False, error="not_holder", message="other", holder="did:example:other")
        self.holder, self.ends_ms = None, NEVER
        return told(200, ok=True, released={}, trust=50.5)


def told(status: int, retry_after_s: int | None = None, **members: Any) -> Answer:
    return Answer(status, json.dumps(members).encode(), retry_after_s)


class Doer:
    """Does the steps, and lets those go wrong that its plan names by their number."""

    def __init__(self, authority: HonestAuthority, plan: Plan | None = None) -> None:
        self.authority = authority
        self.plan = plan or {}
        self.steps: list[Step] = []
        self.given_up_at: int | None = None
        self._on_its_way: Request | None = None
        self._answer: Answer | None = None
        self._is_connected = False
        """Whether the request sent last still has its connection: hanging up then withdraws it."""

    def run(self, generator: Generator[Step, Event, Any]) -> Any:
        """What it came to. Raises what it raises."""
        try:
            return self._run(generator)
        finally:
            if self._on_its_way is not None:
                # Nobody hung up: it arrives when everybody has gone.
                self.authority.ask(self._on_its_way)

    def _run(self, generator: Generator[Step, Event, Any]) -> Any:
        step = next(generator)
        while True:
            number, fault = len(self.steps), self.plan.get(len(self.steps))
            self.steps.append(step)
            event = self.do(step, fault)
            if event is INTERRUPTED:
                assert self.given_up_at is None, "a plan gives up once"
                self.given_up_at = number
            try:
                step = generator.send((event, self.authority.now_ms))
            except StopIteration as stop:
                return stop.value

    def do(self, step: Step, fault: Fault | None) -> Any:
        authority = self.authority
        match step:
            case Send():
                return self.send(step.request, fault)
            case Aside():
                return self._aside(step.request, fault)
            case Join():
                return self._join(step.ms, fault)
            case HangUp():
                self._on_its_way = None
                if self._is_connected and authority.parked is not None:
                    authority.withdraw()
            case Pause():
                if fault == "given up on its way":
                    return INTERRUPTED
                authority.pass_time(step.ms)
                if fault == "given up when it arrived":
                    return INTERRUPTED
        return None

    def send(self, request: Request, fault: Fault | None) -> Any:
        authority = self.authority
        self._answer, self._is_connected = None, True
        match fault:
            case "not reached":
                return AuthorityUnavailable("not reached")
            case "lost":
                return OutcomeUnknown("lost")
            case "given up on its way":
                self._on_its_way = request
                return INTERRUPTED
        self._answer = authority.ask(request)
        if fault == "given up when it arrived":
            return INTERRUPTED
        if self._answer is None:
            if fault in ("cut off while parked", "given up while parked"):
                authority.pass_time(BREAKS_AFTER_MS)
            else:
                authority.pass_time_until_parked_is_answered()
            self._answer = authority.parked_answer
        match fault:
            case "given up while parked" | "given up when it was answered":
                return INTERRUPTED
            case "applied but unanswered" | "cut off while parked":
                # Nobody tells the authority: what is parked stays so.
                self._is_connected = False
                return OutcomeUnknown("unanswered")
        return self._answer

    def _aside(self, request: Request, fault: Fault | None) -> Any:
        match fault:
            case "not reached":
                return AuthorityUnavailable("not reached")
            case "lost":
                return OutcomeUnknown("lost")
        answer = self.authority.ask(request)
        match fault:
            case "applied but unanswered":
                return OutcomeUnknown("unanswered")
            case "given up when it arrived":
                return INTERRUPTED
        return answer

    def _join(self, ms: float, fault: Fault | None) -> Any:
        authority = self.authority
        if fault == "still on its way":
            authority.pass_time(ms)
            return self._answer if self._on_its_way is None else None
        request, self._on_its_way = self._on_its_way, None
        if request is not None:
            if fault == "lost":
                self._is_connected = False
                return OutcomeUnknown("lost")
            # It arrives only now, after what was sent aside.
            self._answer = authority.ask(request)
        if fault is not None:
            self._is_connected = False
            return OutcomeUnknown("unanswered")
        if self._answer is None:
            authority.pass_time_until_parked_is_answered(ms)
            self._answer = authority.parked_answer
        return self._answer


class Unsteady(Doer):
    """Reaches the authority only outside of these times."""

    def __init__(
        self, authority: HonestAuthority, *away_ms: tuple[int, float], plan: Plan | None = None
    ) -> None:
        super().__init__(authority, plan)
        self.away_ms = away_ms

    def send(self, request: Request, fault: Fault | None) -> Any:
        if any(since_ms <= self.authority.now_ms < until_ms for since_ms, until_ms in self.away_ms):
            return AuthorityUnavailable("away")
        return super().send(request, fault)


def plans(run: Callable[[Plan], Doer], faults_at_once: int) -> Iterator[tuple[Plan, Doer]]:
    """Every plan with so many faults at most, at any of the steps that there are then, as it was run."""
    to_do: list[Plan] = [{}]
    while to_do:
        plan = to_do.pop()
        doer = run(plan)
        yield plan, doer
        if len(plan) == faults_at_once:
            continue
        for number in range(max(plan, default=-1) + 1, len(doer.steps)):
            for fault in FAULTS_OF[type(doer.steps[number])]:
                if doer.given_up_at is None or not fault.startswith("given up"):
                    to_do.append({**plan, number: fault})
