"""Several processes on one data folder: one grant at a time, wake-ups, the dead, and restarts."""

import asyncio
import multiprocessing
import os
import signal
import time
from contextlib import closing
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leaseplane.authority import decide
from leaseplane.authority.state import State
from leaseplane.calls import Answered
from leaseplane.clock import ManualClock, SystemClock
from leaseplane.engine import Authority
from leaseplane.limits import WAL_CHECKPOINT_PAGES, WAL_CHECKPOINT_PAGES_EMBEDDED
from leaseplane.model import (
    Acquire,
    Ask,
    Break,
    Broken,
    Command,
    Granted,
    Held,
    Pending,
    Principal,
    ReadTrust,
    Release,
    Released,
    RequestFacts,
)
from leaseplane.serving import Engine
from leaseplane.settings import Settings, read_settings
from leaseplane.store.folder import FolderRefused

SPAWN = multiprocessing.get_context("spawn")
ANYONE = Principal("local", "local", "test")
FACTS = RequestFacts("POST", "/api/v1/acp/coordination/lease", "0" * 64)


def settings_of(folder: Path, lease_ms: int | None = 1_000, **more: str) -> Settings:
    environ = {"LEASEPLANE_DATA": str(folder / "data")} | more
    return read_settings(environ if lease_ms is None else environ | {"LEASEPLANE_LEASE_MS": str(lease_ms)})


def ask_of(plane: Authority, command: Command, key: str | None = None) -> Ask:
    jti = os.urandom(12).hex()
    return Ask(ANYONE, command, jti, plane.new_request_id(), plane.presence.process_id, FACTS, key)


def asked(plane: Authority, command: Command) -> Any:
    ask = ask_of(plane, command)
    (result,) = plane.transact(lambda state: decide.decide(state, ask))
    return result if isinstance(result, Pending) else result.outcome


# -- twenty-four at once ---------------------------------------------------------------------------


def contend(folder: Path, number: int, rounds: int, together: Barrier, told: "Queue[Any]") -> None:
    actor = f"did:example:agent-{number}"
    with closing(Authority.open(settings_of(folder, 30_000), SystemClock())) as plane:
        for each in range(rounds):
            together.wait(60)
            outcome = asked(plane, Acquire("lock:r", actor))
            together.wait(60)
            if isinstance(outcome, Granted):
                told.put((each, "granted", actor))
                assert isinstance(asked(plane, Release("lock:r", actor)), Released)
            else:
                assert isinstance(outcome, Held) and outcome.holder is not None
                told.put((each, "held", outcome.holder.actor))
            together.wait(60)


def test_24_processes_ask_at_the_same_instant_and_each_time_one_is_granted(tmp_path: Path) -> None:
    """Case 1: one grant, 23 refusals that all name that holder, no error."""
    processes, rounds = 24, 200
    together = SPAWN.Barrier(processes)
    told = SPAWN.Queue()
    started = [
        SPAWN.Process(target=contend, args=(tmp_path, number, rounds, together, told), daemon=True)
        for number in range(processes)
    ]
    for process in started:
        process.start()
    answers = [told.get(timeout=60) for _ in range(processes * rounds)]
    for process in started:
        process.join(30)
        assert process.exitcode == 0
    for each in range(rounds):
        granted = [who for number, word, who in answers if number == each and word == "granted"]
        named = [who for number, word, who in answers if number == each and word == "held"]
        assert len(granted) == 1 and named == granted * (processes - 1), each


# -- hand-over between processes ---------------------------------------------------------------------


async def score_of(engine: Engine, actor: str) -> float:
    answer = await engine.ask(ANYONE, ReadTrust(actor), FACTS)
    score: float = msgspec.json.decode(answer.body)["score"]
    return score


async def parked_with(engine: Engine, actor: str) -> "asyncio.Task[Answered]":
    """A parked request of this engine; returns when its place is stored."""
    command = Acquire("lock:r", actor, max_wait_ms=20_000)
    waiting = asyncio.create_task(engine.ask(ANYONE, command, FACTS))
    before = engine.stats()["parked_now"]
    while engine.stats()["parked_now"] == before and not waiting.done():
        await asyncio.sleep(0.001)
    return waiting


def test_a_release_by_one_process_serves_the_request_that_another_keeps(tmp_path: Path) -> None:
    async def history() -> None:
        with (
            closing(Authority.open(settings_of(tmp_path, 30_000), SystemClock())) as keeper,
            closing(Authority.open(settings_of(tmp_path, 30_000), SystemClock())) as other,
        ):
            engine = Engine(keeper)
            await engine.start()
            assert isinstance(asked(other, Acquire("lock:r", "did:example:a")), Granted)
            waiting = await parked_with(engine, "did:example:b")
            assert isinstance(asked(other, Release("lock:r", "did:example:a")), Released)
            answer = await asyncio.wait_for(waiting, 2)
            assert answer.status == 200 and b'"holder":"did:example:b"' in answer.body
            # And it was marked: the keeper's death takes nothing back.
            await engine.stop()
            other.transact(partial(other.bury, {keeper.presence.process_id}))
            held = asked(other, Acquire("lock:r", "did:example:c"))
            assert isinstance(held, Held) and held.holder is not None
            assert held.holder.actor == "did:example:b"

    asyncio.run(history())


def test_a_break_names_its_reason_and_the_parked_one_is_served(tmp_path: Path) -> None:
    async def history() -> None:
        with (
            closing(Authority.open(settings_of(tmp_path, 30_000), SystemClock())) as keeper,
            closing(Authority.open(settings_of(tmp_path, 30_000), SystemClock())) as operator,
        ):
            engine = Engine(keeper)
            await engine.start()
            assert (await engine.ask(ANYONE, Acquire("lock:r", "did:example:a"), FACTS)).status == 200
            waiting = await parked_with(engine, "did:example:b")
            broken = asked(operator, Break("lock:r", "stuck"))
            assert isinstance(broken, Broken) and broken.reason == "stuck"
            assert (await asyncio.wait_for(waiting, 2)).status == 200
            events = [event for _, event in operator.store.outbox(0, 100)]
            assert [b"coordination.break" in event for event in events] == [False, True, False]
            await engine.stop()

    asyncio.run(history())


# -- the dead ------------------------------------------------------------------------------------------


def keep_parked(folder: Path, ready: Any) -> None:
    async def keep() -> None:
        plane = Authority.open(settings_of(folder, 30_000), SystemClock())
        engine = Engine(plane)
        await engine.start()
        await parked_with(engine, "did:example:dead")
        ready.set()
        await asyncio.sleep(60)

    asyncio.run(keep())


@pytest.mark.parametrize("alive", [True, False], ids=["found by a running process", "found on opening"])
def test_a_killed_process_gives_its_places_up(tmp_path: Path, alive: bool) -> None:
    """Case 19: the parked caller's process is killed; its place is gone within a second."""

    async def history() -> None:
        ready = SPAWN.Event()
        process = SPAWN.Process(target=keep_parked, args=(tmp_path, ready), daemon=True)
        plane = Authority.open(settings_of(tmp_path, 30_000), SystemClock())
        engine = Engine(plane)
        await engine.start()
        assert (await engine.ask(ANYONE, Acquire("lock:r", "did:example:a"), FACTS)).status == 200
        process.start()
        assert await asyncio.to_thread(ready.wait, 30)
        second = await parked_with(engine, "did:example:b") if alive else None
        if not alive:
            await engine.stop()
            plane.close()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(10)
        killed_s = time.monotonic()
        if not alive:
            plane = Authority.open(settings_of(tmp_path, 30_000), SystemClock())
            assert plane.store.parking_processes() == set()
            plane.close()
            return
        assert second is not None
        while len(plane.store.parking_processes()) > 1:
            assert time.monotonic() - killed_s < 1.0
            await asyncio.sleep(0.01)
        assert (await engine.ask(ANYONE, Release("lock:r", "did:example:a"), FACTS)).status == 200
        answer = await asyncio.wait_for(second, 2)
        assert b'"holder":"did:example:b"' in answer.body
        assert await score_of(engine, "did:example:dead") == 50
        await engine.stop()
        plane.close()

    asyncio.run(history())


def test_a_hand_over_to_a_process_that_dies_before_the_mark_passes_on(tmp_path: Path) -> None:
    """Case 19, at the very moment: the lease goes to the next, and no trust moves."""
    with (
        closing(Authority.open(settings_of(tmp_path, 30_000), SystemClock())) as survivor,
        closing(Authority.open(settings_of(tmp_path, 30_000), SystemClock())) as doomed,
    ):
        assert isinstance(asked(survivor, Acquire("lock:r", "did:example:a")), Granted)
        assert isinstance(asked(doomed, Acquire("lock:r", "did:example:b", max_wait_ms=10_000)), Pending)
        assert isinstance(asked(survivor, Acquire("lock:r", "did:example:c", max_wait_ms=10_000)), Pending)
        assert isinstance(asked(survivor, Release("lock:r", "did:example:a")), Released)
        # Handed to b, whose process takes no notice any more.
        doomed.presence.close()
        doomed_id = doomed.presence.process_id
        assert survivor.presence.dead({doomed_id}) == {doomed_id}
        deliveries: list[Any] = []
        survivor.transact(partial(survivor.bury, {doomed_id}), deliveries=deliveries)
        assert [type(delivery.reply.outcome) for delivery in deliveries] == [Granted]
        assert deliveries[0].reply.outcome.lease.holder.actor == "did:example:c"
        assert asked(survivor, ReadTrust("did:example:b")).trust.halves == 100


@pytest.mark.parametrize("load", [0, 1, 8])
def test_the_dead_are_found_also_while_one_transaction_follows_the_other(tmp_path: Path, load: int) -> None:
    """Within a second, whether the engine is ever idle or not; also one that closed and kept something."""

    async def history() -> None:
        plane = Authority.open(settings_of(tmp_path, 30_000), SystemClock())
        doomed = Authority.open(settings_of(tmp_path, 30_000), SystemClock())
        engine = Engine(plane)
        await engine.start()
        assert isinstance(asked(plane, Acquire("lock:r", "did:example:a")), Granted)
        assert isinstance(asked(doomed, Acquire("lock:r", "did:example:b", max_wait_ms=60_000)), Pending)

        async def ask_all_the_time(number: int) -> None:
            while True:
                await engine.ask(ANYONE, Acquire(f"lock:{number}", "did:example:c"), FACTS)

        asking = [asyncio.create_task(ask_all_the_time(number)) for number in range(load)]
        await asyncio.sleep(0.1)
        doomed.close()
        closed_s = time.monotonic()
        while plane.store.parking_processes():
            assert time.monotonic() - closed_s < 1.0
            await asyncio.sleep(0.01)
        for each in asking:
            each.cancel()
        await engine.stop()
        assert plane.presence.others() == set()
        plane.close()

    asyncio.run(history())


# -- the alarm -----------------------------------------------------------------------------------------


def test_the_alarm_reclaims_on_time_unasked_once_and_never_early(tmp_path: Path) -> None:
    async def history() -> None:
        clock = SystemClock()
        with closing(Authority.open(settings_of(tmp_path), clock)) as plane:
            engine = Engine(plane)
            await engine.start()
            began_ms = clock.now().boot_ms
            assert (await engine.ask(ANYONE, Acquire("lock:r", "did:example:a"), FACTS)).status == 200
            granted_ms = clock.now().boot_ms
            while len(plane.store.outbox(0, 10)) < 2:
                await asyncio.sleep(0.005)
                assert clock.now().boot_ms - granted_ms < 1_250
            assert clock.now().boot_ms - began_ms >= 1_000
            await asyncio.sleep(0.5)
            kinds = [event for _, event in plane.store.outbox(0, 10)]
            assert len(kinds) == 2 and b"coordination.expiry" in kinds[1]
            trust = await engine.ask(ANYONE, ReadTrust("did:example:a"), FACTS)
            assert b'"score":45' in trust.body and b'"expired":1' in trust.body
            await engine.stop()

    asyncio.run(history())


def test_every_open_process_runs_the_alarm_and_it_takes_back_once(tmp_path: Path) -> None:
    async def history() -> None:
        planes = [Authority.open(settings_of(tmp_path), SystemClock()) for _ in range(3)]
        engines = [Engine(plane) for plane in planes]
        for engine in engines:
            await engine.start()
        answers = [
            await engines[number % 3].ask(ANYONE, Acquire(f"lock:{number}", "did:example:a"), FACTS)
            for number in range(9)
        ]
        assert {answer.status for answer in answers} == {200}
        await asyncio.sleep(1.4)
        events = [event for _, event in planes[0].store.outbox(0, 100)]
        assert sum(b"coordination.expiry" in event for event in events) == 9
        assert await score_of(engines[1], "did:example:a") == 50 - 9 * 5
        for engine, plane in zip(engines, planes, strict=True):
            await engine.stop()
            plane.close()

    asyncio.run(history())


def test_time_runs_on_while_no_process_is_open(tmp_path: Path) -> None:
    """Case 31: stopped for 20 s of 30, 10 s remain; stopped for longer, it is reclaimed at once, once."""
    clock = ManualClock(1_000_000, 1_790_000_000_000)
    settings = settings_of(tmp_path, 30_000)
    with closing(Authority.open(settings, clock)) as plane:
        assert isinstance(asked(plane, Acquire("lock:r", "did:example:a")), Granted)
    clock.advance(20_000)
    with closing(Authority.open(settings, clock)) as plane:
        held = asked(plane, Acquire("lock:r", "did:example:b"))
        assert isinstance(held, Held) and held.expires_wall_ms == 1_790_000_030_000
    clock.advance(9_999)
    with closing(Authority.open(settings, clock)) as plane:
        assert isinstance(asked(plane, Acquire("lock:r", "did:example:b")), Held)
    clock.advance(1)
    for _ in range(2):
        with closing(Authority.open(settings, clock)) as plane:
            trust = asked(plane, ReadTrust("did:example:a")).trust
            assert (trust.halves, trust.expired) == (90, 1)


@pytest.mark.parametrize("boot_ms", [0, 90_000_000], ids=["its clock is behind", "its clock is ahead"])
def test_after_a_restart_of_the_machine_a_lease_gets_its_full_term_once(tmp_path: Path, boot_ms: int) -> None:
    """Case 31, and a folder that was copied to another machine, whose clock may be anywhere."""
    settings = settings_of(tmp_path, 30_000)
    with closing(Authority.open(settings, ManualClock(1_000_000, 1_790_000_000_000, "one"))) as plane:
        assert isinstance(asked(plane, Acquire("lock:r", "did:example:a")), Granted)
        assert isinstance(asked(plane, Acquire("lock:r", "did:example:b")), Held)
    clock = ManualClock(boot_ms, 1_790_000_100_000, "two")
    with closing(Authority.open(settings, clock)) as plane:
        held = asked(plane, Acquire("lock:r", "did:example:c"))
        assert isinstance(held, Held) and held.position == 2
        assert held.expires_wall_ms == 1_790_000_130_000
    clock.advance(20_000)
    with closing(Authority.open(settings, clock)) as plane:
        clock.advance(9_999)
        assert isinstance(asked(plane, Acquire("lock:r", "did:example:c")), Held)
        clock.advance(1)
        assert asked(plane, ReadTrust("did:example:a")).trust.expired == 1


def test_fences_do_not_fall_back_when_the_folder_is_restored_or_the_clock_is_set_back(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, 30_000)
    clock = ManualClock(1_000_000, 1_790_000_000_000)
    database = tmp_path / "data" / "plane.db"
    with closing(Authority.open(settings, clock)) as plane:
        first = asked(plane, Acquire("lock:r", "did:example:a")).lease
    backup = database.read_bytes()
    with closing(Authority.open(settings, clock)) as plane:
        asked(plane, Release("lock:r", "did:example:a"))
        clock.step_wall(-3_600_000)
        second = asked(plane, Acquire("lock:r", "did:example:a")).lease
        assert second.fence > first.fence
        clock.step_wall(3_600_000 + 5)
        for number in range(3_000):
            second = asked(plane, Acquire(f"lock:{number}", "did:example:a")).lease
        clock.advance(10)
    for name in ("plane.db-wal", "plane.db-shm"):
        (tmp_path / "data" / name).unlink(missing_ok=True)
    database.write_bytes(backup)
    with closing(Authority.open(settings, clock)) as plane:
        third = asked(plane, Acquire("lock:other", "did:example:a")).lease
        assert third.fence > second.fence and third.lease_id not in (first.lease_id, second.lease_id)


# -- what is fixed for a folder --------------------------------------------------------------------------


def test_a_folder_made_with_another_lease_length_is_refused_saying_both(tmp_path: Path) -> None:
    Authority.open(settings_of(tmp_path, 2_000), SystemClock()).close()
    Authority.open(settings_of(tmp_path, None), SystemClock()).close()
    with pytest.raises(FolderRefused, match=r"2000 ms.*says 3000"):
        Authority.open(settings_of(tmp_path, 3_000), SystemClock())


def test_the_server_sets_the_classes_and_the_cap_for_all(tmp_path: Path) -> None:
    read = Acquire("wiki:home", "did:example:a", access="read")
    with closing(Authority.open(settings_of(tmp_path, None), SystemClock())) as embedded:
        assert isinstance(asked(embedded, read), Granted)
        assert isinstance(asked(embedded, Acquire("wiki:home", "did:example:b", access="read")), Held)
        with pytest.raises(FolderRefused, match="LEASEPLANE_SHARED_READ"):
            Authority.open(settings_of(tmp_path, None, LEASEPLANE_SHARED_READ="wiki"), SystemClock())
        governing = settings_of(tmp_path, None, LEASEPLANE_SHARED_READ="wiki,file")
        with closing(Authority.open(governing, SystemClock(), governs=True)):
            # The process that was open before goes by it from its next transaction on.
            assert isinstance(asked(embedded, Acquire("wiki:home", "did:example:b", access="read")), Granted)


def test_the_operators_cap_ends_a_holding_that_is_renewed(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000, 1_790_000_000_000)
    settings = settings_of(tmp_path, 30_000, LEASEPLANE_HOLD_MS_MAX="45000")
    with closing(Authority.open(settings, clock, governs=True)) as plane:
        asked(plane, Acquire("lock:r", "did:example:a"))
        clock.advance(29_000)
        renewed = asked(plane, Acquire("lock:r", "did:example:a"))
        assert renewed.renewed and renewed.lease.expires_wall_ms == 1_790_000_045_000
        clock.advance(16_000)
        assert isinstance(asked(plane, Acquire("lock:r", "did:example:b")), Granted)


def test_a_cap_that_is_lowered_does_not_bring_an_end_forward(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000, 1_790_000_000_000)
    with closing(Authority.open(settings_of(tmp_path, 30_000), clock)) as plane:
        asked(plane, Acquire("lock:r", "did:example:a"))
        for _ in range(2):
            clock.advance(29_000)
            asked(plane, Acquire("lock:r", "did:example:a"))
        lower = settings_of(tmp_path, 30_000, LEASEPLANE_HOLD_MS_MAX="30000")
        with closing(Authority.open(lower, clock, governs=True)):
            clock.advance(1_000)
            renewed = asked(plane, Acquire("lock:r", "did:example:a"))
            assert renewed.lease.expires_wall_ms == 1_790_000_000_000 + 58_000 + 30_000
            clock.advance(28_999)
            assert isinstance(asked(plane, Acquire("lock:r", "did:example:b")), Held)
            clock.advance(1)
            assert isinstance(asked(plane, Acquire("lock:r", "did:example:b")), Granted)


# -- a fault of one request ------------------------------------------------------------------------------


def test_a_request_that_breaks_off_its_transaction_takes_no_other_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Unheard(Exception):
        pass

    def explode(state: State) -> None:
        raise Unheard

    async def history() -> None:
        with closing(Authority.open(settings_of(tmp_path, 30_000), SystemClock())) as plane:
            engine = Engine(plane)
            await engine.start()
            faulty = asyncio.create_task(engine.do(explode))
            asks = [
                asyncio.create_task(engine.ask(ANYONE, Acquire(f"lock:{each}", "did:example:a"), FACTS))
                for each in range(5)
            ]
            with pytest.raises(Unheard):
                await faulty
            assert [(await ask).status for ask in asks] == [200] * 5
            await engine.stop()

    asyncio.run(history())
    assert "broke off its transaction" in caplog.text


def test_who_serves_nobody_keeps_a_short_wal(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, 30_000)
    with (
        closing(Authority.open(settings, SystemClock(), governs=True)) as server,
        closing(Authority.open(settings, SystemClock())) as program,
    ):
        assert checkpoint_pages(server) == WAL_CHECKPOINT_PAGES
        assert checkpoint_pages(program) == WAL_CHECKPOINT_PAGES_EMBEDDED
        program.store.reopen()
        assert checkpoint_pages(program) == WAL_CHECKPOINT_PAGES_EMBEDDED


def checkpoint_pages(plane: Authority) -> int:
    (pages,) = plane.store._connection.execute("PRAGMA wal_autocheckpoint").fetchone()
    return int(pages)
