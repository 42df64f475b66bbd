"""Embedded, in several processes on one data folder: a hand-over, idle waiters, and all at once."""

import json
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.load import Void
from bench.plan import Plan
from bench.servers import cpu_s, python
from bench.table import Row, bounded, of_a_hundred, told, void

SECTION = "embedded, several processes, no server"
RESOURCE = "lock:bench/processes"
HAND_OVER_MS_MAX = 3.0
IDLE_PROCESSES = 20
IDLE_CPU_MS_PER_S_MAX = 10.0
"""What all of them may cost together: one per cent of a core."""

CONTENDERS = 24
ROUND_MS_MAX = 100.0

_SETTLE_S = 0.02
"""By then the one that is parked sleeps, and whoever wrote is done."""


class WorkerProcess:
    """A `bench.worker`, and what it is asked."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def ask(self, *what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()

    def told(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Void("a worker ended before its time; its traceback is above")
        return json.loads(line)

    def asked(self, *what: object) -> Any:
        self.ask(*what)
        return self.told()

    def cpu_s(self) -> float:
        return cpu_s(self._process.pid)


@contextmanager
def workers(data: Path, number: int) -> Iterator[list[WorkerProcess]]:
    """So many processes, each with the folder open."""
    with ExitStack() as opened:
        started = []
        for _ in range(number):
            process = python(("-m", "bench.worker", str(data)), stdin=subprocess.PIPE)
            opened.callback(_end, process)
            started.append(WorkerProcess(process))
        for each in started:
            each.told()
        yield started


def _end(process: "subprocess.Popen[bytes]") -> None:
    # What is still parked or held in it is taken over from the dead.
    process.kill()
    process.communicate()


# -- a hand-over -------------------------------------------------------------------------------


def hand_over_rows(plan: Plan, folder: Path) -> list[Row]:
    """From just before `release` is called in one process until `acquire` has returned in the other."""
    took_ms = []
    with workers(folder / "plane", 2) as (holder, waiter):
        holder.asked("acquire", RESOURCE)
        for _ in range(plan.process_hand_overs):
            waiter.ask("acquire", RESOURCE)
            holder.asked("wait_parked", RESOURCE, 1)
            time.sleep(_SETTLE_S)
            released = holder.asked("release")
            took_ms.append(1_000 * (waiter.told() - released))
            holder, waiter = waiter, holder
    return [
        bounded(
            SECTION,
            "from a release to the parked acquire of another process, median",
            "ms",
            statistics.median(took_ms),
            HAND_OVER_MS_MAX,
        ),
        told(SECTION, "the same, 99 of 100", "ms", of_a_hundred(took_ms, 99)),
    ]


# -- idle --------------------------------------------------------------------------------------


def idle_rows(plan: Plan, folder: Path) -> list[Row]:
    """CPU time of processes that do nothing but wait in `acquire`, all threads of theirs counted."""
    with workers(folder / "plane", IDLE_PROCESSES + 1) as (holder, *waiting):
        holder.asked("acquire", RESOURCE)
        for each in waiting:
            each.ask("acquire", RESOURCE)
        holder.asked("wait_parked", RESOURCE, IDLE_PROCESSES)
        time.sleep(1)
        before_s, began = sum(each.cpu_s() for each in waiting), time.monotonic()
        holder_before_s = holder.cpu_s()
        time.sleep(plan.process_idle_s)
        took_s = time.monotonic() - began
        used_ms = 1_000 * (sum(each.cpu_s() for each in waiting) - before_s)
        holder_ms = 1_000 * (holder.cpu_s() - holder_before_s)
        holder.asked("wait_parked", RESOURCE, IDLE_PROCESSES)
    return [
        bounded(
            SECTION,
            f"CPU that {IDLE_PROCESSES} processes take together, each parked in acquire",
            "ms/s",
            used_ms / took_s,
            IDLE_CPU_MS_PER_S_MAX,
        ),
        told(SECTION, "CPU that the process takes that holds it", "ms/s", holder_ms / took_s),
    ]


# -- all at once -------------------------------------------------------------------------------


def contended_rows(plan: Plan, folder: Path) -> list[Row]:
    """All try for one lock at the same instant: one has it, the others are refused, again and again."""
    what = f"{CONTENDERS} processes try for one lock at once: one grant, {CONTENDERS - 1} refusals"
    try:
        with workers(folder / "plane", CONTENDERS) as contenders:
            took_ms = [_contend(contenders) for _ in range(plan.contended_rounds)]
    except Void as reason:
        return [void(SECTION, what, reason)]
    return [
        bounded(SECTION, f"{what}, median", "ms", statistics.median(took_ms), ROUND_MS_MAX),
        told(SECTION, "the same, 99 of 100", "ms", of_a_hundred(took_ms, 99)),
    ]


def _contend(contenders: list[WorkerProcess]) -> float:
    """One round, in milliseconds from the common instant until the last had its answer."""
    at = time.monotonic() + _SETTLE_S
    for each in contenders:
        each.ask("try_at", RESOURCE, at)
    outcomes = [each.told() for each in contenders]
    winners = [each for each, (granted, _) in zip(contenders, outcomes, strict=True) if granted]
    if len(winners) != 1:
        raise Void(f"{len(winners)} of {len(contenders)} were granted the lease in one round")
    winners[0].asked("release")
    return 1_000 * (max(known for _, known in outcomes) - at)
