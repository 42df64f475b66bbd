"""Answers over HTTP at 32 connections, in turn with an echo on the same server software."""

import statistics
import time
from pathlib import Path

from bench.asks import ECHOED, GRANTED, HELD, RELEASED, RENEWED, acquire, agents, names, one_each, release
from bench.load import Connections, Expected, Round, Void
from bench.plan import Plan
from bench.servers import Server, peer, plane
from bench.table import Row, compared, told, void

SECTION = "answers over HTTP, 32 connections, against a Starlette JSON echo"
CONNECTIONS = 32
RATIO_LEAST = 0.4

_KINDS = (
    ("grants", GRANTED),
    ("renewals", RENEWED),
    ("refusals", HELD),
    ("releases", RELEASED),
    ("grants with an Idempotency-Key", GRANTED),
)


def rows(plan: Plan, folder: Path) -> list[Row]:
    """One row for each kind of answer, and what says where the time went."""
    with plane(folder, LEASE_MS="3600000") as ours, peer("starlette") as echo, peer("asgi") as bare:
        return _measured(plan, ours, echo, bare)


def _measured(plan: Plan, ours: Server, echo: Server, bare: Server) -> list[Row]:
    actors = agents(500)
    key = ours.api_key
    rates: dict[str, list[float]] = {kind: [] for kind, _ in _KINDS}
    peers: dict[str, list[float]] = {kind: [] for kind, _ in _KINDS}
    bares: dict[str, list[float]] = {kind: [] for kind, _ in _KINDS}
    broken: dict[str, Void] = {}
    busy: dict[str, list[float]] = {"plane": [], "Starlette": [], "bare ASGI": []}
    with (
        Connections(ours.port, CONNECTIONS) as to_ours,
        Connections(echo.port, CONNECTIONS) as to_echo,
        Connections(bare.port, CONNECTIONS) as to_bare,
    ):
        to_ours.run([acquire("lock:bench/held", agents(501)[-1], key)], GRANTED)
        # The first requests find everything cold, on every side.
        _warm_up(plan, to_ours, to_echo, to_bare, actors, key)
        before = ours.metrics()
        began = time.monotonic()
        for number in range(plan.rounds):
            if number >= plan.rounds_least and time.monotonic() - began > plan.throughput_s_max:
                break
            requests = _requests(f"round {number}", plan.slice, actors, key)
            echoed = requests["grants"] * 2

            def neighbours(echoed: list[bytes] = echoed) -> tuple[Round, Round]:
                return to_echo.run(echoed, ECHOED), to_bare.run(echoed, ECHOED)

            last = neighbours()
            for kind, expected in _KINDS:
                try:
                    done = to_ours.run(requests[kind], expected)
                except Void as reason:
                    broken[kind] = reason
                    to_ours.reopen()
                    continue
                then = neighbours()
                rates[kind].append(done.per_s)
                peers[kind].append((last[0].per_s + then[0].per_s) / 2)
                bares[kind].append((last[1].per_s + then[1].per_s) / 2)
                for name, each in zip(busy, (done, *then), strict=True):
                    busy[name].append(each.busy_s / each.wall_s)
                last = then
        after = ours.metrics()
    batch = _grown(before, after, "leaseplane_works_total") / _grown(
        before, after, "leaseplane_transactions_total"
    )
    result = [
        void(SECTION, kind, broken[kind])
        if kind in broken
        else compared(
            SECTION,
            kind,
            "/s",
            rates[kind],
            peers[kind],
            # An Idempotency-Key has no target: it is stored besides, so that a repeat has an answer.
            at_least=RATIO_LEAST if "Idempotency" not in kind else None,
            also=bares[kind],
        )
        for kind, _ in _KINDS
    ]
    return [
        *result,
        told(SECTION, "requests decided in one commit, on average", "", batch),
        *(
            told(
                SECTION, f"how busy the load was that asked the {name}", "%", 100 * statistics.median(shares)
            )
            for name, shares in busy.items()
            if shares
        ),
    ]


def _requests(label: str, number: int, actors: list[str], key: str) -> dict[str, list[bytes]]:
    plain = one_each(names(label, number), actors)
    keyed = one_each(names(f"{label}, with keys", number), actors)
    return {
        "grants": [acquire(resource, actor, key) for resource, actor in plain],
        "renewals": [acquire(resource, actor, key) for resource, actor in plain],
        "refusals": [acquire("lock:bench/held", actor, key) for _, actor in plain],
        "releases": [release(resource, actor, key) for resource, actor in plain],
        "grants with an Idempotency-Key": [
            acquire(resource, actor, key, idempotency_key=resource.rpartition("/")[2])
            for resource, actor in keyed
        ],
    }


def _warm_up(
    plan: Plan,
    to_ours: Connections,
    to_echo: Connections,
    to_bare: Connections,
    actors: list[str],
    key: str,
) -> None:
    requests = _requests("warm-up", plan.slice, actors, key)
    to_echo.run(requests["grants"], ECHOED)
    to_bare.run(requests["grants"], ECHOED)
    for kind, expected in _KINDS:
        to_ours.run(requests[kind], Expected(expected.status, b""))


def _grown(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after[name] - before[name]
