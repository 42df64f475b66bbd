"""Whether it stays as fast when it holds much: grants beside a million leases, refusals in a long queue."""

import random
import time
from collections.abc import Callable
from pathlib import Path

from bench.asks import GRANTED, HELD, RELEASED, acquire, agents, names, one_each, release
from bench.load import Connections, Void
from bench.plan import Plan
from bench.prepared import LEASE_MS, WORKSPACES, Prepared, plane_holding
from bench.table import Row, compared, void
from leaseplane.limits import LEASES_PER_WORKSPACE_MAX

SECTION = "much against little, over HTTP at 32 connections"
CONNECTIONS = 32
RATIO_LEAST = 0.8


def note(plan: Plan) -> str:
    """How the planes of this section were prepared."""
    return (
        f"The {plan.leases_many:,} and the {plan.leases_few:,} leases were written as rows, by the store's "
        f"own code, before the server started, spread over {WORKSPACES} workspaces (one holds at most "
        f"{LEASES_PER_WORKSPACE_MAX:,}), under names in no order. Grants go to all of the workspaces in turn "
        f"and are released after each round. Leases run {LEASE_MS // 60_000} minutes, so none ends in the "
        f"run. Refusals are asked for by agents that wait already: {plan.waiters_many:,} for one resource, "
        f"and {plan.waiters_few} for each of {plan.waiters_many // plan.waiters_few:,} others."
    )


def rows(plan: Plan, folder: Path) -> list[Row]:
    """Grants at many live leases against few, and refusals in a long queue against short ones."""
    with plane_holding(folder / "few", plan.leases_few) as few:
        with plane_holding(folder / "many", plan.leases_many) as many:
            grants = _grants(plan, few, many)
        return [grants, _refusals(plan, few)]


def _grants(plan: Plan, few: Prepared, many: Prepared) -> Row:
    what = f"grants at {plan.leases_many:,} live leases, against {plan.leases_few:,}"
    actors = agents(500)

    def granted(held: Prepared, connections: Connections, label: str) -> float:
        asks, releases = [], []
        for at, (resource, actor) in enumerate(one_each(names(label, plan.slice), actors)):
            api_key = held.api_keys[at % WORKSPACES]
            asks.append(acquire(resource, actor, api_key))
            releases.append(release(resource, actor, api_key))
        done = connections.run(asks, GRANTED)
        connections.run(releases, RELEASED)
        return done.per_s

    with (
        Connections(few.server.port, CONNECTIONS) as to_few,
        Connections(many.server.port, CONNECTIONS) as to_many,
    ):
        return _in_turn(
            plan,
            what,
            lambda label: granted(many, to_many, label),
            lambda label: granted(few, to_few, label),
        )


def _refusals(plan: Plan, prepared: Prepared) -> Row:
    what = f"refusals at {plan.waiters_many:,} waiters, against {plan.waiters_few}"
    holder, *waiters = agents(plan.waiters_many + 1)
    # Each in a workspace of its own, since the waiters of one are bounded.
    long_key, short_key = prepared.api_keys[:2]
    long_resource = "lock:bench/long"
    long_asks = [acquire(long_resource, waiter, long_key) for waiter in waiters]
    short_resources = names("short", plan.waiters_many // plan.waiters_few)
    short_asks = [
        acquire(short_resources[at % len(short_resources)], waiter, short_key)
        for at, waiter in enumerate(waiters)
    ]
    with Connections(prepared.server.port, CONNECTIONS) as connections:
        try:
            connections.run([acquire(long_resource, holder, long_key)], GRANTED)
            connections.run([acquire(each, holder, short_key) for each in short_resources], GRANTED)
            # Twice: whoever asks for the first time is met by an empty queue, at the second by all of it.
            for asks in (long_asks, short_asks):
                connections.run(asks, HELD)
                connections.run(asks, HELD)
        except Void as reason:
            return void(SECTION, what, reason)

        def refused(asks: list[bytes]) -> Callable[[str], float]:
            return lambda label: connections.run(random.Random(label).sample(asks, plan.slice), HELD).per_s

        return _in_turn(plan, what, refused(long_asks), refused(short_asks))


def _in_turn(plan: Plan, what: str, much: Callable[[str], float], little: Callable[[str], float]) -> Row:
    """Little, much, little, much, … little: each round of much has one of little on either side."""
    at_much: list[float] = []
    at_little: list[float] = []
    try:
        much("warm-up")
        little("warm-up")
        began = time.monotonic()
        last = little("first")
        for number in range(plan.size_rounds):
            if number >= plan.rounds_least and time.monotonic() - began > plan.size_s_max:
                break
            at_much.append(much(f"much {number}"))
            then = little(f"little {number}")
            at_little.append((last + then) / 2)
            last = then
    except Void as reason:
        return void(SECTION, what, reason)
    return compared(SECTION, what, "/s", at_much, at_little, at_least=RATIO_LEAST)
