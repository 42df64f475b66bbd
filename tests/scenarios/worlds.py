"""The worlds that every history is played on. A new surface registers here, and nowhere else."""

from collections.abc import Callable
from typing import Final

from tests.properties.naive_world import NaiveWorld
from tests.scenarios.client_worlds import (
    AsyncPlaneUrlWorld,
    AsyncPlaneWorld,
    CommandUrlWorld,
    CommandWorld,
    PlaneUrlWorld,
    PlaneWorld,
)
from tests.scenarios.rest_world import RestWorld
from tests.scenarios.rules_world import ForgetfulRulesWorld, RulesWorld, StoreWorld
from tests.scenarios.world import World

WORLDS: Final[dict[str, Callable[[], World]]] = {
    "naive": NaiveWorld,
    "rules": RulesWorld,
    "rules-forgetful": ForgetfulRulesWorld,
    "store": StoreWorld,
    "rest": RestWorld,
    "sdk": PlaneWorld,
    "sdk-url": PlaneUrlWorld,
    "async-sdk": AsyncPlaneWorld,
    "async-sdk-url": AsyncPlaneUrlWorld,
    "cli": CommandWorld,
    "cli-url": CommandUrlWorld,
}
"""Name and maker; a maker returns a fresh plane each time."""

MODEL: Final = "naive"
"""The world that the Hypothesis machine compares all others with."""
