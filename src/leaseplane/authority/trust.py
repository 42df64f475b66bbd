"""Trust: a number per agent that the ends of leases move, and nothing else here does.

It starts at 50 and stays within 0 and 100. Kept in half points, so that every score is whole.
"""

from leaseplane.limits import TRUST_EXPIRY_HALVES, TRUST_MAX_HALVES, TRUST_RELEASE_HALVES
from leaseplane.model import Trust


def after_release(trust: Trust) -> Trust:
    """A holder let go by itself: +0.5."""
    return Trust(_within(trust.halves + TRUST_RELEASE_HALVES), trust.released + 1, trust.expired)


def after_expiry(trust: Trust) -> Trust:
    """A lease ran out unreleased: -5."""
    return Trust(_within(trust.halves + TRUST_EXPIRY_HALVES), trust.released, trust.expired + 1)


def _within(halves: int) -> int:
    return max(0, min(TRUST_MAX_HALVES, halves))
