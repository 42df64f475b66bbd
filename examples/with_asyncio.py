"""asyncio: many tasks, one lease each at a time; a time-out, a cancellation, and a lease that is lost.

python examples/with_asyncio.py
"""

import asyncio
import sys

from leaseplane import AsyncPlane, LeaseHeld

PAGE = "page:handbook/index"


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


async def stop_when_lost(plane: AsyncPlane) -> None:
    """Stop what depends on a lease the moment that the lease is lost."""
    async with plane.lease("lock:staging", note="smoke test") as lease:
        testing = asyncio.create_task(asyncio.sleep(0.05, "passed"))
        lost = asyncio.create_task(lease.wait_lost())
        await asyncio.wait([testing, lost], return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()
        if not testing.done():
            testing.cancel()
            print("lost the lease: stopped")
        else:
            print(f"smoke test {testing.result()}")


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
