"""The store of one machine: one SQLite file that any number of processes share.

A transaction holds SQLite's write lock from its beginning, so there is nothing to conflict with at
its end: what was read in it is still so when it commits. What other processes wrote since our last
transaction is noticed by `data_version`, inside the transaction, before anything kept in memory is
trusted.
"""

import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from leaseplane.limits import IDEMPOTENCY_KEPT_MS, OUTBOX_EVENTS_MAX, OUTBOX_TRIM_EVENTS
from leaseplane.model import (
    AuthorityUnavailable,
    Holder,
    IdempotencyScope,
    Lease,
    Moment,
    Node,
    Parked,
    Trust,
    Wait,
)
from leaseplane.store import database
from leaseplane.store.contract import (
    Changes,
    Counts,
    DeadlockPair,
    Delivery,
    IdempotencyRecord,
    Place,
    RoomRow,
    StoredRoom,
)
from leaseplane.store.schema import APPLICATION_ID, MIGRATIONS

_pack = msgspec.msgpack.Encoder().encode
_pack_event = msgspec.json.Encoder().encode
_Kept = TypeVar("_Kept")


@cache
def _decoder(kept: type[_Kept]) -> msgspec.msgpack.Decoder[_Kept]:
    """What reads a blob of this type. Made on first use: most of what holds an outcome is never read in a
    process that asks once, and a decoder of every outcome takes a millisecond to make."""
    return msgspec.msgpack.Decoder(kept)


_REQUESTS = tuple[Parked, ...]

_LEASE_COLUMNS = (
    "workspace, resource, actor, instance, lease_id, access, fence, granted_wall_ms, granted_boot_ms, "
    "ends_boot_ms, ends_wall_ms, note, handed, gone, upgraded_from"
)
_WAIT_COLUMNS = (
    "workspace, resource, actor, instance, root, access, asked_access, seq, since_wall_ms, asked_wall_ms, "
    "asked_boot_ms, chance_boot_ms, note, edge, parked"
)
_PLACE = "workspace = ? AND resource = ?"
_KEY = "workspace = ? AND resource = ? AND actor = ? AND instance = ?"


class SqliteStore:
    """The plane's database in a folder, for one process. Fulfils `store.contract.Rows` in a transaction.

    `process_id` tells the replies for this process's own parked requests, which are not stored, from
    those that have to wait for another process to fetch them.

    Raises from every method: `AuthorityUnavailable` where nothing was stored, from `commit` also
    `OutcomeUnknown`; `FolderRefused` from the constructor where only a person can help.
    """

    def __init__(self, path: Path, process_id: str) -> None:
        self.path = path
        self._process_id = process_id
        self._connection = database.open_database(
            self.path, migrations=MIGRATIONS, application_id=APPLICATION_ID
        )
        self._data_version = -1
        self._first_event: int | None = None
        self._changes_before = 0

    def close(self) -> None:
        self._connection.close()

    def reopen(self) -> None:
        """Open the same path again, after its file was moved away or replaced. Makes no new plane there:
        raises `AuthorityUnavailable` while there is no file, or an empty one."""
        try:
            is_there = self.path.stat().st_size > 0
        except OSError:
            is_there = False
        if not is_there:
            raise AuthorityUnavailable(f"{self.path} is gone; put it back, and the plane goes on")
        reopened = database.open_database(self.path, migrations=MIGRATIONS, application_id=APPLICATION_ID)
        # Only now: while what is there cannot be opened, the old connection goes on to say that its own
        # file is not in place. A closed one would be a fault of ours at the next transaction.
        self._connection.close()
        self._connection = reopened
        self._data_version = -1
        self._first_event = None

    # -- transactions --------------------------------------------------------------------------

    def try_begin(self) -> bool:
        """Begin a transaction at once, or answer False where another process is in one."""
        begun = database.try_begin(self._connection)
        self._changes_before = self._connection.total_changes
        return begun

    @property
    def has_written(self) -> bool:
        """Whether the open transaction has changed any row."""
        return self._connection.total_changes != self._changes_before

    def faults(self) -> AbstractContextManager[None]:
        """Around reads and writes: what the disk does to us becomes `AuthorityUnavailable`."""
        return database.storage_faults(self._connection)

    def changed_elsewhere(self) -> bool:
        """Whether another process has committed since this was last asked, inside a transaction."""
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        changed = bool(version != self._data_version)
        self._data_version = version
        return changed

    def version(self) -> int:
        """A number that is another once another process has committed. For outside a transaction, where it
        costs less than any look at rows."""
        with self.faults():
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(version)

    def commit(self) -> None:
        database.commit(self._connection)

    def distrust_memory(self) -> None:
        """Have `changed_elsewhere` say so next time, whatever it said and however that was taken in."""
        self._data_version = -1

    def roll_back(self) -> None:
        self._first_event = None
        database.roll_back(self._connection)

    # -- what is known of the plane ------------------------------------------------------------

    def meta(self, name: str) -> Any:
        row = self._connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def put_meta(self, name: str, value: str | int) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def next_alarm_boot_ms(self) -> int | None:
        """When the alarm has to look next. May be asked outside a transaction, too."""
        with self.faults():
            (first,) = self._connection.execute("SELECT min(alarm_boot_ms) FROM resources").fetchone()
        return None if first is None else int(first)

    def places_after(self, place: Place, most: int) -> list[Place]:
        """The resources that are held or waited for, in order of their names."""
        return self._connection.execute(
            "SELECT workspace, resource FROM resources WHERE (workspace, resource) > (?, ?) "
            "ORDER BY workspace, resource LIMIT ?",
            (*place, most),
        ).fetchall()

    def forget_boot(self, now: Moment, lease_ms: int) -> None:
        """The clock that ends were counted on is gone. Idempotency records are kept for a full time from
        now; deadlock pairs, which only inform, for what the wall clock says is left of theirs."""
        self._connection.execute(
            "UPDATE idempotency SET expires_boot_ms = ?", (now.boot_ms + IDEMPOTENCY_KEPT_MS,)
        )
        self._connection.execute(
            "UPDATE deadlocks SET until_boot_ms = ? + max(0, min(?, at_wall_ms + ? - ?))",
            (now.boot_ms, lease_ms, lease_ms, now.wall_ms),
        )

    def take_deliveries(self) -> list[Delivery]:
        """Replies that other processes decided for requests parked by this one; they are removed."""
        rows = self._connection.execute(
            "DELETE FROM deliveries WHERE process_id = ? RETURNING delivery", (self._process_id,)
        ).fetchall()
        return [_decoder(Delivery).decode(row[0]) for row in rows]

    def has_deliveries(self) -> bool:
        """Whether there are any for this process. May be asked outside a transaction."""
        with self.faults():
            row = self._connection.execute(
                "SELECT 1 FROM deliveries WHERE process_id = ? LIMIT 1", (self._process_id,)
            ).fetchone()
        return row is not None

    def drop_deliveries_of(self, process_ids: Collection[str]) -> None:
        """Forget replies for processes that are dead."""
        self._connection.executemany(
            "DELETE FROM deliveries WHERE process_id = ?", [(process_id,) for process_id in process_ids]
        )

    def parking_processes(self) -> set[str]:
        """Every process that keeps parked requests, or was handed a lease that is not marked yet."""
        found = set()
        for _, _, requests in self._kept_open():
            found |= {request.process_id for request in requests}
        return found

    def _kept_open(self) -> Iterator[tuple[str, str, tuple[Parked, ...]]]:
        for workspace, resource, blob in self._connection.execute(
            "SELECT workspace, resource, parked FROM waits WHERE parked IS NOT NULL "
            "UNION ALL SELECT workspace, resource, handed FROM leases WHERE handed IS NOT NULL"
        ).fetchall():
            yield workspace, resource, _decoder(_REQUESTS).decode(blob)

    def outbox(self, after: int, most: int) -> list[tuple[int, bytes]]:
        """The ledger's events that are not sequenced yet, in order, each as JSON."""
        return self._connection.execute(
            "SELECT seq, event FROM outbox WHERE seq > ? ORDER BY seq LIMIT ?", (after, most)
        ).fetchall()

    # -- reads of a transaction ----------------------------------------------------------------

    def room(self, workspace: str, resource: str) -> StoredRoom:
        place = (workspace, resource)
        execute = self._connection.execute
        row = execute(f"SELECT alarm_boot_ms, queued FROM resources WHERE {_PLACE}", place).fetchone()  # noqa: S608
        if row is None:
            return StoredRoom()
        leases = execute(f"SELECT {_LEASE_COLUMNS} FROM leases WHERE {_PLACE}", place)  # noqa: S608
        found = tuple(_read_lease(lease) for lease in leases)
        waits: tuple[Wait, ...] = ()
        if row[1]:
            rows = execute(f"SELECT {_WAIT_COLUMNS} FROM waits WHERE {_PLACE}", place)  # noqa: S608
            waits = tuple(_read_wait(wait) for wait in rows)
        return StoredRoom(found, waits, row[0])

    def resources_waited_for(self, workspace: str, node: Node) -> Iterable[str]:
        rows = self._connection.execute(
            "SELECT DISTINCT resource FROM waits WHERE workspace = ? AND actor = ? AND root = ?",
            (workspace, node.actor, node.root),
        )
        return [row[0] for row in rows.fetchall()]

    def queued_resources(self, workspace: str) -> Iterable[str]:
        rows = self._connection.execute(
            "SELECT DISTINCT resource FROM waits WHERE workspace = ?", (workspace,)
        )
        return [row[0] for row in rows.fetchall()]

    def trust(self, workspace: str, actor: str) -> Trust | None:
        row = self._connection.execute(
            "SELECT halves, released, expired FROM trust WHERE workspace = ? AND actor = ?",
            (workspace, actor),
        ).fetchone()
        return None if row is None else Trust(*row)

    def counts(self, workspace: str) -> Counts:
        row = self._connection.execute(
            "SELECT leases, waits, parked, idempotency FROM counts WHERE workspace = ?", (workspace,)
        ).fetchone()
        return Counts() if row is None else Counts(*row)

    def deadlocks(self, workspace: str) -> Iterable[DeadlockPair]:
        rows = self._connection.execute(
            "SELECT actor, instance, resource, holder_actor, holder_instance, waiting_on, at_wall_ms, "
            "until_boot_ms, seq FROM deadlocks WHERE workspace = ?",
            (workspace,),
        )
        return [
            DeadlockPair(Holder(row[0], row[1]), row[2], Holder(row[3], row[4]), *row[5:])
            for row in rows.fetchall()
        ]

    def idempotency(self, workspace: str, scope: IdempotencyScope) -> IdempotencyRecord | None:
        row = self._connection.execute(
            "SELECT record FROM idempotency WHERE workspace = ? AND credential = ? AND actor = ? "
            "AND path = ? AND key = ?",
            (workspace, *msgspec.structs.astuple(scope)),
        ).fetchone()
        return None if row is None else _decoder(IdempotencyRecord).decode(row[0])

    def idempotency_expired(self, boot_ms: int, most: int) -> Iterable[tuple[str, IdempotencyScope]]:
        rows = self._connection.execute(
            "SELECT workspace, credential, actor, path, key FROM idempotency WHERE expires_boot_ms <= ? "
            "ORDER BY expires_boot_ms LIMIT ?",
            (boot_ms, most),
        )
        return [(row[0], IdempotencyScope(*row[1:])) for row in rows.fetchall()]

    def due(self, boot_ms: int, most: int) -> list[Place]:
        return self._connection.execute(
            "SELECT workspace, resource FROM resources WHERE alarm_boot_ms <= ? "
            "ORDER BY alarm_boot_ms, workspace, resource LIMIT ?",
            (boot_ms, most),
        ).fetchall()

    def places_kept_open_by(self, process_ids: Collection[str]) -> list[Place]:
        return sorted(
            {
                (workspace, resource)
                for workspace, resource, requests in self._kept_open()
                if any(request.process_id in process_ids for request in requests)
            }
        )

    def last_fence(self) -> int:
        return int(self.meta("last_fence") or 0)

    def last_seq(self) -> int:
        return int(self.meta("last_seq") or 0)

    # -- the write of a transaction ------------------------------------------------------------

    def apply(self, changes: Changes) -> None:
        many = self._connection.executemany
        if changes.leases:
            _write(self._connection, "leases", 15, _KEY, changes.leases, _lease_row, _holder_key)
        if changes.waits:
            _write(self._connection, "waits", 15, _KEY, changes.waits, _wait_row, _holder_key)
        if changes.rooms:
            _write(self._connection, "resources", 4, _PLACE, changes.rooms, _room_row, lambda key: key)
        if changes.trust:
            many(
                "INSERT OR REPLACE INTO trust VALUES (?, ?, ?, ?, ?)",
                [(*key, trust.halves, trust.released, trust.expired) for key, trust in changes.trust.items()],
            )
        if changes.counts:
            many(
                "INSERT OR REPLACE INTO counts VALUES (?, ?, ?, ?, ?)",
                [
                    (workspace, *msgspec.structs.astuple(counts))
                    for workspace, counts in changes.counts.items()
                ],
            )
        if changes.deadlocks:
            key = "workspace = ? AND actor = ? AND instance = ? AND resource = ?"
            _write(self._connection, "deadlocks", 10, key, changes.deadlocks, _deadlock_row, _deadlock_key)
        if changes.idempotency:
            key = "workspace = ? AND credential = ? AND actor = ? AND path = ? AND key = ?"
            _write(self._connection, "idempotency", 7, key, changes.idempotency, _idempotency_row, _scope_key)
        if changes.events:
            self._write_events(changes)
        foreign = [delivery for delivery in changes.deliveries if delivery.process_id != self._process_id]
        if foreign:
            many(
                "INSERT OR REPLACE INTO deliveries VALUES (?, ?, ?)",
                [(delivery.request_id, delivery.process_id, _pack(delivery)) for delivery in foreign],
            )
        if changes.last_fence is not None:
            self.put_meta("last_fence", changes.last_fence)
        if changes.last_seq is not None:
            self.put_meta("last_seq", changes.last_seq)

    def _write_events(self, changes: Changes) -> None:
        """Append to the outbox. Nothing may depend on it growing for ever: beyond its bound the oldest
        events are dropped and counted, which the ledger will show as a gap and not hide."""
        self._connection.executemany(
            "INSERT INTO outbox (event) VALUES (?)", [(_pack_event(event),) for event in changes.events]
        )
        if self._first_event is None:
            (first,) = self._connection.execute("SELECT min(seq) FROM outbox").fetchone()
            self._first_event = int(first)
        (last,) = self._connection.execute("SELECT max(seq) FROM outbox").fetchone()
        surplus = last - self._first_event + 1 - OUTBOX_EVENTS_MAX
        if surplus >= OUTBOX_TRIM_EVENTS:
            dropped = self._connection.execute(
                "DELETE FROM outbox WHERE seq < ?", (self._first_event + surplus,)
            ).rowcount
            self.put_meta("outbox_dropped", int(self.meta("outbox_dropped") or 0) + dropped)
            self._first_event += surplus


def _write(
    connection: sqlite3.Connection,
    table: str,
    columns: int,
    key: str,
    changed: dict[Any, Any],
    row_of: Any,
    key_of: Any,
) -> None:
    """Store the changed rows of one table; a None is removed."""
    gone = [key_of(place) for place, value in changed.items() if value is None]
    if gone:
        connection.executemany(f"DELETE FROM {table} WHERE {key}", gone)  # noqa: S608 - our own names only
    kept = [row_of(place, value) for place, value in changed.items() if value is not None]
    if kept:
        marks = ", ".join("?" * columns)
        connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", kept)  # noqa: S608


def _holder_key(key: tuple[str, str, Holder]) -> tuple[str, str, str, str]:
    return key[0], key[1], key[2].actor, key[2].instance


def _deadlock_key(key: tuple[str, Holder, str]) -> tuple[str, str, str, str]:
    return key[0], key[1].actor, key[1].instance, key[2]


def _scope_key(key: tuple[str, IdempotencyScope]) -> tuple[str, ...]:
    return key[0], *msgspec.structs.astuple(key[1])


def _room_row(place: Place, row: RoomRow) -> tuple[Any, ...]:
    return *place, row.alarm_boot_ms, row.queued


def _deadlock_row(key: tuple[str, Holder, str], pair: DeadlockPair) -> tuple[Any, ...]:
    holder = pair.holder
    return (
        *_deadlock_key(key),
        holder.actor,
        holder.instance,
        pair.waiting_on,
        pair.at_wall_ms,
        pair.until_boot_ms,
        pair.seq,
    )


def _idempotency_row(key: tuple[str, IdempotencyScope], record: IdempotencyRecord) -> tuple[Any, ...]:
    return *_scope_key(key), record.expires_boot_ms, _pack(record)


def _lease_row(key: Any, lease: Lease) -> tuple[Any, ...]:
    return (
        lease.workspace,
        lease.resource,
        lease.holder.actor,
        lease.holder.instance,
        lease.lease_id,
        lease.access,
        lease.fence,
        lease.granted_wall_ms,
        lease.granted_boot_ms,
        lease.ends_boot_ms,
        lease.ends_wall_ms,
        lease.note,
        _pack(lease.handed) if lease.handed else None,
        " ".join(lease.gone) or None,
        None if lease.upgraded_from is None else _pack(lease.upgraded_from),
    )


def _read_lease(row: tuple[Any, ...]) -> Lease:
    return Lease(
        workspace=row[0],
        resource=row[1],
        holder=Holder(row[2], row[3]),
        lease_id=row[4],
        access=row[5],
        fence=row[6],
        granted_wall_ms=row[7],
        granted_boot_ms=row[8],
        ends_boot_ms=row[9],
        ends_wall_ms=row[10],
        note=row[11],
        handed=() if row[12] is None else _decoder(_REQUESTS).decode(row[12]),
        gone=tuple(row[13].split()) if row[13] else (),
        upgraded_from=None if row[14] is None else _decoder(Lease).decode(row[14]),
    )


def _wait_row(key: Any, wait: Wait) -> tuple[Any, ...]:
    return (
        wait.workspace,
        wait.resource,
        wait.waiter.actor,
        wait.waiter.instance,
        wait.waiter.node.root,
        wait.access,
        wait.asked_access,
        wait.seq,
        wait.since_wall_ms,
        wait.asked_wall_ms,
        wait.asked_boot_ms,
        wait.chance_boot_ms,
        wait.note,
        wait.edge,
        _pack(wait.parked) if wait.parked else None,
    )


def _read_wait(row: tuple[Any, ...]) -> Wait:
    return Wait(
        workspace=row[0],
        resource=row[1],
        waiter=Holder(row[2], row[3]),
        access=row[5],
        asked_access=row[6],
        seq=row[7],
        since_wall_ms=row[8],
        asked_wall_ms=row[9],
        asked_boot_ms=row[10],
        chance_boot_ms=row[11],
        note=row[12],
        edge=bool(row[13]),
        parked=_decoder(_REQUESTS).decode(row[14]) if row[14] is not None else (),
    )
