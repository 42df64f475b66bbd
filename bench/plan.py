"""How much is measured: in full within six minutes, quickly within one."""

from typing import NamedTuple


class Plan(NamedTuple):
    """How many rounds of how many requests, and how large a plane."""

    rounds: int
    rounds_least: int
    """Also when time runs out."""
    throughput_s_max: float
    slice: int
    """Requests of ours in one round; short, so that what disturbs one side disturbs the other, too."""
    size_rounds: int
    size_s_max: float
    leases_few: int
    leases_many: int
    waiters_few: int
    waiters_many: int
    hand_overs: int
    parked: int
    idle_seconds: int
    """For how long CPU time is counted, with parked requests and without."""
    starts: int
    part_s: float
    """For how long each part is measured by itself."""
    lock_rounds: int
    lock_pairs: int
    """Embedded and against Redis: so many rounds of so many times acquire and release."""
    process_hand_overs: int
    process_idle_s: int
    contended_rounds: int


FULL = Plan(
    rounds=15,
    rounds_least=7,
    throughput_s_max=100,
    slice=1_000,
    size_rounds=15,
    size_s_max=60,
    leases_few=1_000,
    leases_many=1_000_000,
    waiters_few=10,
    waiters_many=10_000,
    hand_overs=300,
    parked=1_000,
    idle_seconds=9,
    starts=25,
    part_s=1.5,
    lock_rounds=15,
    lock_pairs=200,
    process_hand_overs=300,
    process_idle_s=20,
    contended_rounds=200,
)

QUICK = FULL._replace(
    rounds=5,
    rounds_least=3,
    throughput_s_max=12,
    slice=500,
    size_rounds=5,
    size_s_max=8,
    leases_many=100_000,
    hand_overs=60,
    idle_seconds=3,
    starts=11,
    part_s=0.4,
    lock_rounds=7,
    lock_pairs=100,
    process_hand_overs=100,
    process_idle_s=10,
    contended_rounds=30,
)
