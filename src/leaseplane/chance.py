"""Chance: the kernel's, for where two that stand back must not come back together."""

import os


def jitter() -> float:
    """A number from 0 to below 1. (`random` would have to be imported, and seeded.)"""
    return int.from_bytes(os.urandom(4), "big") / 2**32
