"""The core of the client, with no I/O: what it does next, and that it leaves nothing behind."""

import json
from contextlib import suppress
from typing import Any

import pytest
from tests.client.honest import (
    BREAKS_AFTER_MS,
    CHANCE,
    KEYLESS,
    NEVER,
    OTHER,
    TTL_MS,
    US,
    Doer,
    Fault,
    HonestAuthority,
    Plan,
    Unsteady,
    plans,
    told,
)

from leaseplane import (
    AuthorityUnavailable,
    Deadlock,
    LeaseHeld,
    LeaseLost,
    NotAllowed,
    OutcomeUnknown,
    TooMany,
)
from leaseplane.client.asking import (
    Aside,
    Chance,
    Pause,
    Send,
    Wish,
    Won,
    acquiring,
    asking_once,
    releasing,
)
from leaseplane.client.channel import Answer, Request
from leaseplane.limits import (
    CLEAN_UP_MS_MAX,
    LOST_TOUCH_MS_MAX,
    PARK_MS_MAX,
    PARK_SLICE_MS,
    PARK_SLICE_TOLD_MS,
    UNREACHED_MS_MAX,
)
from leaseplane.operations import LEASE, RELEASE, WAIT, WITHDRAW, Operation


def wish(**how: Any) -> Wish:
    return Wish(resource="lock:db", actor="did:example:a", instance=US, **how)


def acquire(doer: Doer, chance: Chance = CHANCE, **how: Any) -> Won | None:
    won = doer.run(acquiring(wish(**how), doer.authority.now_ms, chance))
    assert won is None or isinstance(won, Won)
    return won


def sent(doer: Doer) -> list[Request]:
    return [step.request for step in doer.steps if isinstance(step, Send)]


def aside(doer: Doer) -> list[Operation]:
    return [step.request.operation for step in doer.steps if isinstance(step, Aside)]


def parked_ms(doer: Doer) -> list[object]:
    return [request.members.get("maxWaitMs") for request in sent(doer)]


def test_what_is_free_is_granted_at_once() -> None:
    doer = Doer(HonestAuthority(None, NEVER))
    won = acquire(doer)
    assert won is not None and won.grant.fence == 1 and won.sent_boot_ms == 0
    assert len(doer.steps) == 1


def test_it_waits_parked_slice_by_slice_and_counts_from_before_the_last_slice_was_sent() -> None:
    doer = Doer(HonestAuthority(OTHER, free_at_ms=2.5 * PARK_SLICE_MS))
    won = acquire(doer)
    assert won is not None and won.sent_boot_ms == 2 * PARK_SLICE_MS
    assert parked_ms(doer) == [PARK_SLICE_MS] * 3


def test_who_wants_to_be_told_is_told_at_once_and_then_with_each_slice() -> None:
    told: list[str | None] = []
    doer = Doer(HonestAuthority(OTHER, free_at_ms=2.5 * PARK_SLICE_TOLD_MS))
    assert acquire(doer, on_wait=lambda held: told.append(held.holder)) is not None
    assert told == ["did:example:other"] * 3
    assert parked_ms(doer) == [None, *[PARK_SLICE_TOLD_MS] * 3]


def test_when_the_time_is_over_it_is_refused_and_no_place_is_kept() -> None:
    authority = HonestAuthority(OTHER, NEVER)
    doer = Doer(authority)
    with pytest.raises(LeaseHeld):
        acquire(doer, timeout_ms=12_000)
    assert parked_ms(doer) == [PARK_SLICE_MS, 2_000]
    assert authority.now_ms == 12_000 and not authority.waits


def test_a_deadlock_is_raised_at_once() -> None:
    authority = HonestAuthority(OTHER, NEVER)
    authority.refused_as = {
        "error": "deadlock",
        "message": "a cycle",
        "holder": "x",
        "waitingOn": "y",
        "cycle": [],
    }
    with pytest.raises(Deadlock):
        acquire(Doer(authority))
    assert authority.now_ms == 0


def test_an_authority_that_never_answered_is_tried_for_a_moment_and_one_that_did_for_longer() -> None:
    doer = Unsteady(HonestAuthority(OTHER, NEVER), (0, NEVER))
    with pytest.raises(AuthorityUnavailable):
        acquire(doer)
    assert UNREACHED_MS_MAX < doer.authority.now_ms < 2 * UNREACHED_MS_MAX
    # Nothing was ever heard of it: there is nothing to clean up.
    assert {type(step) for step in doer.steps} == {Send, Pause}

    doer = Unsteady(HonestAuthority(OTHER, NEVER), (1, NEVER))
    with pytest.raises(AuthorityUnavailable):
        acquire(doer)
    assert LOST_TOUCH_MS_MAX < doer.authority.now_ms - PARK_SLICE_MS < 2 * LOST_TOUCH_MS_MAX


def test_one_that_comes_back_in_time_goes_on_with_the_same_wait() -> None:
    doer = Unsteady(HonestAuthority(OTHER, free_at_ms=25_000), (1, 20_000))
    won = acquire(doer)
    assert won is not None and 20_000 <= won.sent_boot_ms < 25_000


def test_it_takes_no_longer_than_the_time_out_however_long_the_authority_was_away() -> None:
    authority = HonestAuthority(OTHER, NEVER)
    doer = Unsteady(authority, (PARK_SLICE_MS, 14_000))
    with pytest.raises(LeaseHeld):
        acquire(doer, timeout_ms=15_000)
    assert authority.now_ms == 15_000 and not authority.waits


def test_a_wait_that_need_not_be_known_again_is_only_repeated_for_the_time_that_is_left() -> None:
    authority = HonestAuthority(OTHER, NEVER)
    doer = Doer(authority, {0: "cut off while parked"})
    with pytest.raises(LeaseHeld):
        acquire(doer, KEYLESS, timeout_ms=PARK_MS_MAX, park_slice_ms=PARK_MS_MAX)
    assert authority.now_ms == PARK_MS_MAX


def test_what_was_asked_first_is_let_go_of_though_the_repeat_did_not_reach_the_authority() -> None:
    authority = HonestAuthority(None, NEVER)
    doer = Doer(authority, {0: "applied but unanswered", 2: "not reached", 3: "given up on its way"})
    assert acquire(doer) is None
    assert aside(doer) == [WITHDRAW, RELEASE] and authority.holder is None


def test_a_wait_that_began_after_its_own_withdrawal_is_withdrawn_though_nobody_told_of_it() -> None:
    authority = HonestAuthority(OTHER, NEVER)
    doer = Doer(authority, {0: "given up on its way", 2: "applied but unanswered"})
    assert acquire(doer) is None
    assert aside(doer) == [WITHDRAW, WITHDRAW, RELEASE] and not authority.waits


def test_where_too_many_wait_it_stands_back_as_it_is_told_and_asks_again() -> None:
    authority = HonestAuthority(OTHER, free_at_ms=6_000)
    authority.too_many_until_ms = 3_000
    doer = Doer(authority)
    won = acquire(doer)
    pauses_ms = [step.ms for step in doer.steps if isinstance(step, Pause)]
    assert won is not None and pauses_ms == [1_500, 1_500]


def test_where_too_many_wait_until_its_time_is_over_it_says_so() -> None:
    authority = HonestAuthority(OTHER, NEVER)
    authority.too_many_until_ms = NEVER
    with pytest.raises(TooMany):
        acquire(Doer(authority), timeout_ms=4_000)
    assert authority.now_ms == 4_000


@pytest.mark.parametrize("raised", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("call", [1, 2])
def test_whoever_is_told_may_raise_and_nothing_is_left(raised: type[BaseException], call: int) -> None:
    calls: list[LeaseHeld] = []

    def told(held: LeaseHeld) -> None:
        calls.append(held)
        if len(calls) == call:
            raise raised

    authority = HonestAuthority(OTHER, NEVER)
    with pytest.raises(raised):
        acquire(Doer(authority), on_wait=told)
    assert len(calls) == call and not authority.waits


def test_where_nobody_can_tell_what_came_of_it_it_is_asked_the_same_under_the_same_key() -> None:
    doer = Doer(HonestAuthority(None, NEVER), {0: "applied but unanswered"})
    won = acquire(doer)
    assert won is not None and not won.grant.renewed and won.sent_boot_ms == 0
    first, second = sent(doer)
    assert first == second and first.idempotency_key is not None


def test_where_too_little_is_left_by_our_own_count_it_is_renewed_before_it_is_told() -> None:
    class Slow(Doer):
        def send(self, request: Any, fault: Fault | None) -> Any:
            answer = super().send(request, fault)
            # On its way back for more than half a lease; of the renewal, for a moment.
            self.authority.pass_time(300 if "leaseId" in request.members else 0.6 * TTL_MS)
            return answer

    doer = Slow(HonestAuthority(None, NEVER))
    won = acquire(doer)
    assert won is not None and won.grant.renewed and won.sent_boot_ms == int(0.6 * TTL_MS)


def test_where_that_renewal_is_refused_it_is_let_go_of() -> None:
    class Strict(HonestAuthority):
        def ask(self, request: Request) -> Answer | None:
            if "leaseId" in request.members:
                return told(403, ok=False, error="forbidden", message="not any more")
            return super().ask(request)

    authority = Strict(OTHER, free_at_ms=20_000)
    with pytest.raises(NotAllowed):
        acquire(Doer(authority), park_slice_ms=PARK_MS_MAX)
    assert authority.holder is None


def test_whatever_else_is_refused_while_it_waits_ends_the_wait() -> None:
    class Strict(HonestAuthority):
        def ask(self, request: Request) -> Answer | None:
            if request.members.get("maxWaitMs"):
                return told(403, ok=False, error="forbidden", message="not any more")
            return super().ask(request)

    authority = Strict(OTHER, NEVER)
    with pytest.raises(NotAllowed):
        acquire(Doer(authority), on_wait=lambda held: None)
    assert not authority.waits


def test_who_is_sent_away_before_the_time_stands_back_as_told_and_keeps_on() -> None:
    authority = HonestAuthority(OTHER, free_at_ms=5_000)
    authority.sends_away_at_ms = 2_000
    doer = Doer(authority)
    won = acquire(doer)
    pauses_ms = [step.ms for step in doer.steps if isinstance(step, Pause)]
    assert won is not None and pauses_ms == [40] and won.sent_boot_ms == 2_040


def test_a_grant_that_is_over_before_it_arrives_is_asked_for_anew() -> None:
    class Slower(Doer):
        def send(self, request: Any, fault: Fault | None) -> Any:
            answer = super().send(request, fault)
            if len(self.steps) == 1:
                self.authority.pass_time(2 * TTL_MS)
            return answer

    doer = Slower(HonestAuthority(None, NEVER))
    won = acquire(doer)
    assert won is not None and won.grant.fence == 2


def test_one_that_answers_counts_as_there_though_all_that_it_says_is_that_the_lease_is_over() -> None:
    class Slow(Unsteady):
        def send(self, request: Request, fault: Fault | None) -> Any:
            answer = super().send(request, fault)
            if isinstance(answer, Answer) and len(self.steps) == 1:
                self.authority.pass_time(0.6 * TTL_MS)
            elif isinstance(answer, Answer) and answer.status == 409:
                self.authority.pass_time(1_000)
            return answer

    # Long enough for the lease to be over; then it is away again when the new one is asked for.
    back_ms = int(0.6 * TTL_MS) + LOST_TOUCH_MS_MAX - 1_500
    doer = Slow(HonestAuthority(None, NEVER), (1, back_ms), (back_ms + 1_000, back_ms + 5_000))
    won = acquire(doer)
    assert won is not None and won.grant.fence == 2 and won.sent_boot_ms >= back_ms + 5_000


Situation = tuple[str | None, float, dict[str, Any]]
SITUATIONS: dict[str, Situation] = {
    "it is free": (None, NEVER, {}),
    "it is free, asked once": (None, NEVER, {"timeout_ms": 0}),
    "it is held, asked once": (OTHER, NEVER, {"timeout_ms": 0}),
    "it is held for longer than we wait": (OTHER, NEVER, {"timeout_ms": 12_000}),
    "it becomes free while we are parked": (OTHER, 4_000, {}),
    "it becomes free when the connection breaks": (OTHER, BREAKS_AFTER_MS, {}),
    "it becomes free just after": (OTHER, BREAKS_AFTER_MS + 1, {}),
    "it becomes free between two slices": (OTHER, PARK_SLICE_MS, {}),
    "it becomes free at our time-out": (OTHER, 12_000, {"timeout_ms": 12_000}),
    "it is held, and we want to be told": (OTHER, 7_000, {"on_wait": lambda held: None}),
    "it becomes free so late that it is renewed first": (OTHER, 20_000, {"park_slice_ms": PARK_MS_MAX}),
    "the same at our time-out": (OTHER, 20_000, {"park_slice_ms": PARK_MS_MAX, "timeout_ms": 20_000}),
    "too many wait at first": (OTHER, 5_000, {}),
    "we are sent away before our time": (OTHER, 5_000, {}),
}
FAULTS_AT_ONCE = 3


@pytest.mark.parametrize("chance", [CHANCE, KEYLESS], ids=["with keys", "without keys"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_whatever_goes_wrong_at_whatever_step_there_is_a_lease_in_hand_or_nothing(
    situation: str, chance: Chance
) -> None:
    holder, free_at_ms, how = SITUATIONS[situation]
    won: Won | None = None

    def run(plan: Plan) -> Doer:
        nonlocal won
        authority = HonestAuthority(holder, free_at_ms)
        if situation == "too many wait at first":
            authority.too_many_until_ms = 3_000
        elif situation == "we are sent away before our time":
            authority.sends_away_at_ms = 2_000
        doer = Doer(authority, plan)
        won = None
        with suppress(LeaseHeld, AuthorityUnavailable, OutcomeUnknown):
            won = acquire(doer, chance, **how)
        return doer

    outcomes = set()
    for plan, doer in plans(run, FAULTS_AT_ONCE):
        authority = doer.authority
        where = f"{plan}: {[type(step).__name__ for step in doer.steps]}"
        assert not authority.waits and authority.parked is None, f"a wait is left; {where}"
        if won is None:
            assert authority.holder != US, f"a lease is left; {where}"
        else:
            assert authority.holder == US and won.grant.fence == authority.lease, where
            assert won.sent_boot_ms + TTL_MS <= authority.ends_ms, f"counted too long; {where}"
            assert authority.now_ms - won.sent_boot_ms <= TTL_MS // 2, f"too little is left; {where}"
        outcomes.add((won is None, doer.given_up_at is None))
    assert {is_given_up for _, is_given_up in outcomes} == {True, False}


# -- one request -------------------------------------------------------------------------------


def one(chance: Chance = CHANCE, **members: object) -> Request:
    return Request(LEASE, {"resource": "lock:db", "actorDid": "did:example:a", **members}, chance.key())


def ask(doer: Doer, request: Request) -> Answer:
    answer = doer.run(asking_once(request, doer.authority.now_ms, CHANCE))
    assert isinstance(answer, Answer)
    return answer


def test_one_request_is_answered_as_it_is_a_refusal_too() -> None:
    assert ask(Doer(HonestAuthority(None, NEVER)), one()).status == 200
    assert ask(Doer(HonestAuthority(OTHER, NEVER)), one()).status == 409


def test_one_whose_answer_is_lost_is_repeated_under_its_key() -> None:
    doer = Doer(HonestAuthority(None, NEVER), {0: "applied but unanswered"})
    answer = ask(doer, one())
    first, second = sent(doer)
    assert first == second and json.loads(answer.body)["lease"]["renewed"] is False


def test_one_without_a_key_is_not_unless_it_changes_nothing() -> None:
    doer = Doer(HonestAuthority(None, NEVER), {0: "applied but unanswered"})
    with pytest.raises(OutcomeUnknown):
        ask(doer, one(KEYLESS))
    assert len(doer.steps) == 1

    doer = Doer(HonestAuthority(None, NEVER), {0: "lost"})
    assert ask(doer, Request(WAIT, {})).status == 200


def test_one_that_for_certain_did_nothing_fails_at_once() -> None:
    doer = Unsteady(HonestAuthority(None, NEVER), (0, NEVER))
    with pytest.raises(AuthorityUnavailable):
        ask(doer, one())
    assert len(doer.steps) == 1


def test_one_that_is_never_answered_is_given_up_soon() -> None:
    class Mute(Doer):
        def send(self, request: Request, fault: Fault | None) -> Any:
            return super().send(request, "applied but unanswered")

    doer = Mute(HonestAuthority(None, NEVER))
    with pytest.raises(OutcomeUnknown):
        ask(doer, one())
    assert CLEAN_UP_MS_MAX < doer.authority.now_ms < 2 * CLEAN_UP_MS_MAX


GIVEN_UP: tuple[Fault, ...] = (
    "given up on its way",
    "given up when it arrived",
    "given up while parked",
    "given up when it was answered",
)


@pytest.mark.parametrize("fault", GIVEN_UP)
@pytest.mark.parametrize("free_at_ms", [0, BREAKS_AFTER_MS, BREAKS_AFTER_MS + 1, NEVER])
def test_one_that_is_parked_and_given_up_leaves_nothing_parked_and_no_new_lease(
    fault: Fault, free_at_ms: float
) -> None:
    authority = HonestAuthority(OTHER if free_at_ms else None, free_at_ms)
    with pytest.raises(OutcomeUnknown):
        ask(Doer(authority, {0: fault}), one(maxWaitMs=5_000))
    assert authority.parked is None and authority.holder != US


@pytest.mark.parametrize("fault", GIVEN_UP)
def test_a_renewal_that_is_given_up_keeps_the_lease(fault: Fault) -> None:
    authority = held_by_us()
    with pytest.raises(OutcomeUnknown):
        ask(Doer(authority, {0: fault}), one(leaseId="lease-1"))
    assert authority.holder == US


# -- letting go --------------------------------------------------------------------------------


def release(doer: Doer, held_until_ms: int = TTL_MS) -> Any:
    members: dict[str, object] = {"resource": "lock:db", "actorDid": "did:example:a", "instance": US}
    return doer.run(releasing(members, held_until_ms, doer.authority.now_ms, CHANCE))


def held_by_us() -> HonestAuthority:
    authority = HonestAuthority(None, NEVER)
    authority.granted()
    return authority


def test_a_lease_is_let_go_of_whatever_goes_wrong_and_without_being_told_as_lost() -> None:
    def run(plan: Plan) -> Doer:
        doer = Doer(held_by_us(), plan)
        release(doer)
        return doer

    for plan, doer in plans(run, FAULTS_AT_ONCE):
        assert doer.authority.holder is None, plan
        assert doer.authority.now_ms <= 2 * CLEAN_UP_MS_MAX, plan


@pytest.mark.parametrize("plan", [{}, {0: "not reached"}])
def test_one_that_is_over_already_is_told_as_lost(plan: Plan) -> None:
    with pytest.raises(LeaseLost):
        release(Doer(HonestAuthority(OTHER, NEVER), plan))


@pytest.mark.parametrize(
    "plan", [{0: "applied but unanswered"}, {0: "applied but unanswered", 2: "not reached"}]
)
def test_one_whose_answer_was_lost_is_not(plan: Plan) -> None:
    class Forgetful(HonestAuthority):
        def ask(self, request: Any) -> Answer | None:
            self.answers.clear()
            return super().ask(request)

    authority = Forgetful(None, NEVER)
    authority.granted()
    assert release(Doer(authority, plan)) is None


def test_where_nobody_answers_it_ends_with_the_lease() -> None:
    doer = Unsteady(held_by_us(), (0, NEVER))
    with pytest.raises(AuthorityUnavailable):
        release(doer, held_until_ms=5_000)
    assert doer.authority.now_ms < 5_000


@pytest.mark.parametrize("given_up_at", [0, 1])
def test_who_is_interrupted_meanwhile_is_kept_for_a_little_while_only(given_up_at: int) -> None:
    class Mute(Doer):
        def send(self, request: Request, fault: Fault | None) -> Any:
            return super().send(request, fault or "lost")

    doer = Mute(held_by_us(), {given_up_at: "given up on its way", given_up_at + 1: "lost"})
    with pytest.raises(OutcomeUnknown):
        release(doer)
    assert 0 < doer.authority.now_ms < 2 * CLEAN_UP_MS_MAX < TTL_MS
