"""What the ledger will be told: one event for each grant, end and refused deadlock, and no other."""

from typing import Any

import pytest
from tests.scenarios.rules_world import RulesWorld
from tests.scenarios.world import TERM_MS

A, B, C = ("did:web:a.example", "did:web:b.example", "did:web:c.example")


@pytest.fixture
def world() -> RulesWorld:
    return RulesWorld()


def ask(world: RulesWorld, actor: str, resource: str = "lock:r", **more: Any) -> dict[str, Any]:
    return world.ask("lease", {"resource": resource, "actorDid": actor, **more}).body


def told(world: RulesWorld) -> list[tuple[str, str]]:
    """The events since the last look: what happened, and to whom."""
    events = [(event.kind.removeprefix("coordination."), event.actor) for event in world.rows.events]
    world.rows.events.clear()
    return events


def test_a_grant_and_a_release_are_told_with_their_receipts(world: RulesWorld) -> None:
    lease = ask(world, A, note="rolling out")["lease"]
    granted = world.rows.events[-1]
    assert (granted.resource, granted.lease_id, granted.fence) == ("lock:r", lease["leaseId"], lease["fence"])
    assert (granted.access, granted.note, granted.jti) == ("write", "rolling out", "jti-1")
    world.ask("release", {"resource": "lock:r", "actorDid": A})
    released = world.rows.events[-1]
    assert (released.lease_id, released.fence, released.jti) == (lease["leaseId"], lease["fence"], "jti-2")
    assert told(world) == [("lease", A), ("release", A)]


def test_what_grants_and_ends_nothing_is_not_told(world: RulesWorld) -> None:
    ask(world, A)
    told(world)
    ask(world, A)
    ask(world, B)
    world.ask("release", {"resource": "lock:r", "actorDid": B})
    world.ask("wait", {})
    world.ask("trust", {"actorDid": A})
    world.ask("withdraw", {"resource": "lock:r", "actorDid": B})
    assert told(world) == []


def test_an_expiry_is_told_once_and_without_a_receipt(world: RulesWorld) -> None:
    ask(world, A)
    world.advance(3 * TERM_MS)
    assert world.rows.events[-1].jti is None
    assert told(world) == [("lease", A), ("expiry", A)]


def test_a_refused_deadlock_is_told_with_its_receipt(world: RulesWorld) -> None:
    ask(world, A, "lock:x")
    ask(world, B, "lock:y")
    ask(world, A, "lock:y")
    told(world)
    assert ask(world, B, "lock:x")["error"] == "deadlock"
    refused = world.rows.events[-1]
    assert (refused.resource, refused.jti, refused.lease_id) == ("lock:x", "jti-4", None)
    assert told(world) == [("deadlock", B)]


def test_a_break_is_told_with_its_reason(world: RulesWorld) -> None:
    ask(world, A)
    world.ask("break", {"resource": "lock:r", "reason": "agent is stuck"})
    assert world.rows.events[-1].reason == "agent is stuck"
    assert told(world) == [("lease", A), ("break", A)]


def test_a_hand_over_is_told_under_the_receipt_of_the_parked_request(world: RulesWorld) -> None:
    ask(world, A)
    world.park({"resource": "lock:r", "actorDid": B, "maxWaitMs": 60_000})
    told(world)
    world.ask("release", {"resource": "lock:r", "actorDid": A})
    assert world.rows.events[-1].jti == "jti-2"
    assert told(world) == [("release", A), ("lease", B)]


def test_a_hand_over_that_reached_nobody_is_told_as_undone(world: RulesWorld) -> None:
    ask(world, A)
    parked = world.park({"resource": "lock:r", "actorDid": B, "maxWaitMs": 60_000})
    world.park({"resource": "lock:r", "actorDid": C, "maxWaitMs": 60_000})
    world.freeze(parked)
    told(world)
    world.ask("release", {"resource": "lock:r", "actorDid": A})
    world.kill_parker(parked)
    assert told(world) == [("release", A), ("lease", B), ("undone", B), ("lease", C)]


def test_an_upgrade_ends_the_read_lease_and_undone_gives_it_back(world: RulesWorld) -> None:
    for actor in (A, B):
        ask(world, actor, "doc:a", access="read")
    parked = world.park({"resource": "doc:a", "actorDid": A, "access": "write", "maxWaitMs": 20_000})
    world.freeze(parked)
    told(world)
    world.ask("release", {"resource": "doc:a", "actorDid": B})
    assert told(world) == [("release", B), ("upgrade", A), ("lease", A)]
    world.kill_parker(parked)
    assert told(world) == [("undone", A), ("restored", A)]
