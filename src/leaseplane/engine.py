"""The commit path: the one place that knows in which order things happen.

    ask ─▶ begin ─▶ settle what is due ─▶ decide, one after another ─▶ commit ─▶ answers go out

`Authority` is one process's part in a plane: the store, the working set, the signing keys, and its
presence among the other processes that have the same folder open. `commit_path` is written once, as
a generator that does no waiting of its own; `transact` drives it for a caller who may block, and
`serving.Engine` drives it on an event loop.
"""

import os
import sqlite3
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack
from typing import Any, Self

import msgspec

from leaseplane.authority import decide
from leaseplane.authority.state import State, Terms
from leaseplane.clock import Clock
from leaseplane.limits import (
    BUSY_GIVE_UP_MS,
    BUSY_RETRY_MS,
    LEASE_MS_STANDARD,
    SETTLE_RESOURCES_MAX,
    WAL_CHECKPOINT_PAGES,
    WAL_CHECKPOINT_PAGES_EMBEDDED,
)
from leaseplane.model import AuthorityUnavailable
from leaseplane.receipts.keyring import Keyring, KeyringDamaged
from leaseplane.resources import SHARED_READ_STANDARD, SemanticsClass
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


class Authority:
    """One process's access to the authority over a data folder.

    Opening it reclaims before it decides anything: leases that ran out while no process was open,
    and whatever dead processes kept. Not for use from several threads at once.

    `open` raises `FolderRefused` where the folder was made with another lease length or cannot be
    used as it is, and `AuthorityUnavailable` where it may work again later.
    """

    def __init__(
        self,
        folder: DataFolder,
        store: SqliteStore,
        clock: Clock,
        presence: Presence,
        keyring: Keyring,
        settings: Settings,
    ) -> None:
        self.folder = folder
        self.store = store
        self.clock = clock
        self.presence = presence
        self.keyring = keyring
        self.state: State
        self._settings = settings
        self._stored_terms: str | None = None
        self._requests = 0

    @classmethod
    def open(
        cls,
        settings: Settings,
        clock: Clock,
        *,
        governs: bool = False,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> Self:
        """Open the data folder that the settings name, made where it is missing.

        `governs` says that this is the folder's server: what its settings say of the semantics classes
        and of the cap on a holding is kept in the folder from now on, and holds for every process.
        """
        try:
            return cls._opened(settings, clock, governs, random_bytes)
        except KeyringDamaged as damaged:
            raise FolderRefused(f"{damaged}; restore the folder `keys` from a backup") from None
        except OSError as error:
            raise AuthorityUnavailable(
                f"the data folder {settings.data} cannot be used: {error.strerror}"
            ) from error

    @classmethod
    def _opened(
        cls, settings: Settings, clock: Clock, governs: bool, random_bytes: Callable[[int], bytes]
    ) -> Self:
        folder = DataFolder.open(settings.data)
        process_id = random_bytes(8).hex()
        with ExitStack() as opened:
            presence = Presence.open(folder.processes, process_id)
            opened.callback(presence.close)
            pages = WAL_CHECKPOINT_PAGES if governs else WAL_CHECKPOINT_PAGES_EMBEDDED
            store = SqliteStore(folder.database, process_id, checkpoint_pages=pages)
            opened.callback(store.close)
            keyring = Keyring.open(
                folder.keys,
                now_s=clock.now().wall_ms // 1000,
                random_bytes=random_bytes,
                issuer=settings.public_url,
            )
            plane = cls(folder, store, clock, presence, keyring, settings)
            plane._adopt(settings, governs)
            opened.pop_all()
        return plane

    def reopen(self) -> list[Delivery]:
        """Go on with the file that has the database's name now: ours put back, or a backup of it. What holds
        on opening a folder holds then. Returns replies to requests that this process keeps.

        Raises `AuthorityUnavailable` while there is none that can be used, also where the whole folder is
        another one, in which the other processes do not find this one; `FolderRefused` as `open` does.
        """
        if not self.presence.is_in(self.folder.processes):
            raise AuthorityUnavailable(
                f"{self.folder.path} has been replaced by another folder; start this process again"
            )
        self.store.reopen()
        return self._adopt(self._settings, governs=False)

    def close(self) -> None:
        """Leave the folder. What this process kept parked is taken over by the others as withdrawn."""
        try:
            keeps_something = self.presence.process_id in self.store.parking_processes()
        except (AuthorityUnavailable, sqlite3.Error):
            keeps_something = True
        self.store.close()
        # Who is looked for among the dead is who has a file there, so one who leaves something open does not
        # take it away.
        self.presence.close(to_be_buried=keeps_something)

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
        work raises (nothing stands). What is raised once the transaction is open drops the working set.
        """
        decided = Decided()
        try:
            # Within, since a signal's exception may come when the transaction is open and nobody was told.
            while not self.store.try_begin():
                yield None
            # From here to the commit we hold the database's only write lock: no other process decides.
            # A crash anywhere in between leaves nothing, because nothing counts without a commit frame.
            with self.store.faults():
                if self.store.changed_elsewhere():
                    # Someone else has written since our last transaction: what we remember is old.
                    self._read_terms()
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
            self.store.distrust_memory()
            self.state.forget()
            raise
        # Wake-ups come last. One that is lost in a crash is made up for by the other's own look.
        self._wake(decided.deliveries)
        return decided

    def _wake(self, deliveries: Sequence[Delivery]) -> None:
        for process_id in {delivery.process_id for delivery in deliveries}:
            if process_id != self.presence.process_id:
                self.presence.wake(process_id)

    def transact(
        self, *works: Work, deliveries: list[Delivery] | None = None, patience: Patience = PATIENCE
    ) -> list[Any]:
        """Do these works in one transaction and return their results; blocks until the commit stands.

        Replies to parked requests that came of it are appended to `deliveries`; those of other
        processes have been woken for them.

        Raises as `commit_path` does, and `DatabaseBusy` when others write for `BUSY_GIVE_UP_MS`.
        """
        while True:
            decided = self.decide_once(works, patience)
            if deliveries is not None:
                deliveries += decided.deliveries
            if decided.settled:
                return decided.results

    def decide_once(self, works: Sequence[Work], patience: Patience = PATIENCE) -> Decided:
        """One transaction with these works; blocks until its commit stands. Raises as `transact` does.

        Where it comes back not `settled`, so much was due that none of these works was done: ask again.
        """
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
                        raise DatabaseBusy(
                            "other processes keep the database busy; nothing was changed, ask again"
                        )
                    patience.sleep(BUSY_RETRY_MS * (0.5 + patience.jitter()) / 1000)
                    step = next(path)
        except StopIteration as stop:
            decided: Decided = stop.value
            return decided
        finally:
            # Where a signal's exception came between two of its steps it still has the write lock, and would
            # for as long as a traceback refers to it.
            path.close()

    # -- opening, restarts, and those who died ------------------------------------------------

    def bury(self, dead: Collection[str], state: State) -> None:
        """Inside a transaction: withdraw and undo all that a dead process kept open."""
        decide.bury(state, dead)
        self.store.drop_deliveries_of(dead)

    def _adopt(self, settings: Settings, governs: bool) -> list[Delivery]:
        """Before anything is decided here: what was fixed for this folder, full terms under a new boot,
        and nothing left of the dead.

        One transaction of its own, in front of the commit path: under a new boot id the stored ends are
        counted on a clock that is gone, so nothing may be settled by them; and settling would hand
        leases to the dead, or keep their places when their time is over. A crash in it leaves the folder
        as it was, and the next to open it does the same.
        """
        started = PATIENCE.monotonic()
        while not self.store.try_begin():
            if (PATIENCE.monotonic() - started) * 1000 > BUSY_GIVE_UP_MS:
                raise DatabaseBusy("other processes keep the database busy; nothing was changed, try again")
            PATIENCE.sleep(BUSY_RETRY_MS / 1000)
        try:
            with self.store.faults():
                stored = self.store.meta("terms")
                terms = _agreed(settings, _terms_of(stored) if stored else None, governs)
                written = msgspec.json.encode(terms).decode()
                if written != stored:
                    self.store.put_meta("terms", written)
                self._read_terms()
                self.state.begin(self.store, self.clock.now())
                if self.store.meta("boot_id") != self.clock.boot_id:
                    self._give_full_terms()
                    self.store.put_meta("boot_id", self.clock.boot_id)
                parking = self.store.parking_processes() - {self.presence.process_id}
                dead = self.presence.dead(parking | self.presence.others())
                self.bury(dead, self.state)
                deliveries = self.state.end()
            self.store.commit()
        except BaseException:
            self.store.roll_back()
            raise
        for process_id in dead:
            self.presence.bury(process_id)
        self._wake(deliveries)
        return deliveries

    def _give_full_terms(self) -> None:
        self.store.forget_boot(self.state.now, self.state.terms.lease_ms)
        place = ("", "")
        while places := self.store.places_after(place, SETTLE_RESOURCES_MAX):
            for workspace, resource in places:
                decide.reboot(self.state, self.state.room(workspace, resource))
            place = places[-1]
            self.state.apply()

    def _read_terms(self) -> None:
        """Drop what is remembered, and take the folder's terms, which its server may have changed."""
        stored = self.store.meta("terms")
        if stored == self._stored_terms:
            self.state.forget()
        else:
            self._stored_terms = stored
            terms = _terms_of(stored)
            classes: dict[str, SemanticsClass] = dict.fromkeys(terms.shared_read, "shared_read")
            self.state = State(Terms(terms.lease_ms, terms.hold_ms_max, classes))


class _StoredTerms(msgspec.Struct, frozen=True, rename="camel"):
    """What is fixed for a data folder, as its database keeps it."""

    lease_ms: int
    hold_ms_max: int
    shared_read: tuple[str, ...]


def _terms_of(stored: str) -> _StoredTerms:
    return msgspec.json.decode(stored, type=_StoredTerms)


def _agreed(settings: Settings, stored: _StoredTerms | None, governs: bool) -> _StoredTerms:
    """The terms that hold, or `FolderRefused` where these settings contradict the folder's."""
    if stored is None:
        stored = _StoredTerms(
            settings.lease_ms or LEASE_MS_STANDARD, settings.hold_ms_max or 0, SHARED_READ_STANDARD
        )
        governs = True
    if settings.lease_ms not in (None, stored.lease_ms):
        raise FolderRefused(
            f"the data folder {settings.data} was made with leases of {stored.lease_ms} ms, but "
            f"LEASEPLANE_LEASE_MS says {settings.lease_ms}; unset it, or name another data folder"
        )
    wanted = _StoredTerms(
        stored.lease_ms,
        stored.hold_ms_max if settings.hold_ms_max is None else settings.hold_ms_max,
        stored.shared_read if settings.shared_read is None else settings.shared_read,
    )
    if wanted != stored and not governs:
        variable, kept, said = (
            ("LEASEPLANE_HOLD_MS_MAX", stored.hold_ms_max, wanted.hold_ms_max)
            if wanted.hold_ms_max != stored.hold_ms_max
            else ("LEASEPLANE_SHARED_READ", ",".join(stored.shared_read), ",".join(wanted.shared_read))
        )
        raise FolderRefused(
            f"the data folder {settings.data} has {variable}={kept}, but here it says {said}; unset it, or "
            "start the folder's server with it, which sets it for all"
        )
    if 0 < wanted.hold_ms_max < wanted.lease_ms:
        raise FolderRefused(
            f"LEASEPLANE_HOLD_MS_MAX={wanted.hold_ms_max} is less than the {wanted.lease_ms} ms that one "
            "lease runs; raise it, or set it to 0 for no cap"
        )
    return wanted
