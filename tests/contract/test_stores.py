"""What every store has to do. A second store registers in `STORES`, and is held to the same."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.store.memory import MemoryRows

from leaseplane.limits import OUTBOX_TRIM_EVENTS
from leaseplane.model import (
    Held,
    Holder,
    IdempotencyScope,
    Lease,
    Node,
    Parked,
    Reply,
    StaleLease,
    Stampede,
    Trust,
    Wait,
)
from leaseplane.store import sqlite
from leaseplane.store.contract import (
    Changes,
    Counts,
    DeadlockPair,
    Delivery,
    Event,
    IdempotencyRecord,
    RoomRow,
    Rows,
    StoredRoom,
)


class Made(Protocol):
    """One store, freshly made, with a transaction open on it."""

    rows: Rows

    def commit(self) -> None:
        """End the transaction so that it stands, and begin another."""

    def roll_back(self) -> None:
        """End it so that nothing stands, and begin another."""

    def close(self) -> None: ...


class MadeSqlite:
    def __init__(self, folder: Path) -> None:
        self.rows = sqlite.SqliteStore(folder / "plane.db", "0" * 16)
        assert self.rows.try_begin()

    def commit(self) -> None:
        self.rows.commit()
        assert self.rows.try_begin()

    def roll_back(self) -> None:
        self.rows.roll_back()
        assert self.rows.try_begin()

    def close(self) -> None:
        self.rows.roll_back()
        self.rows.close()


class MadeMemory:
    """Rows in memory stand at once; they are here so that the histories' own store is no easier."""

    def __init__(self, folder: Path) -> None:
        self.rows = MemoryRows()

    def commit(self) -> None:
        pass

    def roll_back(self) -> None:
        pytest.skip("rows in memory stand at once")

    def close(self) -> None:
        pass


STORES = {"sqlite": MadeSqlite, "memory": MadeMemory}
A, B = Holder("did:example:a"), Holder("did:example:b", "p.1")
READ_LEASE = Lease("w", "file:ü", "lease-1", B, "read", 1, 2, 3, 4, 5, "note")
FULL_LEASE = Lease(
    "w",
    "lock:r",
    "lease-2",
    A,
    "write",
    2**53 - 1,
    10,
    -11,
    12,
    13,
    "é",
    (Parked("p.1", "0" * 16, 99, "jti"),),
    ("p.1", "p.2"),
    READ_LEASE,
)
SCOPE = IdempotencyScope("lpk_x", "did:example:a", "/path", "key")
PARKED = Parked("p.1", "0" * 16, 99, "jti", "delete", SCOPE)
FULL_WAIT = Wait("w", "lock:r", B, "delete", "delete", 7, 20, 21, 22, 23, None, False, (PARKED, PARKED))
PLAIN_WAIT = Wait("w", "lock:r", A, "read", "read", 8, 20, 21, 22, 23, "why")


@pytest.fixture(params=list(STORES))
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Made]:
    with closing(STORES[request.param](tmp_path)) as store:
        yield store


def changed(**fields: Any) -> Changes:
    changes = Changes()
    for name, value in fields.items():
        setattr(changes, name, value)
    return changes


def lease_of(lease: Lease) -> dict[tuple[str, str, Holder], Lease | None]:
    return {(lease.workspace, lease.resource, lease.holder): lease}


def wait_of(*waits: Wait) -> dict[tuple[str, str, Holder], Wait | None]:
    return {(wait.workspace, wait.resource, wait.waiter): wait for wait in waits}


def test_an_empty_store_knows_nothing(made: Made) -> None:
    rows = made.rows
    assert rows.room("w", "lock:r") == StoredRoom()
    assert rows.trust("w", "did:example:a") is None
    assert rows.counts("w") == Counts()
    assert list(rows.deadlocks("w")) == [] and list(rows.queued_resources("w")) == []
    assert rows.idempotency("w", SCOPE) is None
    assert (rows.last_fence(), rows.last_seq(), rows.due(10**12, 10)) == (0, 0, [])


@pytest.mark.parametrize("committed", [False, True], ids=["in the transaction", "after the commit"])
def test_a_room_comes_back_as_it_was_stored(made: Made, committed: bool) -> None:
    made.rows.apply(
        changed(
            leases=lease_of(FULL_LEASE),
            waits=wait_of(FULL_WAIT, PLAIN_WAIT),
            rooms={("w", "lock:r"): RoomRow(12, True), ("v", "lock:r"): RoomRow(11, False)},
        )
    )
    if committed:
        made.commit()
    room = made.rows.room("w", "lock:r")
    assert room.leases == (FULL_LEASE,) and room.alarm_boot_ms == 12
    assert sorted(room.waits, key=lambda wait: wait.seq) == [FULL_WAIT, PLAIN_WAIT]
    assert made.rows.room("v", "lock:r").leases == () and made.rows.room("w", "lock:R") == StoredRoom()


def test_a_change_replaces_and_none_removes(made: Made) -> None:
    key = ("w", "lock:r", A)
    made.rows.apply(changed(leases=lease_of(FULL_LEASE), rooms={("w", "lock:r"): RoomRow(1, False)}))
    renewed = Lease("w", "lock:r", "lease-2", A, "write", 2, 10, 11, 1_000, 1_001)
    made.rows.apply(changed(leases={key: renewed}))
    assert made.rows.room("w", "lock:r").leases == (renewed,)
    made.rows.apply(changed(leases={key: None}, rooms={("w", "lock:r"): None}))
    made.commit()
    assert made.rows.room("w", "lock:r") == StoredRoom()


def test_what_is_rolled_back_was_never_there(made: Made) -> None:
    made.rows.apply(changed(last_fence=5, events=[Event("coordination.lease", "w", "r", "a", 1)]))
    made.commit()
    made.rows.apply(
        changed(
            leases=lease_of(FULL_LEASE), rooms={("w", "lock:r"): RoomRow(1, False)}, last_fence=6, last_seq=3
        )
    )
    made.roll_back()
    assert made.rows.room("w", "lock:r") == StoredRoom()
    assert (made.rows.last_fence(), made.rows.last_seq()) == (5, 0)


def test_alarms_come_in_order_of_their_times_and_no_later_ones(made: Made) -> None:
    times = {"c": 30, "a": 10, "b": 20, "d": 40}
    made.rows.apply(changed(rooms={("w", name): RoomRow(at_ms, False) for name, at_ms in times.items()}))
    assert made.rows.due(30, 10) == [("w", "a"), ("w", "b"), ("w", "c")]
    assert made.rows.due(30, 2) == [("w", "a"), ("w", "b")]
    assert made.rows.due(9, 10) == []
    made.rows.apply(changed(rooms={("w", "a"): RoomRow(35, False)}))
    assert made.rows.due(39, 10) == [("w", "b"), ("w", "c"), ("w", "a")]


def test_waits_are_found_by_node(made: Made) -> None:
    other = Wait("w", "lock:s", Holder("did:example:b", "p"), "write", "write", 9, 1, 1, 1, 1)
    apart = Wait("w", "lock:t", Holder("did:example:b", "q"), "write", "write", 10, 1, 1, 1, 1)
    made.rows.apply(changed(waits=wait_of(FULL_WAIT, PLAIN_WAIT) | wait_of(other) | wait_of(apart)))
    assert set(made.rows.resources_waited_for("w", Node("did:example:b", "p"))) == {"lock:r", "lock:s"}
    assert set(made.rows.resources_waited_for("v", Node("did:example:b", "p"))) == set()
    assert set(made.rows.queued_resources("w")) == {"lock:r", "lock:s", "lock:t"}


def test_what_a_process_keeps_is_found(made: Made) -> None:
    mine = Parked("000000000000000a.1", "000000000000000a", 9, "j")
    handed = Lease("w", "lock:h", "lease-3", A, "write", 3, 1, 1, 1, 1, None, (mine,))
    waiting = Wait("w", "lock:p", A, "write", "write", 9, 1, 1, 1, 1, None, True, (mine,))
    made.rows.apply(changed(leases=lease_of(handed), waits=wait_of(waiting, FULL_WAIT)))
    assert made.rows.places_kept_open_by({"000000000000000a"}) == [("w", "lock:h"), ("w", "lock:p")]
    assert made.rows.places_kept_open_by({"000000000000000b"}) == []


def test_trust_counts_fence_and_order_are_kept_by_workspace(made: Made) -> None:
    made.rows.apply(
        changed(
            trust={("w", "did:example:a"): Trust(101, 1, 0)},
            counts={"w": Counts(1, 2, 3, 4)},
            last_fence=2**53 - 1,
            last_seq=12,
        )
    )
    made.commit()
    assert made.rows.trust("w", "did:example:a") == Trust(101, 1, 0)
    assert made.rows.trust("v", "did:example:a") is None and made.rows.trust("w", "did:example:A") is None
    assert made.rows.counts("w") == Counts(1, 2, 3, 4) and made.rows.counts("v") == Counts()
    assert (made.rows.last_fence(), made.rows.last_seq()) == (2**53 - 1, 12)


def test_deadlock_pairs_are_kept_and_removed(made: Made) -> None:
    pairs = [DeadlockPair(A, f"lock:{n}", B, "lock:y", 5, 60 + n, n) for n in range(3)]
    made.rows.apply(changed(deadlocks={("w", pair.asker, pair.resource): pair for pair in pairs}))
    assert sorted(made.rows.deadlocks("w"), key=lambda pair: pair.seq) == pairs
    made.rows.apply(changed(deadlocks={("w", A, "lock:1"): None}))
    assert sorted(made.rows.deadlocks("w"), key=lambda pair: pair.seq) == [pairs[0], pairs[2]]
    assert list(made.rows.deadlocks("v")) == []


REPLIES = [
    None,
    Reply(StaleLease("lock:r"), "jti", 1),
    Reply(Held("lock:r", A, "n", 1, 2, (A, B), Stampede(("x", "y"), 50), 3, 40), "jti", 1),
]


@pytest.mark.parametrize("reply", REPLIES, ids=["pending", "stale", "held"])
def test_idempotency_records_come_back_whole_and_expire(made: Made, reply: Reply | None) -> None:
    record = IdempotencyRecord("ab" * 32, 600, reply, "lock:r", B)
    made.rows.apply(changed(idempotency={("w", SCOPE): record}))
    made.commit()
    assert made.rows.idempotency("w", SCOPE) == record
    elsewhere = IdempotencyScope("lpk_y", "did:example:a", "/path", "key")
    assert made.rows.idempotency("w", elsewhere) is None and made.rows.idempotency("v", SCOPE) is None
    assert list(made.rows.idempotency_expired(599, 10)) == []
    assert list(made.rows.idempotency_expired(600, 10)) == [("w", SCOPE)]
    made.rows.apply(changed(idempotency={("w", SCOPE): None}))
    assert made.rows.idempotency("w", SCOPE) is None


# -- what only a store that several processes share has to do ----------------------------------------


def test_replies_for_others_are_kept_for_them_and_our_own_are_not(tmp_path: Path) -> None:
    ours, theirs = "0" * 16, "1" * 16
    reply = Reply(StaleLease("lock:r"), "jti", 1)
    with (
        closing(sqlite.SqliteStore(tmp_path / "plane.db", ours)) as store,
        closing(sqlite.SqliteStore(tmp_path / "plane.db", theirs)) as other,
    ):
        assert store.try_begin()
        deliveries = [Delivery(f"{who}.1", who, "w", "lock:r", reply) for who in (ours, theirs)]
        store.apply(changed(deliveries=deliveries))
        assert not other.try_begin(), "one transaction at a time"
        store.commit()
        assert other.try_begin() and other.changed_elsewhere()
        assert other.take_deliveries() == [deliveries[1]] and other.take_deliveries() == []
        other.commit()
        assert store.try_begin() and store.changed_elsewhere() and store.take_deliveries() == []
        store.roll_back()


def test_only_others_commits_count_as_changes(tmp_path: Path) -> None:
    with (
        closing(sqlite.SqliteStore(tmp_path / "plane.db", "0" * 16)) as store,
        closing(sqlite.SqliteStore(tmp_path / "plane.db", "1" * 16)) as other,
    ):
        assert store.try_begin()
        store.changed_elsewhere()
        store.put_meta("x", 1)
        store.commit()
        assert store.try_begin() and not store.changed_elsewhere()
        store.roll_back()
        assert other.try_begin()
        other.put_meta("x", 2)
        other.roll_back()
        assert store.try_begin() and not store.changed_elsewhere()
        store.roll_back()
        assert other.try_begin()
        other.put_meta("x", 2)
        other.commit()
        assert store.try_begin() and store.changed_elsewhere() and not store.changed_elsewhere()
        store.roll_back()


def test_the_outbox_keeps_its_order_and_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "OUTBOX_EVENTS_MAX", 10)
    with closing(sqlite.SqliteStore(tmp_path / "plane.db", "0" * 16)) as store:
        for batch in range(2):
            assert store.try_begin()
            events = [Event("k", "w", f"r{batch}-{n}", "a", 1) for n in range(OUTBOX_TRIM_EVENTS // 2 + 5)]
            store.apply(changed(events=events))
            store.commit()
        left = store.outbox(0, 10_000)
        assert [seq for seq, _ in left] == list(range(OUTBOX_TRIM_EVENTS + 1, OUTBOX_TRIM_EVENTS + 11))
        assert b"r1-504" in left[-1][1]
        assert store.meta("outbox_dropped") == OUTBOX_TRIM_EVENTS
