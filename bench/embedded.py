"""Embedded, in one process: acquire and release, in turn with redis-py's Lock on a Redis that syncs."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from bench.plan import Plan
from bench.redis_server import RedisMissing, redis_server
from bench.table import Row, compared, said, told
from leaseplane import Plane

SECTION = "embedded, one process: acquire and release, against redis-py's Lock with appendfsync always"
RATIO_LEAST = 1.0
RESOURCE = "lock:bench/embedded"
AGENT = "did:example:bench"
PAIRS = "acquire and release, durable and signed"


def rows(plan: Plan, folder: Path, *, redis_command: str = "redis-server") -> list[Row]:
    """How often a second a lock is taken and let go of; ours alone where there is no Redis."""
    with Plane(data=folder / "plane", agent=AGENT) as plane:

        def ours() -> None:
            plane.acquire(RESOURCE, timeout=0).release()

        try:
            with redis_server(folder / "redis", command=redis_command) as peer:
                assert (folder / "plane").stat().st_dev == (folder / "redis").stat().st_dev
                locks = {way: _redis_pair(client) for way, client in peer.ways.items()}
                per_s = {way: _per_s(lock, plan.lock_pairs) for way, lock in locks.items()}
                way = max(per_s, key=lambda each: per_s[each])
                return [
                    _in_turn(plan, ours, locks[way]),
                    said(SECTION, f"the peer: Redis {peer.version}, over {way}, which was the faster"),
                ]
        except RedisMissing as missing:
            _per_s(ours, plan.lock_pairs)
            return [
                told(SECTION, PAIRS, "/s", _per_s(ours, plan.lock_pairs * plan.lock_rounds)),
                said(SECTION, f"not compared: {missing}"),
            ]


def _redis_pair(client: object) -> Callable[[], None]:
    from redis import Redis

    assert isinstance(client, Redis)
    lock = client.lock(RESOURCE, timeout=30)

    def pair() -> None:
        assert lock.acquire(blocking=False), "nobody else has it"
        lock.release()

    return pair


def _in_turn(plan: Plan, ours: Callable[[], None], peer: Callable[[], None]) -> Row:
    """The peer, ours, the peer, ours, …: each round of ours against the mean of its neighbours."""
    _per_s(ours, plan.lock_pairs)
    rates, peers = [], []
    last = _per_s(peer, plan.lock_pairs)
    for _ in range(plan.lock_rounds):
        rates.append(_per_s(ours, plan.lock_pairs))
        then = _per_s(peer, plan.lock_pairs)
        peers.append(statistics.mean((last, then)))
        last = then
    return compared(SECTION, PAIRS, "/s", rates, peers, at_least=RATIO_LEAST)


def _per_s(pair: Callable[[], None], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        pair()
    return times / (time.perf_counter() - began)
