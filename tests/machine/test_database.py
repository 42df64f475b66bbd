import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from leaseplane.limits import BUSY_RETRY_MS
from leaseplane.model import AuthorityUnavailable, OutcomeUnknown
from leaseplane.store.database import (
    DatabaseBusy,
    DatabaseReplaced,
    Patience,
    commit,
    immediately,
    open_database,
    patiently,
    roll_back,
    split_statements,
    storage_faults,
    try_begin,
)
from leaseplane.store.folder import FolderRefused

APPLICATION_ID = 0x4C504C4E
MIGRATIONS = (
    "CREATE TABLE ran (number INTEGER);\nINSERT INTO ran VALUES (1);\nCREATE TABLE box (name, load BLOB);",
    "INSERT INTO ran VALUES (2); -- with a remark; and a semicolon in it\n",
    "INSERT INTO ran VALUES (3)",
)

# What the processes of these tests begin with.
PRELUDE = f"""
from pathlib import Path
from leaseplane.store.database import *
def opened(path):
    return open_database(Path(path), migrations={MIGRATIONS!r}, application_id={APPLICATION_ID})
"""


def opened(path: Path, migrations: tuple[str, ...] = MIGRATIONS, **more: Any) -> sqlite3.Connection:
    return open_database(path, migrations=migrations, application_id=APPLICATION_ID, **more)


class Waiting:
    """Patience whose clock moves by sleeping, and which does something at the n-th sleep."""

    def __init__(self, at: int = 0, act: Callable[[], object] = lambda: None) -> None:
        self.sleeps: list[float] = []
        self.at, self.act = at, act
        self.patience = Patience(Random(7).random, self.sleep, lambda: sum(self.sleeps))

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        if len(self.sleeps) == self.at:
            self.act()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "plane.db"


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Someone else who is in the middle of a write transaction."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


def names(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM box ORDER BY rowid")]


def put(connection: sqlite3.Connection, name: str, load_bytes: int = 0) -> None:
    connection.execute("INSERT INTO box VALUES (?, zeroblob(?))", (name, load_bytes))


# -- opening -----------------------------------------------------------------------------------


def test_it_is_set_up_to_survive_power_loss(path: Path) -> None:
    with closing(opened(path)) as connection:
        asked = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys", "mmap_size")
        }
        assert asked == {
            "journal_mode": "wal",
            "synchronous": 2,
            "busy_timeout": 0,
            "foreign_keys": 0,
            "mmap_size": 0,
        }
        assert connection.isolation_level is None


def test_ten_processes_migrate_at_once_and_each_migration_runs_once(path: Path, start: Any) -> None:
    code = (
        PRELUDE
        + "print('ready', flush=True); sys.stdin.readline(); opened(args[0]); print('done', flush=True)"
    )
    processes = [start(code, path) for _ in range(10)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout.readline() == "done\n"
    with closing(opened(path)) as connection:
        assert connection.execute("SELECT number FROM ran").fetchall() == [(1,), (2,), (3,)]


def test_an_older_database_gets_only_what_it_lacks(path: Path) -> None:
    opened(path, MIGRATIONS[:1]).close()
    with closing(opened(path)) as connection:
        assert connection.execute("SELECT number FROM ran").fetchall() == [(1,), (2,), (3,)]
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)


def test_a_migration_that_fails_leaves_the_version_before_it(path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        opened(path, (MIGRATIONS[0], "INSERT INTO ran VALUES (2); INSERT INTO nowhere VALUES (1);"))
    with closing(opened(path, MIGRATIONS[:1])) as connection:
        assert connection.execute("SELECT number FROM ran").fetchall() == [(1,)]


def test_a_script_is_split_at_its_statements_only() -> None:
    trigger = "CREATE TRIGGER t AFTER INSERT ON box BEGIN DELETE FROM ran; SELECT ';'; END;"
    script = f"-- one; two\nCREATE TABLE a (b DEFAULT ';');\n{trigger}\n/* x; */ SELECT 1"
    assert list(split_statements(script)) == [
        "-- one; two\nCREATE TABLE a (b DEFAULT ';');",
        trigger,
        "/* x; */ SELECT 1",
    ]


@pytest.mark.parametrize("umask", ["0o000", "0o777"])
def test_files_are_private_whatever_the_umask(tmp_path: Path, run: Any, umask: str) -> None:
    code = PRELUDE + (
        f"os.umask({umask}); c = opened(args[0])\n"
        "print(sorted((p.name, oct(p.stat().st_mode)) for p in Path(args[0]).parent.iterdir()))"
    )
    kept = [(name, oct(stat.S_IFREG | 0o600)) for name in ("plane.db", "plane.db-shm", "plane.db-wal")]
    assert run(code, tmp_path / "plane.db") == str(kept)


def test_files_that_were_copied_readable_are_closed_to_others(path: Path) -> None:
    with closing(opened(path)):
        companions = [path, Path(f"{path}-wal"), Path(f"{path}-shm")]
        for name in companions:
            name.chmod(0o644)
        opened(path).close()
        assert [stat.S_IMODE(name.stat().st_mode) for name in companions] == [0o600] * 3


def test_names_that_mean_something_in_a_url_are_only_names(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory#%41 b.db"
    with closing(opened(path)):
        assert path.exists()


def test_opening_twice_in_one_process_drops_no_lock_of_the_first(path: Path, run: Any) -> None:
    # Closing any descriptor of the file would; then the other process, believing itself the last to
    # close it, would remove the WAL from under our feet.
    with closing(opened(path)) as first:
        with immediately(first):
            put(first, "mine")
        opened(path).close()
        run(PRELUDE + "opened(args[0]).close()", path)
        assert Path(f"{path}-wal").exists()
        with immediately(first):
            put(first, "more")
    with closing(opened(path)) as connection:
        assert names(connection) == ["mine", "more"]


def test_a_newer_database_is_refused_and_left_alone(path: Path) -> None:
    opened(path).close()
    before = path.read_bytes()
    with pytest.raises(FolderRefused, match="newer leaseplane"):
        opened(path, MIGRATIONS[:2])
    assert path.read_bytes() == before


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE t (a)")
    before = path.read_bytes()
    with pytest.raises(FolderRefused, match="another program"):
        opened(path)
    assert path.read_bytes() == before


def test_what_is_no_file_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(FolderRefused, match="not a regular file"):
        opened(path)


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(AuthorityUnavailable, match="does not exist"):
        opened(tmp_path / "gone" / "plane.db")


def test_what_is_no_database_is_said(path: Path) -> None:
    path.write_bytes(b"This is a letter to my aunt. " * 400)
    with pytest.raises(AuthorityUnavailable, match="damaged"):
        opened(path)


def test_a_damaged_database_is_said_and_works_again_when_restored(path: Path) -> None:
    with closing(opened(path)) as connection, immediately(connection):
        put(connection, "kept", 200_000)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with closing(opened(path)) as connection:
        with pytest.raises(AuthorityUnavailable, match="damaged"), immediately(connection):
            put(connection, "lost")
        assert not connection.in_transaction
    path.write_bytes(whole)
    with closing(opened(path)) as connection:
        assert names(connection) == ["kept"]


def test_a_database_that_cannot_be_written_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write whatever the mode bits say, so the kernel's answer is put in its mouth.
    opened(path).close()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(AuthorityUnavailable, match="read and written"):
        opened(path)


def test_turning_the_wal_on_waits_for_a_busy_file(path: Path) -> None:
    path.touch()
    with writing(path) as other:
        waiting = Waiting(at=3, act=lambda: other.execute("ROLLBACK"))
        opened(path, patience=waiting.patience).close()
    assert len(waiting.sleeps) >= 3


# -- transactions ------------------------------------------------------------------------------


def test_a_block_is_stored_as_a_whole_or_not_at_all(path: Path) -> None:
    with closing(opened(path)) as connection:
        with immediately(connection):
            put(connection, "a")
        with pytest.raises(ZeroDivisionError), immediately(connection):
            put(connection, "b")
            raise ZeroDivisionError
        with pytest.raises(KeyboardInterrupt), immediately(connection):
            put(connection, "c")
            raise KeyboardInterrupt
        assert names(connection) == ["a"]
        assert not connection.in_transaction


def test_a_mistake_in_our_own_sql_stays_what_it_is(path: Path) -> None:
    with closing(opened(path)) as connection:
        with pytest.raises(sqlite3.OperationalError, match="nowhere"), immediately(connection):
            connection.execute("INSERT INTO nowhere VALUES (1)")
        assert not connection.in_transaction


def test_try_begin_never_waits(path: Path) -> None:
    with closing(opened(path)) as connection:
        with writing(path):
            assert try_begin(connection) is False
            assert not connection.in_transaction
        assert try_begin(connection) is True
        put(connection, "a")
        commit(connection)
        assert try_begin(connection)
        put(connection, "b")
        roll_back(connection)
        roll_back(connection)
        assert names(connection) == ["a"]


def test_a_busy_database_is_retried_with_jitter_and_given_up_in_time(path: Path) -> None:
    with closing(opened(path)) as connection, writing(path):
        waiting = Waiting()
        with pytest.raises(DatabaseBusy, match="5000 ms"), immediately(connection, patience=waiting.patience):
            pytest.fail("the block ran without the lock")
        assert 5.0 <= sum(waiting.sleeps) < 5.01
        assert len(set(waiting.sleeps)) > 100
        assert all(0.5 <= sleep * 1_000 / BUSY_RETRY_MS <= 1.5 for sleep in waiting.sleeps)


def test_a_lock_that_is_let_go_is_taken(path: Path) -> None:
    with closing(opened(path)) as connection, writing(path) as other:
        letting_go = threading.Timer(0.02, lambda: other.execute("COMMIT"))
        letting_go.start()
        with immediately(connection):
            put(connection, "a")
        letting_go.join()
        assert names(connection) == ["a"]


def test_reading_is_patient_too(path: Path) -> None:
    with closing(opened(path)) as connection:
        answers = iter([failure(sqlite3.SQLITE_BUSY_RECOVERY), None])

        def read() -> list[str]:
            if (error := next(answers)) is not None:
                raise error
            return names(connection)

        waiting = Waiting()
        assert patiently(read, waiting.patience) == []
        assert len(waiting.sleeps) == 1


def test_killed_before_its_commit_nothing_stands_and_after_it_everything(path: Path, start: Any) -> None:
    code = PRELUDE + (
        "c = opened(args[0])\n"
        "with immediately(c): c.execute('INSERT INTO box VALUES (?, zeroblob(9000))', ('stands',))\n"
        "assert try_begin(c)\n"
        "c.execute('INSERT INTO box VALUES (?, zeroblob(9000))', ('falls',))\n"
        "print('there', flush=True); sys.stdin.readline()"
    )
    process = start(code, path)
    assert process.stdout.readline() == "there\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    with closing(opened(path)) as connection:
        assert names(connection) == ["stands"]
        with immediately(connection):
            put(connection, "goes on")


# -- the file under our feet -------------------------------------------------------------------


def test_a_file_that_is_gone_takes_no_more_writes(path: Path) -> None:
    with closing(opened(path)) as connection:
        path.rename(path.with_name("away"))
        with pytest.raises(DatabaseReplaced, match="is gone"):
            try_begin(connection)
        assert not connection.in_transaction
        path.with_name("away").rename(path)
        assert try_begin(connection)
        roll_back(connection)


def test_a_file_that_was_replaced_takes_no_more_writes(path: Path) -> None:
    with closing(opened(path)) as connection:
        for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            name.rename(name.with_name(f"old-{name.name}"))
        with closing(opened(path)) as other, immediately(other):
            put(other, "theirs")
        with pytest.raises(DatabaseReplaced, match="replaced"), immediately(connection):
            pytest.fail("the block ran on a file that nobody reads")


def test_a_forked_child_does_not_write_on_its_parents_connection(path: Path, run: Any) -> None:
    code = PRELUDE + (
        "c = opened(args[0])\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try: try_begin(c)\n"
        "    except DatabaseReplaced: os._exit(7)\n"
        "    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), try_begin(c))"
    )
    assert run(code, path) == "7 True"


# -- what the disk does to us ------------------------------------------------------------------


def test_a_full_disk_stores_nothing_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    with closing(opened(small_disk / "plane.db")) as connection:
        with immediately(connection):
            put(connection, "before")
        filler = small_disk / "filler"
        _fill(filler)
        # Small enough to stay in memory until COMMIT, and so to fail there.
        with pytest.raises(AuthorityUnavailable, match="nothing was stored"), immediately(connection):
            put(connection, "at commit", 50_000)
        assert names(connection) == ["before"]
        filler.unlink()
        # Too large for the cache, so that the disk is full before COMMIT.
        with pytest.raises(AuthorityUnavailable, match="full"), immediately(connection):
            put(connection, "too much", 50_000_000)
        assert names(connection) == ["before"]
        with immediately(connection):
            put(connection, "after")
    with closing(opened(small_disk / "plane.db")) as connection:
        assert names(connection) == ["before", "after"]


def test_a_full_disk_is_said_when_opening(small_disk: Path) -> None:
    _fill(small_disk / "filler")
    with pytest.raises(AuthorityUnavailable):
        opened(small_disk / "plane.db")
    (small_disk / "filler").unlink()
    opened(small_disk / "plane.db").close()


def test_a_checkpoint_that_fails_after_the_commit_is_no_failure_of_the_commit(small_disk: Path) -> None:
    with closing(opened(small_disk / "plane.db")) as connection:
        with immediately(connection):
            put(connection, "makes the WAL long", 300_000)
            connection.execute("DELETE FROM box")
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        with immediately(connection):
            put(connection, "first")
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        connection.execute("PRAGMA wal_autocheckpoint=1")
        size = (small_disk / "plane.db").stat().st_size
        _fill(small_disk / "filler")
        # It fits into the WAL, which is long already, but not into the database, which would grow.
        with immediately(connection):
            put(connection, "committed", 100_000)
        assert (small_disk / "plane.db").stat().st_size == size
        assert names(connection) == ["first", "committed"]


def test_a_write_error_at_commit_leaves_the_outcome_unknown(path: Path, run: Any) -> None:
    code = PRELUDE + (
        "import resource\n"
        "from leaseplane.model import OutcomeUnknown\n"
        "c = opened(args[0])\n"
        "size = os.stat(args[0] + '-wal').st_size\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))\n"
        "try:\n"
        "    with immediately(c): c.execute('INSERT INTO box VALUES (?, zeroblob(9000))', ('x',))\n"
        "except OutcomeUnknown as error: print('unknown', c.in_transaction)\n"
        "print(c.execute('SELECT count(*) FROM box').fetchone())"
    )
    assert run(code, path) == "unknown False\n(0,)"


@pytest.fixture
def broken_sync(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which syncing fails while there is a file named by BROKEN."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("making a disk's sync fail takes Linux and a C compiler")
    source, library = tmp_path / "broken.c", tmp_path / "broken.so"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <errno.h>\n"
        "#include <stdlib.h>\n#include <unistd.h>\n"
        "#define BREAK(NAME) int NAME(int fd) {\\\n"
        '  if (access(getenv("BROKEN"), F_OK) == 0) { errno = EIO; return -1; }\\\n'
        "  return ((int (*)(int))dlsym(RTLD_NEXT, #NAME))(fd); }\n"
        "BREAK(fsync)\nBREAK(fdatasync)\n"
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "BROKEN": str(tmp_path / "broken")}


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        ("os.kill(os.getpid(), 9)", ["before", "unknown"]),
        ("put('after'); os.kill(os.getpid(), 9)", ["before", "after"]),
    ],
)
def test_a_commit_whose_sync_failed_stands_after_a_crash_but_not_after_another_commit(
    path: Path, start: Any, broken_sync: dict[str, str], then: str, expected: list[str]
) -> None:
    code = PRELUDE + (
        "from leaseplane.model import OutcomeUnknown\n"
        "broken = Path(os.environ['BROKEN']); c = opened(args[0])\n"
        "def put(name):\n"
        "    with immediately(c): c.execute('INSERT INTO box VALUES (?, NULL)', (name,))\n"
        "put('before'); broken.touch()\n"
        "try: put('unknown')\n"
        "except OutcomeUnknown: print(c.execute('SELECT name FROM box').fetchall(), flush=True)\n"
        f"broken.unlink(); {then}"
    )
    process = start(code, path, **broken_sync)
    assert process.stdout.readline() == "[('before',)]\n"
    assert process.wait() == -signal.SIGKILL
    with closing(opened(path)) as connection:
        assert names(connection) == expected


def failure(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(f"code {code}")
    error.sqlite_errorcode = code
    return error


class FailingAtCommit:
    in_transaction = False

    def __init__(self, code: int) -> None:
        self.code = code

    def execute(self, statement: str) -> None:
        assert statement == "COMMIT"
        raise failure(self.code)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_FULL, AuthorityUnavailable),
        (sqlite3.SQLITE_BUSY, AuthorityUnavailable),
        (sqlite3.SQLITE_READONLY, AuthorityUnavailable),
        (sqlite3.SQLITE_READONLY_DBMOVED, AuthorityUnavailable),
        (sqlite3.SQLITE_IOERR_FSYNC, OutcomeUnknown),
        (sqlite3.SQLITE_IOERR_WRITE, OutcomeUnknown),
        (sqlite3.SQLITE_IOERR_SHMMAP, OutcomeUnknown),
        (sqlite3.SQLITE_NOMEM, OutcomeUnknown),
        (sqlite3.SQLITE_CORRUPT, OutcomeUnknown),
        (sqlite3.SQLITE_CANTOPEN, OutcomeUnknown),
    ],
)
def test_which_failure_of_commit_means_what(code: int, expected: type[Exception]) -> None:
    with pytest.raises(expected) as caught:
        commit(cast("sqlite3.Connection", FailingAtCommit(code)))
    assert type(caught.value) is expected


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB]
)
def test_before_commit_every_fault_of_the_disk_is_unavailability(path: Path, code: int) -> None:
    with closing(opened(path)) as connection, pytest.raises(AuthorityUnavailable), storage_faults(connection):
        raise failure(code)


def _fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            pass
