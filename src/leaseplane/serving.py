"""The engine on an event loop: many callers, one transaction at a time, parked requests, the alarm.

What is waiting when a transaction begins is decided in it together (group commit). The commit's
sync to disk runs on a thread; meanwhile the loop signs the receipts of what was just decided and
reads the next requests. No answer leaves before its commit is known to stand.
"""

import asyncio
import base64
import logging
import os
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from random import Random, SystemRandom
from typing import Any, Final

import msgspec

from leaseplane import answers
from leaseplane.authority import decide
from leaseplane.authority.state import State
from leaseplane.engine import Decided, Plane, Work
from leaseplane.limits import (
    ALARM_RECHECK_MS,
    BATCH_ASKS_MAX,
    BUSY_GIVE_UP_MS,
    BUSY_RETRY_MS,
    PARKED_OVERDUE_MS,
    PROCESS_RECHECK_MS,
)
from leaseplane.model import (
    Acquire,
    Ask,
    AuthorityUnavailable,
    Command,
    Granted,
    OutcomeUnknown,
    Pending,
    Principal,
    Reply,
    RequestFacts,
)
from leaseplane.receipts.canonical import sha256_hex, with_receipt
from leaseplane.statements import statement_of
from leaseplane.store.contract import Delivery
from leaseplane.store.database import DatabaseBusy, DatabaseReplaced
from leaseplane.store.folder import FolderRefused

_log = logging.getLogger(__name__)

_JTI_BYTES: Final = 18
_JTIS_DRAWN: Final = 64


class Answered(msgspec.Struct, frozen=True, gc=False):
    """A complete answer: its body includes the receipt where there is one."""

    status: int
    body: bytes
    retry_after_s: int | None = None


class _Item:
    """Something for the next transaction."""

    __slots__ = ()

    def work(self, state: State) -> Any:
        """Decide, inside the transaction."""
        raise NotImplementedError

    def decided(self, result: Any) -> None:
        """The transaction is decided and its commit under way: prepare, but show nothing."""

    def stands(self, result: Any) -> None:
        """The commit stands."""

    def failed(self, error: Exception) -> None:
        """It does not, or nobody knows: `AuthorityUnavailable`, `OutcomeUnknown`, or a fault of ours."""


class Engine:
    """Answers asks against a plane, on one event loop. Make it on the loop, with `start`."""

    def __init__(
        self,
        plane: Plane,
        *,
        random_bytes: Callable[[int], bytes] = os.urandom,
        random: Random | None = None,
    ) -> None:
        self._plane = plane
        self._random_bytes = random_bytes
        self._random = random or SystemRandom()
        self._loop: asyncio.AbstractEventLoop
        self._committer = ThreadPoolExecutor(1, "leaseplane-commit")
        self._jtis: list[str] = []
        self._items: deque[_Item] = deque()
        self._one_by_one = 0
        self._path: Generator[Decided | None, None, Decided] | None = None
        self._batch: list[_Item] = []
        self._busy_since: float | None = None
        self._scheduled = False
        self._parked: dict[str, _Call] = {}
        self._open_calls = 0
        self._alarm_boot_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._looked_boot_ms = 0
        self._processes_seen_boot_ms = 0
        self._burying: set[str] = set()
        self._fault: Exception | None = None
        self._keys_are_current = False
        self._closed = False
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._counted = dict.fromkeys(
            ("asked", "transactions", "works", "busy_retries", "handed_over", "undone_or_late", "failures"), 0
        )

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
        ask = Ask(
            principal=principal,
            command=command,
            jti=self._new_jti(),
            request_id=self._plane.new_request_id(),
            process_id=self._plane.presence.process_id,
            request=request,
            idempotency_key=idempotency_key,
        )
        call = _Call(self, ask, self._loop.create_future())
        self._open_calls += 1
        self._counted["asked"] += 1
        self.put(call)
        try:
            return await call.future
        except asyncio.CancelledError:
            call.hang_up()
            raise
        finally:
            self._open_calls -= 1

    def _new_jti(self) -> str:
        if not self._jtis:
            # Many at once: each look at the kernel's randomness lets go of the interpreter's lock, and
            # has to wait for it again where the committing thread has taken it.
            drawn = self._random_bytes(_JTI_BYTES * _JTIS_DRAWN)
            self._jtis = [
                base64.urlsafe_b64encode(drawn[at : at + _JTI_BYTES]).decode("ascii")
                for at in range(0, len(drawn), _JTI_BYTES)
            ]
        return self._jtis.pop()

    def ready(self) -> None:
        """Raises `AuthorityUnavailable` while the store does not answer."""
        if self._closed:
            raise AuthorityUnavailable("the plane is being stopped")
        if self._fault is not None:
            raise AuthorityUnavailable(str(self._fault)) from self._fault

    def stats(self) -> dict[str, int]:
        """Counts since the start, and how many requests are open and parked now."""
        return {
            **self._counted,
            "parked_now": len(self._parked),
            "open_now": self._open_calls,
            "waiting_for_a_transaction_now": len(self._items),
        }

    async def do(self, work: Work) -> Any:
        """Do one work in the next transaction; its result, once the commit stands. Raises what it raises."""
        done = _Done(work, self._loop.create_future())
        self.put(done)
        return await done.future

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
        dismissed: set[_Call] = set()
        while True:
            # Looked at again after each round: what was asked just before may be parked only now.
            still_parked = set(self._parked.values()) - dismissed
            for call in still_parked:
                dismissed.add(call)
                self.put(_Dismiss(call))
            if still_parked:
                # Others may have decided about them before, and their wake-up be still on its way.
                self.put(_TakeDeliveries(self, self._plane))
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

    def put(self, item: _Item) -> None:
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
            if not (isinstance(item, _Call) and item.is_dropped):
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
                self._loop.call_later(BUSY_RETRY_MS * self._random.uniform(0.5, 1.5) / 1000, self._go_on)
            return
        commit = self._committer.submit(self._plane.store.commit)
        commit.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._go_on, done.exception()))
        # While the disk syncs: write and sign the answers that will go out if the commit stands.
        for item, result in zip(self._batch, step.results, strict=False):
            item.decided(result)

    def _finish(self, decided: Decided) -> None:
        """The commit stands."""
        batch, self._batch, self._path = self._batch, [], None
        self._fault = None
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
        self._counted["failures"] += 1
        if isinstance(error, AuthorityUnavailable | OutcomeUnknown):
            self._fault = error if isinstance(error, AuthorityUnavailable) else None
            for item in batch:
                item.failed(error)
        elif len(batch) > 1:
            # One of these works broke off the transaction. Each gets one of its own, so that the
            # fault stays with whoever brought it.
            self._items.extendleft(reversed(batch))
            self._one_by_one += len(batch)
        else:
            _log.error("a request broke off its transaction; nothing of it stands", exc_info=error)
            for item in batch:
                item.failed(error)
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

    # -- parked requests -----------------------------------------------------------------------

    def park(self, call: "_Call", pending: Pending) -> None:
        """Keep this call until its reply is decided."""
        self._parked[pending.request_id] = call

    def deliver(self, delivery: Delivery) -> None:
        """A parked request's reply is decided: ours goes on to its caller, others were woken already."""
        call = self._parked.pop(delivery.request_id, None)
        if call is not None:
            call.replied(delivery.reply)

    def forget_parked(self, pending: Pending) -> None:
        """The request has no place any more."""
        self._parked.pop(pending.request_id, None)

    def put_later(self, item: _Item) -> None:
        """For a transaction when the store answers again; not while stopping, when others take over."""

        def put_now() -> None:
            if not self._closed:
                self.put(item)

        if not self._closed:
            self._loop.call_later(PROCESS_RECHECK_MS / 1000, put_now)

    def _woken(self) -> None:
        """Another process has decided something about requests that we keep."""
        self._plane.presence.drain()
        self.put(_TakeDeliveries(self, self._plane))

    # -- the alarm -----------------------------------------------------------------------------

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
        is_due = self._alarm_boot_ms is not None and self._alarm_boot_ms <= self.now_boot_ms()
        if is_due or self._fault is not None:
            # Also after a fault: a transaction with nothing in it shows whether it is over.
            self._wake_up()
        else:
            self._set_timer()

    def _look_around(self) -> bool:
        """Look what others have done: to the file, to when the alarm is due, to our requests; and whether
        they live. False where the store does not answer."""
        now_ms = self._looked_boot_ms = self.now_boot_ms()
        try:
            if isinstance(self._fault, DatabaseReplaced):
                for delivery in self._plane.reopen():
                    self.deliver(delivery)
                # Their places are in another file now, or in none.
                self._ask_after(list(self._parked.values()))
            self._alarm_boot_ms = self._plane.store.next_alarm_boot_ms()
            if now_ms - self._processes_seen_boot_ms >= PROCESS_RECHECK_MS:
                self._processes_seen_boot_ms = now_ms
                self._look_for_dead()
                if self._plane.store.has_deliveries():
                    # Whoever decided them died before it could wake us.
                    self.put(_TakeDeliveries(self, self._plane))
                self._ask_after([call for call in self._parked.values() if call.is_overdue(now_ms)])
        except (AuthorityUnavailable, FolderRefused) as error:
            self._fault = error if isinstance(error, AuthorityUnavailable) else self._fault
            return False
        return True

    def _ask_after(self, calls: "list[_Call]") -> None:
        """Have those of these parked calls ask anew that nobody will answer any more."""
        if calls:
            # What is decided about them already comes first.
            self.put(_TakeDeliveries(self, self._plane))
            for call in calls:
                self.put(_AskAfter(self, call))

    def is_parked(self, pending: Pending) -> bool:
        return pending.request_id in self._parked

    def _look_for_dead(self) -> None:
        presence = self._plane.presence
        dead = presence.dead(presence.others()) - self._burying
        if dead:
            self._burying |= dead
            self.put(_Bury(self, self._plane, dead))

    def buried(self, dead: set[str]) -> None:
        """Done with these dead processes, or to be tried again."""
        self._burying -= dead

    # -- what calls need -----------------------------------------------------------------------

    def answer(self, ask: Ask, reply: Reply) -> Answered:
        """The complete answer, with its receipt."""
        rendered = answers.render(reply.outcome)
        body = rendered.body_without_receipt
        statement = statement_of(ask, reply, sha256_hex(body))
        if statement is not None:
            if not self._keys_are_current:
                # Once for each transaction: every answer is signed in the course of one, and looking
                # for a rotation costs a tenth of what signing does.
                self._plane.keyring.refresh()
                self._keys_are_current = True
            body = with_receipt(body, self._plane.keyring.signer.sign(statement))
        return Answered(rendered.status, body, rendered.retry_after_s)

    def now_boot_ms(self) -> int:
        return self._plane.clock.now().boot_ms

    def count(self, what: str) -> None:
        self._counted[what] += 1

    def ask_anew(self, ask: Ask, max_wait_ms: int) -> Ask:
        """The same question, asked again: a hand-over came too late for its caller to have it."""
        assert isinstance(ask.command, Acquire)
        return msgspec.structs.replace(
            ask,
            command=msgspec.structs.replace(ask.command, max_wait_ms=max_wait_ms),
            request_id=self._plane.new_request_id(),
        )


class _Call(_Item):
    """One ask and the caller who awaits it.

    queued ─▶ decided ─▶ answered, or
    queued ─▶ parked ─▶ replied ─▶ marked (where it was handed a lease) ─▶ answered

    It may be hung up at any point. Whatever is in a transaction by then stands or falls with it.
    """

    __slots__ = ("_answer", "_ask", "_engine", "_pending", "_reply", "future", "is_gone")

    def __init__(self, engine: Engine, ask: Ask, future: "asyncio.Future[Answered]") -> None:
        self._engine = engine
        self._ask = ask
        self.future = future
        self.is_gone = False
        self._pending: Pending | None = None
        self._reply: Reply | None = None
        self._answer: Answered | Exception | None = None

    @property
    def is_dropped(self) -> bool:
        """Whether its caller left before anything was decided: then nothing needs to be."""
        return self.is_gone and self._pending is None

    # -- as an item: first the ask itself, then, for a hand-over, its mark ----------------------

    def work(self, state: State) -> Any:
        if self._reply is None:
            return decide.decide(state, self._ask)
        assert self._pending is not None and isinstance(self._reply.outcome, Granted)
        if self.is_gone:
            decide.hang_up(state, self._pending)
            return False
        return decide.mark(state, self._pending, self._reply.outcome)

    def decided(self, result: Any) -> None:
        if isinstance(result, Reply):
            self._sign(result)
        elif result is True:
            assert self._reply is not None
            self._sign(self._reply)

    def stands(self, result: Any) -> None:
        if isinstance(result, Pending):
            self._pending = result
            self._engine.park(self, result)
            if self.is_gone:
                self._engine.put(_HangUp(self._engine, result))
        elif result is False:
            self._engine.count("undone_or_late")
            self._ask_anew()
        else:
            if result is True:
                self._engine.count("handed_over")
            self._send(result)

    def failed(self, error: Exception) -> None:
        if self._reply is not None and self.is_gone:
            # A hand-over that was to be taken back, or whose caller left before its mark was stored.
            self._engine.put_later(self)
        if self._pending is not None and not self.is_gone:
            # The lease was handed over, but the mark was not stored for certain: it may be undone.
            error = OutcomeUnknown(f"the hand-over may or may not stand: {error}")
        if not self.future.done():
            self.future.set_exception(error)

    # -- the caller's and the authority's part --------------------------------------------------

    def replied(self, reply: Reply) -> None:
        """The authority has decided about the parked request."""
        self._reply = reply
        if isinstance(reply.outcome, Granted):
            # Marked before the first byte of the answer is written: from then on it stands.
            self._engine.put(self)
        elif not self.is_gone:
            self._sign(reply)
            self._send(reply)

    def hang_up(self) -> None:
        """The caller is gone."""
        self.is_gone = True
        if self._pending is not None and self._reply is None:
            self._engine.put(_HangUp(self._engine, self._pending))

    def is_overdue(self, now_boot_ms: int) -> bool:
        """Whether its time is over for so long that nobody seems to know of it."""
        return self._pending is not None and now_boot_ms > self._pending.until_boot_ms + PARKED_OVERDUE_MS

    def is_kept(self, state: State) -> bool:
        """Whether the authority knows of this parked request."""
        return self._pending is None or self._reply is not None or decide.is_kept(state, self._pending)

    def not_kept(self) -> None:
        """It does not, so nobody else will answer."""
        if self._pending is not None and self._reply is None and self._engine.is_parked(self._pending):
            self._engine.forget_parked(self._pending)
            self._ask_anew()

    def dismiss(self, state: State) -> None:
        """The plane is stopping: answer as if the time were over."""
        if self._pending is not None and self._reply is None:
            decide.dismiss(state, self._pending)

    def _sign(self, reply: Reply) -> None:
        try:
            self._answer = self._engine.answer(self._ask, reply)
        except Exception as error:
            # The decision may stand all the same, so it is told as unknown.
            _log.error("an answer could not be signed", exc_info=error)
            self._answer = OutcomeUnknown("the answer could not be signed, but the decision may stand")

    def _send(self, reply: Any) -> None:
        if self.future.done():
            return
        if self._answer is None:
            # Nothing had to be written, so there was no commit during which to sign.
            signed = reply if isinstance(reply, Reply) else self._reply
            assert signed is not None, "only a reply is sent"
            self._sign(signed)
        assert self._answer is not None
        if isinstance(self._answer, Exception):
            self.future.set_exception(self._answer)
        else:
            self.future.set_result(self._answer)

    def _ask_anew(self) -> None:
        if self.is_gone:
            return
        assert self._pending is not None
        left_ms = max(0, self._pending.until_boot_ms - self._engine.now_boot_ms())
        self._ask = self._engine.ask_anew(self._ask, left_ms)
        self._pending = self._reply = self._answer = None
        self._engine.put(self)


class _HangUp(_Item):
    """The caller of a parked request is gone."""

    __slots__ = ("_engine", "_pending")

    def __init__(self, engine: Engine, pending: Pending) -> None:
        self._engine = engine
        self._pending = pending

    def work(self, state: State) -> Any:
        decide.hang_up(state, self._pending)

    def stands(self, result: Any) -> None:
        self._engine.forget_parked(self._pending)

    def failed(self, error: Exception) -> None:
        # The place must not outlive its caller: again, once the store answers.
        self._engine.put_later(self)


class _Dismiss(_Item):
    __slots__ = ("_call",)

    def __init__(self, call: _Call) -> None:
        self._call = call

    def work(self, state: State) -> Any:
        self._call.dismiss(state)

    def failed(self, error: Exception) -> None:
        self._call.failed(error)


class _AskAfter(_Item):
    """See whether a parked request still has its place: the file may have been replaced by a backup, or
    this process been taken for dead because someone emptied the folder of the processes."""

    __slots__ = ("_call", "_engine")

    def __init__(self, engine: Engine, call: _Call) -> None:
        self._engine = engine
        self._call = call

    def work(self, state: State) -> Any:
        return self._call.is_kept(state)

    def stands(self, result: Any) -> None:
        if result is False:
            self._call.not_kept()

    def failed(self, error: Exception) -> None:
        self._engine.put_later(self)


class _Done(_Item):
    """A work whose caller awaits its result."""

    __slots__ = ("_work", "future")

    def __init__(self, work: Work, future: "asyncio.Future[Any]") -> None:
        self._work = work
        self.future = future

    def work(self, state: State) -> Any:
        return self._work(state)

    def stands(self, result: Any) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def failed(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class _TakeDeliveries(_Item):
    """Fetch the replies that other processes decided for our parked requests."""

    __slots__ = ("_engine", "_plane")

    def __init__(self, engine: Engine, plane: Plane) -> None:
        self._engine = engine
        self._plane = plane

    def work(self, state: State) -> Any:
        return self._plane.store.take_deliveries()

    def stands(self, result: Any) -> None:
        for delivery in result:
            self._engine.deliver(delivery)

    def failed(self, error: Exception) -> None:
        self._engine.put_later(self)


class _Bury(_Item):
    """Withdraw what dead processes kept open, then remove their files."""

    __slots__ = ("_dead", "_engine", "_plane")

    def __init__(self, engine: Engine, plane: Plane, dead: set[str]) -> None:
        self._engine = engine
        self._plane = plane
        self._dead = dead

    def work(self, state: State) -> Any:
        self._plane.bury(self._dead, state)

    def stands(self, result: Any) -> None:
        for process_id in self._dead:
            self._plane.presence.bury(process_id)
        self._engine.buried(self._dead)

    def failed(self, error: Exception) -> None:
        self._engine.buried(self._dead)
