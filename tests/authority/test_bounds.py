"""The bounds of a workspace: whoever meets one is told, nothing is stored, others are served (case 50)."""

from typing import Any

import pytest
from tests.scenarios.rules_world import RulesWorld
from tests.scenarios.world import TERM_MS, Answer

from leaseplane.authority import decide


def agent(number: int) -> str:
    return f"did:web:a.example:{number}"


@pytest.fixture
def world() -> RulesWorld:
    return RulesWorld()


def lease(world: RulesWorld, number: int, resource: str = "lock:r", **more: Any) -> Answer:
    key, idempotency_key = more.pop("key", None), more.pop("idempotency_key", None)
    body = {"resource": resource, "actorDid": agent(number), **more}
    answer = world.park(body, key=key, idempotency_key=idempotency_key).answer()
    return Answer(0, {"parked": True}) if answer is None else answer


def is_too_many(answer: Answer, bound: str, limit: int) -> bool:
    body = answer.body
    return (answer.status, body.get("error"), body.get("bound"), body.get("limit")) == (
        429, "too_many", bound, limit,
    )  # fmt: skip


def waiting(world: RulesWorld) -> list[str]:
    return [each["actorDid"] for each in world.ask("wait", {}).body["waiting"]]


def test_agents_made_up_on_the_spot_fill_their_own_queue_only(
    world: RulesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "WAITS_PER_WORKSPACE_MAX", 3)
    assert lease(world, 0).status == 200
    for number in (1, 2, 3):
        assert lease(world, number).body["error"] == "lease_held"
    for number in range(4, 50):
        assert is_too_many(lease(world, number), "waiters", 3)
        assert is_too_many(lease(world, number, maxWaitMs=1_000), "waiters", 3)
    assert waiting(world) == [agent(1), agent(2), agent(3)]
    # Who is in the queue stays in it, who holds renews, what is free is granted.
    assert lease(world, 3).body["position"] == 3
    assert lease(world, 0).body["renewed"] is True
    assert lease(world, 50, "lock:free").status == 200
    # What was refused so is not kept under a key: see below, when there is room.
    assert is_too_many(lease(world, 60, idempotency_key="k"), "waiters", 3)
    # Another workspace has bounds of its own.
    assert lease(world, 0, key="workspace:other").status == 200
    assert lease(world, 60, key="workspace:other").body["error"] == "lease_held"
    # Room is made by whoever goes, or does not come back.
    world.ask("withdraw", {"resource": "lock:r", "actorDid": agent(1)})
    assert lease(world, 60, idempotency_key="k").body["position"] == 3
    world.advance(TERM_MS)
    assert lease(world, 61, "lock:free").status == 200
    assert lease(world, 62, "lock:free").body["position"] == 1


def test_leases_are_bounded_and_renewals_are_not(world: RulesWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "LEASES_PER_WORKSPACE_MAX", 2)
    assert lease(world, 0, "lock:a").status == lease(world, 0, "lock:b").status == 200
    assert is_too_many(lease(world, 0, "lock:c"), "leases", 2)
    assert is_too_many(lease(world, 1, "lock:c", maxWaitMs=1_000), "leases", 2)
    assert waiting(world) == []
    assert lease(world, 0, "lock:a").body["renewed"] is True
    assert lease(world, 1, "lock:c", key="workspace:other").status == 200
    assert world.ask("release", {"resource": "lock:a", "actorDid": agent(0)}).status == 200
    assert lease(world, 1, "lock:c").status == 200


def test_parked_requests_are_bounded_and_asking_without_parking_is_not(
    world: RulesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "PARKED_PER_WORKSPACE_MAX", 2)
    lease(world, 0)
    assert lease(world, 1, maxWaitMs=60_000).status == lease(world, 2, maxWaitMs=60_000).status == 0
    assert is_too_many(lease(world, 3, maxWaitMs=60_000), "parked_requests", 2)
    assert waiting(world) == [agent(1), agent(2)]
    assert lease(world, 3).body["position"] == 3
    assert lease(world, 0, key="workspace:other").status == 200
    assert lease(world, 3, key="workspace:other", maxWaitMs=60_000).status == 0


def test_readers_of_one_resource_are_bounded(world: RulesWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "HOLDERS_PER_RESOURCE_MAX", 2)
    for number in (0, 1):
        assert lease(world, number, "doc:a", access="read").status == 200
    assert is_too_many(lease(world, 2, "doc:a", access="read"), "holders_of_one_resource", 2)
    assert lease(world, 2, "doc:b", access="read").status == 200
    assert lease(world, 1, "doc:a").body["renewed"] is True


def test_idempotency_keys_are_bounded_and_what_was_answered_is_repeated(
    world: RulesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "IDEMPOTENCY_PER_WORKSPACE_MAX", 2)
    first = lease(world, 0, "lock:a", idempotency_key="k1")
    assert lease(world, 0, "lock:b", idempotency_key="k2").status == 200
    assert is_too_many(lease(world, 0, "lock:c", idempotency_key="k3"), "idempotency_keys", 2)
    assert lease(world, 0, "lock:c").body["lease"]["renewed"] is False
    assert lease(world, 0, "lock:a", idempotency_key="k1") == first
    # Ten minutes from the answer a key makes room.
    world.advance(600_000)
    assert lease(world, 0, "lock:d", idempotency_key="k3").status == 200
