"""The machine on every world, and the machine on broken models, which it has to catch."""

import os
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.properties.broken_models import BROKEN
from tests.properties.side_by_side import SideBySide
from tests.scenarios.worlds import WORLDS

EXAMPLES: Final = int(os.environ.get("LEASEPLANE_EXAMPLES", "0"))
"""0: the same few histories in every run. Otherwise so many random ones, for a long look."""

ORDINARY: Final = settings(
    max_examples=EXAMPLES or 30,
    stateful_step_count=50,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


@pytest.mark.parametrize("world_name", list(WORLDS))
def test_world_and_model_agree(world_name: str) -> None:
    class Machine(SideBySide):
        make_world = WORLDS[world_name]

    run_state_machine_as_test(Machine, settings=ORDINARY)


@pytest.mark.parametrize("fault", list(BROKEN))
def test_machine_notices(fault: str) -> None:
    class Machine(SideBySide):
        make_world = BROKEN[fault]

    hunt = settings(ORDINARY, max_examples=400, phases=[Phase.generate], derandomize=True)
    with pytest.raises(BaseException) as caught:
        run_state_machine_as_test(Machine, settings=hunt)
    assert caught.value is not None
