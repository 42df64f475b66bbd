"""`Plane`: a plane for programs that may block, embedded or at a URL."""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from leaseplane.client import blocking
from leaseplane.client.asking import acquiring, asking_once, outcome_of, releasing
from leaseplane.client.caller import Caller
from leaseplane.client.channel import Request
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

R = TypeVar("R", bound=Response)


class Plane:
    """A plane, embedded or at a URL. May be used from any number of threads.

    What is not said here is taken from the environment: `url` from LEASEPLANE_URL, `api_key` from
    LEASEPLANE_API_KEY, `data` from LEASEPLANE_DATA, `agent` (the name of one of this machine's agents, or
    a DID) from LEASEPLANE_AGENT. Without a URL, or with `data`, it works on the data folder itself, and
    makes one where there is none. `workspace` is for embedded use only; `instance` says which part of the
    agent this is, and gets an own part behind it. `settings` stands for the whole environment and `clock`
    for the machine's clock: tests give their own.

    Raises `SettingRefused` or `FolderRefused` for what cannot be, `AuthorityUnavailable` for a folder
    that may work later. A URL is first asked with the first request.

    After a fork the child has a plane of its own, with another instance: it holds none of the parent's
    leases, and lets go of none.
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
            decides_here=True,
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
    ) -> "Leasing":
        """A context manager that holds the lease of `resource` while its block runs.

            with plane.lease("lock:deploy/production", timeout=60) as lease:
                deploy(lease.fence)

        Entering does what `acquire` does. Leaving lets go of the lease, and raises `LeaseLost` where the
        block ended without an exception but the lease was lost meanwhile: what it did may have overlapped.
        """
        return Leasing(self, resource, timeout, access, note, on_wait)

    def acquire(
        self,
        resource: str,
        *,
        timeout: float | None = None,
        access: Access | None = None,
        note: str | None = None,
        on_wait: Callable[[LeaseHeld], None] | None = None,
    ) -> "Lease":
        """The lease of `resource`, renewed in the background until `Lease.release()`.

        Waits in the queue for `timeout` seconds; 0 asks once, None waits as long as it takes. `access`
        is `"read"`, `"write"` (the default) or `"delete"`; `note` is shown to those who wait; `on_wait` is
        called with each refusal while it waits.

        Raises `LeaseHeld` when the time is over, `Deadlock` for a wait that would never end, `TooMany`,
        `NotAllowed`, `InvalidRequest`; `AuthorityUnavailable` or `OutcomeUnknown` where the plane stays out
        of reach. Whatever is raised, a KeyboardInterrupt too, leaves neither a lease nor a wait behind.
        """
        caller = self._caller
        outside = caller.held_outside(resource)
        if outside is not None:
            return Lease(caller, resource, caller.instance, *outside, None)
        wish = caller.wish(resource, timeout, access, note, on_wait)
        won = blocking.run(acquiring(wish, caller.now_boot_ms(), caller.chance), caller.channel, caller.clock)
        assert won is not None, "steps that are interrupted raise what interrupted them"
        lease = Lease(caller, resource, wish.instance, won.grant.fence, won.grant.lease_id, won)
        return lease.begins()

    # -- single requests of the contract -------------------------------------------------------

    def ask(
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
        """Ask once for a lease, or for its renewal. Nothing renews it, and nothing lets go of it.

        The asker is the agent as a whole, or its part `instance`. Parked for up to `max_wait_ms`; a
        refusal keeps the place in the queue for one lease term. Raises as `acquire` does, and
        `StaleLease` where `lease_id` is not current.
        """
        return self._once(
            self._caller.ask(resource, access, max_wait_ms, lease_id, note, instance, idempotency_key),
            Granted,
        )

    def release(
        self,
        resource: str,
        *,
        lease_id: str | None = None,
        instance: str | None = None,
        idempotency_key: str | None = None,
    ) -> Released:
        """Let go of a lease that was asked for with `ask`. Raises `NotHeld`, `NotHolder`, `StaleLease`."""
        return self._once(self._caller.release(resource, lease_id, instance, idempotency_key), Released)

    def waiting(self, resource: str | None = None, actor: str | None = None) -> Waiting:
        """The queue and the deadlock pairs of the workspace, narrowed where a name is given."""
        return self._once(self._caller.waiting(resource, actor), Waiting)

    def withdraw(self, resource: str, *, instance: str | None = None) -> Withdrawn:
        """Give up a wait that `ask` left."""
        return self._once(self._caller.withdraw(resource, instance), Withdrawn)

    def trust(self, actor: str | None = None) -> Trust:
        """What its leases have done to an agent's standing; to this one's where None."""
        return self._once(self._caller.trust(actor), Trust)

    def break_off(self, resource: str, reason: str, *, lease_id: str | None = None) -> Broken:
        """End a lease as the operator, or without `lease_id` every lease of the resource.

        At a URL it takes an operator's key. Raises `NotHeld`, `StaleLease`, `NotAllowed`.
        """
        return self._once(self._caller.break_off(resource, reason, lease_id), Broken)

    def _once(self, request: Request, kind: type[R]) -> R:
        caller = self._caller
        steps = asking_once(request, caller.now_boot_ms(), caller.chance)
        return outcome_of(blocking.run(steps, caller.channel, caller.clock), kind)

    # -- life ----------------------------------------------------------------------------------

    def still(self) -> AbstractContextManager[bool]:
        """For whoever is about to stop this process (Ctrl-Z): whether nobody would have to wait for it.

        True where no transaction on the data folder is open; then none will be while the block runs.
        Otherwise a process that is stopped keeps everyone from the folder: try again in a moment. Never
        blocks, so that a signal's handler may ask.
        """
        return self._caller.channel.still()

    def close(self) -> None:
        """Let go of what is still held, give up what is parked, and leave."""
        for lease in self._caller.stop_keeping():
            assert isinstance(lease, Lease)
            # One that cannot be let go of now runs out by itself.
            with suppress(AuthorityUnavailable, OutcomeUnknown, LeaseLost):
                lease.release()
        self._caller.shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class Lease(HeldLease):
    """A lease that this program holds. As a context manager it is let go of at the end.

    `resource`; `fence`, the fencing number: send it with what the lease guards, and refuse there what is
    lower; `lease_id`; `instance`, the part of the agent that holds it; `grant`, the answer as it came, or
    None where the `run` around this process holds it.
    """

    def release(self) -> Released | None:
        """Let go of it; None where it was over already, was released before, or is a parent's.

        Raises `LeaseLost` where the plane says that it ended before, though by local time it had not, and
        `AuthorityUnavailable` or `OutcomeUnknown` where the plane stays out of reach until it ends.
        """
        if not self.ends():
            return None
        caller = self._caller
        steps = releasing(self.named(), self.ends_boot_ms, caller.now_boot_ms(), caller.chance)
        return blocking.run(steps, self._channel, caller.clock)

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Block until the lease is lost, at most `timeout` seconds; whether it is."""
        return self._lost.wait(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.is_lost and not self._is_elsewhere and raised is None:
            self.ensure_held()
        try:
            self.release()
        except (AuthorityUnavailable, OutcomeUnknown, LeaseLost):
            # What the block raised says more.
            if raised is None:
                raise


class Leasing:
    """A lease to be: see `Plane.lease`."""

    def __init__(
        self,
        plane: Plane,
        resource: str,
        timeout: float | None,
        access: Access | None,
        note: str | None,
        on_wait: Callable[[LeaseHeld], None] | None,
    ) -> None:
        self._plane = plane
        self._resource = resource
        self._timeout = timeout
        self._access: Access | None = access
        self._note = note
        self._on_wait = on_wait
        self._lease: Lease | None = None

    def __enter__(self) -> Lease:
        assert self._lease is None, "one block at a time: make another with plane.lease(…)"
        self._lease = self._plane.acquire(
            self._resource,
            timeout=self._timeout,
            access=self._access,
            note=self._note,
            on_wait=self._on_wait,
        )
        return self._lease

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lease, self._lease = self._lease, None
        assert lease is not None
        lease.__exit__(kind, raised, traceback)
