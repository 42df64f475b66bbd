"""What a plane answers, as a program meets it: a result for what was done, an exception for a refusal.

Each keeps the answer as it came: `status`, `body` (the JSON object), `raw` (its bytes, which
`leaseplane verify` takes) and `receipt`.
"""

from typing import Any, ClassVar, Final

import msgspec

from leaseplane.model import AuthorityUnavailable, OutcomeUnknown


class Response:
    """An answer as it came."""

    def __init__(self, status: int, raw: bytes, body: dict[str, Any]) -> None:
        self.status = status
        self.raw = raw
        self.body = body

    @property
    def receipt(self) -> str | None:
        """The signed receipt, a compact JWS, where the answer carries one."""
        receipt: str | None = self.body.get("receipt")
        return receipt


# -- what was done -----------------------------------------------------------------------------


class Granted(Response):
    """A lease, new or renewed."""

    @property
    def lease(self) -> dict[str, Any]:
        """The member `lease`, with the names of the contract."""
        lease: dict[str, Any] = self.body["lease"]
        return lease

    @property
    def lease_id(self) -> str:
        return str(self.lease["leaseId"])

    @property
    def fence(self) -> int:
        """The fencing number: larger than that of every earlier grant of this resource."""
        return int(self.lease["fence"])

    @property
    def ttl_ms(self) -> int:
        return int(self.lease["ttlMs"])

    @property
    def renewed(self) -> bool:
        """Whether the asker held it already."""
        return bool(self.lease["renewed"])

    @property
    def waiting(self) -> int:
        """How many wait for it; told with a renewal."""
        return int(self.body.get("waiting", 0))


class Released(Response):
    """A lease that its holder let go of."""

    @property
    def trust(self) -> float:
        """The holder's trust score now."""
        return float(self.body["trust"])


class Waiting(Response):
    """The queue, oldest wait first, and the deadlock pairs."""

    @property
    def waiting(self) -> list[dict[str, Any]]:
        """`{"resource", "actorDid", "holder", "position", "since", "lastAskedAt"}` each."""
        return list(self.body["waiting"])

    @property
    def deadlocks(self) -> list[dict[str, Any]]:
        """`{"actorDid", "resource", "holder", "waitingOn", "at"}` each."""
        return list(self.body["deadlocks"])


class Withdrawn(Response):
    """A wait that was given up; `existed` says whether there was one."""

    @property
    def existed(self) -> bool:
        return bool(self.body["withdrawn"])


class Trust(Response):
    """What its leases have done to one agent's standing."""

    @property
    def actor(self) -> str:
        return str(self.body["actorDid"])

    @property
    def score(self) -> float:
        """0 to 100, 50 at first."""
        return float(self.body["score"])

    @property
    def released(self) -> int:
        return int(self.body["released"])

    @property
    def expired(self) -> int:
        return int(self.body["expired"])


class Broken(Response):
    """Leases that the operator ended."""

    @property
    def leases(self) -> list[dict[str, Any]]:
        return list(self.body["broken"])


# -- what was refused --------------------------------------------------------------------------


class Refused(Exception, Response):
    """The plane said no; nothing was granted. `code` is the word for it, the message what to do."""

    code: ClassVar[str | None] = None

    def __init__(self, status: int, raw: bytes, body: dict[str, Any]) -> None:
        Response.__init__(self, status, raw, body)
        Exception.__init__(self, str(body.get("message") or body.get("error")))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.raw, self.body)

    @property
    def error(self) -> str:
        """The code of the contract, such as `lease_held`."""
        return str(self.body["error"])


class _NamesHolder(Refused):
    @property
    def holder(self) -> str | None:
        """The DID of whoever holds it, or None where nobody does any more."""
        return self.body.get("holder")

    @property
    def instance(self) -> str | None:
        """Which part of that agent, where it said so."""
        return self.body.get("instance")


class LeaseHeld(_NamesHolder):
    """Someone else holds it, or stands ahead in the queue."""

    code = "lease_held"

    @property
    def note(self) -> str | None:
        """What the holder said that it is for."""
        return self.body.get("note")

    @property
    def position(self) -> int:
        """The asker's place in the queue, from 1."""
        return int(self.body["position"])

    @property
    def retry_after_ms(self) -> int:
        """How long to stand back before asking again."""
        return int(self.body["retryAfterMs"])

    @property
    def expires_at(self) -> str | None:
        """When the holder's lease ends unless it is renewed, RFC 3339."""
        return self.body.get("expiresAt")

    @property
    def held_since(self) -> str | None:
        """Since when the holder has it, RFC 3339."""
        return self.body.get("heldSince")


class Deadlock(_NamesHolder):
    """The wait would have closed a cycle. The asker is not in the queue: let go of something first."""

    code = "deadlock"

    @property
    def waiting_on(self) -> str:
        """The resource that the holder itself is waiting on."""
        return str(self.body["waitingOn"])

    @property
    def cycle(self) -> list[dict[str, str]]:
        """`{"actorDid", "waitsFor", "heldBy"}` each: who waits for what, around to the asker."""
        return list(self.body["cycle"])


class StaleLease(Refused):
    """The named lease is not the asker's current one: it ended."""

    code = "stale_lease"


class NotHolder(_NamesHolder):
    """Someone else holds it; nothing was released."""

    code = "not_holder"


class NotHeld(Refused):
    """Nobody holds it: it was released, or ran out."""

    code = "not_held"


class TooMany(Refused):
    """A bound of the workspace is reached; nothing was granted and no place taken."""

    code = "too_many"


class InvalidRequest(Refused, ValueError):
    """What was sent is no request; `field` says which member is at fault, where one is."""

    code = "invalid_request"

    @property
    def field(self) -> str | None:
        return self.body.get("field")


class NotAllowed(Refused):
    """The plane does not know this caller, or it may not do this or name this agent.

    `error` is `unauthenticated`, `actor_mismatch` or `forbidden`.
    """


class LeaseLost(Exception):
    """The lease is not held any more, or cannot be known to be: whatever it guards has to stop.

    Told by local elapsed time, without an answer from anyone.
    """


_REFUSED_AS: Final[dict[str, type[Refused]]] = {
    each.code: each
    for each in (LeaseHeld, Deadlock, StaleLease, NotHolder, NotHeld, TooMany, InvalidRequest)
    if each.code is not None
} | dict.fromkeys(("unauthenticated", "actor_mismatch", "forbidden"), NotAllowed)

_BODY: Final = msgspec.json.Decoder(dict[str, Any])


def refusal_of(status: int, raw: bytes) -> Refused | AuthorityUnavailable | OutcomeUnknown:
    """The exception that says what this answer, whose status is not 200, says."""
    body = _BODY.decode(raw)
    error = body.get("error")
    match error:
        case "authority_unavailable":
            return AuthorityUnavailable(str(body.get("message")))
        case "outcome_unknown" | "internal_error":
            return OutcomeUnknown(str(body.get("message")))
        case _:
            return _REFUSED_AS.get(str(error), Refused)(status, raw, body)


def body_of(raw: bytes) -> dict[str, Any]:
    """The JSON object of an answer."""
    return _BODY.decode(raw)
