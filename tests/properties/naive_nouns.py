"""What the naive model keeps in its lists."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from tests.scenarios.world import Answer

SHARED_READ = ("file", "doc", "dataset", "table", "page", "api")
STRENGTH = {"read": 0, "write": 1, "delete": 2}
Who = tuple[str, str]
Body = dict[str, Any]


@dataclass(eq=False)
class Lease:
    resource: str
    id: str
    who: Who
    access: str
    fence: int
    granted_wall: int
    ends: int
    ends_wall: int
    note: str | None
    unmarked: list["Request"] = field(default_factory=list)
    """The frozen requests it was handed to, while no answer has left."""
    before: "Lease | None" = None
    """The read lease that an unmarked upgrade replaced."""


@dataclass(eq=False)
class Request:
    """One acquire on its way, parked or not."""

    number: int
    body: Body
    resource: str
    who: Who
    access: str
    until: int
    connections: int = 1
    frozen: bool = False
    answer: Answer | None = None


@dataclass(eq=False)
class Wait:
    resource: str
    who: Who
    asked_access: str
    seq: int
    since_wall: int
    asked: int
    asked_wall: int
    note: str | None = None
    chance: int = -1
    edge: bool = True
    parked: list[Request] = field(default_factory=list)

    @property
    def access(self) -> str:
        return max([self.asked_access, *(p.access for p in self.parked)], key=STRENGTH.__getitem__)


@dataclass(eq=False)
class Pair:
    """A deadlock pair: the refused asker, what it asked for, who holds that and waits itself."""

    who: Who
    resource: str
    holder: Who
    waiting_on: str
    at: int
    at_wall: int


class Clocks(Protocol):
    """What the rules take from outside: both clocks, fresh numbers, and the jitter of a back-off."""

    boot: int
    wall: int
    grace: int

    def next_number(self) -> int: ...

    def jitter(self, base: int, request: Request) -> int: ...

    def pick(self, cycles: list[tuple[str, str]], request: Request) -> int: ...


def ended(lease: Lease) -> Body:
    """A lease in the answer that ends it."""
    return {
        "leaseId": lease.id,
        "resource": lease.resource,
        "holder": lease.who[0],
        "fence": lease.fence,
    } | ({"instance": lease.who[1]} if lease.who[1] else {})


def stamp(wall: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=wall)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def curve(n: int) -> int:
    return 800 if n >= 5 else 25 << n


def refusal(status: int, error: str, **members: Any) -> Answer:
    return Answer(status, {"ok": False, "error": error, "message": error, **members})
