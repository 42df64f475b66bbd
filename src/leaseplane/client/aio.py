"""`AsyncPlane`: the same plane for programs on an asyncio event loop."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from leaseplane.client.asking import (
    INTERRUPTED,
    OUTCOMES,
    Aside,
    Event,
    Failure,
    HangUp,
    Interruption,
    Join,
    Pause,
    Send,
    Step,
    acquiring,
    asking_once,
    outcome_of,
    releasing,
)
from leaseplane.client.blocking import came_of
from leaseplane.client.caller import Caller
from leaseplane.client.channel import Answer, Channel, Request, Sent
from leaseplane.client.lease import HeldLease
from leaseplane.client.outcomes import (
    Broken,
    Granted,
    LeaseHeld,
    LeaseLost,
    Released,
    Response,
    Trust,
    Waiting,
    Withdrawn,
)
from leaseplane.clock import Clock
from leaseplane.model import Access, AuthorityUnavailable, OutcomeUnknown
from leaseplane.secret import Secret
from leaseplane.settings import Settings

T = TypeVar("T")
R = TypeVar("R", bound=Response)


async def run(steps: Generator[Step, Event, T], channel: Channel, clock: Clock) -> T:
    """Do these steps until they come to an outcome, and return or raise it.

    A cancellation interrupts the steps, and is delivered when they have cleaned up; those that come
    meanwhile change nothing.
    """
    cancelled: asyncio.CancelledError | None = None
    sent: Sent | None = None
    try:
        step = next(steps)
        while True:
            event: Answer | Failure | Interruption | None = None
            # Made once, outside of what may be cancelled: a step is never done twice.
            doing: asyncio.Future[bool]
            match step:
                case Send():
                    sent = channel.send(step.request, timeout_ms=step.timeout_ms)
                    doing = _done(sent)
                case Aside():
                    aside = channel.send(step.request, timeout_ms=step.timeout_ms)
                    doing = asyncio.ensure_future(_within(aside, step.timeout_ms))
                case Join():
                    assert sent is not None
                    doing = asyncio.ensure_future(_within(sent, step.ms))
                case Pause():
                    doing = asyncio.ensure_future(asyncio.sleep(step.ms / 1000, True))
                case HangUp():
                    assert sent is not None
                    # It may have to wait for the store.
                    doing = asyncio.ensure_future(asyncio.to_thread(_hung_up, sent))
            while not doing.done():
                try:
                    await asyncio.wait((doing,))
                except asyncio.CancelledError as error:
                    if cancelled is None:
                        cancelled = error
                        if isinstance(step, Send | Pause):
                            event = INTERRUPTED
                            doing.cancel()
                            break
            # Cancelled itself where its loop ends: then this step has no outcome.
            if event is None and not doing.cancelled() and doing.result():
                match step:
                    case Send() | Join():
                        assert sent is not None
                        event = came_of(sent)
                    case Aside():
                        event = came_of(aside)
            step = steps.send((event, clock.now().boot_ms))
    except StopIteration as stop:
        if cancelled is not None:
            raise cancelled from None
        outcome: T = stop.value
        return outcome
    except OUTCOMES:
        if cancelled is not None:
            raise cancelled from None
        raise
    finally:
        steps.close()


def _done(sent: Sent) -> "asyncio.Future[bool]":
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bool] = loop.create_future()

    def tell() -> None:
        if not done.done():
            done.set_result(True)

    def told() -> None:
        # A loop that is closed meanwhile has nobody left to be told.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(tell)

    sent.add_done_callback(told)
    return done


async def _within(sent: Sent, ms: float) -> bool:
    done, _ = await asyncio.wait((_done(sent),), timeout=ms / 1000)
    return bool(done)


def _hung_up(sent: Sent) -> bool:
    sent.hang_up()
    return False


class AsyncPlane:
    """A plane, embedded or at a URL, for asyncio. Everything is as with `Plane`, and awaited.

    Its leases are renewed on a thread of their own: a loop that is blocked keeps them. It may be used
    from several loops. Make it anywhere; what it does at that time is to open the data folder.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | Secret | None = None,
        data: str | Path | None = None,
        agent: str | None = None,
        instance: str | None = None,
        workspace: str | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._caller = Caller(
            url,
            api_key=api_key,
            data=data,
            agent=agent,
            instance=instance,
            workspace=workspace,
            decides_here=False,
            settings=settings,
            clock=clock,
        )

    @property
    def actor(self) -> str:
        """The DID that asks."""
        return self._caller.actor

    @property
    def instance(self) -> str:
        """Which part of it this plane is; its leases are `INSTANCE.n`."""
        return self._caller.instance

    # -- leases --------------------------------------------------------------------------------

    def lease(
        self,
        resource: str,
        *,
        timeout: float | None = None,
        access: Access | None = None,
        note: str | None = None,
        on_wait: Callable[[LeaseHeld], None] | None = None,
    ) -> "AsyncLeasing":
        """An asynchronous context manager that holds the lease of `resource` while its block runs.

            async with plane.lease("lock:deploy/production", timeout=60) as lease:
                await deploy(lease.fence)

        Raises and promises what `Plane.lease` does. A lost lease does not cancel the block: watch it, or
        call `ensure_held` before each step.
        """
        return AsyncLeasing(self, resource, timeout, access, note, on_wait)

    async def acquire(
        self,
        resource: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        access: Access | None = None,
        note: str | None = None,
        on_wait: Callable[[LeaseHeld], None] | None = None,
    ) -> "AsyncLease":
        """The lease of `resource`, renewed in the background until `await lease.release()`.

        As `Plane.acquire`. Cancelling leaves neither a lease nor a wait behind by the time that the
        cancellation is delivered.
        """
        caller = self._caller
        outside = caller.held_outside(resource)
        if outside is not None:
            return AsyncLease(caller, resource, caller.instance, *outside, None)
        wish = caller.wish(resource, timeout, access, note, on_wait)
        won = await run(acquiring(wish, caller.now_boot_ms(), caller.chance), caller.channel, caller.clock)
        assert won is not None, "steps that are interrupted raise what interrupted them"
        lease = AsyncLease(caller, resource, wish.instance, won.grant.fence, won.grant.lease_id, won)
        return lease.begins()

    # -- single requests of the contract -------------------------------------------------------

    async def ask(
        self,
        resource: str,
        *,
        access: Access | None = None,
        max_wait_ms: int | None = None,
        lease_id: str | None = None,
        note: str | None = None,
        instance: str | None = None,
        idempotency_key: str | None = None,
    ) -> Granted:
        """As `Plane.ask`: one request, whose lease nothing renews or lets go of."""
        return await self._once(
            self._caller.ask(resource, access, max_wait_ms, lease_id, note, instance, idempotency_key),
            Granted,
        )

    async def release(
        self,
        resource: str,
        *,
        lease_id: str | None = None,
        instance: str | None = None,
        idempotency_key: str | None = None,
    ) -> Released:
        """As `Plane.release`."""
        return await self._once(self._caller.release(resource, lease_id, instance, idempotency_key), Released)

    async def waiting(self, resource: str | None = None, actor: str | None = None) -> Waiting:
        """As `Plane.waiting`."""
        return await self._once(self._caller.waiting(resource, actor), Waiting)

    async def withdraw(self, resource: str, *, instance: str | None = None) -> Withdrawn:
        """As `Plane.withdraw`."""
        return await self._once(self._caller.withdraw(resource, instance), Withdrawn)

    async def trust(self, actor: str | None = None) -> Trust:
        """As `Plane.trust`."""
        return await self._once(self._caller.trust(actor), Trust)

    async def break_off(self, resource: str, reason: str, *, lease_id: str | None = None) -> Broken:
        """As `Plane.break_off`."""
        return await self._once(self._caller.break_off(resource, reason, lease_id), Broken)

    async def _once(self, request: Request, kind: type[R]) -> R:
        caller = self._caller
        steps = asking_once(request, caller.now_boot_ms(), caller.chance)
        return outcome_of(await run(steps, caller.channel, caller.clock), kind)

    # -- life ----------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Let go of what is still held, give up what is parked, and leave."""
        for lease in await asyncio.to_thread(self._caller.stop_keeping):
            assert isinstance(lease, AsyncLease)
            # One that cannot be let go of now runs out by itself.
            with suppress(AuthorityUnavailable, OutcomeUnknown, LeaseLost):
                await lease.release()
        await asyncio.to_thread(self._caller.shut)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()


class AsyncLease(HeldLease):
    """A lease that this program holds. As an asynchronous context manager it is let go of at the end.

    It has what `Lease` has.
    """

    async def release(self) -> Released | None:
        """As `Lease.release`. Cancelling it does not keep the lease: it is let go of all the same."""
        if not self.ends():
            return None
        caller = self._caller
        steps = releasing(self.named(), self.ends_boot_ms, caller.now_boot_ms(), caller.chance)
        return await run(steps, self._channel, caller.clock)

    async def wait_lost(self) -> None:
        """Return when the lease is lost."""
        loop = asyncio.get_running_loop()
        lost: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            if not lost.done():
                lost.set_result(None)

        def told(lease: HeldLease) -> None:
            if lease.holding.lost is not None:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(tell)

        self.watch(told)
        if self.is_lost:
            return
        await lost

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.is_lost and not self._is_elsewhere and raised is None:
            self.ensure_held()
        try:
            await self.release()
        except (AuthorityUnavailable, OutcomeUnknown, LeaseLost):
            # What the block raised says more.
            if raised is None:
                raise


class AsyncLeasing:
    """A lease to be: see `AsyncPlane.lease`."""

    def __init__(
        self,
        plane: AsyncPlane,
        resource: str,
        timeout_s: float | None,
        access: Access | None,
        note: str | None,
        on_wait: Callable[[LeaseHeld], None] | None,
    ) -> None:
        self._plane = plane
        self._resource = resource
        self._timeout_s = timeout_s
        self._access: Access | None = access
        self._note = note
        self._on_wait = on_wait
        self._lease: AsyncLease | None = None

    async def __aenter__(self) -> AsyncLease:
        assert self._lease is None, "one block at a time: make another with plane.lease(…)"
        self._lease = await self._plane.acquire(
            self._resource,
            timeout=self._timeout_s,
            access=self._access,
            note=self._note,
            on_wait=self._on_wait,
        )
        return self._lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lease, self._lease = self._lease, None
        assert lease is not None
        await lease.__aexit__(kind, raised, traceback)
