"""Case 37: what the disk does to a running plane. A clear error, nothing granted, nothing lost, and it
goes on when the cause is gone."""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest

from leaseplane.calls import Answered
from leaseplane.clock import SystemClock
from leaseplane.engine import Authority
from leaseplane.limits import ALARM_RECHECK_MS, PROCESS_RECHECK_MS
from leaseplane.model import Acquire, AuthorityUnavailable, OutcomeUnknown, Principal, Release, RequestFacts
from leaseplane.serving import Engine
from leaseplane.settings import read_settings

ANYONE = Principal("local", "local", "test")
FACTS = RequestFacts("POST", "/api/v1/acp/coordination/lease", "0" * 64)


def plane_in(folder: Path) -> Authority:
    settings = read_settings({"LEASEPLANE_DATA": str(folder), "LEASEPLANE_LEASE_MS": "30000"})
    return Authority.open(settings, SystemClock())


async def acquired(engine: Engine, resource: str, actor: str = "did:example:a") -> Answered:
    return await engine.ask(ANYONE, Acquire(resource, actor), FACTS)


async def until_ready(engine: Engine) -> None:
    for _ in range(50):
        try:
            engine.ready()
        except AuthorityUnavailable:
            await asyncio.sleep(ALARM_RECHECK_MS / 1000)
        else:
            return
    engine.ready()


def move(of: Path, to: Path) -> None:
    """The database and its companions."""
    for name in ("plane.db", "plane.db-wal", "plane.db-shm"):
        if (of / name).exists():
            (of / name).replace(to / name)


def play(folder: Path, history: Callable[[Engine], Awaitable[None]]) -> None:
    async def run() -> None:
        with closing(plane_in(folder)) as plane:
            engine = Engine(plane)
            await engine.start()
            await history(engine)
            await engine.stop()

    asyncio.run(run())


def test_the_folder_is_moved_away_and_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def history(engine: Engine) -> None:
        assert (await acquired(engine, "lock:before")).status == 200
        (tmp_path / "data").rename(tmp_path / "away")
        for _ in range(3):
            with pytest.raises(AuthorityUnavailable, match="is gone"):
                await acquired(engine, "lock:during")
        with pytest.raises(AuthorityUnavailable, match="is gone"):
            engine.ready()
        (tmp_path / "away").rename(tmp_path / "data")
        await until_ready(engine)
        held = await acquired(engine, "lock:before", "did:example:b")
        assert held.status == 409 and b'"holder":"did:example:a"' in held.body
        assert (await acquired(engine, "lock:during", "did:example:b")).status == 200

    play(tmp_path / "data", history)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2, "once when it begins, once when it is over"
    assert "does not answer" in told[0] and "is gone" in told[0] and "answers again" in told[1]


def test_a_folder_that_was_removed_is_not_made_anew_under_a_running_plane(tmp_path: Path) -> None:
    async def history(engine: Engine) -> None:
        assert (await acquired(engine, "lock:r")).status == 200
        shutil.rmtree(tmp_path / "data")
        with pytest.raises(AuthorityUnavailable):
            await acquired(engine, "lock:r", "did:example:b")
        await asyncio.sleep(3 * ALARM_RECHECK_MS / 1000)
        with pytest.raises(AuthorityUnavailable):
            engine.ready()
        assert not (tmp_path / "data").exists(), "a new plane would be a second authority"

    play(tmp_path / "data", history)


@pytest.mark.parametrize("content", [b"no database at all" * 1_000, b""], ids=["damaged", "empty"])
def test_another_file_in_place_of_the_plane_is_not_the_end_of_it(tmp_path: Path, content: bytes) -> None:
    async def history(engine: Engine) -> None:
        data, away = tmp_path / "data", tmp_path / "away"
        assert (await acquired(engine, "lock:r")).status == 200
        data.rename(away)
        data.mkdir(mode=0o700)
        (data / "plane.db").write_bytes(content)
        for _ in range(3):
            with pytest.raises(AuthorityUnavailable):
                await acquired(engine, "lock:r", "did:example:b")
            await asyncio.sleep(1.5 * ALARM_RECHECK_MS / 1000)
        assert (data / "plane.db").read_bytes() == content, "a new plane would be a second authority"
        shutil.rmtree(data)
        away.rename(data)
        await until_ready(engine)
        held = await acquired(engine, "lock:r", "did:example:b")
        assert held.status == 409 and b'"holder":"did:example:a"' in held.body

    play(tmp_path / "data", history)


def test_a_damaged_file_grants_nothing(tmp_path: Path) -> None:
    database = tmp_path / "data" / "plane.db"
    with closing(plane_in(tmp_path / "data")):
        pass
    good = database.read_bytes()
    database.write_bytes(good[:100] + b"\xff" * (len(good) - 100))
    with pytest.raises(AuthorityUnavailable, match=r"damaged.*restore it from a backup"):
        plane_in(tmp_path / "data")
    database.write_bytes(good)
    plane_in(tmp_path / "data").close()


def test_a_damaged_file_in_place_of_ours_is_not_the_end_of_the_plane(tmp_path: Path) -> None:
    """Something else lies there for a while, a copy that is not complete for instance."""
    database = tmp_path / "data" / "plane.db"

    async def history(engine: Engine) -> None:
        assert (await acquired(engine, "lock:r")).status == 200
        for wrong in (b"", b"x" * 8192):
            move(tmp_path / "data", tmp_path)
            database.write_bytes(wrong)
            with pytest.raises(AuthorityUnavailable):
                await acquired(engine, "lock:r", "did:example:b")
            await asyncio.sleep(2 * ALARM_RECHECK_MS / 1000)
            with pytest.raises(AuthorityUnavailable):
                await acquired(engine, "lock:r", "did:example:b")
            assert database.read_bytes() == wrong, "nothing is made of it"
            move(tmp_path, tmp_path / "data")
            await until_ready(engine)
            held = await acquired(engine, "lock:r", "did:example:b")
            assert held.status == 409 and b'"holder":"did:example:a"' in held.body

    play(tmp_path / "data", history)


def test_who_is_parked_when_a_backup_is_put_in_place_is_answered(tmp_path: Path) -> None:
    database = tmp_path / "data" / "plane.db"
    with closing(plane_in(tmp_path / "data")):
        pass
    backup = database.read_bytes()

    async def history(engine: Engine) -> None:
        assert (await acquired(engine, "lock:r")).status == 200
        command = Acquire("lock:r", "did:example:b", max_wait_ms=60_000)
        parked = asyncio.create_task(engine.ask(ANYONE, command, FACTS))
        while not engine.stats()["parked_now"]:
            await asyncio.sleep(0.001)
        move(tmp_path / "data", tmp_path)
        (tmp_path / "backup").write_bytes(backup)
        (tmp_path / "backup").rename(database)
        with pytest.raises(AuthorityUnavailable):
            await acquired(engine, "lock:other")
        answer = await asyncio.wait_for(parked, 5)
        assert answer.status == 200 and b'"holder":"did:example:b"' in answer.body

    play(tmp_path / "data", history)


def test_a_hand_over_whose_caller_left_while_its_mark_failed_is_undone(tmp_path: Path) -> None:
    async def history() -> None:
        with closing(plane_in(tmp_path / "data")) as plane:
            engine = Engine(plane)
            await engine.start()
            assert (await acquired(engine, "lock:r")).status == 200
            command = Acquire("lock:r", "did:example:b", max_wait_ms=60_000)
            parked = asyncio.create_task(engine.ask(ANYONE, command, FACTS))
            while not engine.stats()["parked_now"]:
                await asyncio.sleep(0.001)
            loop, commit, commits = asyncio.get_running_loop(), plane.store.commit, 0

            def failing_at_the_mark() -> None:
                nonlocal commits
                commits += 1
                if commits != 2:
                    commit()
                    return
                loop.call_soon_threadsafe(parked.cancel)
                time.sleep(0.05)
                raise AuthorityUnavailable("nothing was stored")

            with patch.object(plane.store, "commit", failing_at_the_mark):
                release = Release("lock:r", "did:example:a")
                assert (await engine.ask(ANYONE, release, FACTS)).status == 200
                with pytest.raises(asyncio.CancelledError):
                    await parked
                await asyncio.sleep(2 * PROCESS_RECHECK_MS / 1000)
            free = await acquired(engine, "lock:r", "did:example:c")
            assert free.status == 200
            await engine.stop()

    asyncio.run(history())


def test_a_full_disk_grants_nothing_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    filler = small_disk / "filler"

    async def history(engine: Engine) -> None:
        assert (await acquired(engine, "lock:before")).status == 200
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        refused = 0
        for number in range(200):
            try:
                assert (await acquired(engine, f"lock:{number}")).status == 200
            except (AuthorityUnavailable, OutcomeUnknown):
                refused += 1
                break
        assert refused, "the disk was not full"
        filler.unlink()
        await until_ready(engine)
        again = await acquired(engine, f"lock:{number}", "did:example:b")
        assert again.status == 200, "what was refused was not granted in secret"
        held = await acquired(engine, "lock:before", "did:example:b")
        assert held.status == 409 and b'"holder":"did:example:a"' in held.body

    play(small_disk / "data", history)
