"""The interruption: what the signals do that come to a wrapper, while it waits and while its command runs."""

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

from leaseplane.surfaces.cli.guard import Guard

_PASSED_ON: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


class Interrupted(KeyboardInterrupt):
    """A signal that means the end came while nothing was running."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Signals:
    """What the signals do that come to this process: end a wait, and go on to a command that runs.

    Those that this process was started to ignore (by `nohup`, or by a script's `&`) stay ignored.
    """

    def __init__(self) -> None:
        self._do: Callable[[int], None] = self._interrupt
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._came)

    def _came(self, number: int, frame: FrameType | None) -> None:
        self._do(number)

    def _interrupt(self, number: int) -> None:
        raise Interrupted(number)

    def pass_on_to(self, guard: Guard) -> None:
        self._do = guard.signal

    def interrupt(self) -> None:
        self._do = self._interrupt

    def ignore(self) -> None:
        self._do = lambda number: None


def end_by(number: int, *, everyone: bool) -> None:
    """End as a process that this signal has ended, so that a script that runs us ends as well: a shell
    looks at how its command ended. `everyone`: the rest of the script did not get it, since the command was
    alone in the foreground."""
    signal.signal(number, signal.SIG_DFL)
    if everyone:
        os.killpg(os.getpgrp(), number)
    os.kill(os.getpid(), number)
