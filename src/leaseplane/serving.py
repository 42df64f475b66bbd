"""The engine on an event loop: many callers, one transaction at a time, parked requests, the alarm.

What is waiting when a transaction begins is decided in it together (group commit). The commit's
sync to disk runs on a thread; meanwhile the loop signs the receipts of what was just decided and
reads the next requests. No answer leaves before its commit is known to stand.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from leaseplane.calls import Answered, Call, Dismiss, Done, Item, TakeDeliveries
from leaseplane.chance import jitter
from leaseplane.desk import Desk
from leaseplane.engine import Authority, Decided, Work
from leaseplane.limits import (
    ALARM_RECHECK_MS,
    BATCH_ASKS_MAX,
    BUSY_GIVE_UP_MS,
    BUSY_RETRY_MS,
    PROCESS_RECHECK_MS,
)
from leaseplane.model import AuthorityUnavailable, Command, Principal, RequestFacts
from leaseplane.store.database import DatabaseBusy

_log = logging.getLogger(__name__)


class Engine(Desk):
    """Answers asks against a plane, on one event loop. Make it on the loop, with `start`."""

    def __init__(
        self,
        plane: Authority,
        *,
        random_bytes: Callable[[int], bytes] = os.urandom,
        jitter: Callable[[], float] = jitter,
    ) -> None:
        super().__init__(plane, random_bytes)
        self._jitter = jitter
        self._loop: asyncio.AbstractEventLoop
        self._committer = ThreadPoolExecutor(1, "leaseplane-commit")
        self._one_by_one = 0
        self._path: Generator[Decided | None, None, Decided] | None = None
        self._batch: list[Item] = []
        self._busy_since: float | None = None
        self._scheduled = False
        self._open_calls = 0
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()

    # -- what callers see ----------------------------------------------------------------------

    async def ask(
        self,
        principal: Principal,
        command: Command,
        request: RequestFacts,
        idempotency_key: str | None = None,
    ) -> Answered:
        """The answer to one command, once it stands; parked where `max_wait_ms` asks for it.

        Cancelling the awaiting task says that the caller hung up: an ask that is not decided yet is
        dropped, a parked one withdrawn, a hand-over that has not been marked is undone.

        Raises `AuthorityUnavailable` (nothing was granted) and `OutcomeUnknown`.
        """
        if self._closed:
            raise AuthorityUnavailable("the plane is being stopped; ask again in a moment")
        ask = self._ask_of(principal, command, request, idempotency_key)
        future: asyncio.Future[Answered] = self._loop.create_future()
        call = Call(self, ask, future)
        self._open_calls += 1
        self._counted["asked"] += 1
        self.put(call)
        try:
            return await future
        except asyncio.CancelledError:
            call.hang_up()
            raise
        finally:
            self._open_calls -= 1

    def ready(self) -> None:
        """Raises `AuthorityUnavailable` while the store does not answer."""
        if self._closed:
            raise AuthorityUnavailable("the plane is being stopped")
        if self._fault is not None:
            raise AuthorityUnavailable(str(self._fault)) from self._fault

    def stats(self) -> dict[str, int]:
        """Counts since the start, and how many requests are open and parked now."""
        return {
            **super().stats(),
            "open_now": self._open_calls,
            "waiting_for_a_transaction_now": len(self._items),
        }

    async def do(self, work: Work) -> Any:
        """Do one work in the next transaction; its result, once the commit stands. Raises what it raises."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.put(Done(work, future))
        return await future

    async def run_alarm(self) -> None:
        """Let what is due happen now, with all that follows from it. The timer does so by itself; this is
        for a caller whose clock is not the machine's."""
        await self.do(lambda state: None)
        if self._items or self._path is not None:
            await self.run_alarm()

    # -- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to answer, to run the alarm, and to hear wake-ups from other processes."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._plane.presence.fileno(), self._woken)
        self._alarm_boot_ms = self._plane.clock.now().boot_ms
        self._look()

    async def stop(self) -> None:
        """Answer the parked requests as if their time were over, finish what is under way, and stop."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        dismissed: set[Call] = set()
        while True:
            # Looked at again after each round: what was asked just before may be parked only now.
            still_parked = set(self._parked.values()) - dismissed
            for call in still_parked:
                dismissed.add(call)
                self.put(Dismiss(call))
            if still_parked:
                # Others may have decided about them before, and their wake-up be still on its way.
                self.put(TakeDeliveries(self, self._plane))
            if not self._items and self._path is None:
                break
            self._idle.clear()
            await self._idle.wait()
        for call in self._parked.values():
            call.failed(AuthorityUnavailable("the plane is being stopped"))
        self._parked.clear()
        self._loop.remove_reader(self._plane.presence.fileno())
        self._committer.shutdown()

    # -- transactions --------------------------------------------------------------------------

    def put(self, item: Item) -> None:
        """For the next transaction."""
        self._items.append(item)
        self._wake_up()

    def _wake_up(self) -> None:
        if self._path is None and not self._scheduled:
            self._scheduled = True
            # After this turn of the loop, so that all that has arrived by then shares one commit.
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        if self._path is not None:
            return
        most = 1 if self._one_by_one else BATCH_ASKS_MAX
        self._batch = []
        while self._items and len(self._batch) < most:
            item = self._items.popleft()
            if not (isinstance(item, Call) and item.is_dropped):
                self._batch.append(item)
        self._one_by_one = max(0, self._one_by_one - 1)
        self._keys_are_current = False
        self._path = self._plane.commit_path([item.work for item in self._batch])
        self._busy_since = None
        self._go_on()

    def _go_on(self, error: BaseException | None = None) -> None:
        """Take the commit path to where it next has to wait."""
        path = self._path
        assert path is not None
        try:
            step = next(path) if error is None else path.throw(error)
        except StopIteration as stop:
            self._finish(stop.value)
            return
        except Exception as raised:
            self._fail(raised)
            return
        if step is None:
            self._counted["busy_retries"] += 1
            now_s = self._loop.time()
            self._busy_since = now_s if self._busy_since is None else self._busy_since
            if (now_s - self._busy_since) * 1000 > BUSY_GIVE_UP_MS:
                path.close()
                self._fail(DatabaseBusy("other processes keep the database busy; nothing was changed"))
            else:
                self._loop.call_later(BUSY_RETRY_MS * (0.5 + self._jitter()) / 1000, self._go_on)
            return
        commit = self._committer.submit(self._plane.store.commit)
        commit.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._go_on, done.exception()))
        # While the disk syncs: write and sign the answers that will go out if the commit stands.
        for item, result in zip(self._batch, step.results, strict=False):
            item.decided(result)

    def _finish(self, decided: Decided) -> None:
        """The commit stands."""
        batch, self._batch, self._path = self._batch, [], None
        self._fault_is_over()
        self._counted["transactions"] += 1
        self._alarm_boot_ms = decided.alarm_boot_ms
        if decided.settled:
            self._counted["works"] += len(batch)
            for item, result in zip(batch, decided.results, strict=True):
                item.stands(result)
        else:
            # So much was due that nothing else was done; what was asked comes next.
            self._items.extendleft(reversed(batch))
            self._wake_up()
        for delivery in decided.deliveries:
            self.deliver(delivery)
        self._after_transaction()

    def _fail(self, error: Exception) -> None:
        batch, self._batch, self._path = self._batch, [], None
        self._one_by_one += self._failed(batch, error)
        self._after_transaction()

    def _after_transaction(self) -> None:
        if not self._closed and self.now_boot_ms() - self._looked_boot_ms >= ALARM_RECHECK_MS:
            # While one transaction follows the other, the timer never finds the engine idle.
            self._look_around()
        if self._items:
            self._wake_up()
        else:
            self._idle.set()
        self._set_timer()

    # -- the alarm, and other processes ---------------------------------------------------------

    def put_later(self, item: Item) -> None:
        """For a transaction when the store answers again; not while stopping, when others take over."""

        def put_now() -> None:
            if not self._closed:
                self.put(item)

        if not self._closed:
            self._loop.call_later(PROCESS_RECHECK_MS / 1000, put_now)

    def _woken(self) -> None:
        """Another process has decided something about requests that we keep."""
        self._plane.presence.drain()
        self.put(TakeDeliveries(self, self._plane))

    def _tell(self, message: str, error: Exception | None = None) -> None:
        _log.log(logging.WARNING if error is None else logging.ERROR, "%s", message, exc_info=error)

    def _set_timer(self) -> None:
        if self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        wait_ms: float = ALARM_RECHECK_MS
        if self._alarm_boot_ms is not None and self._fault is None:
            wait_ms = min(wait_ms, self._alarm_boot_ms - self._plane.clock.now().boot_ms)
        self._timer = self._loop.call_later(max(wait_ms, 1) / 1000, self._look)

    def _look(self) -> None:
        """Look whether anything is due, or anyone has died. Only reads; a transaction does what is due."""
        if self._closed or self._path is not None or self._scheduled:
            # The transaction that is under way settles what is due, and sets the timer again.
            return
        if not self._look_around():
            self._set_timer()
            return
        if self._is_due:
            self._wake_up()
        else:
            self._set_timer()
