"""The keeper: renews what a plane's leases hold, on a thread of its own.

It belongs to no caller and no event loop: a program that computes for a minute, or whose loop is blocked,
keeps its leases. What it cannot renew it tells as lost, when the lease's time by the local count is over.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from leaseplane.client.asking import Failure, failure_in
from leaseplane.client.blocking import came_of
from leaseplane.client.channel import Answer, Channel, Request, Sent
from leaseplane.client.holding import Holding
from leaseplane.client.outcomes import InvalidRequest, StaleLease, refusal_of
from leaseplane.clock import Clock
from leaseplane.limits import KEEPER_LOOK_MS
from leaseplane.model import AuthorityUnavailable, OutcomeUnknown

_NEVER: Final = 2**62


class Kept(Protocol):
    """A lease that is kept."""

    holding: Holding

    def renewal(self) -> Request: ...

    def letting_go(self) -> Request: ...

    def changed(self) -> None:
        """It was renewed, or is lost: tell whoever watches it."""
        ...


class Keeper:
    """Renews leases over one channel until they are let go of. Its thread begins with the first lease."""

    def __init__(self, channel: Channel, clock: Clock, jitter: Callable[[], float]) -> None:
        self._channel = channel
        self._clock = clock
        self._jitter = jitter
        self._kept: set[Kept] = set()
        self._under_way: dict[Kept, int] = {}
        self._answers: deque[tuple[Kept, int, Sent]] = deque()
        self._turn = threading.Condition(threading.Lock())
        self._wakes_boot_ms = _NEVER
        self._thread: threading.Thread | None = None
        self._closed = False

    def keep(self, lease: Kept) -> None:
        """Renew this lease from now on."""
        with self._turn:
            self._kept.add(lease)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="leaseplane-keeper", daemon=True)
                self._thread.start()
            elif lease.holding.renew_boot_ms < self._wakes_boot_ms:
                # Otherwise it will have looked by then: leases that come and go wake nobody.
                self._turn.notify()

    def let_go(self, lease: Kept) -> bool:
        """Renew it no more; whether it was still kept. A renewal under way may yet be answered."""
        with self._turn:
            was_kept = lease in self._kept
            self._kept.discard(lease)
            return was_kept

    def close(self) -> list[Kept]:
        """End the thread. Answers what was still kept."""
        with self._turn:
            self._closed = True
            kept, self._kept = list(self._kept), set()
            self._turn.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        return kept

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._turn:
                if self._closed:
                    return
                answers, kept = list(self._answers), list(self._kept)
                self._answers.clear()
            for lease, sent_boot_ms, sent in answers:
                self._answered(lease, sent_boot_ms, came_of(sent))
            now_boot_ms = self._clock.now().boot_ms
            wakes_boot_ms = _NEVER
            for lease in kept:
                wakes_boot_ms = min(wakes_boot_ms, self._look_after(lease, now_boot_ms))
            with self._turn:
                if self._closed:
                    return
                self._wakes_boot_ms = wakes_boot_ms
                sleep_ms = min(wakes_boot_ms - self._clock.now().boot_ms, KEEPER_LOOK_MS)
                if not self._answers and sleep_ms > 0:
                    self._turn.wait(None if wakes_boot_ms == _NEVER else sleep_ms / 1000)

    def _look_after(self, lease: Kept, now_boot_ms: int) -> int:
        """Renew it if it is time; when to look at it again."""
        holding = lease.holding
        if holding.is_over(now_boot_ms):
            self._lost(lease)
            return _NEVER
        if lease in self._under_way:
            return holding.ends_boot_ms
        if holding.renew_boot_ms > now_boot_ms:
            return min(holding.renew_boot_ms, holding.ends_boot_ms)
        self._under_way[lease] = now_boot_ms
        # Not waited for: one that hangs must not keep the others from being renewed. By the time that a
        # third of the lease is over without an answer another try is worth more.
        try:
            sent = self._channel.send(lease.renewal(), timeout_ms=max(1, holding.ttl_ms // 3))
        except (AuthorityUnavailable, OutcomeUnknown):
            self._under_way.pop(lease)
            holding.not_renewed(now_boot_ms, self._jitter())
            return min(holding.renew_boot_ms, holding.ends_boot_ms)
        sent.add_done_callback(lambda: self._tell(lease, now_boot_ms, sent))
        return holding.ends_boot_ms

    def _tell(self, lease: Kept, sent_boot_ms: int, sent: Sent) -> None:
        with self._turn:
            self._answers.append((lease, sent_boot_ms, sent))
            self._turn.notify()

    def _answered(self, lease: Kept, sent_boot_ms: int, came: Answer | Failure) -> None:
        self._under_way.pop(lease, None)
        holding = lease.holding
        if isinstance(came, Answer) and failure_in(came) is None:
            if came.status == 200:
                if holding.is_over(self._clock.now().boot_ms):
                    # The answer came too late: it was told as lost, and is not taken back under the old
                    # handle. What the plane has renewed for nobody is let go of.
                    self._channel.send(lease.letting_go(), timeout_ms=holding.ttl_ms)
                    self._lost(lease)
                    return
                holding.renewed(sent_boot_ms)
                if lease in self._kept:
                    lease.changed()
                return
            refusal = refusal_of(came.status, came.body)
            if isinstance(refusal, StaleLease | InvalidRequest):
                holding.refused(f"the plane says that it is over: {refusal}")
                self._lost(lease)
                return
        # Out of reach, or a refusal that may pass, of a key that is being replaced say.
        holding.not_renewed(self._clock.now().boot_ms, self._jitter())

    def _lost(self, lease: Kept) -> None:
        if self.let_go(lease):
            lease.changed()
