"""Every world against the model: small histories by Hypothesis, long ones by seeded walks."""

import os
from typing import Any, ClassVar, Final, get_args

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.properties.naive_world import NaiveWorld
from tests.properties.side_by_side import SideBySide
from tests.properties.walks import walk
from tests.scenarios.world import Answer, Capability, Op
from tests.scenarios.worlds import WORLDS

LONG_LOOK: Final = int(os.environ.get("LEASEPLANE_EXAMPLES", "0"))
"""0: the same few histories in every run. Otherwise so many walks, and random examples."""

FOUND_A_FAULT: Final = (
    *(1, 4, 7, 15, 21, 36, 75, 81, 92, 100, 102, 111),
    *(276, 376, 616, 625, 1103, 2284, 2436, 2681, 2960),
)
"""Walks that once told the rules and the model apart."""

SEEDS: Final = range(LONG_LOOK) if LONG_LOOK else FOUND_A_FAULT
HUNT: Final = settings(
    max_examples=LONG_LOOK or 30,
    stateful_step_count=40,
    derandomize=not LONG_LOOK,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def machine_for(world_name: str) -> type[SideBySide]:
    class Machine(SideBySide):
        make_world = WORLDS[world_name]

    return Machine


THE_PLANE: Final = ("naive", "rules", "rules-forgetful", "store", "rest")
"""What asks through a client comes to the same rules, and walks take long there: it has the histories."""


@pytest.mark.parametrize("world_name", THE_PLANE)
def test_small_histories_agree(world_name: str) -> None:
    run_state_machine_as_test(machine_for(world_name), settings=HUNT)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("world_name", THE_PLANE)
def test_long_walks_agree(world_name: str, seed: int) -> None:
    walk(machine_for(world_name), seed)


class PoorWorld(NaiveWorld):
    """A world that can only ask, release and let time pass."""

    lacks: ClassVar[dict[Capability, str]] = dict.fromkeys(get_args(Capability), "it is poor")

    def ask(
        self, op: Op, body: dict[str, Any], *, key: str | None = None, idempotency_key: str | None = None
    ) -> Answer:
        assert op != "break" and key is None and idempotency_key is None and "instance" not in body
        assert op != "release" or "leaseId" not in body
        return super().ask(op, body)

    def step_wall(self, ms: int) -> None:
        raise AssertionError("asked for more than it can")

    def restart(self, down_ms: int) -> None:
        raise AssertionError("asked for more than it can")

    def freeze(self, *parked: object) -> None:
        raise AssertionError("asked for more than it can")


@pytest.mark.parametrize("seed", range(5))
def test_a_world_is_asked_for_nothing_that_it_lacks(seed: int) -> None:
    class Machine(SideBySide):
        make_world = PoorWorld

    walk(Machine, seed)
