"""Long random walks of the same machine, from a seed.

Hypothesis finds small histories and makes them smaller; it seldom gets into the states that need many
agents to wait for each other. A walk is long, weighted towards waiting, and just as reproducible. What
fails is cut down to the commands that it needs.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final, TypeAlias

from tests.properties.side_by_side import (
    ACCESSES,
    AGENTS,
    GIVING_UP,
    INSTANCES,
    KEYED,
    KEYS,
    PARK_MS,
    RESOURCES,
    STEP_MS,
    UPHEAVAL_MS,
    UPHEAVALS,
    SideBySide,
    shown,
)

Command: TypeAlias = tuple[str, dict[str, Any]]

STEPS: Final = 300
_WHO_INSTANCES: Final = [*[""] * 5, *INSTANCES]


def _who(r: Random) -> tuple[str, str]:
    return r.choice(AGENTS), r.choice(_WHO_INSTANCES)


_DRAW: Final[dict[str, Callable[[Random], Any]]] = {
    "who": _who,
    "resource": lambda r: r.choice(["file:f", *RESOURCES]),
    "access": lambda r: r.choice(ACCESSES),
    "n": lambda r: r.randrange(24),
    "m": lambda r: r.randrange(24),
    "stay": lambda r: r.random() < 0.5,
    "own": lambda r: r.random() < 0.7,
    "release": lambda r: r.random() < 0.5,
    "off": lambda r: r.choice([-1, 0, 0, 1]),
    "park_ms": lambda r: r.choice(PARK_MS),
    "step_ms": lambda r: r.choice([*STEP_MS, 1, 40, 60, 249, 300]),
    "frozen_ms": lambda r: r.choice([0, 1, 50]),
    "upheaval_ms": lambda r: r.choice(UPHEAVAL_MS),
    "giving_up": lambda r: r.choice(GIVING_UP),
    "upheaval": lambda r: r.choice(UPHEAVALS),
    "key": lambda r: r.choice(KEYS),
    "op": lambda r: r.choice(KEYED),
}
_TABLE: Final[list[tuple[int, str, dict[str, str]]]] = [
    (6, "asks", {"who": "who", "resource": "resource", "access": "access"}),
    (5, "parks", {"who": "who", "resource": "resource", "access": "access", "ms": "park_ms"}),
    (
        6,
        "a_holder_wants_what_is_held",
        {"n": "n", "m": "m", "access": "access", "ms": "park_ms", "stay": "stay"},
    ),
    (2, "a_reader_wants_to_write", {"n": "n", "ms": "park_ms", "stay": "stay"}),
    (5, "a_waiter_asks_again", {"n": "n", "access": "access"}),
    (6, "a_holder_releases", {"n": "n"}),
    (2, "an_id_is_used", {"n": "n", "own": "own", "who": "who", "access": "access", "release": "release"}),
    (2, "gives_up", {"n": "n", "who": "who", "resource": "resource", "what": "giving_up"}),
    (2, "hangs_up", {"n": "n"}),
    (2, "dies_at_the_hand_over", {"n": "n", "m": "m", "ms": "frozen_ms"}),
    (3, "asks_with_a_key", {"who": "who", "resource": "resource", "key": "key", "op": "op", "n": "n"}),
    (1, "something_happens_to_the_plane", {"what": "upheaval", "ms": "upheaval_ms"}),
    (5, "time_passes", {"ms": "step_ms"}),
    (2, "time_passes_until_something_is_due", {"n": "n", "off": "off"}),
]


def walk(machine: type[SideBySide], seed: int) -> None:
    """One walk; AssertionError with the few commands that are needed where the sides differ."""
    r = Random(seed)
    rows = r.choices(_TABLE, [weight for weight, _, _ in _TABLE], k=STEPS)
    commands = [
        (name, {arg: _DRAW[how](r) for arg, how in how_by_arg.items()}) for _, name, how_by_arg in rows
    ]
    if play(machine, commands):
        short = cut_down(machine, commands)
        lines = "\n".join(f"  {name}({shown(args)})" for name, args in short)
        raise AssertionError(f"seed {seed}:\n{lines}\n{play(machine, short)}")


def play(machine: type[SideBySide], commands: list[Command]) -> str | None:
    """Play what makes sense of these commands; what went wrong, or None."""
    side_by_side = machine()
    try:
        for name, args in commands:
            if makes_sense(side_by_side, name):
                getattr(side_by_side, name)(**args)
                side_by_side.compare_lists()
                side_by_side.compare_trust()
    except AssertionError as difference:
        return str(difference)
    finally:
        side_by_side.teardown()
    return None


def makes_sense(side_by_side: SideBySide, name: str) -> bool:
    needs: dict[str, Callable[[], object]] = {
        "a_holder_wants_what_is_held": side_by_side.holders,
        "a_holder_releases": side_by_side.holders,
        "a_reader_wants_to_write": side_by_side.readers,
        "a_waiter_asks_again": side_by_side.waiters,
        "time_passes_until_something_is_due": side_by_side.dues,
        "an_id_is_used": lambda: side_by_side.ids,
        "hangs_up": lambda: side_by_side.twins and "hang_up" not in side_by_side.lacks,
        "dies_at_the_hand_over": lambda: (
            side_by_side.twins and not {"freeze", "kill_parker"} & set(side_by_side.lacks)
        ),
        "asks_with_a_key": lambda: "idempotency" not in side_by_side.lacks,
    }
    return name not in needs or bool(needs[name]())


def cut_down(machine: type[SideBySide], commands: list[Command]) -> list[Command]:
    """Leave out whatever is not needed for a failure: halves first, then smaller pieces, then one by one."""
    piece = len(commands) // 2
    while piece:
        start = 0
        while start < len(commands):
            rest = commands[:start] + commands[start + piece :]
            if play(machine, rest):
                commands = rest
            else:
                start += piece
        piece //= 2
    return commands
