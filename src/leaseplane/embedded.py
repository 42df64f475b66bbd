"""The engine for threads: callers who may block, on a data folder and with no server.

Whoever asks takes the turn and runs the transaction itself, with everything that other threads have put
in meanwhile (group commit). One thread of the engine's own runs the alarm, hears the wake-ups of other
processes, and looks for the dead: every process that has a folder open does.
"""

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

from leaseplane.calls import Answered, Call, Done, Item, TakeDeliveries
from leaseplane.desk import Desk
from leaseplane.engine import Authority, Work
from leaseplane.limits import (
    ALARM_RECHECK_MS,
    ALARM_STAGGER_MS,
    ALARM_STAGGER_MS_MAX,
    BATCH_ASKS_MAX,
    EMBEDDED_RECHECK_MS,
    PROCESS_RECHECK_MS,
)
from leaseplane.model import AuthorityUnavailable, Command, OutcomeUnknown, Principal, RequestFacts
from leaseplane.promise import Promise

_open: "WeakSet[EmbeddedEngine]" = WeakSet()
_of_the_parent: "list[EmbeddedEngine]" = []
"""In a forked child: kept for ever, since taking them apart would close what is the parent's."""


class EmbeddedEngine(Desk):
    """Answers asks against a plane, for callers on any thread. It owns the plane, and closes it.

    The thread for the alarm begins with the first ask that keeps something open (`watch`), so that a
    process that asks once and ends starts none.

    A forked child has no part in any of it. SQLite keeps what it knows of a file's locks per process, and
    a child that opened the same file with that knowledge would take locks for its own that are not. So the
    database is closed for the moment of the fork; a plane that the child opens begins with nothing.
    """

    def __init__(self, plane: Authority, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        super().__init__(plane, random_bytes)
        # Whoever has the turn uses the plane, and everything here but the queue of items.
        self._turn = threading.RLock()
        self._is_running = False
        self._later: list[tuple[int, Item]] = []
        self._watcher: threading.Thread | None = None
        self._wakes_boot_ms = 0
        """When the thread looks next if nobody wakes it."""
        self._is_shut = False
        _open.add(self)

    # -- what callers see ----------------------------------------------------------------------

    def ask(
        self,
        principal: Principal,
        command: Command,
        request: RequestFacts,
        idempotency_key: str | None = None,
        *,
        here: bool = True,
    ) -> "Asked":
        """Ask: decided on this thread before it returns, or by the engine's own unless `here`.

        The answer comes later where `max_wait_ms` had the request parked. Whatever breaks in here,
        a signal's exception too, leaves the outcome unknown and never a promise unkept.
        """
        asked = Asked(self)
        with self._turn:
            if self._closed:
                asked.set_exception(AuthorityUnavailable("this plane is closed"))
                return asked
            self._counted["asked"] += 1
            ask = self._ask_of(principal, command, request, idempotency_key)
        call = asked.call = Call(self, ask, asked)
        self._items.append(call)
        if not here:
            self.watch()
            self._wake()
            return asked
        try:
            with self._turn:
                self._run()
        except BaseException:
            # Where nothing is decided yet, nothing will be.
            call.is_gone = True
            raise
        if not asked.done() or self._fault is not None:
            self.watch()
        return asked

    @property
    def is_closed(self) -> bool:
        """Whether it answers no more: it was closed, or is a parent's."""
        return self._closed

    def hang_up(self, asked: "Asked") -> None:
        """The caller of this ask is gone: what is parked is withdrawn, a hand-over not marked is undone."""
        with self._turn:
            if asked.done() or asked.call is None:
                return
            asked.call.hang_up()
            self._run()
            if not asked.done():
                asked.set_exception(OutcomeUnknown("the caller hung up before there was an answer"))

    def run_alarm(self) -> None:
        """Let what is due happen now, with all that follows from it, as the thread does by itself."""
        with self._turn:
            self._plane.presence.drain()
            self.put(TakeDeliveries(self, self._plane))
            self._run()

    def do(self, work: Work) -> Any:
        """Do one work in a transaction now; its result. Raises what it raises."""
        done: Promise[Any] = Promise()
        with self._turn:
            self.put(Done(work, done))
            self._run()
        return done.result()

    @contextmanager
    def still(self) -> Iterator[bool]:
        """Whether no transaction of this process is open, and then none will be while the block runs.

        Never blocks, so it may be used in a signal's handler, which interrupts any code of its thread.
        """
        if not self._turn.acquire(blocking=False):
            yield False
            return
        try:
            # This very thread may be in the middle of one.
            yield not self._is_running
        finally:
            self._turn.release()

    def watch(self) -> None:
        """See that the alarm runs from now on, and wake-ups are heard."""
        with self._turn:
            if self._watcher is None and not self._closed:
                self._wakes_boot_ms = 0
                self._watcher = threading.Thread(target=self._watch, name="leaseplane-alarm", daemon=True)
                self._watcher.start()

    def close(self) -> None:
        """Withdraw what is parked, which then fails, and leave the folder."""
        with self._turn:
            if self._closed:
                return
            self._closed = True
            given_up = list(self._parked.values())
            try:
                for call in given_up:
                    call.hang_up()
                self._run()
                self._hand_on_alarm()
            finally:
                for call in given_up:
                    call.failed(AuthorityUnavailable("this plane is closed"))
                self._parked.clear()
                if self._watcher is not None:
                    self._wake()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()
        _open.discard(self)
        self._plane.close()

    def _hand_on_alarm(self) -> None:
        """What is due before the others look by themselves they are told of: nobody here will see to it."""
        if self._is_soon(self._alarm_boot_ms):
            with suppress(AuthorityUnavailable):
                for process_id in self._plane.presence.others():
                    self._plane.presence.wake(process_id)

    # -- transactions --------------------------------------------------------------------------

    def put(self, item: Item) -> None:
        """For the next transaction, by whoever has the turn."""
        self._items.append(item)

    def put_later(self, item: Item) -> None:
        if not self._closed:
            self._later.append((self.now_boot_ms() + PROCESS_RECHECK_MS, item))
            self.watch()

    def _run(self) -> None:
        """Run transactions until nothing is left to be done. The caller has the turn."""
        if self._is_running:
            # An item put another one in: the loop that carries it goes on to that.
            return
        self._is_running = True
        one_by_one = 0
        try:
            while self._items or self._is_due_now:
                most = 1 if one_by_one else BATCH_ASKS_MAX
                one_by_one = max(0, one_by_one - 1)
                batch: list[Item] = []
                while self._items and len(batch) < most:
                    item = self._items.popleft()
                    if not (isinstance(item, Call) and item.is_dropped):
                        batch.append(item)
                one_by_one += self._transact(batch)
        finally:
            self._is_running = False

    @property
    def _is_due_now(self) -> bool:
        return self._fault is None and self._is_due and not self._closed

    def _transact(self, batch: list[Item]) -> int:
        """One transaction with these items; how many of them have to have one of their own."""
        self._keys_are_current = False
        told = 0
        try:
            try:
                if self._is_shut:
                    self._plane.store.reopen()
                    self._is_shut = False
                decided = self._plane.decide_once([item.work for item in batch])
            except Exception as error:
                told = len(batch)
                return self._failed(batch, error)
            self._fault_is_over()
            self._counted["transactions"] += 1
            self._take_alarm(decided.alarm_boot_ms)
            if decided.settled:
                self._counted["works"] += len(batch)
                for item, result in zip(batch, decided.results, strict=True):
                    told += 1
                    item.stands(result)
            else:
                # So much was due that nothing else was done; what was asked comes next.
                told = len(batch)
                self._items.extendleft(reversed(batch))
            for delivery in decided.deliveries:
                self.deliver(delivery)
        except BaseException:
            # A signal's exception, anywhere in the above: nobody here knows any more what stands. The
            # replies that were lost with it are asked after as overdue, or undone with this process.
            unknown = OutcomeUnknown("the ask was interrupted; what it asked for may or may not stand")
            for item in batch[told:]:
                item.failed(unknown)
            raise
        return 0

    def _take_alarm(self, alarm_boot_ms: int | None) -> None:
        """See that the thread for the alarm does not sleep over this."""
        self._alarm_boot_ms = alarm_boot_ms
        if self._watcher is None:
            # Others may not look before it is due.
            if self._is_soon(alarm_boot_ms):
                self.watch()
        elif alarm_boot_ms is not None and alarm_boot_ms < self._wakes_boot_ms:
            self._wakes_boot_ms = alarm_boot_ms
            if self._watcher is not threading.current_thread():
                self._wake()

    def _is_soon(self, alarm_boot_ms: int | None) -> bool:
        return alarm_boot_ms is not None and alarm_boot_ms < self.now_boot_ms() + EMBEDDED_RECHECK_MS

    # -- fork ----------------------------------------------------------------------------------

    def before_fork(self) -> None:
        self._turn.acquire()
        if not self._closed:
            self._plane.store.close()
            self._is_shut = True

    def after_fork(self) -> None:
        self._turn.release()

    def after_fork_in_child(self) -> None:
        # No thread of the parent is here to give it back.
        self._turn = threading.RLock()
        self._closed = True
        self._watcher = None
        self._items.clear()
        self._parked.clear()

    # -- the engine's own thread ---------------------------------------------------------------

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._plane.presence.fileno(), select.POLLIN)
        while True:
            with self._turn:
                if self._closed:
                    return
                wait_ms = self._wait_ms()
            woken = bool(poll.poll(wait_ms))
            with self._turn:
                if self._closed:
                    return
                self._look(woken)

    def _look(self, woken: bool) -> None:
        now_ms = self.now_boot_ms()
        if woken:
            self._plane.presence.drain()
            if self._parked:
                self._items.append(TakeDeliveries(self, self._plane))
            else:
                # Nothing to fetch: an alarm may have been handed on.
                self._looked_boot_ms = 0
        else:
            # Something may be due. Another process may have done it already, which a read shows.
            self._looked_boot_ms = 0
        if now_ms - self._looked_boot_ms >= ALARM_RECHECK_MS and not self._is_shut:
            self._look_around()
        due_later = [item for at_ms, item in self._later if at_ms <= now_ms]
        if due_later:
            self._later = [(at_ms, item) for at_ms, item in self._later if at_ms > now_ms]
            self._items.extend(due_later)
        if self._fault is not None or self._is_shut:
            # A transaction with nothing in it shows whether it is over.
            self._transact([])
        self._run()

    def _wait_ms(self) -> int:
        now_ms = self.now_boot_ms()
        wakes_ms = now_ms + (EMBEDDED_RECHECK_MS if self._fault is None else ALARM_RECHECK_MS)
        stagger_ms = 0
        if self._later:
            wakes_ms = min(wakes_ms, *(at_ms for at_ms, _ in self._later))
        if self._alarm_boot_ms is not None and self._fault is None and self._alarm_boot_ms < wakes_ms:
            wakes_ms = self._alarm_boot_ms
            stagger_ms = self._stagger_ms(wakes_ms)
        self._wakes_boot_ms = wakes_ms
        return max(wakes_ms + stagger_ms - now_ms, 1)

    def _stagger_ms(self, alarm_boot_ms: int) -> int:
        """How long to leave an alarm to the others, which have it, too: nothing where it is ours."""
        for call in self._parked.values():
            until_boot_ms = call.until_boot_ms
            if until_boot_ms is not None and until_boot_ms <= alarm_boot_ms:
                return 0
        presence = self._plane.presence
        try:
            before = sum(other < presence.process_id for other in presence.others())
        except AuthorityUnavailable:
            return 0
        return min(before * ALARM_STAGGER_MS, ALARM_STAGGER_MS_MAX)

    def _tell(self, message: str, error: Exception | None = None) -> None:
        """Nobody: whoever asks is told by what is raised."""

    def _wake(self) -> None:
        self._plane.presence.wake(self._plane.presence.process_id)


class Asked(Promise[Answered]):
    """One ask to an embedded engine, and its answer when there is one."""

    __slots__ = ("_engine", "call")

    def __init__(self, engine: EmbeddedEngine) -> None:
        super().__init__()
        self._engine = engine
        self.call: Call | None = None

    def hang_up(self) -> None:
        """The caller is gone."""
        self._engine.hang_up(self)


# -- fork --------------------------------------------------------------------------------------


def _before_fork() -> None:
    for engine in list(_open):
        engine.before_fork()


def _after_fork() -> None:
    for engine in list(_open):
        engine.after_fork()


def _after_fork_in_child() -> None:
    for engine in list(_open):
        engine.after_fork_in_child()
    _of_the_parent.extend(_open)
    _open.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
