"""The tests can fail: every broken model is noticed, by the histories, and nearly all by the machine."""

from contextlib import closing
from typing import Final

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.properties.broken_models import BROKEN
from tests.properties.side_by_side import SideBySide
from tests.properties.test_side_by_side import HUNT
from tests.properties.walks import commands_of, play
from tests.scenarios.player import NotAsToldError, Player
from tests.scenarios.test_scenarios import SCENARIOS

WALKS_MAX: Final = 10

BEYOND_WALKS: Final = {
    "OnlyEightWaitersAreEdges",
    "RestartsRenew",
    "TrustHasNoBounds",
    "UpgradesUndoneAreLost",
}
"""Faults that need more agents, or more walks than are worth it here; the histories notice them."""

SMALL: Final = ["WaitsNeverDie", "LeasesEndLate", "ReadersOvertake", "TrustFallsTwice"]


def machine_for(fault: str) -> type[SideBySide]:
    class Machine(SideBySide):
        make_world = BROKEN[fault]

    return Machine


@pytest.mark.parametrize("fault", list(BROKEN))
def test_a_scenario_notices(fault: str) -> None:
    for scenario in SCENARIOS:
        with closing(BROKEN[fault]()) as world:
            try:
                Player(world).play(scenario)
            except NotAsToldError:
                return
    pytest.fail(f"no scenario notices {fault}")


@pytest.mark.parametrize("fault", sorted(set(BROKEN) - BEYOND_WALKS))
def test_a_walk_notices(fault: str) -> None:
    machine = machine_for(fault)
    assert any(play(machine, commands_of(seed)) for seed in range(WALKS_MAX)), f"no walk notices {fault}"


@pytest.mark.parametrize("fault", SMALL)
def test_the_machine_notices(fault: str) -> None:
    hunt = settings(HUNT, max_examples=400, phases=[Phase.generate], derandomize=True)
    with pytest.raises(AssertionError, match=r"world|ms off|holds it still"):
        run_state_machine_as_test(machine_for(fault), settings=hunt)
