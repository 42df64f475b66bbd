"""The commit path: the one place that knows in which order things happen.

    ask ─▶ begin ─▶ settle what is due ─▶ decide, one after another ─▶ commit ─▶ answers go out

`Plane` is one process's part in a plane: the store, the working set, the signing keys, and its
presence among the other processes that have the same folder open. `commit_path` is written once, as
a generator that does no waiting of its own; `transact` drives it for a caller who may block, and
`serving.Engine` drives it on an event loop.
"""

import os
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Self

from leaseplane.authority import decide
from leaseplane.authority.state import State, Terms
from leaseplane.clock import Clock
from leaseplane.limits import (
    BUSY_GIVE_UP_MS,
    IDEMPOTENCY_KEPT_MS,
    LEASE_MS_STANDARD,
    SETTLE_RESOURCES_MAX,
)
from leaseplane.receipts.keyring import Keyring
from leaseplane.resources import SemanticsClass
from leaseplane.settings import Settings
from leaseplane.store.contract import Delivery
from leaseplane.store.database import PATIENCE, DatabaseBusy, Patience
from leaseplane.store.folder import DataFolder, FolderRefused
from leaseplane.store.processes import Presence
from leaseplane.store.sqlite import SqliteStore

Work = Callable[[State], Any]
"""One thing to do in a transaction: a pure decision on the working set."""


class Decided:
    """What a transaction came to. Nothing of it may be shown before its commit is known to stand."""

    __slots__ = ("alarm_boot_ms", "deliveries", "results", "settled")

    def __init__(self) -> None:
        self.settled = False
        """False: so much was due that this transaction did nothing else; ask again."""
        self.results: list[Any] = []
        self.deliveries: list[Delivery] = []
        self.alarm_boot_ms: int | None = None


class Plane:
    """One process's part in the plane of a data folder.

    Opening it reclaims before it decides anything: leases that ran out while no process was open,
    and whatever dead processes kept. Not for use from several threads at once.

    `open` raises `FolderRefused` where the folder was made with another lease length or cannot be
    used as it is, and `AuthorityUnavailable` where it may work again later.
    """

    def __init__(
        self, folder: DataFolder, store: SqliteStore, clock: Clock, terms: Terms, presence: Presence
    ) -> None:
        self.folder = folder
        self.store = store
        self.clock = clock
        self.terms = terms
        self.presence = presence
        self.state = State(terms)
        self.keyring: Keyring
        self._requests = 0

    @classmethod
    def open(
        cls,
        settings: Settings,
        clock: Clock,
        *,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> Self:
        folder = DataFolder.open(settings.data)
        process_id = random_bytes(8).hex()
        presence = Presence.open(folder.processes, process_id)
        try:
            store = SqliteStore(folder.database, process_id)
        except BaseException:
            presence.close()
            raise
        try:
            plane = cls(folder, store, clock, _terms(store, settings, clock), presence)
            plane.keyring = Keyring.open(
                folder.keys,
                now_s=clock.now().wall_ms // 1000,
                random_bytes=random_bytes,
                issuer=settings.public_url,
            )
            plane._reclaim()
        except BaseException:
            store.close()
            presence.close()
            raise
        return plane

    def close(self) -> None:
        """Leave the folder. What this process kept parked is taken over by the others as withdrawn."""
        self.store.close()
        self.presence.close()

    def new_request_id(self) -> str:
        """Fresh; names the process that keeps the request, so that it can be buried with it."""
        self._requests += 1
        return f"{self.presence.process_id}.{self._requests}"

    # -- the commit path -----------------------------------------------------------------------

    def commit_path(self, works: Sequence[Work]) -> Generator[Decided | None, None, Decided]:
        """Do these works in one transaction, after everything that is due.

        Yields None where another process is writing: its driver comes back in about a millisecond, or
        gives up and closes it. Yields what was decided, once: its driver calls `store.commit` then, and
        throws in here what that raises. Returns when the commit stands.

        Raises `AuthorityUnavailable` (nothing stands) or `OutcomeUnknown` (it may stand), and what a
        work raises (nothing stands). Whatever is raised, the working set is dropped and read anew.
        """
        decided = Decided()
        while not self.store.try_begin():
            yield None
        # From here to the commit we hold the database's only write lock: no other process decides.
        # A crash anywhere in between leaves nothing, because nothing counts without a commit frame.
        try:
            with self.store.faults():
                if self.store.changed_elsewhere():
                    # Someone else has written since our last transaction: what we remember is old.
                    self.state.forget()
                # The time is read inside the lock, so that decisions are in the order of their times.
                self.state.begin(self.store, self.clock.now())
                decided.settled = decide.settle(self.state)
                if decided.settled:
                    decided.results = [work(self.state) for work in works]
                decided.deliveries = self.state.end()
                decided.alarm_boot_ms = self.store.next_alarm_boot_ms()
            # State, trust, the ledger's outbox and the idempotency record are all in this transaction.
            # A crash before the commit frame is whole: none of it happened, and no one was answered.
            # A crash after it: all of it stands. Callers who were not answered ask again and are told
            # so (renewal, or the same answer under the same Idempotency-Key); what was handed over to
            # a process that died is undone by whoever finds its lock free.
            if self.store.has_written:
                yield decided
            else:
                self.store.roll_back()
        except BaseException:
            # A failed statement or commit: SQLite has nothing of it, or does not know; in either case
            # what we remember may be wrong.
            self.store.roll_back()
            self.state.forget()
            raise
        # Wake-ups come last. One that is lost in a crash is made up for by the alarm's own look.
        for process_id in {delivery.process_id for delivery in decided.deliveries}:
            if process_id != self.presence.process_id:
                self.presence.wake(process_id)
        return decided

    def transact(self, *works: Work, patience: Patience = PATIENCE) -> list[Any]:
        """Do these works in one transaction and return their results; blocks until the commit stands.

        Raises as `commit_path` does, and `DatabaseBusy` when others write for `BUSY_GIVE_UP_MS`.
        """
        while True:
            decided = self._drive(works, patience)
            if decided.settled:
                return decided.results

    def _drive(self, works: Sequence[Work], patience: Patience) -> Decided:
        path = self.commit_path(works)
        started = patience.monotonic()
        try:
            step = next(path)
            while True:
                if step is not None:
                    try:
                        self.store.commit()
                    except BaseException as error:
                        step = path.throw(error)
                    else:
                        step = next(path)
                else:
                    if (patience.monotonic() - started) * 1000 > BUSY_GIVE_UP_MS:
                        path.close()
                        raise DatabaseBusy(
                            "other processes keep the database busy; nothing was changed, ask again"
                        )
                    patience.sleep(patience.random.uniform(0.0005, 0.0015))
                    step = next(path)
        except StopIteration as stop:
            decided: Decided = stop.value
            return decided

    # -- those who died, and restarts ----------------------------------------------------------

    def bury(self, process_id: str, state: State) -> None:
        """Inside a transaction: withdraw and undo all that a dead process kept open."""
        decide.bury(state, process_id)
        self.store.drop_deliveries_of(process_id)

    def _reclaim(self) -> None:
        """Before anything is decided here: full terms after a restart of the machine, then the dead."""
        self.transact(self._take_over)
        with self.store.faults():
            parking = self.store.parking_processes() - {self.presence.process_id}
        for process_id in sorted(self.presence.dead(parking | self.presence.others())):
            self.transact(partial(self.bury, process_id))
            self.presence.bury(process_id)

    def _take_over(self, state: State) -> None:
        if self.store.meta("boot_id") == self.clock.boot_id:
            return
        # The clock on which the stored ends were counted is gone with its boot.
        self.store.renew_idempotency(state.now.boot_ms + IDEMPOTENCY_KEPT_MS)
        place = ("", "")
        while places := self.store.places_after(place, SETTLE_RESOURCES_MAX):
            for workspace, resource in places:
                decide.reboot(state, state.room(workspace, resource))
            place = places[-1]
            state.apply()
        self.store.put_meta("boot_id", self.clock.boot_id)


def _terms(store: SqliteStore, settings: Settings, clock: Clock) -> Terms:
    """What was fixed when the folder was made; made now where it is new."""
    while not store.try_begin():
        PATIENCE.sleep(0.001)
    try:
        with store.faults():
            lease_ms = store.meta("lease_ms")
            if lease_ms is None:
                lease_ms = settings.lease_ms or LEASE_MS_STANDARD
                store.put_meta("lease_ms", lease_ms)
                store.put_meta("boot_id", clock.boot_id)
        if settings.lease_ms not in (None, lease_ms):
            raise FolderRefused(
                f"the data folder {settings.data} was made with leases of {lease_ms} ms, but "
                f"LEASEPLANE_LEASE_MS says {settings.lease_ms}; unset it, or use another data folder"
            )
    except BaseException:
        store.roll_back()
        raise
    store.commit()
    classes: dict[str, SemanticsClass] = dict.fromkeys(settings.shared_read, "shared_read")
    return Terms(lease_ms, settings.hold_ms_max, classes)
