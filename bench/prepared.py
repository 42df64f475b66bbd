"""A plane that holds many leases from the start: its rows are written by the store before it is served."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.asks import agents, names
from bench.servers import Server, plane
from leaseplane.clock import SystemClock
from leaseplane.engine import Authority
from leaseplane.identity.registry import open_registry
from leaseplane.model import Holder, Lease, Moment
from leaseplane.settings import read_settings
from leaseplane.store.contract import Changes, Counts, RoomRow
from leaseplane.store.folder import DataFolder
from leaseplane.store.sqlite import SqliteStore

LEASE_MS = 3_600_000
WORKSPACES = 8
LEASES_STORED_AT_ONCE = 20_000


class Prepared(NamedTuple):
    """A server on such a plane, and an API key for each of its workspaces."""

    server: Server
    api_keys: list[str]


@contextlib.contextmanager
def plane_holding(folder: Path, leases: int) -> Iterator[Prepared]:
    """Serve a plane whose workspaces hold so many leases together, none of which ends within the hour."""
    folder.mkdir()
    data = folder / "plane"
    api_keys = _register(data)
    _store(data, leases)
    with plane(folder, LEASE_MS=str(LEASE_MS)) as server:
        yield Prepared(server, api_keys)


def workspace(at: int) -> str:
    """The name of one of the workspaces; they are used in turn."""
    return f"bench-{at % WORKSPACES}"


def _register(data: Path) -> list[str]:
    registry = open_registry(DataFolder.open(data), os.urandom)
    now_wall_ms = SystemClock().now().wall_ms
    try:
        api_keys = []
        for at in range(WORKSPACES):
            registry.create_workspace(workspace(at), now_wall_ms)
            _, api_key = registry.create_key(workspace(at), "any-actor", now_wall_ms)
            api_keys.append(api_key.reveal())
        return api_keys
    finally:
        registry.close()


def _store(data: Path, leases: int) -> None:
    settings = read_settings({"LEASEPLANE_DATA": str(data), "LEASEPLANE_LEASE_MS": str(LEASE_MS)})
    opened = Authority.open(settings, SystemClock(), governs=True)
    try:
        actors = agents(500)
        now = opened.clock.now()
        # In the order of the table, so that a million take seconds; the load comes in no order.
        held = sorted((workspace(at), resource) for at, resource in enumerate(names("held", leases)))
        for begin in range(0, leases, LEASES_STORED_AT_ONCE):
            changes = Changes()
            for at, place in enumerate(held[begin : begin + LEASES_STORED_AT_ONCE], begin):
                lease = _lease(place, Holder(actors[at % len(actors)]), now.wall_ms + at, now)
                changes.leases[(*place, lease.holder)] = lease
                changes.rooms[place] = RoomRow(lease.ends_boot_ms, False)
                changes.last_fence = lease.fence
            _write(opened.store, changes)
        changes = Changes()
        for name, number in Counter(name for name, _ in held).items():
            changes.counts[name] = Counts(leases=number)
        _write(opened.store, changes)
    finally:
        opened.close()


def _write(store: SqliteStore, changes: Changes) -> None:
    assert store.try_begin(), "nobody else has this folder"
    store.apply(changes)
    store.commit()


def _lease(place: tuple[str, str], holder: Holder, fence: int, now: Moment) -> Lease:
    return Lease(
        workspace=place[0],
        resource=place[1],
        lease_id=f"lease-{fence:x}",
        holder=holder,
        access="write",
        fence=fence,
        granted_wall_ms=now.wall_ms,
        granted_boot_ms=now.boot_ms,
        ends_boot_ms=now.boot_ms + LEASE_MS,
        ends_wall_ms=now.wall_ms + LEASE_MS,
    )
