import time
from pathlib import Path
from typing import Any

import pytest

from leaseplane import clock as clock_module
from leaseplane.clock import Clock, ClockMissing, ManualClock, SystemClock
from leaseplane.model import Moment


def test_the_system_clock_counts_milliseconds_since_boot_and_since_1970() -> None:
    clock: Clock = SystemClock()
    now = clock.now()
    assert 0 <= time.clock_gettime(time.CLOCK_BOOTTIME) * 1_000 - now.boot_ms < 1_000
    assert 0 <= time.time() * 1_000 - now.wall_ms < 1_000


def test_two_processes_of_one_boot_agree_on_the_boot(run: Any) -> None:
    code = "from leaseplane.clock import SystemClock; c = SystemClock(); print(c.boot_id, c.now().boot_ms)"
    before = SystemClock().now().boot_ms
    boot_id, boot_ms = run(code).split()
    assert boot_id == SystemClock().boot_id
    assert before <= int(boot_ms) <= SystemClock().now().boot_ms


def test_asking_the_time_is_cheap() -> None:
    clock = SystemClock()
    best_ns = min(_one_thousand_ns(clock) for _ in range(20)) / 1_000
    assert best_ns < 5_000, "far beyond the microsecond that it should take, even on a slow machine"


def _one_thousand_ns(clock: SystemClock) -> int:
    started = time.perf_counter_ns()
    for _ in range(1_000):
        clock.now()
    return time.perf_counter_ns() - started


@pytest.mark.parametrize("content", [None, ""])
def test_a_hidden_boot_id_is_said(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = tmp_path / "boot_id"
    if content is not None:
        name.write_text(content)
    monkeypatch.setattr(clock_module, "_LINUX_BOOT_ID", name)
    with pytest.raises(ClockMissing, match="boot id"):
        SystemClock()


def test_a_platform_without_such_a_clock_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_module.sys, "platform", "plan9")
    with pytest.raises(ClockMissing, match="on plan9"):
        SystemClock()


def test_the_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(boot_ms=5, wall_ms=1_000, boot_id="a")
    assert clock.now() == clock.now() == Moment(5, 1_000)
    clock.advance(10)
    assert clock.now() == Moment(15, 1_010)
    clock.step_wall(-500)
    assert clock.now() == Moment(15, 510)
    clock.reboot("b")
    assert (clock.now(), clock.boot_id) == (Moment(0, 510), "b")
    with pytest.raises(AssertionError):
        clock.advance(-1)
    with pytest.raises(AssertionError):
        clock.reboot("b")
