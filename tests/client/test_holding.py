"""One lease by local time: until when it is certainly held, when it is renewed, when it is lost."""

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
