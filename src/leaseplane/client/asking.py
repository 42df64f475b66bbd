"""Asking: what a client does between a caller's wish and its outcome. No I/O, no clock, no chance.

Each function is a generator. It yields a step, and is sent what came of the step together with the time
on the boot clock; it returns the outcome, or raises it. `blocking` and `aio` do the steps:

    Send(request)   ─▶  an Answer, or the failure as a value, or INTERRUPTED: its caller gives up
    Pause(ms)       ─▶  None, or INTERRUPTED
    Aside(request)  ─▶  an Answer or a failure, while the request sent last is still under way
    Join(ms)        ─▶  its Answer, its failure, or None where it has none by then
    HangUp()        ─▶  None: the request sent last has no caller any more

Once it was sent INTERRUPTED a generator only cleans up, and is not sent it again. What it then raises or
returns is of no interest: the loop raises what interrupted it.
"""

import enum
from collections.abc import Callable, Generator
from typing import Final, TypeAlias, TypeVar

import msgspec

from leaseplane.client.channel import Answer, Request
from leaseplane.client.outcomes import (
    Granted,
    LeaseHeld,
    LeaseLost,
    NotHeld,
    NotHolder,
    Refused,
    Released,
    Response,
    StaleLease,
    TooMany,
    body_of,
    refusal_of,
)
from leaseplane.limits import (
    ANSWER_LATE_MS_MAX,
    CLEAN_UP_MS_MAX,
    LOST_TOUCH_MS_MAX,
    PARK_SLICE_MS,
    PARK_SLICE_TOLD_MS,
    RETRY_MS_BASE,
    RETRY_MS_MAX,
    UNREACHED_MS_MAX,
)
from leaseplane.model import Access, AuthorityUnavailable, OutcomeUnknown
from leaseplane.operations import LEASE, RELEASE, WITHDRAW


class Send(msgspec.Struct, frozen=True, gc=False):
    request: Request
    timeout_ms: int = ANSWER_LATE_MS_MAX


class Pause(msgspec.Struct, frozen=True, gc=False):
    ms: float


class Aside(msgspec.Struct, frozen=True, gc=False):
    request: Request
    timeout_ms: int


class Join(msgspec.Struct, frozen=True, gc=False):
    ms: float


class HangUp(msgspec.Struct, frozen=True, gc=False):
    pass


class Interruption(enum.Enum):
    """The caller gives up."""

    INTERRUPTED = enum.auto()


INTERRUPTED: Final = Interruption.INTERRUPTED

Failure: TypeAlias = AuthorityUnavailable | OutcomeUnknown
OUTCOMES: Final = (Refused, LeaseLost, AuthorityUnavailable, OutcomeUnknown)
"""What these generators raise; anything else is a fault, or a signal's."""

Step: TypeAlias = Send | Pause | Aside | Join | HangUp
Event: TypeAlias = tuple[Answer | Failure | Interruption | None, int]
"""What came of a step, and when, in milliseconds of the boot clock."""


class Chance(msgspec.Struct, frozen=True):
    """What the world gives to those who ask: fresh keys, and jitter between 0 and 1."""

    key: Callable[[], str | None]
    """None where a repeat needs none: an embedded plane knows the holder of its own grant again."""
    jitter: Callable[[], float]


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that is wanted, and how long to wait for it: None is as long as it takes."""

    resource: str
    actor: str
    instance: str
    access: Access | None = None
    note: str | None = None
    timeout_ms: int | None = None
    park_slice_ms: int = PARK_SLICE_MS
    """How long one request is parked, where nobody wants to be told how the queue does."""
    on_wait: Callable[[LeaseHeld], None] | None = None
    """Told of each refusal while it waits."""

    def members(self) -> dict[str, object]:
        """Who asks for what."""
        return {"resource": self.resource, "actorDid": self.actor, "instance": self.instance}


class Won(msgspec.Struct, frozen=True):
    """A lease that was granted, and from when on its time counts: before the request was first sent."""

    grant: Granted
    sent_boot_ms: int


# -- one request -------------------------------------------------------------------------------


def asking_once(request: Request, now_boot_ms: int, chance: Chance) -> Generator[Step, Event, Answer]:
    """Send one request, and again under the same key while nobody can tell what came of it.

    Raises the failure, at once where for certain nothing happened. When interrupted it hangs up, so that a
    request that is parked is withdrawn, and lets go of a new lease that was granted in that very moment.
    """
    started_ms, tries = now_boot_ms, 0
    while True:
        event, now_boot_ms = yield Send(request)
        match event:
            case Answer():
                failure = failure_in(event)
                if failure is None:
                    return event
            case AuthorityUnavailable() | OutcomeUnknown():
                failure = event
            case _:
                yield from _hanging_up(request, chance)
                raise OutcomeUnknown("given up before there was an answer")
        may_repeat = request.idempotency_key is not None or request.operation.read_only
        if (
            isinstance(failure, AuthorityUnavailable)
            or not may_repeat
            or now_boot_ms - started_ms > CLEAN_UP_MS_MAX
        ):
            raise failure
        tries += 1
        event, now_boot_ms = yield Pause(_stand_back_ms(tries, chance))
        if event is INTERRUPTED:
            raise failure


def _hanging_up(request: Request, chance: Chance) -> Generator[Step, Event, None]:
    yield HangUp()
    event, _ = yield Join(CLEAN_UP_MS_MAX)
    if request.operation is not LEASE or not isinstance(event, Answer) or event.status != 200:
        return
    grant = Granted(event.status, event.body, body_of(event.body))
    if not grant.renewed:
        named = {name: request.members[name] for name in ("resource", "actorDid")}
        yield Aside(Request(RELEASE, named | {"leaseId": grant.lease_id}, chance.key()), CLEAN_UP_MS_MAX)


def failure_in(answer: Answer) -> Failure | None:
    """The failure that an answer tells of: 503, 504 and the like are no outcome."""
    if answer.status < 500:
        return None
    failure = refusal_of(answer.status, answer.body)
    return failure if isinstance(failure, AuthorityUnavailable | OutcomeUnknown) else None


def _stand_back_ms(tries: int, chance: Chance) -> float:
    return min(RETRY_MS_MAX, RETRY_MS_BASE << min(tries, 10)) * (0.5 + chance.jitter() / 2)


# -- a lease -----------------------------------------------------------------------------------


def acquiring(wish: Wish, now_boot_ms: int, chance: Chance) -> Generator[Step, Event, Won | None]:
    """Ask for a lease until it is granted, the time is over, or the wait would never end.

    Returns None when interrupted, or raises `LeaseHeld`, `Deadlock` or what else was refused, or the
    failure of an authority that stays out of reach. In each of these cases nothing is left behind,
    neither a lease nor a wait, as far as the authority could be told.
    """
    asked = _Acquiring(wish, now_boot_ms, chance)
    try:
        return (yield from asked.steps())
    except (*OUTCOMES, GeneratorExit):
        raise
    except BaseException:
        # `on_wait` raised, or a signal's handler did between two steps.
        yield from asked.clean_up(may_hold=True)
        raise


class _Acquiring:
    def __init__(self, wish: Wish, now_boot_ms: int, chance: Chance) -> None:
        self.wish = wish
        self.chance = chance
        self.started_ms = now_boot_ms
        self.now_ms = now_boot_ms
        self.touched_ms: int | None = None
        """When the authority last answered."""
        self.failing_since_ms: int | None = None
        self.may_have_left_something = False

    def steps(self) -> Generator[Step, Event, Won | None]:
        wish, tries = self.wish, 0
        # Where someone wants to know who holds it, the first ask is answered at once.
        parks = wish.on_wait is None
        request: Request | None = None
        is_unsure, sent_ms = False, self.now_ms
        while True:
            if request is None:
                wait_ms = self._park_ms() if parks else 0
                request, is_unsure, sent_ms = self._request(wait_ms), False, self.now_ms
            had_left_something, self.may_have_left_something = self.may_have_left_something, True
            event = yield from self._step(Send(request))
            if event is INTERRUPTED:
                yield from self.clean_up(is_under_way=True)
                return None
            failure = failure_in(event) if isinstance(event, Answer) else event
            if failure is not None:
                assert isinstance(failure, AuthorityUnavailable | OutcomeUnknown)
                if isinstance(failure, AuthorityUnavailable):
                    self.may_have_left_something = had_left_something
                else:
                    is_unsure = True
                if self._is_hopeless():
                    yield from self.clean_up()
                    raise failure
                tries += 1
                if (yield from self._step(Pause(_stand_back_ms(tries, self.chance)))) is INTERRUPTED:
                    yield from self.clean_up()
                    return None
                if not is_unsure or request.idempotency_key is None:
                    # Nobody has to know it again: wait for no longer than there is left.
                    request = None
                continue
            assert isinstance(event, Answer)
            tries = 0
            self._answered()
            if event.status == 200:
                won = yield from self._fresh(Granted(event.status, event.body, body_of(event.body)), sent_ms)
                if isinstance(won, Won):
                    return won
                if won is INTERRUPTED:
                    return None
                request = None
                continue
            refusal = refusal_of(event.status, event.body)
            pause_ms = 0.0
            match refusal:
                case StaleLease():
                    # The repeat of a grant whose lease is over by now: ask for a new one.
                    pass
                case LeaseHeld() | TooMany():
                    if self._left_ms() == 0:
                        yield from self.clean_up()
                        raise refusal
                    if isinstance(refusal, TooMany):
                        pause_ms = (event.retry_after_s or 1) * 1000 * (0.5 + self.chance.jitter() / 2)
                    else:
                        if wish.on_wait is not None:
                            wish.on_wait(refusal)
                        was_parked_ms = request.members.get("maxWaitMs", 0)
                        if parks and self.now_ms - sent_ms < int(str(was_parked_ms)):
                            # Sent away before its time: the plane is stopping, say.
                            pause_ms = refusal.retry_after_ms
                    parks = True
                case _:
                    # A deadlock leaves no wait; but an earlier ask of ours may have.
                    yield from self.clean_up()
                    raise refusal
            request = None
            if pause_ms and (yield from self._step(Pause(min(pause_ms, self._left_ms())))) is INTERRUPTED:
                yield from self.clean_up()
                return None

    # -- parts ---------------------------------------------------------------------------------

    def _request(self, wait_ms: int) -> Request:
        members = self.wish.members()
        if self.wish.access is not None:
            members["access"] = self.wish.access
        if self.wish.note:
            members["note"] = self.wish.note
        if wait_ms:
            members["maxWaitMs"] = wait_ms
        return Request(LEASE, members, self.chance.key())

    def _left_ms(self) -> float:
        if self.wish.timeout_ms is None:
            return float("inf")
        return max(0, self.started_ms + self.wish.timeout_ms - self.now_ms)

    def _park_ms(self) -> int:
        slice_ms = self.wish.park_slice_ms if self.wish.on_wait is None else PARK_SLICE_TOLD_MS
        return int(min(slice_ms, self._left_ms()))

    def _is_hopeless(self) -> bool:
        """Whether the authority is out of reach for too long, or the caller's time is over."""
        self.failing_since_ms = self.now_ms if self.failing_since_ms is None else self.failing_since_ms
        patience_ms = UNREACHED_MS_MAX if self.touched_ms is None else LOST_TOUCH_MS_MAX
        return self.now_ms - self.failing_since_ms > patience_ms or self._left_ms() == 0

    def _answered(self) -> None:
        self.touched_ms, self.failing_since_ms = self.now_ms, None

    def _step(self, step: Step) -> Generator[Step, Event, Answer | Failure | Interruption | None]:
        event, self.now_ms = yield step
        return event

    def _fresh(self, grant: Granted, sent_ms: int) -> Generator[Step, Event, Won | Interruption | None]:
        """The grant, renewed where too little of it is left by our own count; None where it is over.

        The request may have been parked, or its answer repeated, long after it was first sent.
        """
        tries = 0
        while self.now_ms - sent_ms > grant.ttl_ms // 2:
            members = self.wish.members() | {"leaseId": grant.lease_id}
            renewing_ms = self.now_ms
            event = yield from self._step(Send(Request(LEASE, members, self.chance.key())))
            if event is INTERRUPTED:
                yield from self.clean_up(is_under_way=True)
                return INTERRUPTED
            if isinstance(event, Answer) and event.status == 200:
                return Won(Granted(event.status, event.body, body_of(event.body)), renewing_ms)
            if isinstance(event, Answer) and failure_in(event) is None:
                self._answered()
                refusal = refusal_of(event.status, event.body)
                if isinstance(refusal, StaleLease):
                    return None
                yield from self.clean_up(may_hold=True)
                raise refusal
            if self._is_hopeless():
                yield from self.clean_up(may_hold=True)
                raise event if isinstance(event, Exception) else OutcomeUnknown("the lease was not renewed")
            tries += 1
            if (yield from self._step(Pause(_stand_back_ms(tries, self.chance)))) is INTERRUPTED:
                yield from self.clean_up(may_hold=True)
                return INTERRUPTED
        return Won(grant, sent_ms)

    def clean_up(self, *, is_under_way: bool = False, may_hold: bool = False) -> Generator[Step, Event, None]:
        """Leave nothing behind: first end the wait, so that a request still under way is answered; then
        let go of what was granted all the same. What cannot be told to the authority ends by itself.
        """
        if not self.may_have_left_something:
            return
        until_ms = self.now_ms + CLEAN_UP_MS_MAX
        if is_under_way:
            yield from self._aside(Request(WITHDRAW, self.wish.members()), until_ms)
            event = yield from self._step(Join(max(0, until_ms - self.now_ms) / 2))
            if isinstance(event, Answer) and event.status == 409:
                if isinstance(refusal_of(event.status, event.body), LeaseHeld):
                    # Refused before the withdrawal reached the authority, or after it: then there is a wait.
                    yield from self._aside(Request(WITHDRAW, self.wish.members()), until_ms)
                return
            if not isinstance(event, Answer) or failure_in(event) is not None:
                yield from self._step(HangUp())
                # It may have come after the withdrawal, and wait.
                yield from self._aside(Request(WITHDRAW, self.wish.members()), until_ms)
        else:
            yield from self._aside(Request(WITHDRAW, self.wish.members()), until_ms)
            if not may_hold and self.touched_ms is not None and self.failing_since_ms is None:
                # Its last ask was answered with a refusal: there is no lease.
                return
        # No other holder has this instance: whatever it holds was granted to this wish.
        yield from self._aside(Request(RELEASE, self.wish.members(), self.chance.key()), until_ms)

    def _aside(self, request: Request, until_ms: int) -> Generator[Step, Event, None]:
        tries = 0
        while True:
            event = yield from self._step(Aside(request, int(max(1, until_ms - self.now_ms))))
            if isinstance(event, Answer) and failure_in(event) is None:
                return
            tries += 1
            pause_ms = _stand_back_ms(tries, self.chance)
            if self.now_ms + pause_ms >= until_ms:
                return
            yield from self._step(Pause(pause_ms))


# -- letting go --------------------------------------------------------------------------------


def releasing(
    members: dict[str, object], held_until_boot_ms: int, now_boot_ms: int, chance: Chance
) -> Generator[Step, Event, Released | None]:
    """Let go of a lease; None where it was done, but the answer that said so was lost.

    Tried for as long as the lease runs, at most `LOST_TOUCH_MS_MAX`. Raises `LeaseLost` where it was over
    already, though by our own count it was not, and the failure where the authority stays out of reach:
    then the lease runs out by itself. Where it is interrupted it goes on for a little while.
    """
    until_ms = min(held_until_boot_ms, now_boot_ms + LOST_TOUCH_MS_MAX)
    request = Request(RELEASE, members, chance.key())
    tries, is_unsure = 0, False
    while True:
        event, now_boot_ms = yield Send(request)
        if event is INTERRUPTED:
            event, now_boot_ms = yield Join(CLEAN_UP_MS_MAX)
            until_ms = min(until_ms, now_boot_ms + CLEAN_UP_MS_MAX)
        failure = failure_in(event) if isinstance(event, Answer) else event
        if isinstance(event, Answer) and failure is None:
            if event.status == 200:
                return Released(event.status, event.body, body_of(event.body))
            refusal = refusal_of(event.status, event.body)
            if not isinstance(refusal, NotHeld | NotHolder | StaleLease):
                raise refusal
            if is_unsure:
                # An answer that was lost has been the release.
                return None
            raise LeaseLost(f"the lease was over before it was released: {refusal}")
        assert not isinstance(failure, Interruption)
        is_unsure = is_unsure or not isinstance(failure, AuthorityUnavailable)
        tries += 1
        pause_ms = _stand_back_ms(tries, chance)
        if now_boot_ms + pause_ms >= until_ms:
            raise failure or OutcomeUnknown("the release was not answered")
        event, now_boot_ms = yield Pause(pause_ms)
        if event is INTERRUPTED:
            until_ms = min(until_ms, now_boot_ms + CLEAN_UP_MS_MAX)


A = TypeVar("A", bound=Response)


def outcome_of(answer: Answer, kind: type[A]) -> A:
    """The result of this kind, or the refusal or failure raised."""
    if answer.status == 200:
        return kind(answer.status, answer.body, body_of(answer.body))
    raise refusal_of(answer.status, answer.body)
