"""The desk: what every engine does with calls, whether an event loop drives it or threads.

It takes calls in, keeps those that are parked, writes and signs the answers, and looks round: for what is
due, for what other processes have decided, and for those that have died. Whoever drives it says how an
item gets into a transaction.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from leaseplane import answers
from leaseplane.calls import Answered, AskAfter, Bury, Call, Item, TakeDeliveries
from leaseplane.engine import Authority
from leaseplane.limits import PARKED_OVERDUE_MS, PROCESS_RECHECK_MS
from leaseplane.model import (
    Acquire,
    Ask,
    AuthorityUnavailable,
    Command,
    OutcomeUnknown,
    Pending,
    Principal,
    Reply,
    RequestFacts,
)
from leaseplane.receipts import base64url
from leaseplane.receipts.canonical import sha256_hex, with_receipt
from leaseplane.statements import statement_of
from leaseplane.store.contract import Delivery
from leaseplane.store.database import DatabaseReplaced
from leaseplane.store.folder import FolderRefused

_JTI_BYTES: Final = 18
_JTIS_DRAWN: Final = 64


class Desk:
    """One process's calls to the authority over a data folder."""

    def __init__(self, plane: Authority, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._plane = plane
        self._random_bytes = random_bytes
        self._jtis: list[str] = []
        self._items: deque[Item] = deque()
        self._parked: dict[str, Call] = {}
        self._alarm_boot_ms: int | None = None
        self._looked_boot_ms = 0
        self._version_seen: int | None = None
        self._processes_seen_boot_ms = 0
        self._overdue_seen_boot_ms = 0
        self._burying: set[str] = set()
        self._fault: Exception | None = None
        self._keys_are_current = False
        self._closed = False
        self._counted = dict.fromkeys(
            ("asked", "transactions", "works", "busy_retries", "handed_over", "undone_or_late", "failures"), 0
        )

    # -- what whoever drives it says ------------------------------------------------------------

    def put(self, item: Item) -> None:
        """For the next transaction."""
        raise NotImplementedError

    def put_later(self, item: Item) -> None:
        """For a transaction when the store answers again; not while stopping, when others take over."""
        raise NotImplementedError

    def _tell(self, message: str, error: Exception | None = None) -> None:
        """Tell whoever runs this process how the store does; `error` where it is a fault of ours."""
        raise NotImplementedError

    # -- asks and answers ----------------------------------------------------------------------

    def _ask_of(
        self, principal: Principal, command: Command, request: RequestFacts, idempotency_key: str | None
    ) -> Ask:
        return Ask(
            principal=principal,
            command=command,
            jti=self._new_jti(),
            request_id=self._plane.new_request_id(),
            process_id=self._plane.presence.process_id,
            request=request,
            idempotency_key=idempotency_key,
        )

    def _new_jti(self) -> str:
        if not self._jtis:
            # Many at once: each look at the kernel's randomness lets go of the interpreter's lock, and
            # has to wait for it again where the committing thread has taken it.
            drawn = self._random_bytes(_JTI_BYTES * _JTIS_DRAWN)
            self._jtis = [
                base64url.encode(drawn[at : at + _JTI_BYTES]).decode("ascii")
                for at in range(0, len(drawn), _JTI_BYTES)
            ]
        return self._jtis.pop()

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

    def ask_anew(self, ask: Ask, max_wait_ms: int) -> Ask:
        """The same question, asked again: a hand-over came too late for its caller to have it."""
        assert isinstance(ask.command, Acquire)
        return msgspec.structs.replace(
            ask,
            command=msgspec.structs.replace(ask.command, max_wait_ms=max_wait_ms),
            request_id=self._plane.new_request_id(),
        )

    def now_boot_ms(self) -> int:
        return self._plane.clock.now().boot_ms

    def count(self, what: str) -> None:
        self._counted[what] += 1

    # -- parked requests -----------------------------------------------------------------------

    def park(self, call: Call, pending: Pending) -> None:
        """Keep this call until its reply is decided."""
        self._parked[pending.request_id] = call

    def is_parked(self, pending: Pending) -> bool:
        return pending.request_id in self._parked

    def deliver(self, delivery: Delivery) -> None:
        """A parked request's reply is decided: ours goes on to its caller, others were woken already."""
        call = self._parked.pop(delivery.request_id, None)
        if call is not None:
            call.replied(delivery.reply)

    def forget_parked(self, pending: Pending) -> None:
        """The request has no place any more."""
        self._parked.pop(pending.request_id, None)

    def _ask_after(self, calls: Iterable[Call]) -> None:
        """Have those of these parked calls ask anew that nobody will answer any more."""
        asked_after = [AskAfter(self, call) for call in calls]
        if asked_after:
            # What is decided about them already comes first.
            self.put(TakeDeliveries(self, self._plane))
            for item in asked_after:
                self.put(item)

    # -- looking round -------------------------------------------------------------------------

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
            version = self._plane.store.version()
            if version != self._version_seen or self._fault is not None:
                self._alarm_boot_ms = self._plane.store.next_alarm_boot_ms()
                if self._parked and self._plane.store.has_deliveries():
                    # Whoever decided them may have died before it could wake us.
                    self.put(TakeDeliveries(self, self._plane))
                self._version_seen = version
            if now_ms - self._processes_seen_boot_ms >= PROCESS_RECHECK_MS:
                self._processes_seen_boot_ms = now_ms
                self._look_for_dead(now_ms)
            if now_ms - self._overdue_seen_boot_ms >= PARKED_OVERDUE_MS:
                self._overdue_seen_boot_ms = now_ms
                self._ask_after([call for call in self._parked.values() if call.is_overdue(now_ms)])
        except Exception as error:
            # Whatever it is: the alarm goes on, and looks again.
            self._note_fault(error)
            return False
        return True

    def _look_for_dead(self, now_boot_ms: int) -> None:
        presence = self._plane.presence
        if presence.is_looked_after(now_boot_ms):
            return
        dead = presence.dead(presence.others()) - self._burying
        presence.looked(now_boot_ms)
        if dead:
            self._burying |= dead
            self.put(Bury(self, self._plane, dead))

    def buried(self, dead: set[str]) -> None:
        """Done with these dead processes, or to be tried again."""
        self._burying -= dead

    @property
    def _is_due(self) -> bool:
        """Whether a transaction is wanted though nobody asks: for the alarm, or, after a fault, to see
        whether it is over."""
        due = self._alarm_boot_ms is not None and self._alarm_boot_ms <= self.now_boot_ms()
        return due or self._fault is not None

    def _note_fault(self, error: Exception) -> None:
        """The store does not answer as it should, until a transaction stands again."""
        if self._fault is None:
            expected = isinstance(error, AuthorityUnavailable | OutcomeUnknown | FolderRefused)
            self._tell(f"the store does not answer: {error}", None if expected else error)
        self._fault = error

    def _fault_is_over(self) -> None:
        if self._fault is not None:
            self._tell("the store answers again")
            self._fault = None

    def _failed(self, batch: list[Item], error: Exception) -> int:
        """Tell these items that their transaction failed; how many have to have one of their own next."""
        self._counted["failures"] += 1
        if isinstance(error, AuthorityUnavailable | OutcomeUnknown):
            self._note_fault(error)
        elif len(batch) > 1:
            # One of these works broke off the transaction. Each gets one of its own, so that the
            # fault stays with whoever brought it.
            self._items.extendleft(reversed(batch))
            return len(batch)
        else:
            self._tell("a request broke off its transaction; nothing of it stands", error)
        for item in batch:
            item.failed(error)
        return 0

    def stats(self) -> dict[str, Any]:
        """Counts since the start, and how many requests are parked now."""
        return {**self._counted, "parked_now": len(self._parked)}
