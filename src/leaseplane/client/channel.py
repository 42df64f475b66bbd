"""Channels: the ways on which a request reaches the authority, and its answer comes back.

There are two, `local` for an embedded plane and `remote` for one at a URL. Both answer with the same
bytes, those of the contract's REST bodies, so that nothing above has to know which it is.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from leaseplane.operations import Operation


class Request(msgspec.Struct, frozen=True, gc=False):
    """One request. Sent again as it is, under the same key, it is the same request."""

    operation: Operation
    members: dict[str, object]
    """By their names in the contract; of a query, too."""
    idempotency_key: str | None = None


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A complete answer: `body` is one JSON object, its receipt included."""

    status: int
    body: bytes
    retry_after_s: int | None = None


class Sent(Protocol):
    """A request under way."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until it is answered or has failed, at most `timeout_s`; whether it is."""
        ...

    def result(self) -> Answer:
        """The answer. Raises `AuthorityUnavailable` (for certain nothing was changed) or `OutcomeUnknown`."""
        ...

    def add_done_callback(self, told: Callable[[], None]) -> None:
        """Call `told` once it is answered or has failed, on whatever thread."""
        ...

    def hang_up(self) -> None:
        """The caller is gone: a request that is parked is withdrawn. What was decided stands."""
        ...


class PlaneClosed(RuntimeError):
    """It was closed, by its own program."""

    def __init__(self) -> None:
        super().__init__("this plane is closed")


class Channel(Protocol):
    """A way to one authority, for use from any thread."""

    def send(self, request: Request, *, timeout_ms: int) -> Sent:
        """Send it. It fails where no answer has come `timeout_ms` after the time that it may be parked.

        Raises `PlaneClosed` after `close`.
        """
        ...

    def still(self) -> AbstractContextManager[bool]:
        """Whether this process may be stopped now without anybody else having to wait for it. Then it stays
        so while the block runs. Never blocks."""
        ...

    def close(self) -> None:
        """Hang up what is open, and free what the channel has."""
        ...
