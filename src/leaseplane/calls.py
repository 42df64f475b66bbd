"""What goes into the transactions of the event loop: the callers' asks, and the engine's own errands.

Each is decided inside a transaction (`work`), may prepare its answer while the commit is under way
(`decided`), and learns in the end whether it stands or not (`stands`, `failed`).
"""

from typing import Any, Protocol

import msgspec

from leaseplane.authority import decide
from leaseplane.authority.state import State
from leaseplane.engine import Authority, Work
from leaseplane.limits import PARKED_OVERDUE_MS
from leaseplane.model import Ask, Granted, OutcomeUnknown, Pending, Reply
from leaseplane.store.contract import Delivery


class Answered(msgspec.Struct, frozen=True, gc=False):
    """A complete answer: its body includes the receipt where there is one."""

    status: int
    body: bytes
    retry_after_s: int | None = None


class Item:
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


class Awaited(Protocol):
    """Where a result goes: a future of an event loop, or a promise that a thread waits for."""

    def done(self) -> bool: ...
    def set_result(self, value: Any, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...


class Carrier(Protocol):
    """What an item needs of the engine that carries it."""

    def put(self, item: Item) -> None: ...
    def put_later(self, item: Item) -> None: ...
    def answer(self, ask: Ask, reply: Reply) -> Answered: ...
    def ask_anew(self, ask: Ask, max_wait_ms: int) -> Ask: ...
    def park(self, call: "Call", pending: Pending) -> None: ...
    def is_parked(self, pending: Pending) -> bool: ...
    def forget_parked(self, pending: Pending) -> None: ...
    def deliver(self, delivery: Delivery) -> None: ...
    def buried(self, dead: set[str]) -> None: ...
    def now_boot_ms(self) -> int: ...
    def count(self, what: str) -> None: ...


class Call(Item):
    """One ask and the caller who awaits it.

    queued ─▶ decided ─▶ answered, or
    queued ─▶ parked ─▶ replied ─▶ marked (where it was handed a lease) ─▶ answered

    It may be hung up at any point. Whatever is in a transaction by then stands or falls with it.
    """

    __slots__ = ("_answer", "_ask", "_engine", "_future", "_pending", "_reply", "is_gone")

    def __init__(self, engine: Carrier, ask: Ask, future: Awaited) -> None:
        self._engine = engine
        self._ask = ask
        self._future = future
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
                self._engine.put(HangUp(self._engine, result))
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
        if not self._future.done():
            self._future.set_exception(error)

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
            self._engine.put(HangUp(self._engine, self._pending))

    @property
    def until_boot_ms(self) -> int | None:
        """Until when it is parked; None where it is not."""
        return None if self._pending is None else self._pending.until_boot_ms

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
            # Rare, and logging takes longer to import than an ask.
            import logging

            logging.getLogger(__name__).error("an answer could not be signed", exc_info=error)
            self._answer = OutcomeUnknown("the answer could not be signed, but the decision may stand")

    def _send(self, reply: Any) -> None:
        if self._future.done():
            return
        if self._answer is None:
            # Nothing had to be written, so there was no commit during which to sign.
            signed = reply if isinstance(reply, Reply) else self._reply
            assert signed is not None, "only a reply is sent"
            self._sign(signed)
        assert self._answer is not None
        if isinstance(self._answer, Exception):
            self._future.set_exception(self._answer)
        else:
            self._future.set_result(self._answer)

    def _ask_anew(self) -> None:
        if self.is_gone:
            return
        assert self._pending is not None
        left_ms = max(0, self._pending.until_boot_ms - self._engine.now_boot_ms())
        self._ask = self._engine.ask_anew(self._ask, left_ms)
        self._pending = self._reply = self._answer = None
        self._engine.put(self)


class HangUp(Item):
    """The caller of a parked request is gone."""

    __slots__ = ("_engine", "_pending")

    def __init__(self, engine: Carrier, pending: Pending) -> None:
        self._engine = engine
        self._pending = pending

    def work(self, state: State) -> Any:
        decide.hang_up(state, self._pending)

    def stands(self, result: Any) -> None:
        self._engine.forget_parked(self._pending)

    def failed(self, error: Exception) -> None:
        # The place must not outlive its caller: again, once the store answers.
        self._engine.put_later(self)


class Dismiss(Item):
    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def work(self, state: State) -> Any:
        self._call.dismiss(state)

    def failed(self, error: Exception) -> None:
        self._call.failed(error)


class AskAfter(Item):
    """See whether a parked request still has its place: the file may have been replaced by a backup, or
    this process been taken for dead because someone emptied the folder of the processes."""

    __slots__ = ("_call", "_engine")

    def __init__(self, engine: Carrier, call: Call) -> None:
        self._engine = engine
        self._call = call

    def work(self, state: State) -> Any:
        return self._call.is_kept(state)

    def stands(self, result: Any) -> None:
        if result is False:
            self._call.not_kept()

    def failed(self, error: Exception) -> None:
        self._engine.put_later(self)


class Done(Item):
    """A work whose caller awaits its result."""

    __slots__ = ("_future", "_work")

    def __init__(self, work: Work, future: Awaited) -> None:
        self._work = work
        self._future = future

    def work(self, state: State) -> Any:
        return self._work(state)

    def stands(self, result: Any) -> None:
        if not self._future.done():
            self._future.set_result(result)

    def failed(self, error: Exception) -> None:
        if not self._future.done():
            self._future.set_exception(error)


class TakeDeliveries(Item):
    """Fetch the replies that other processes decided for our parked requests."""

    __slots__ = ("_engine", "_plane")

    def __init__(self, engine: Carrier, plane: Authority) -> None:
        self._engine = engine
        self._plane = plane

    def work(self, state: State) -> Any:
        return self._plane.store.take_deliveries()

    def stands(self, result: Any) -> None:
        for delivery in result:
            self._engine.deliver(delivery)

    def failed(self, error: Exception) -> None:
        self._engine.put_later(self)


class Bury(Item):
    """Withdraw what dead processes kept open, then remove their files."""

    __slots__ = ("_dead", "_engine", "_plane")

    def __init__(self, engine: Carrier, plane: Authority, dead: set[str]) -> None:
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
