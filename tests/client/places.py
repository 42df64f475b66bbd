"""Places to try a client in: data folders with short leases, planes in them, and what they hold."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leaseplane import Plane
from leaseplane.clock import Clock
from leaseplane.settings import Settings, read_settings

ALICE, BOB, CAROL = "did:example:alice", "did:example:bob", "did:example:carol"
PATIENCE_S = 20.0


def settings_in(folder: Path, **more: str) -> Settings:
    return read_settings({"LEASEPLANE_DATA": str(folder), "HOME": str(folder), **more})


def plane_in(
    folder: Path, actor: str = ALICE, *, lease_ms: int | None = None, clock: Clock | None = None, **more: str
) -> Plane:
    """One program's plane in this folder, as this agent."""
    settings = settings_in(folder, LEASEPLANE_LEASE_MS=str(lease_ms or ""), **more)
    return Plane(settings=settings, agent=actor, clock=clock)


def what_is_left(plane: Plane, resource: str) -> dict[str, Any]:
    """Who waits for it, and who holds it: looked up by asking as a stranger, who then leaves no wait."""
    waiting = plane.waiting(resource).waiting
    stranger = "stranger"
    try:
        plane.ask(resource, instance=stranger)
    except Exception as held:
        holder = getattr(held, "holder", "?"), getattr(held, "instance", "?")
        plane.withdraw(resource, instance=stranger)
        return {"holder": holder, "waiting": waiting}
    plane.release(resource, instance=stranger)
    return {"holder": None, "waiting": waiting}


NOTHING = {"holder": None, "waiting": []}


def until(happened: Callable[[], Any], what: str) -> Any:
    """Wait for something that others do, within bounds; answers what it came to."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        if outcome := happened():
            return outcome
        time.sleep(0.005)
    raise AssertionError(f"it did not happen in time: {what}")


def python(code: str, *, folder: Path, **more: str) -> "subprocess.Popen[str]":
    """Another process that runs this code, with its plane in this folder."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LEASEPLANE_")},
        "LEASEPLANE_DATA": str(folder),
        **more,
    }
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
