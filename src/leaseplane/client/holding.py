"""Holding: what a client knows of its lease by its own count of time. No I/O, no clock.

A lease counts from before its request was first sent, on the boot clock, so that by this count it never
ends later than by the authority's (Gray and Cheriton 1989, with a clock that no one can set).
"""

from leaseplane.limits import RENEW_PARTS, RETRY_MS_BASE, RETRY_MS_MAX


class Holding:
    """One lease: until when it is certainly held, and when it is to be renewed."""

    __slots__ = ("_tries", "ends_boot_ms", "lost", "renew_boot_ms", "ttl_ms")

    def __init__(self, ttl_ms: int, sent_boot_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self.ends_boot_ms = sent_boot_ms + ttl_ms
        self.renew_boot_ms = sent_boot_ms + ttl_ms // RENEW_PARTS
        self.lost: str | None = None
        """Why it is not held any more; None while it is."""
        self._tries = 0

    def renewed(self, sent_boot_ms: int) -> None:
        """A renewal that was sent at that time was answered. It never gives back what was lost."""
        self._tries = 0
        self.ends_boot_ms = max(self.ends_boot_ms, sent_boot_ms + self.ttl_ms)
        self.renew_boot_ms = max(self.renew_boot_ms, sent_boot_ms + self.ttl_ms // RENEW_PARTS)

    def not_renewed(self, now_boot_ms: int, jitter: float) -> None:
        """A renewal failed, or nobody knows: it is tried again, sooner the shorter a lease runs."""
        pause_ms = min(RETRY_MS_MAX, self.ttl_ms // 10, RETRY_MS_BASE << min(self._tries, 10))
        self._tries += 1
        self.renew_boot_ms = now_boot_ms + int(pause_ms * (0.5 + jitter / 2))

    def is_over(self, now_boot_ms: int) -> bool:
        """Whether it is not held any more; once it is over it stays so."""
        if self.lost is None and now_boot_ms >= self.ends_boot_ms:
            self.lost = f"it ran out: it was not renewed within its {self.ttl_ms} ms"
        return self.lost is not None

    def refused(self, why: str) -> None:
        """The authority said that it is over."""
        if self.lost is None:
            self.lost = why
