"""The channel to an embedded plane: from a request to the engine's ask, and back, without HTTP."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from leaseplane.answers import Rendered, refuse
from leaseplane.client.channel import Answer, PlaneClosed, Request
from leaseplane.embedded import Asked, EmbeddedEngine
from leaseplane.model import Principal, RequestFacts
from leaseplane.operations import RequestRefused
from leaseplane.promise import Promise
from leaseplane.receipts.canonical import encode_answer, sha256_hex
from leaseplane.resources import NameRefused


class LocalChannel:
    """Asks an embedded engine as `principal`.

    Where `decides_here`, a request is decided on the caller's own thread before `send` returns, which is
    the fastest way; otherwise on the engine's, and `send` never blocks, as an event loop wants it.
    """

    def __init__(self, engine: EmbeddedEngine, principal: Principal, *, decides_here: bool) -> None:
        self._engine = engine
        self._principal = principal
        self._decides_here = decides_here

    def send(self, request: Request, *, timeout_ms: int) -> "LocalSent | AnsweredAtOnce":
        """Ask. A refusal of the request itself is an answer, as over HTTP; there is nothing to time out."""
        if self._engine.is_closed:
            raise PlaneClosed
        operation = request.operation
        try:
            command = operation.read(request.members)
        except (RequestRefused, NameRefused) as refused:
            return _refused(refuse("invalid_request", refused.message, field=refused.field))
        facts = RequestFacts(operation.method, operation.tool, sha256_hex(encode_answer(request.members)))
        asked = self._engine.ask(
            self._principal, command, facts, request.idempotency_key, here=self._decides_here
        )
        return LocalSent(asked)

    def still(self) -> AbstractContextManager[bool]:
        """A process that is stopped in a transaction keeps the database's only write lock."""
        return self._engine.still()

    def close(self) -> None:
        self._engine.close()


class LocalSent:
    """A request that an embedded engine has."""

    __slots__ = ("_asked",)

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._asked.wait(timeout_s)

    def result(self) -> Answer:
        answered = self._asked.result()
        return Answer(answered.status, answered.body, answered.retry_after_s)

    def add_done_callback(self, told: Callable[[], None]) -> None:
        self._asked.add_done_callback(told)

    def hang_up(self) -> None:
        self._asked.hang_up()


class AnsweredAtOnce(Promise[Answer]):
    """A request that never left: its answer was known at once."""

    __slots__ = ()

    def hang_up(self) -> None:
        """There is nobody to tell."""


def _refused(rendered: Rendered) -> AnsweredAtOnce:
    at_once = AnsweredAtOnce()
    at_once.set_result(Answer(rendered.status, rendered.body_without_receipt, rendered.retry_after_s))
    return at_once
