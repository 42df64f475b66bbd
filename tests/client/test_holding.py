"""One lease by local time: until when it is certainly held, when it is renewed, when it is lost."""

import random

import pytest

from leaseplane.client.holding import Holding


def test_it_counts_from_before_it_was_asked_for() -> None:
    holding = Holding(30_000, sent_boot_ms=1_000)
    assert (holding.renew_boot_ms, holding.ends_boot_ms) == (11_000, 31_000)
    assert not holding.is_over(30_999)
    assert holding.is_over(31_000)


def test_a_renewal_counts_from_before_it_was_sent_and_an_earlier_one_takes_nothing_back() -> None:
    holding = Holding(30_000, 0)
    holding.renewed(10_000)
    holding.renewed(5_000)
    assert (holding.renew_boot_ms, holding.ends_boot_ms) == (20_000, 40_000)


def test_what_is_over_stays_over() -> None:
    holding = Holding(30_000, 0)
    assert holding.is_over(30_000)
    holding.renewed(29_000)
    assert holding.is_over(30_001) and holding.lost is not None


def test_what_the_authority_refuses_is_over_at_once() -> None:
    holding = Holding(30_000, 0)
    holding.refused("stale")
    assert holding.is_over(1) and holding.lost == "stale"


def test_a_renewal_that_fails_is_tried_again_soon_and_ever_more_slowly_and_well_before_the_end() -> None:
    holding = Holding(30_000, 0)
    now_ms, tries = 10_000, 0
    pauses = []
    while not holding.is_over(now_ms):
        holding.not_renewed(now_ms, jitter=1.0)
        pauses.append(holding.renew_boot_ms - now_ms)
        now_ms = holding.renew_boot_ms
        tries += 1
    assert pauses == sorted(pauses) and pauses[0] <= 50 and max(pauses) == 1_000
    assert 20 < tries < 60


def test_a_short_lease_is_tried_for_often_enough() -> None:
    holding = Holding(1_000, 0)
    now_ms, tries = holding.renew_boot_ms, 0
    while not holding.is_over(now_ms):
        holding.not_renewed(now_ms, jitter=1.0)
        now_ms = holding.renew_boot_ms
        tries += 1
    assert tries >= 6


def test_the_pauses_are_spread_and_never_shorter_than_half() -> None:
    pauses = []
    for jitter in (0.0, 0.5, 1.0):
        holding = Holding(30_000, 0)
        holding.not_renewed(12_000, jitter)
        pauses.append(holding.renew_boot_ms - 12_000)
    assert pauses == [25, 37, 50]


def test_after_a_renewal_the_next_failure_is_tried_again_as_soon_as_the_first() -> None:
    holding = Holding(30_000, 0)
    for _ in range(5):
        holding.not_renewed(10_000, jitter=1.0)
    holding.renewed(12_000)
    holding.not_renewed(22_000, jitter=1.0)
    assert holding.renew_boot_ms == 22_050


def test_the_first_reason_for_which_it_is_over_is_the_one_that_is_told() -> None:
    refused, ran_out = Holding(30_000, 0), Holding(30_000, 0)
    refused.refused("stale")
    assert refused.is_over(40_000) and refused.lost == "stale"
    assert ran_out.is_over(40_000)
    ran_out.refused("stale")
    assert ran_out.lost is not None and "30000 ms" in ran_out.lost


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_it_ends_no_later_than_the_authority_ends_it(seed: int) -> None:
    """Of the authority: what it renews runs for its whole term from when the request arrives."""
    chance = random.Random(seed)
    ttl_ms = chance.choice((1_000, 30_000))
    now_ms, ends_by_authority_ms = 40, 40 + ttl_ms
    holding = Holding(ttl_ms, sent_boot_ms=0)
    tries = 0
    while not holding.is_over(now_ms):
        assert now_ms < ends_by_authority_ms, "it is held by nobody, and believed to be"
        now_ms = max(now_ms, min(holding.renew_boot_ms, holding.ends_boot_ms))
        sent_ms, tries = now_ms, tries + 1
        now_ms += chance.randrange(ttl_ms // 2)
        arrives = sent_ms + (now_ms - sent_ms) // 2 < ends_by_authority_ms and chance.random() < 0.7
        if arrives:
            ends_by_authority_ms = sent_ms + (now_ms - sent_ms) // 2 + ttl_ms
        if arrives and chance.random() < 0.7:
            holding.renewed(sent_ms)
        else:
            holding.not_renewed(now_ms, chance.random())
        assert holding.ends_boot_ms <= ends_by_authority_ms
    assert tries > 0
