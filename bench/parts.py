"""Where the time goes: each part of an answer by itself, on this machine, in this run."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import uvloop

from bench.asks import agents, names
from bench.plan import Plan
from bench.table import Row, told
from leaseplane.calls import Answered
from leaseplane.clock import SystemClock
from leaseplane.engine import Authority
from leaseplane.model import Acquire, Principal, Release, RequestFacts
from leaseplane.operations import LEASE, RELEASE
from leaseplane.receipts.profile import AnswerGiven, Grant, LeaseStated, RequestStated
from leaseplane.serving import Engine
from leaseplane.settings import read_settings
from leaseplane.store.database import commit, open_database, try_begin

SECTION = "for information: the parts by themselves"
CALLERS = 32


def rows(plan: Plan, folder: Path) -> list[Row]:
    """The engine without HTTP, and what it is made of."""
    with _opened(folder / "engine") as plane:
        result = uvloop.run(_engine_rows(plan, plane))
        signatures = told(SECTION, "Ed25519 receipts signed", "/s", _signed(plan, plane))
    commits = _commits(plan, folder / "commits.db")
    return [*result, signatures, told(SECTION, "SQLite commits of one small row", "/s", commits)]


@contextmanager
def _opened(data: Path) -> Iterator[Authority]:
    settings = read_settings({"LEASEPLANE_DATA": str(data), "LEASEPLANE_LEASE_MS": "3600000"})
    with closing(Authority.open(settings, SystemClock(), governs=True)) as plane:
        yield plane


# -- the engine --------------------------------------------------------------------------------


async def _engine_rows(plan: Plan, plane: Authority) -> list[Row]:
    engine = Engine(plane)
    await engine.start()
    principal = Principal("local", "api-key", "bench")
    to_lease = RequestFacts("POST", LEASE.path, "0" * 64)
    to_release = RequestFacts("POST", RELEASE.path, "0" * 64)
    actors = agents(500)
    held = f"lock:bench/{'held':>024}"
    await engine.ask(principal, Acquire(held, agents(501)[-1]), to_lease)
    granted: list[tuple[str, str]] = []
    fresh = (f"{name}" for each in count() for name in names(f"part {each}", 1_000))

    def grant(number: int) -> Awaitable[Answered]:
        granted.append((next(fresh), actors[number % len(actors)]))
        return engine.ask(principal, Acquire(*granted[-1]), to_lease)

    def refuse(number: int) -> Awaitable[Answered]:
        return engine.ask(principal, Acquire(held, actors[number % len(actors)]), to_lease)

    def let_go(_: int) -> Awaitable[Answered]:
        return engine.ask(principal, Release(*granted.pop()), to_release)

    try:
        grants = await _asked(grant, 200, plan.part_s)
        refusals = await _asked(refuse, 409, plan.part_s)
        releases = await _asked(let_go, 200, plan.part_s, most=len(granted))
    finally:
        await engine.stop()
    return [
        told(SECTION, "engine without HTTP, 32 callers: grants, with commit and receipt", "/s", grants),
        told(SECTION, "engine without HTTP, 32 callers: refusals, with commit and receipt", "/s", refusals),
        told(SECTION, "engine without HTTP, 32 callers: releases, with commit and receipt", "/s", releases),
    ]


async def _asked(
    ask: Callable[[int], Awaitable[Answered]], status: int, for_s: float, most: int | None = None
) -> float:
    """How many a second are answered to callers that each ask again as soon as they are answered."""
    numbers = iter(range(most)) if most is not None else count()
    answered = 0
    end_at = time.perf_counter() + for_s

    async def caller() -> None:
        nonlocal answered
        while time.perf_counter() < end_at:
            number = next(numbers, None)
            if number is None:
                return
            given = await ask(number)
            assert given.status == status, given
            answered += 1

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return answered / (time.perf_counter() - began)


# -- signatures and commits --------------------------------------------------------------------


def _signed(plan: Plan, plane: Authority) -> float:
    statement = Grant(
        jti="0" * 24,
        iat=1_800_000_000,
        workspace="local",
        auth="api-key",
        request=RequestStated(method="POST", path=LEASE.path, digest="0" * 64),
        actor_did=agents(1)[0],
        resource=names("signed", 1)[0],
        lease=LeaseStated(
            lease_id="lease-19abcdef012",
            fence=1_800_000_000_000,
            granted_at="2027-01-15T08:00:00.000Z",
            expires_at="2027-01-15T08:00:30.000Z",
        ),
        answer=AnswerGiven(digest="0" * 64),
    )
    sign = plane.keyring.signer.sign
    return _times_a_second(lambda: sign(statement), plan.part_s)


def _commits(plan: Plan, path: Path) -> float:
    with closing(
        open_database(path, migrations=("CREATE TABLE rows (n INTEGER PRIMARY KEY)",), application_id=1)
    ) as connection:
        numbers = count()

        def one() -> None:
            assert try_begin(connection), "nobody else has this file"
            connection.execute("INSERT INTO rows VALUES (?)", (next(numbers),))
            commit(connection)

        return _times_a_second(one, plan.part_s)


def _times_a_second(action: Callable[[], object], for_s: float) -> float:
    done = 0
    began = time.perf_counter()
    while (elapsed_s := time.perf_counter() - began) < for_s:
        action()
        done += 1
    return done / elapsed_s
