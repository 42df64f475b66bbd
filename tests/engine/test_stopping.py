"""What a stopping engine tells those who are waiting."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from leaseplane.clock import SystemClock
from leaseplane.engine import Authority
from leaseplane.model import Acquire, AuthorityUnavailable, Principal, RequestFacts, Withdraw
from leaseplane.serving import Engine
from leaseplane.settings import read_settings

ANYONE = Principal("local", "local", "test")
FACTS = RequestFacts("POST", "/api/v1/acp/coordination/lease", "0" * 64)
A, B, C = "did:example:a", "did:example:b", "did:example:c"


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Authority]:
    with closing(Authority.open(read_settings({"LEASEPLANE_DATA": str(tmp_path)}), SystemClock())) as opened:
        yield opened


async def asked(engine: Engine, actor: str, max_wait_ms: int = 60_000) -> dict[str, Any]:
    answered = await engine.ask(ANYONE, Acquire("lock:x", actor, max_wait_ms=max_wait_ms), FACTS)
    body: dict[str, Any] = json.loads(answered.body)
    return {"status": answered.status, **body}


def test_those_who_are_parked_and_those_who_have_just_asked_are_told(plane: Authority) -> None:
    async def history() -> tuple[dict[str, Any], dict[str, Any]]:
        engine = Engine(plane)
        await engine.start()
        assert (await asked(engine, A))["ok"]
        parked = asyncio.create_task(asked(engine, B))
        while engine.stats()["parked_now"] == 0:
            await asyncio.sleep(0.001)
        just_asked = asyncio.create_task(asked(engine, C))
        # One turn of the loop: it is on its way to the authority, and not parked yet.
        await asyncio.sleep(0)
        assert engine.stats()["open_now"] == 2
        assert engine.stats()["parked_now"] == 1
        await asyncio.wait_for(engine.stop(), 5)
        return await asyncio.wait_for(parked, 5), await asyncio.wait_for(just_asked, 5)

    for position, told in enumerate(asyncio.run(history()), 1):
        assert (told["status"], told["error"], told["holder"]) == (409, "lease_held", A)
        assert told["position"] == position


def test_whoever_asks_later_is_not_decided(plane: Authority) -> None:
    async def history() -> None:
        engine = Engine(plane)
        await engine.start()
        await engine.stop()
        with pytest.raises(AuthorityUnavailable):
            await asked(engine, A)

    asyncio.run(history())


def test_what_another_decided_in_the_last_moment_is_told_too(plane: Authority, tmp_path: Path) -> None:
    """It has decided about a parked request, and its wake-up has not arrived when the engine stops."""

    async def history() -> dict[str, Any]:
        other = Authority.open(read_settings({"LEASEPLANE_DATA": str(tmp_path)}), SystemClock())
        engine, others = Engine(plane), Engine(other)
        await engine.start()
        await others.start()
        assert (await asked(engine, A))["ok"]
        parked = asyncio.create_task(asked(engine, B))
        while engine.stats()["parked_now"] == 0:
            await asyncio.sleep(0.001)
        with patch.object(other.presence, "wake", return_value=False):
            await others.ask(ANYONE, Withdraw("lock:x", B), FACTS)
        await asyncio.wait_for(engine.stop(), 5)
        await others.stop()
        other.close()
        return await asyncio.wait_for(parked, 1)

    told = asyncio.run(history())
    assert (told["status"], told["error"], told["holder"]) == (409, "lease_held", A)
