"""`AsyncPlane`, embedded: the same, awaited; and what a cancellation leaves at every await."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.client.places import ALICE, BOB, NOTHING, PATIENCE_S, plane_in, settings_in, what_is_left

from leaseplane import AsyncLease, AsyncPlane, Deadlock, LeaseHeld, LeaseLost, Plane
from leaseplane.clock import ManualClock

DB = "lock:db"
STEPS = 40
"""Turns of the loop after which a cancellation is tried; an acquire that waits takes a handful."""


def async_plane_in(folder: Path, actor: str = ALICE, **more: Any) -> AsyncPlane:
    environment = {name: value for name, value in more.items() if name.startswith("LEASEPLANE_")}
    return AsyncPlane(settings=settings_in(folder, **environment), agent=actor, clock=more.get("clock"))


async def eventually(happened: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await happened():
            await asyncio.sleep(0.005)


def test_a_lease_is_held_in_its_block_and_let_go_of_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with async_plane_in(tmp_path) as plane:
            async with plane.lease(DB, note="moving") as lease:
                lease.ensure_held()
                with pytest.raises(LeaseHeld) as refused:
                    await plane.acquire(DB, timeout=0)
                assert (refused.value.holder, refused.value.note) == (ALICE, "moving")
                assert (await plane.waiting()).waiting == []
            assert not lease.is_held
            assert (await plane.trust()).released == 1

    asyncio.run(scenario())


def test_those_who_wait_on_one_loop_get_it_one_after_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        inside, most, fences = 0, 0, []

        async def work(plane: AsyncPlane) -> None:
            nonlocal inside, most
            async with plane.lease(DB, timeout=PATIENCE_S) as lease:
                inside += 1
                most = max(most, inside)
                fences.append(lease.fence)
                await asyncio.sleep(0)
                inside -= 1

        async with (
            async_plane_in(tmp_path) as one,
            async_plane_in(tmp_path, BOB) as other,
            asyncio.TaskGroup() as group,
        ):
            for n in range(40):
                group.create_task(work(one if n % 2 else other))
        assert most == 1
        assert fences == sorted(set(fences)) and len(fences) == 40

    asyncio.run(scenario())


def test_a_deadlock_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with async_plane_in(tmp_path) as alice, async_plane_in(tmp_path, BOB) as bob:
            x, _ = await alice.acquire("lock:x"), await bob.acquire("lock:y")
            waits = asyncio.create_task(bob.acquire("lock:x"))

            async def bob_waits() -> bool:
                return bool((await alice.waiting("lock:x")).waiting)

            await eventually(bob_waits)
            with pytest.raises(Deadlock):
                await alice.acquire("lock:y")
            await x.release()
            await waits

    asyncio.run(scenario())


def test_a_blocked_loop_keeps_its_leases(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with async_plane_in(tmp_path, LEASEPLANE_LEASE_MS="1000") as plane, plane.lease(DB) as lease:
            # It is the loop that is blocked: there is no clock to pass in.
            time.sleep(1.3)
            lease.ensure_held()

    asyncio.run(scenario())


def test_a_lease_that_is_over_is_told_and_not_taken_again_under_the_old_handle(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock(1_000_000, 1_790_000_000_000)
        async with async_plane_in(tmp_path, clock=clock) as plane:
            with pytest.raises(LeaseLost):
                async with plane.lease(DB) as lease:
                    lost = asyncio.create_task(lease.wait_lost())
                    clock.advance(40_000)
                    await asyncio.wait_for(lost, PATIENCE_S)
                    taken = await plane.acquire(DB, timeout=0)
                    assert taken.fence > lease.fence
            assert not lease.is_held and taken.is_held
            assert (await plane.trust()).expired == 1

    asyncio.run(scenario())


def cancelled_after(turns: int, plane: AsyncPlane, **how: Any) -> Coroutine[Any, Any, AsyncLease | None]:
    """An acquire that is cancelled after so many turns of the loop: the handle it answered, or None."""

    async def attempt() -> AsyncLease | None:
        task = asyncio.create_task(plane.acquire(DB, **how))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            return await task
        except (asyncio.CancelledError, LeaseHeld):
            return None

    return attempt()


@pytest.mark.parametrize("turns", range(0, STEPS, 2))
def test_cancelled_at_any_await_while_it_is_free_there_is_a_handle_or_nothing(
    tmp_path: Path, turns: int
) -> None:
    async def scenario() -> tuple[AsyncLease | None, dict[str, Any]]:
        async with async_plane_in(tmp_path) as plane:
            lease = await cancelled_after(turns, plane)
            left = await asyncio.to_thread(look, tmp_path)
            return lease, left

    lease, left = asyncio.run(scenario())
    if lease is None:
        assert left == NOTHING
    else:
        assert left == {"holder": (ALICE, lease.instance), "waiting": []}


@pytest.mark.parametrize("turns", range(0, STEPS, 4))
@pytest.mark.parametrize("how", [{}, {"timeout": 0}, {"on_wait": lambda held: None}], ids=str)
def test_cancelled_at_any_await_while_it_is_held_no_wait_is_left(
    tmp_path: Path, turns: int, how: dict[str, Any]
) -> None:
    async def scenario() -> dict[str, Any]:
        async with (
            async_plane_in(tmp_path) as plane,
            async_plane_in(tmp_path, BOB) as holder,
            holder.lease(DB) as held,
        ):
            assert await cancelled_after(turns, plane, **how) is None
            left = await asyncio.to_thread(look, tmp_path)
            return left | {"as expected": left["holder"] == (BOB, held.instance)}

    left = asyncio.run(scenario())
    assert left["waiting"] == [] and left["as expected"]


@pytest.mark.parametrize("turns", range(0, STEPS, 4))
def test_cancelled_while_it_is_being_handed_over_there_is_a_handle_or_nothing(
    tmp_path: Path, turns: int
) -> None:
    async def scenario() -> None:
        async with async_plane_in(tmp_path) as plane, async_plane_in(tmp_path, BOB) as holder:
            held = await holder.acquire(DB)
            waits = asyncio.create_task(plane.acquire(DB))

            async def is_parked() -> bool:
                return bool((await holder.waiting(DB)).waiting)

            await eventually(is_parked)
            letting_go = asyncio.create_task(held.release())
            for _ in range(turns):
                await asyncio.sleep(0.0002)
            waits.cancel()
            try:
                lease: AsyncLease | None = await waits
            except asyncio.CancelledError:
                lease = None
            await letting_go
            left = await asyncio.to_thread(look, tmp_path)
            expected = None if lease is None else (ALICE, lease.instance)
            assert left == {"holder": expected, "waiting": []}

    asyncio.run(scenario())


def test_a_time_out_of_asyncio_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            async_plane_in(tmp_path) as plane,
            async_plane_in(tmp_path, BOB) as holder,
            holder.lease(DB),
        ):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await plane.acquire(DB)
            assert (await plane.waiting()).waiting == []

    asyncio.run(scenario())


def test_a_plane_can_be_used_from_one_loop_after_another(tmp_path: Path) -> None:
    plane = async_plane_in(tmp_path)

    async def once() -> int:
        async with plane.lease(DB, timeout=PATIENCE_S) as lease:
            return lease.fence

    assert asyncio.run(once()) < asyncio.run(once())
    asyncio.run(plane.aclose())


def look(folder: Path) -> dict[str, Any]:
    with plane_in(folder, "did:example:looking") as looking:
        assert isinstance(looking, Plane)
        return what_is_left(looking, DB)
