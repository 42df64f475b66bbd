"""The rules as a world: on rows in memory, and on the SQLite store through the commit path.

No event loop and no connections: this world itself keeps the parked requests, each as a process of
its own, takes the replies that the rules decide for them, and marks hand-overs as a server would.
"""

import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from tests.scenarios.world import TERM_MS, Answer, Capability, Op, ParkedAsk
from tests.store.memory import MemoryRows

from leaseplane import answers
from leaseplane.authority import decide
from leaseplane.authority.state import State, Terms
from leaseplane.clock import ManualClock
from leaseplane.engine import Authority
from leaseplane.identity.access import ActorMismatch, Forbidden, authorise
from leaseplane.limits import IDEMPOTENCY_KEPT_MS
from leaseplane.model import Ask, Granted, Pending, Principal, Reply, RequestFacts
from leaseplane.operations import BREAK, LEASE, RELEASE, TRUST, WAIT, WITHDRAW, Operation, RequestRefused
from leaseplane.resources import SHARED_READ_STANDARD, NameRefused
from leaseplane.settings import read_settings
from leaseplane.store.contract import Delivery

OPERATION_OF: dict[Op, Operation] = {
    "lease": LEASE,
    "release": RELEASE,
    "wait": WAIT,
    "withdraw": WITHDRAW,
    "trust": TRUST,
    "break": BREAK,
}


def principal_of(key: str | None, op: Op) -> Principal:
    """Who is behind the credential that a history names."""
    if key is None and op == "break":
        key = "operator"
    match (key or "any").partition(":"):
        case ("bound", _, actor):
            return Principal("local", "api-key-bound", f"bound {actor}", actor)
        case ("operator", _, _):
            return Principal("local", "api-key", "operator", operator=True)
        case ("workspace", _, name):
            return Principal(name, "api-key", f"any {name}")
        case (name, _, _):
            return Principal("local", "api-key", name)


def told(status: int, body: bytes) -> Answer:
    return Answer(
        status, {name: value for name, value in msgspec.json.decode(body).items() if name != "receipt"}
    )


class RulesAsk:
    """One request that may be parked, kept by a process of its own."""

    def __init__(self, world: "RulesWorld", process_id: str) -> None:
        self.world = world
        self.process_id = process_id
        self.pending: Pending | None = None
        self.frozen = False
        self.gone = False
        self._answer: Answer | None = None

    def answer(self) -> Answer | None:
        return self._answer

    def hang_up(self) -> None:
        if self._answer is None and not self.gone:
            self.gone = True
            pending = self.pending
            assert pending is not None
            self.world.transact(lambda state: decide.hang_up(state, pending))

    def reply(self, reply: Reply) -> None:
        if self.frozen or self.gone:
            return
        outcome = reply.outcome
        if isinstance(outcome, Granted) and self.pending is not None:
            pending = self.pending
            if not self.world.transact(lambda state: decide.mark(state, pending, outcome)):
                return
        rendered = answers.render(outcome)
        self._answer = told(rendered.status, rendered.body_without_receipt)


class RulesWorld:
    """The rules on rows in memory. The working set is forgotten after every transaction, or never."""

    lacks: ClassVar[dict[Capability, str]] = {}
    forgetful = False

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000, 1_790_000_000_000)
        self.handles: dict[str, RulesAsk] = {}
        self.number = 0
        self.open()

    # -- what the two kinds of store do differently --------------------------------------------

    def open(self) -> None:
        self.rows = MemoryRows()
        self.state = State(Terms(TERM_MS, 0, dict.fromkeys(SHARED_READ_STANDARD, "shared_read")))

    def close(self) -> None:
        self.handles.clear()

    def in_transaction(self, work: Callable[[State], Any]) -> tuple[Any, list[Delivery]]:
        if self.forgetful:
            self.state.forget()
        self.state.begin(self.rows, self.clock.now())
        while not decide.settle(self.state):
            pass
        result = work(self.state)
        return result, self.state.end()

    def next_alarm_boot_ms(self) -> int | None:
        return self.rows.next_alarm_boot_ms()

    def start_again(self, another_boot: bool = False) -> None:
        """The process starts: what `Authority.open` does, on these rows."""
        self.state.forget()
        self.state.begin(self.rows, self.clock.now())
        if another_boot:
            expires_boot_ms = self.clock.now().boot_ms + IDEMPOTENCY_KEPT_MS
            for scope, record in list(self.rows.records.items()):
                self.rows.records[scope] = msgspec.structs.replace(record, expires_boot_ms=expires_boot_ms)
            now = self.clock.now()
            for at, pair in list(self.rows.pairs.items()):
                left_ms = max(0, min(TERM_MS, pair.at_wall_ms + TERM_MS - now.wall_ms))
                self.rows.pairs[at] = msgspec.structs.replace(pair, until_boot_ms=now.boot_ms + left_ms)
            for place in list(self.rows.rooms):
                decide.reboot(self.state, self.state.room(*place))
            self.state.apply()
        decide.bury(self.state, {handle.process_id for handle in self.handles.values() if handle.gone})
        self.state.end()
        self.transact(lambda state: None)

    # -- World ---------------------------------------------------------------------------------

    def transact(self, work: Callable[[State], Any]) -> Any:
        result, deliveries = self.in_transaction(work)
        for delivery in deliveries:
            handle = self.handles.get(delivery.request_id)
            if handle is not None:
                handle.reply(delivery.reply)
        return result

    def ask(
        self, op: Op, body: dict[str, Any], *, key: str | None = None, idempotency_key: str | None = None
    ) -> Answer:
        answer = self._send(op, body, key, idempotency_key).answer()
        assert answer is not None, "use park() for a request that may be parked"
        return answer

    def park(
        self, body: dict[str, Any], *, key: str | None = None, idempotency_key: str | None = None
    ) -> ParkedAsk:
        return self._send("lease", body, key, idempotency_key)

    def _send(self, op: Op, body: dict[str, Any], key: str | None, idempotency_key: str | None) -> RulesAsk:
        self.number += 1
        operation = OPERATION_OF[op]
        handle = RulesAsk(self, f"{self.number:016x}")
        principal = principal_of(key, op)
        try:
            command = operation.read(body)
            authorise(principal, command)
        except (NameRefused, RequestRefused) as refused:
            rendered = answers.refuse("invalid_request", refused.message, field=refused.field)
            handle._answer = told(rendered.status, rendered.body_without_receipt)
            return handle
        except ActorMismatch as refused:
            rendered = answers.refuse("actor_mismatch", str(refused))
            handle._answer = told(rendered.status, rendered.body_without_receipt)
            return handle
        except Forbidden as refused:
            rendered = answers.refuse("forbidden", str(refused))
            handle._answer = told(rendered.status, rendered.body_without_receipt)
            return handle
        digest = sha256(msgspec.json.encode(body, order="sorted")).hexdigest()
        ask = Ask(
            principal=principal,
            command=command,
            jti=f"jti-{self.number}",
            request_id=f"{handle.process_id}.1",
            process_id=handle.process_id,
            request=RequestFacts(operation.method, operation.path, digest),
            idempotency_key=idempotency_key,
        )
        self.handles[ask.request_id] = handle
        result = self.transact(lambda state: decide.decide(state, ask))
        if isinstance(result, Pending):
            handle.pending = result
        else:
            handle.reply(result)
        return handle

    def advance(self, ms: int) -> None:
        target = self.clock.now().boot_ms + ms
        while (now := self.clock.now().boot_ms) < target:
            alarm = self.next_alarm_boot_ms()
            step_to = target if alarm is None or alarm <= now else min(alarm, target)
            self.clock.advance(step_to - now)
            self.transact(lambda state: None)

    def step_wall(self, ms: int) -> None:
        self.clock.step_wall(ms)

    def freeze(self, *parked: ParkedAsk) -> None:
        for handle in parked:
            assert isinstance(handle, RulesAsk)
            handle.frozen = True

    def kill_parker(self, *parked: ParkedAsk) -> None:
        dead = [handle for handle in parked if isinstance(handle, RulesAsk)]
        for handle in dead:
            handle.gone = True
        process_ids = {handle.process_id for handle in dead}
        self.transact(lambda state: decide.bury(state, process_ids))

    def restart(self, down_ms: int) -> None:
        self._stop()
        self.clock.advance(down_ms)
        self.start_again()
        self.handles.clear()

    def reboot(self) -> None:
        self._stop()
        self.clock.reboot(f"boot-{self.number}-{self.clock.boot_id}")
        self.start_again(another_boot=True)
        self.handles.clear()

    def _stop(self) -> None:
        for handle in self.handles.values():
            handle.gone = handle.gone or handle._answer is None


class ForgetfulRulesWorld(RulesWorld):
    """The rules with nothing remembered between transactions: what memory says must be what rows say."""

    forgetful = True


class StoreWorld(RulesWorld):
    """The rules on the SQLite store, through the commit path of an `Authority`."""

    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="plane-")
        self.start_again()

    def start_again(self, another_boot: bool = False) -> None:
        if hasattr(self, "plane"):
            self.plane.close()
        settings = read_settings(
            {"LEASEPLANE_DATA": str(Path(self.folder.name) / "data"), "LEASEPLANE_LEASE_MS": str(TERM_MS)}
        )
        self.plane = Authority.open(settings, self.clock)
        self.transact(lambda state: None)

    def close(self) -> None:
        super().close()
        self.plane.close()
        self.folder.cleanup()

    def in_transaction(self, work: Callable[[State], Any]) -> tuple[Any, list[Delivery]]:
        deliveries: list[Delivery] = []
        result = self.plane.transact(work, deliveries=deliveries)
        return result[0], deliveries

    def next_alarm_boot_ms(self) -> int | None:
        return self.plane.store.next_alarm_boot_ms()
