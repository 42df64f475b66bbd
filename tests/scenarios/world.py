"""The smallest interface through which a history can be played on any surface.

A world is one fresh plane with a virtual clock. Every world tells the truth about what it cannot do
(`lacks`), so that a history that needs it is skipped there with the reason, and never half played.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

Op: TypeAlias = Literal["lease", "release", "wait", "withdraw", "trust", "break"]
Capability: TypeAlias = Literal[
    "park",  # requests with maxWaitMs
    "hang_up",  # a parked request's connection is closed
    "freeze",  # the process that keeps a parked request stops doing anything, as by SIGSTOP
    "kill_parker",  # the process that keeps a parked request dies
    "step_wall",  # the wall clock jumps, the boot clock does not
    "restart",  # the plane's process is stopped and started again
    "reboot",  # the machine is, too: a new boot id
    "idempotency",  # Idempotency-Key
    "keys",  # bound keys and second keys, other workspaces
    "break",  # the operator ends a lease
    "instance",  # the world's caller may name its instance
    "lease_id",  # a release may name the lease
    "raw",  # members and values that no client of ours would send
]

TERM_MS: Final = 30_000
"""The lease term of every world."""


@dataclass(frozen=True)
class Answer:
    """One answer in REST terms: the status and the body, without `receipt`."""

    status: int
    body: dict[str, Any]


class ParkedAsk(Protocol):
    """One request with maxWaitMs on its way."""

    def answer(self) -> Answer | None:
        """The answer if it has arrived by now, or None; never blocks. Stays what it was once it is there.

        A request whose connection or process is gone has none, for ever.
        """
        ...

    def hang_up(self) -> None:
        """Close the connection. Returns when the plane has noticed; virtual time does not pass."""
        ...


class World(Protocol):
    """One fresh plane, driven from outside.

    `key` names the credential that is shown: None for a key that speaks for all agents of the
    workspace, `"second"` for another such key of the same workspace, `"operator"`, `"bound:DID"` for a
    key bound to one agent, `"workspace:NAME"` for an all-agents key of another workspace. The
    operation `break` shows an operator's key where `key` is None.

    Time stands still except within `advance` and `restart`; within them the alarm, the time-outs and
    the ends of waits happen at their own millisecond, and everything that they cause has happened when
    the call returns. Answers to parked requests have arrived by then, too, unless their process is
    frozen.
    """

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """What this world cannot do, and why."""
        ...

    def ask(
        self, op: Op, body: dict[str, Any], *, key: str | None = None, idempotency_key: str | None = None
    ) -> Answer:
        """Ask and be answered at once. `body` holds the JSON members, or the query of `wait` and `trust`."""
        ...

    def park(
        self, body: dict[str, Any], *, key: str | None = None, idempotency_key: str | None = None
    ) -> ParkedAsk:
        """Send a lease request that may be parked. If it is decided at once, its answer is there at once."""
        ...

    def advance(self, ms: int) -> None:
        """Let both clocks run; the alarm runs on time."""
        ...

    def step_wall(self, ms: int) -> None:
        """Set the wall clock forward or (negative) back; the boot clock does not notice."""
        ...

    def restart(self, down_ms: int) -> None:
        """Stop the plane's process, let `down_ms` pass on both clocks, start it. Parked requests are gone."""
        ...

    def reboot(self) -> None:
        """Restart the machine: the process, and a new boot id with a boot clock that begins again."""
        ...

    def freeze(self, *parked: ParkedAsk) -> None:
        """The process that keeps these requests does nothing any more, and nobody can tell: a lease may
        still be handed to them, but no mark is stored and no byte of an answer leaves.
        """
        ...

    def kill_parker(self, *parked: ParkedAsk) -> None:
        """The process that keeps all these requests dies. Returns when the plane has noticed."""
        ...

    def close(self) -> None:
        """Free whatever the world owns."""
        ...
