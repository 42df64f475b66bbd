"""The clock: the machine's boot clock, which decides, beside the wall clock, which is only shown.

The boot clock runs through restarts of the process and through suspend, is the same for all
processes of a machine, and nobody can set it. It begins anew with the machine, so what is stored
with a time of it is stored with the boot's id.
"""

import sys
import time
from pathlib import Path
from typing import Final, Protocol

from leaseplane.model import Moment

_LINUX_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NS_PER_MS: Final = 1_000_000


class ClockMissing(Exception):
    """This platform has no clock that runs through suspend and that nobody can set, or hides its boot id."""


class Clock(Protocol):
    """What tells the time: an instant on both clocks, and which boot the boot clock counts from."""

    def now(self) -> Moment: ...

    @property
    def boot_id(self) -> str: ...


class SystemClock:
    """The machine's own clocks. Boot times of two processes of one machine and boot are comparable.

    Raises `ClockMissing` when made on a platform other than Linux and macOS, or where the boot id
    cannot be read: without it a time stored before a restart would be taken for one of this boot.
    """

    __slots__ = ("_boot_id", "_which")

    def __init__(self) -> None:
        if sys.platform == "linux":
            # CLOCK_MONOTONIC stands still while a Linux machine is suspended, CLOCK_BOOTTIME does not.
            self._which = time.CLOCK_BOOTTIME
            self._boot_id = _linux_boot_id(_LINUX_BOOT_ID)
        elif sys.platform == "darwin":
            # On macOS it is CLOCK_UPTIME_RAW that stands still; this one is mach_continuous_time.
            self._which = time.CLOCK_MONOTONIC_RAW
            self._boot_id = _darwin_boot_id()
        else:
            raise ClockMissing(
                f"leaseplane runs on Linux and macOS; on {sys.platform} it knows no clock "
                "that runs through suspend and that nobody can set"
            )

    def now(self) -> Moment:
        return Moment(time.clock_gettime_ns(self._which) // _NS_PER_MS, time.time_ns() // _NS_PER_MS)

    @property
    def boot_id(self) -> str:
        return self._boot_id


class ManualClock:
    """A clock that moves only when told to: for tests and simulation."""

    __slots__ = ("_boot_id", "_boot_ms", "_wall_ms")

    def __init__(self, boot_ms: int = 0, wall_ms: int = 0, boot_id: str = "boot-1") -> None:
        self._boot_ms = boot_ms
        self._wall_ms = wall_ms
        self._boot_id = boot_id

    def now(self) -> Moment:
        return Moment(self._boot_ms, self._wall_ms)

    @property
    def boot_id(self) -> str:
        return self._boot_id

    def advance(self, ms: int) -> None:
        """Let time pass, on both clocks."""
        assert ms >= 0, "a boot clock never goes back"
        self._boot_ms += ms
        self._wall_ms += ms

    def step_wall(self, ms: int) -> None:
        """Set the wall clock forward or, below zero, back. The boot clock does not notice."""
        self._wall_ms += ms

    def reboot(self, new_boot_id: str) -> None:
        """Start the machine again: the boot clock counts from 0 under a new id."""
        assert new_boot_id != self._boot_id, "every boot has an id of its own"
        self._boot_ms = 0
        self._boot_id = new_boot_id


def _linux_boot_id(path: Path) -> str:
    try:
        # As bytes: a text file brings the codec of its encoding.
        boot_id = path.read_bytes().decode("ascii").strip()
    except OSError as error:
        raise ClockMissing(f"the boot id cannot be read from {path}: {error.strerror}") from error
    if not boot_id:
        raise ClockMissing(f"the boot id in {path} is empty")
    return boot_id


def _darwin_boot_id() -> str:
    # Needed on no other platform.
    import ctypes

    libc = ctypes.CDLL(None)
    text = ctypes.create_string_buffer(64)
    size = ctypes.c_size_t(len(text))
    if libc.sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, 0) != 0 or not text.value:
        raise ClockMissing("the boot id cannot be read from kern.bootsessionuuid")
    return text.value.decode("ascii")
