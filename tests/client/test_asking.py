"""The core of the client, with no I/O: what it does next, and that it leaves nothing behind."""

from typing import Any

import pytest
from tests.client.honest import CHANCE, OTHER, TTL_MS, US, Doer, Fault, HonestAuthority

from leaseplane import AuthorityUnavailable, Deadlock, LeaseHeld, LeaseLost, OutcomeUnknown
from leaseplane.client.asking import Pause, Send, Wish, Won, acquiring, releasing
from leaseplane.client.channel import Answer
from leaseplane.limits import LOST_TOUCH_MS_MAX, PARK_SLICE_MS, PARK_SLICE_TOLD_MS, UNREACHED_MS_MAX

NEVER = float("inf")


def wish(**how: Any) -> Wish:
    return Wish(resource="lock:db", actor="did:example:a", instance=US, **how)


def acquire(doer: Doer, **how: Any) -> Won | None:
    won = doer.run(acquiring(wish(**how), doer.authority.now_ms, CHANCE))
    assert won is None or isinstance(won, Won)
    return won


def parked_ms(doer: Doer) -> list[object]:
    return [step.request.members.get("maxWaitMs") for step in doer.steps if isinstance(step, Send)]


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
    class Away(Doer):
        away_from_ms = 0

        def send(self, request: Any, fault: Fault | None) -> Any:
            if self.authority.now_ms >= self.away_from_ms:
                return AuthorityUnavailable("away")
            return super().send(request, fault)

    doer = Away(HonestAuthority(OTHER, NEVER))
    with pytest.raises(AuthorityUnavailable):
        acquire(doer)
    assert UNREACHED_MS_MAX < doer.authority.now_ms < 2 * UNREACHED_MS_MAX
    # Nothing was ever heard of it: there is nothing to clean up.
    assert {type(step) for step in doer.steps} == {Send, Pause}

    doer = Away(HonestAuthority(OTHER, NEVER))
    doer.away_from_ms = 1
    with pytest.raises(AuthorityUnavailable):
        acquire(doer)
    assert LOST_TOUCH_MS_MAX < doer.authority.now_ms < 2 * LOST_TOUCH_MS_MAX


def test_one_that_comes_back_is_asked_the_same_under_the_same_key() -> None:
    doer = Doer(HonestAuthority(None, NEVER), "applied but unanswered", 0)
    won = acquire(doer)
    sent = [step.request for step in doer.steps if isinstance(step, Send)]
    assert won is not None and not won.grant.renewed and won.sent_boot_ms == 0
    assert len(sent) == 2 and sent[0] == sent[1]


def test_where_too_little_is_left_by_our_own_count_it_is_renewed_before_it_is_told() -> None:
    class Slow(Doer):
        def send(self, request: Any, fault: Fault | None) -> Any:
            answer = super().send(request, fault)
            if "leaseId" not in request.members:
                # On its way back for more than half a lease.
                self.authority.pass_time(0.6 * TTL_MS)
            return answer

    doer = Slow(HonestAuthority(None, NEVER))
    won = acquire(doer)
    assert won is not None and won.grant.renewed and won.sent_boot_ms == int(0.6 * TTL_MS)


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


SITUATIONS: dict[str, tuple[str | None, float, dict[str, Any]]] = {
    "it is free": (None, NEVER, {}),
    "it is free, asked once": (None, NEVER, {"timeout_ms": 0}),
    "it is held, asked once": (OTHER, NEVER, {"timeout_ms": 0}),
    "it is held for longer than we wait": (OTHER, NEVER, {"timeout_ms": 12_000}),
    "it becomes free while we are parked": (OTHER, 4_000, {}),
    "it becomes free between two slices": (OTHER, PARK_SLICE_MS, {}),
    "it becomes free at our time-out": (OTHER, 12_000, {"timeout_ms": 12_000}),
    "it is held, and we want to be told": (OTHER, 7_000, {"on_wait": lambda held: None}),
}
FAULTS: tuple[Fault, ...] = (
    "lost",
    "applied but unanswered",
    "given up on its way",
    "given up when it arrived",
)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_whatever_goes_wrong_at_whatever_step_there_is_a_lease_in_hand_or_nothing(
    situation: str, fault: Fault
) -> None:
    holder, free_at_ms, how = SITUATIONS[situation]
    at_step = 0
    while True:
        authority = HonestAuthority(holder, free_at_ms)
        doer = Doer(authority, fault, at_step)
        try:
            won = acquire(doer, **how)
        except (LeaseHeld, AuthorityUnavailable, OutcomeUnknown):
            won = None
        where = f"{fault} at step {at_step}: {doer.steps}"
        assert not authority.waits and authority.parked_until_ms is None, f"a wait is left; {where}"
        if won is None:
            assert authority.holder != US, f"a lease is left; {where}"
        else:
            assert authority.holder == US and won.grant.fence == authority.lease, where
            assert won.sent_boot_ms + TTL_MS <= authority.ends_ms, f"counted too long; {where}"
        if not doer.happened and at_step >= len(doer.steps):
            break
        at_step += 1
        assert at_step < 50, "it does not end"
    assert at_step > 0


# -- letting go --------------------------------------------------------------------------------


def release(doer: Doer, held_until_ms: int = TTL_MS) -> Any:
    members: dict[str, object] = {"resource": "lock:db", "actorDid": "did:example:a", "instance": US}
    return doer.run(releasing(members, held_until_ms, doer.authority.now_ms, CHANCE))


def held_by_us() -> HonestAuthority:
    authority = HonestAuthority(None, NEVER)
    authority.granted()
    return authority


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_a_lease_is_let_go_of_whatever_becomes_of_the_first_try(fault: Fault | None) -> None:
    authority = held_by_us()
    release(Doer(authority, fault, 0))
    assert authority.holder is None


def test_one_that_is_over_already_is_told_as_lost() -> None:
    with pytest.raises(LeaseLost):
        release(Doer(HonestAuthority(OTHER, NEVER)))


def test_one_whose_answer_was_lost_is_not() -> None:
    class Forgetful(HonestAuthority):
        def ask(self, request: Any) -> Answer | None:
            self.answers.clear()
            return super().ask(request)

    authority = Forgetful(None, NEVER)
    authority.granted()
    assert release(Doer(authority, "applied but unanswered", 0)) is None


def test_where_nobody_answers_it_ends_with_the_lease() -> None:
    class Away(Doer):
        def send(self, request: Any, fault: Fault | None) -> Any:
            return AuthorityUnavailable("away")

    doer = Away(held_by_us())
    with pytest.raises(AuthorityUnavailable):
        release(doer, held_until_ms=5_000)
    assert doer.authority.now_ms < 5_000
