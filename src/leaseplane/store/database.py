"""One SQLite file: how it is opened, how a transaction begins and ends, and what its errors mean.

The file is the authority of a machine, so the one question this module has to answer without
guessing is: was it stored? The answer rests on how SQLite commits in WAL mode. The frames of a
transaction are appended to the WAL, the last one carrying the commit mark; the WAL is synced; then
the shared index is moved on so that others see them. Only the whole commit frame counts.

- Before COMMIT nothing counts: whatever fails there, nothing was stored (`AuthorityUnavailable`).
- COMMIT failing with one of `_NOTHING_STORED` failed before the commit frame was whole. SQLITE_FULL
  belongs here: it is a write that came out short (the URI asks for `psow`, so no padding is written
  after the commit frame whose failing would look the same), and a short frame has no valid checksum.
- COMMIT failing in any other way (SQLITE_IOERR and its kin, SQLITE_NOMEM, SQLITE_CORRUPT) may have
  failed after the frame was written: in the sync, or in the shared index. SQLite takes it back in
  memory, so that a read right after it sees nothing of it, and the next commit overwrites it; but if
  every process dies before that, the recovery of the WAL finds a valid commit frame and the
  transaction stands after all (there is a test that shows it). Hence `OutcomeUnknown`.
- A checkpoint that fails after a commit is not reported by COMMIT, and harms nothing.
"""

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from leaseplane.chance import jitter
from leaseplane.limits import (
    BUSY_GIVE_UP_MS,
    BUSY_RETRY_MS,
    DATABASE_CACHE_KIB,
    DATABASE_STATEMENTS_CACHED,
    WAL_KEPT_BYTES_MAX,
)
from leaseplane.model import AuthorityUnavailable, OutcomeUnknown
from leaseplane.private_file import sync_folder
from leaseplane.store.folder import FolderRefused

_T = TypeVar("_T")

_PRIMARY: Final = 0xFF
"""Extended result codes carry the primary one in their lowest byte."""

# SQLITE_PROTOCOL is a lost race for the WAL's read mark, not a fault of the file.
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL})

_NOTHING_STORED: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_LOCKED,
        # "no transaction is active": SQLite had rolled back by itself when a statement failed.
        sqlite3.SQLITE_ERROR,
    }
)

_STORAGE_FAULTS: Final = _BUSY | {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOLFS,
}
"""What the disk and the machine do to us. Any other error of SQLite is a mistake in our statements
and stays what it is, so that it is seen."""


class DatabaseBusy(AuthorityUnavailable):
    """Others kept the database busy for `BUSY_GIVE_UP_MS`. The connection is fine; ask again."""


class DatabaseReplaced(AuthorityUnavailable):
    """The file is gone from its path, another one is there, or this process is a fork of the opener.

    The connection is of no more use: what it wrote nobody would read. Close it and open again.
    """


class Patience(msgspec.Struct, frozen=True):
    """How to wait for a busy database: where jitter comes from, how to sleep, how to know when to give up.

    Our own, since SQLite's busy handler sleeps longer and longer: 24 processes took 7.0 s with it for
    what took them 1.1 s so.
    """

    jitter: Callable[[], float]
    """From 0 to below 1."""
    sleep: Callable[[float], None]
    monotonic: Callable[[], float]
    give_up_ms: float = BUSY_GIVE_UP_MS


# The system's generator has no state that forked children would share and then retry in step.
PATIENCE: Final = Patience(jitter, time.sleep, time.monotonic)


class Database(sqlite3.Connection):
    """A connection that knows which file it was opened on, and by which process."""

    path: Path
    identity: tuple[int, int]
    opener_pid: int


# -- opening -----------------------------------------------------------------------------------


def open_database(
    path: Path, *, migrations: Sequence[str], application_id: int, patience: Patience = PATIENCE
) -> sqlite3.Connection:
    """Open the database, made and migrated where needed, so that what is committed survives power loss.

    The connection is in autocommit (`isolation_level=None`, transactions by `immediately` or
    `try_begin`), may be used from any thread, and does not wait for locks by itself. The file and its
    companions (`-wal`, `-shm`) have mode 0600 from their first instant. `migrations[n]` is a script
    that takes version n to n+1 (`PRAGMA user_version`); each runs in a transaction of its own, once,
    however many processes open at the same instant.

    Raises `FolderRefused` where only a person can help: the database was written by a newer version,
    or it is another program's (`application_id`), or no regular file. Raises `AuthorityUnavailable`
    where it may work again later: the folder is missing, the file cannot be read and written, is
    damaged, or stays busy (`DatabaseBusy`).
    """
    path = path.absolute()
    connection = _connect(path, _make_private(path))
    try:
        with storage_faults(connection):
            # Each of these reads the file, and may meet another process that opens or closes it.
            patiently(lambda: _set_up(connection), patience)
            patiently(lambda: _check_version(connection, len(migrations), application_id), patience)
            patiently(lambda: _use_wal(connection), patience)
        _migrate(connection, migrations, application_id, patience)
    except BaseException:
        connection.close()
        raise
    return connection


_creating = threading.Lock()


def _forget_creating() -> None:
    global _creating  # noqa: PLW0603 - a lock that another thread held at the fork is never released here
    _creating = threading.Lock()


os.register_at_fork(after_in_child=_forget_creating)


def _make_private(path: Path) -> tuple[int, int]:
    """Make the file where it is missing, close it to others, and answer which one it is."""
    # SQLite would make the file with the process's umask, and gives -wal and -shm the file's own mode.
    # Closing any descriptor of a file drops all locks that this process has on it, SQLite's too: so an
    # existing file is never opened here, and no thread may connect to a new one before it is closed.
    try:
        with _creating:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                pass
            else:
                os.fchmod(descriptor, 0o600)
                os.close(descriptor)
                # Else a power loss could take the name away, and all that was committed with it.
                sync_folder(path.parent)
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise FolderRefused(f"{path} is not a regular file; move it away or name another data folder")
        for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            # A file restored or copied by hand may have been made readable by others.
            with suppress(FileNotFoundError):
                if stat.S_IMODE(name.stat().st_mode) & 0o077:
                    name.chmod(0o600)
        if not os.access(path, os.R_OK | os.W_OK):
            raise AuthorityUnavailable(f"{path} cannot be both read and written by this user")
        return found.st_dev, found.st_ino
    except OSError as error:
        if not path.parent.is_dir():
            raise AuthorityUnavailable(f"the data folder {path.parent} does not exist") from error
        raise AuthorityUnavailable(f"{path} cannot be opened: {error.strerror}") from error


def _connect(path: Path, identity: tuple[int, int]) -> Database:
    try:
        # mode=rw: never make a file, its mode would be the umask's. psow: see the head of this module.
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode=rw&psow=1",
            uri=True,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=DATABASE_STATEMENTS_CACHED,
            factory=Database,
        )
    except sqlite3.Error as error:
        raise AuthorityUnavailable(f"{path} cannot be opened: {error}") from error
    connection.path = path
    # As it was before connecting: if another file has the name by now, the first transaction says so.
    connection.identity = identity
    connection.opener_pid = os.getpid()
    return connection


def _set_up(connection: Database) -> None:
    for pragma in (
        "synchronous=FULL",
        # fsync alone does not reach the platter on macOS; elsewhere this changes nothing.
        "fullfsync=ON",
        "checkpoint_fullfsync=ON",
        "foreign_keys=OFF",
        "trusted_schema=OFF",
        "temp_store=MEMORY",
        f"cache_size=-{DATABASE_CACHE_KIB}",
        # Off: an I/O error, or a file cut short by someone, would be a SIGBUS instead of an exception.
        "mmap_size=0",
        f"journal_size_limit={WAL_KEPT_BYTES_MAX}",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _check_version(connection: Database, known_version: int, application_id: int) -> None:
    # One snapshot: between two of them another process may have filled an empty file.
    connection.execute("BEGIN")
    try:
        (empty,) = connection.execute("SELECT count(*) = 0 FROM sqlite_master").fetchone()
        (found_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    finally:
        roll_back(connection)
    # A crash between making the file and the first migration leaves an empty one, which is ours to fill.
    if found_id != application_id and not (empty and found_id == 0 and version == 0):
        raise FolderRefused(
            f"{connection.path} is another program's database (application id {found_id:#010x}); "
            "name another data folder"
        )
    if version > known_version:
        raise FolderRefused(
            f"{connection.path} was written by a newer leaseplane (database version {version}, this one "
            f"knows {known_version}); install the newer one"
        )


def _use_wal(connection: Database) -> None:
    # Asking first takes no lock; turning it on needs the file for oneself and may find it busy.
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise FolderRefused(
            f"{connection.path} lies on a file system without shared memory for SQLite's WAL; "
            "name a data folder on a local disk"
        )


def _migrate(
    connection: Database, migrations: Sequence[str], application_id: int, patience: Patience
) -> None:
    def version() -> int:
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        assert isinstance(found, int)
        return found

    with storage_faults(connection):
        found = patiently(version, patience)
    for number, script in enumerate(migrations[found:], start=found + 1):
        # The script, its number and whose file it is are one commit: a crash leaves all or nothing.
        with immediately(connection, patience=patience):
            if version() >= number:
                continue
            for statement in split_statements(script):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={application_id}")
            connection.execute(f"PRAGMA user_version={number}")


def split_statements(script: str) -> Iterator[str]:
    """The statements of an SQL script, one by one.

    `executescript` is no way to run one in a transaction: it commits what is open before it begins.
    """
    start = 0
    end = script.find(";")
    while end != -1:
        if sqlite3.complete_statement(script[start : end + 1]):
            yield script[start : end + 1].strip()
            start = end + 1
        end = script.find(";", end + 1)
    if rest := script[start:].strip():
        yield rest


# -- transactions ------------------------------------------------------------------------------


@contextmanager
def immediately(connection: sqlite3.Connection, *, patience: Patience = PATIENCE) -> Iterator[None]:
    """Run the block in one write transaction: stored as a whole when it ends, not at all when it raises.

    Waits for a busy database, about `BUSY_RETRY_MS` at a time, so not for use on an event loop.

    Raises `DatabaseBusy` when it stays busy for `BUSY_GIVE_UP_MS`, `AuthorityUnavailable` when nothing
    was stored, `OutcomeUnknown` when the commit may or may not stand; and whatever the block raises.
    """
    assert not connection.in_transaction, "one transaction at a time on a connection"
    started = patience.monotonic()
    try:
        while not try_begin(connection):
            _wait_a_little(started, patience, None)
        with storage_faults(connection):
            yield
    except BaseException:
        roll_back(connection)
        raise
    commit(connection)


def try_begin(connection: sqlite3.Connection) -> bool:
    """Begin a write transaction at once, or answer False: someone else is writing right now.

    Never waits, so it may be called on an event loop. After True, end it with `commit` or `roll_back`.
    Raises `DatabaseReplaced` and `AuthorityUnavailable`; no transaction is open then.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        if _is_busy(error):
            return False
        with storage_faults(connection):
            raise
    try:
        _check_in_place(connection)
    except BaseException:
        roll_back(connection)
        raise
    return True


def commit(connection: sqlite3.Connection) -> None:
    """Store what was written since `try_begin`, durably.

    Raises `AuthorityUnavailable` when it is certain that nothing was stored, and `OutcomeUnknown`
    when it is not (which errors are which: the head of this module). No transaction is open afterwards.
    """
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        roll_back(connection)
        if _primary_code(error) in _NOTHING_STORED:
            raise AuthorityUnavailable(f"nothing was stored: {error}") from error
        raise OutcomeUnknown(f"the commit failed, and may or may not stand: {error}") from error
    except BaseException:
        # An interrupt: COMMIT has run as a whole or not at all, but we do not learn which.
        roll_back(connection)
        raise


def roll_back(connection: sqlite3.Connection) -> None:
    """Drop what was written since `try_begin`. Does nothing where SQLite has done so by itself."""
    if connection.in_transaction:
        # If this fails, too, nothing is stored either: the commit frame was never written.
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def patiently(action: Callable[[], _T], patience: Patience = PATIENCE) -> _T:
    """Do something outside a transaction, a read for instance, again and again while the database is busy.

    Also a read may find it busy: while another process recovers the WAL or, as the last one, closes it.
    Raises `DatabaseBusy` after `BUSY_GIVE_UP_MS`, and whatever else `action` raises.
    """
    started = patience.monotonic()
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
            _wait_a_little(started, patience, error)


@contextmanager
def storage_faults(connection: sqlite3.Connection) -> Iterator[None]:
    """Turn what the disk does to us, outside of COMMIT, into `AuthorityUnavailable`: nothing was stored.

    Mistakes in our own statements (syntax, constraints) stay what they are.
    """
    try:
        yield
    except sqlite3.Error as error:
        if _primary_code(error) not in _STORAGE_FAULTS:
            raise
        assert isinstance(connection, Database)
        raise AuthorityUnavailable(f"{_told(error)}: {connection.path}: {error}") from error


def _check_in_place(connection: sqlite3.Connection) -> None:
    # SQLite in WAL mode goes on writing into a file that was deleted or moved away. The next process
    # would make a new one there, and the plane would have two authorities.
    assert isinstance(connection, Database), "opened by open_database"
    if os.getpid() != connection.opener_pid:
        raise DatabaseReplaced(f"{connection.path} was opened before a fork; open it again in the child")
    try:
        found = os.stat(connection.path)  # noqa: PTH116 - half the price of Path.stat, on every transaction
    except OSError as error:
        raise DatabaseReplaced(f"{connection.path} is gone: {error.strerror}") from error
    if (found.st_dev, found.st_ino) != connection.identity:
        raise DatabaseReplaced(f"{connection.path} has been replaced by another file")


def _wait_a_little(started: float, patience: Patience, cause: Exception | None) -> None:
    if (patience.monotonic() - started) * 1_000 >= patience.give_up_ms:
        raise DatabaseBusy(
            f"the database has been busy for {patience.give_up_ms:.0f} ms; nothing was changed, ask again"
        ) from cause
    patience.sleep(BUSY_RETRY_MS * (0.5 + patience.jitter()) / 1_000)


def _primary_code(error: sqlite3.Error) -> int | None:
    # Errors that the sqlite3 module raises by itself (a closed connection) have no code.
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & _PRIMARY


def _is_busy(error: sqlite3.Error) -> bool:
    return _primary_code(error) in _BUSY


def _told(error: sqlite3.Error) -> str:
    match _primary_code(error):
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return "the database is damaged, or no database at all; restore it from a backup"
        case sqlite3.SQLITE_FULL:
            return "the disk is full"
        case sqlite3.SQLITE_READONLY:
            return "the database can only be read"
        case _:
            return "the database cannot be reached"
