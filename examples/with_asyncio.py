"""asyncio: many tasks, one lease each at a time; a time-out, a cancellation, and a lease that is lost.

    python examples/with_asyncio.py

It works on this machine's data folder, or asks the server at LEASEPLANE_URL. A lost lease is learned with the
next renewal, so this takes ten seconds where a lease runs for thirty.
"""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

from leaseplane import AsyncLease, AsyncPlane, LeaseHeld, LeaseLost, NotAllowed

PAGE = "page:handbook/index"
STAGING = "lock:staging"


async def edit(plane: AsyncPlane, name: str, edited: list[str]) -> None:
    """Wait for the page, and edit it alone."""
    async with plane.lease(PAGE, timeout=30, note=f"{name} edits") as lease:
        lease.ensure_held()
        edited.append(name)
        await asyncio.sleep(0.01)


async def give_up(plane: AsyncPlane) -> None:
    """Three ways not to wait for ever. Each leaves nothing behind, neither a lease nor a wait."""
    async with plane.lease(PAGE, note="holding on"):
        try:
            await plane.acquire(PAGE, timeout=0.05)
        except LeaseHeld as held:
            print(f"timed out: held for “{held.note}”")
        try:
            async with asyncio.timeout(0.05):
                await plane.acquire(PAGE)
        except TimeoutError:
            print("timed out by asyncio")
        waiting = asyncio.create_task(plane.acquire(PAGE))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        print("cancelled")
        print(f"still waiting: {len((await plane.waiting(PAGE)).waiting)}")


async def while_held(lease: AsyncLease, work: Coroutine[Any, Any, str]) -> str:
    """What `work` comes to. Cancels it, and raises LeaseLost, when the lease is lost before."""
    working, lost = asyncio.create_task(work), asyncio.create_task(lease.wait_lost())
    try:
        await asyncio.wait((working, lost), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            lease.ensure_held()
        return await working
    finally:
        working.cancel()
        lost.cancel()
        await asyncio.wait((working, lost))


async def stop_when_lost(plane: AsyncPlane) -> None:
    """Losing a lease cancels nothing by itself: stop what depends on it."""
    async with plane.lease(STAGING, note="smoke test") as lease:
        print("smoke test", await while_held(lease, asyncio.sleep(0.05, "passed")))
    try:
        async with plane.lease(STAGING, note="soak test") as lease:
            # As an operator does. The holder learns it with its next renewal.
            await plane.break_off(STAGING, "needed for a demonstration", lease_id=lease.lease_id)
            print("soak test", await while_held(lease, asyncio.sleep(3600, "passed")))
    except LeaseLost:
        print("soak test stopped: the lease was lost")
    except NotAllowed:
        print("soak test not begun: at a server it takes an operator's key to break a lease")


async def main() -> int:
    edited: list[str] = []
    async with AsyncPlane() as plane:
        async with asyncio.TaskGroup() as group:
            for name in ("ada", "bob", "cy"):
                group.create_task(edit(plane, name, edited))
        print(f"edited by {len(edited)}, one after another")
        await give_up(plane)
        await stop_when_lost(plane)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
