"""Ten thousand waiters (case 21): one is woken by each release, and the last is refused as cheaply as any."""

import statistics
import time

from tests.scenarios.rules_world import RulesWorld
from tests.scenarios.world import ParkedAsk


def agent(number: int) -> str:
    return f"did:web:a.example:{number}"


def a_queue_of(waiters: int) -> RulesWorld:
    world = RulesWorld()
    for number in range(waiters + 1):
        world.ask("lease", {"resource": "lock:r", "actorDid": agent(number)})
    return world


def cost_of_a_refusal_s(world: RulesWorld, last: int) -> float:
    costs_s = []
    for _ in range(200):
        started_s = time.process_time()
        answer = world.ask("lease", {"resource": "lock:r", "actorDid": agent(last)})
        costs_s.append(time.process_time() - started_s)
        assert answer.body["position"] == last
    return statistics.median(costs_s)


def test_the_ten_thousandth_is_refused_as_cheaply_as_the_tenth() -> None:
    few, many = a_queue_of(10), a_queue_of(10_000)
    told = many.ask("lease", {"resource": "lock:r", "actorDid": agent(10_000)}).body
    assert told["stampede"]["waitMs"] == 800 and len(told["stampede"]["admitted"]) == 8
    # Counting the places ahead would make it a hundred times as dear; a machine that is busy, not three.
    assert cost_of_a_refusal_s(many, 10_000) < 3 * cost_of_a_refusal_s(few, 10)


def test_each_release_wakes_one_of_ten_thousand() -> None:
    world = RulesWorld()
    world.ask("lease", {"resource": "lock:r", "actorDid": agent(0)})
    parked: list[ParkedAsk] = [
        world.park({"resource": "lock:r", "actorDid": agent(number), "maxWaitMs": 300_000})
        for number in range(1, 10_001)
    ]
    for holder in range(3):
        assert [number for number, ask in enumerate(parked, 1) if ask.answer()] == list(range(1, holder + 1))
        world.ask("release", {"resource": "lock:r", "actorDid": agent(holder)})
    assert sum(ask.answer() is not None for ask in parked) == 3
