"""A lease that a program holds: what it was granted, and whether it still is."""

import threading
from collections.abc import Callable
from typing import Final, Self

from leaseplane.client.asking import Won
from leaseplane.client.caller import Caller
from leaseplane.client.channel import Request
from leaseplane.client.holding import Holding
from leaseplane.client.outcomes import Granted, LeaseLost
from leaseplane.operations import LEASE, RELEASE

_NEVER: Final = 2**62


class HeldLease:
    """One lease, renewed in the background until it is let go of. What `Plane` and `AsyncPlane` share.

    In a forked child it is the parent's: not held there, and letting go of it does nothing.
    """

    def __init__(
        self, caller: Caller, resource: str, instance: str, fence: int, lease_id: str, won: Won | None
    ) -> None:
        self.resource = resource
        self.instance = instance
        """The instance that holds it: this lease's own."""
        self.fence = fence
        """The fencing number: send it with what the lease guards, and refuse there what is lower."""
        self.lease_id = lease_id
        self.grant: Granted | None = None if won is None else won.grant
        """The answer that granted it, as it came; None where the `run` around this process holds it."""
        # What is held outside is somebody else's to renew and to lose: that one ends this process.
        ttl_ms, sent_boot_ms = (_NEVER, 0) if won is None else (won.grant.ttl_ms, won.sent_boot_ms)
        self.holding = Holding(ttl_ms, sent_boot_ms)
        self._caller = caller
        self._channel = caller.channel
        self._actor = caller.actor
        self._watchers: list[Callable[[HeldLease], None]] = []
        self._lost = threading.Event()
        self._is_over = False

    # -- what was granted ----------------------------------------------------------------------

    @property
    def receipt(self) -> str | None:
        """The signed receipt of the grant."""
        return None if self.grant is None else self.grant.receipt

    @property
    def ends_boot_ms(self) -> int:
        """Until when it is certainly held if it is not renewed again: on the boot clock (`CLOCK_BOOTTIME`),
        counted from before the last request that was answered. It moves on with each renewal."""
        return self.holding.ends_boot_ms

    # -- whether it is held --------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """Whether it is certainly held now, by local elapsed time; nobody is asked."""
        return not self._is_over and not self._is_elsewhere and not self.holding.is_over(self._now_ms())

    def ensure_held(self) -> None:
        """Return if the lease is certainly held now, by local elapsed time; nobody is asked.

        Raises `LeaseLost` otherwise. Call it before each step that must not happen without the lease;
        what must not happen even if this process is then paused has to check the fence.
        """
        if self.is_held:
            return
        if self._is_elsewhere:
            why = "it belongs to the process that this one was forked from"
        elif self.holding.lost is not None:
            why = self.holding.lost
        else:
            why = "it was let go of"
        raise LeaseLost(f"the lease of {self.resource} is not held: {why}")

    def watch(self, told: "Callable[[HeldLease], None]") -> None:
        """Have `told(lease)` called after each renewal, and once when the lease is lost, on the thread that
        renews: it has to return soon. What it raises is not heard."""
        self._watchers.append(told)

    @property
    def is_lost(self) -> bool:
        """Whether it ended before it was let go of."""
        return not self._is_over and not self.is_held

    # -- for its keeper ------------------------------------------------------------------------

    def renewal(self) -> Request:
        """The request that renews it, and never takes another."""
        return self._caller.request(LEASE, None, **self.named())

    def letting_go(self) -> Request:
        return self._caller.request(RELEASE, None, **self.named())

    def changed(self) -> None:
        """It was renewed, or lost."""
        if self.holding.lost is not None:
            self._lost.set()
        for told in list(self._watchers):
            try:
                told(self)
            except Exception:  # noqa: S112 - the lease of others must not depend on it
                continue

    def named(self) -> dict[str, object]:
        """The members that name it."""
        return {
            "resource": self.resource,
            "actorDid": self._actor,
            "instance": self.instance,
            "leaseId": self.lease_id,
        }

    @property
    def _is_elsewhere(self) -> bool:
        return not self._caller.uses(self._channel)

    def _now_ms(self) -> int:
        return self._caller.now_boot_ms()

    def begins(self) -> Self:
        """Have it renewed from now on."""
        if self.grant is not None:
            self._caller.keeper.keep(self)
        return self

    def ends(self) -> bool:
        """Stop renewing it; whether there is anything left to let go of."""
        was_held = self.is_held
        if not self._is_elsewhere and self.grant is not None:
            self._caller.keeper.let_go(self)
        if was_held:
            self._is_over = True
        return was_held and self.grant is not None

    def __repr__(self) -> str:
        state = "held" if self.is_held else "lost" if self.is_lost else "let go of"
        return f"<{type(self).__name__} of {self.resource!r}, fence {self.fence}, {state}>"
