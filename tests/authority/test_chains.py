"""What follows from one step may be a long chain. It has to end, and take no more stack than a short one."""

from collections import Counter

from tests.store.memory import MemoryRows

from leaseplane.authority import decide
from leaseplane.authority.state import State, Terms
from leaseplane.clock import ManualClock
from leaseplane.limits import IDEMPOTENCY_KEPT_MS
from leaseplane.model import Acquire, Ask, Command, Pending, Principal, Release, Reply, RequestFacts
from leaseplane.resources import SHARED_READ_STANDARD
from leaseplane.store.contract import Delivery

ANYONE = Principal("local", "local", "test")
FACTS = RequestFacts("POST", "/api/v1/acp/coordination/lease", "0" * 64)


class Rules:
    """The rules on rows in memory, each request from a process of its own."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000, 1_790_000_000_000)
        self.state = State(Terms(30_000, 0, dict.fromkeys(SHARED_READ_STANDARD, "shared_read")))
        self.rows = MemoryRows()
        self.number = 0

    def asked(self, command: Command, key: str | None = None) -> tuple[Reply | Pending, list[Delivery]]:
        self.number += 1
        name = f"{self.number:016x}"
        self.state.begin(self.rows, self.clock.now())
        assert decide.settle(self.state)
        result = decide.decide(self.state, Ask(ANYONE, command, name, f"{name}.1", name, FACTS, key))
        return result, self.state.end()


def test_grants_that_end_waits_that_let_in_others_follow_each_other_without_nesting() -> None:
    """Each reader that is let in closes a cycle with the writer behind it; that wait ends as `deadlock`,
    which lets the next reader in. One inside the other, 250 of them were deeper than Python's stack,
    and since time brings the same about, no transaction of the plane could be settled any more."""
    pairs = 300
    rules = Rules()
    rules.asked(Acquire("file:r", "did:web:holder.example"))
    for number in range(pairs):
        reader, writer = f"did:web:r{number}.example", f"did:web:w{number}.example"
        rules.asked(Acquire(f"lock:{number}", writer))
        for command in (
            Acquire(f"lock:{number}", reader, max_wait_ms=20_000),
            Acquire("file:r", reader, access="read", max_wait_ms=20_000),
            Acquire("file:r", writer, max_wait_ms=20_000),
        ):
            assert isinstance(rules.asked(command)[0], Pending)
    _, deliveries = rules.asked(Release("file:r", "did:web:holder.example"))
    told = Counter(type(delivery.reply.outcome).__name__ for delivery in deliveries)
    assert told == {"Granted": pairs, "Deadlock": pairs}


def test_nobody_waits_for_idempotency_keys_to_be_swept() -> None:
    """After a pause, or a restart of the machine, very many are over at once. To sweep them all before
    anything is decided took 4 s for every 100,000."""
    keys = 1_000
    rules = Rules()
    for number in range(keys):
        rules.asked(Acquire("lock:r", "did:web:a.example"), key=f"key-{number}")
    rules.clock.advance(IDEMPOTENCY_KEPT_MS)
    transactions = 0
    while rules.rows.records:
        before = len(rules.rows.records)
        # It asserts that the first transaction decides.
        rules.asked(Acquire("lock:r", "did:web:a.example"))
        transactions += 1
        assert len(rules.rows.records) < before
    assert transactions > 2
