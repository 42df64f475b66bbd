"""Every history in tests/scenarios/*.txt on every world, one test each."""

from contextlib import closing
from pathlib import Path

import pytest
from tests.scenarios.language import Scenario, load
from tests.scenarios.player import Player
from tests.scenarios.worlds import WORLDS

SCENARIOS = load(Path(__file__).parent)


def readable_id(scenario: Scenario) -> str:
    return f"{scenario.file.removesuffix('.txt')}: {scenario.title}"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=readable_id)
@pytest.mark.parametrize("world_name", list(WORLDS))
def test_history(world_name: str, scenario: Scenario) -> None:
    with closing(WORLDS[world_name]()) as world:
        for need in sorted(scenario.needs):
            if need in world.lacks:
                pytest.skip(f"{world_name} has no {need}: {world.lacks[need]}")
        Player(world).play(scenario)
