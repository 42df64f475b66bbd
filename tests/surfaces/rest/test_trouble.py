"""What the log says while the authority is unavailable: why, and not once for each caller."""

import asyncio
import logging
from typing import Any, cast

import pytest
from tests.surfaces.rest.wire import ScriptedEngine

from leaseplane.clock import ManualClock
from leaseplane.identity.access import Gate
from leaseplane.limits import TROUBLE_TOLD_AGAIN_MS, TROUBLE_TOLD_MS_MIN
from leaseplane.model import AuthorityUnavailable, OutcomeUnknown
from leaseplane.surfaces.rest.door import Door
from leaseplane.surfaces.rest.surface import RestSurface

SCOPE = {
    "type": "http",
    "method": "GET",
    "path": "/readyz",
    "raw_path": b"/readyz",
    "query_string": b"",
    "headers": [(b"host", b"localhost")],
}


def test_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    engine, clock = ScriptedEngine(), ManualClock(wall_ms=1)
    surface = RestSurface(
        engine=engine,
        # Nobody is let in here: `/readyz` asks for no credential.
        gate=cast(Gate, None),
        clock=clock,
        door=Door(),
        jwks=dict,
        did_document=lambda host: {},
        openapi=b"{}",
    )
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    def told(failure: Exception) -> list[str]:
        engine.not_ready = failure
        caplog.clear()
        asyncio.run(surface(dict(SCOPE), receive, send))
        return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]

    full = AuthorityUnavailable("nothing was stored: database or disk is full")
    assert told(full) == ["authority unavailable: nothing was stored: database or disk is full"]
    assert sent[0]["status"] == 503
    assert told(full) == []
    clock.advance(TROUBLE_TOLD_MS_MIN)
    assert told(full) == []
    assert told(OutcomeUnknown("the commit failed")) == ["outcome unknown: the commit failed"]
    assert told(full) == []
    clock.advance(TROUBLE_TOLD_MS_MIN)
    assert len(told(full)) == 1
    clock.advance(TROUBLE_TOLD_AGAIN_MS)
    assert len(told(full)) == 1
