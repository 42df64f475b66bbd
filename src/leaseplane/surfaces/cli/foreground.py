"""The foreground of the terminal: which process group its keys go to.

As a job-control shell does it (POSIX.1-2024, tcsetpgrp; "Implementing a Job Control Shell" in the manual
of glibc): a group that is not in the foreground and reads from the terminal is stopped.
"""

import contextlib
import os
import signal
import termios
from collections.abc import Iterator
from typing import Any, Final

_TERMINAL: Final = "/dev/tty"


class Foreground:
    """The controlling terminal of this process, and who is in its foreground."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._given_to: int | None = None
        self._settings: list[Any] | None = None

    @classmethod
    def open(cls) -> "Foreground | None":
        """None where this process has no terminal."""
        try:
            return cls(os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        except OSError:
            return None

    def is_ours(self) -> bool:
        """Whether this process's group is in the foreground."""
        with contextlib.suppress(OSError):
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        return False

    def give(self, group: int) -> None:
        """Put another group of this session into the foreground."""
        with contextlib.suppress(OSError, termios.error):
            self._settings = termios.tcgetattr(self._fd)
            self._put(group)
            self._given_to = group

    def take_back(self, *, mend: bool = False) -> bool:
        """Put this process's group into the foreground, if it gave it away; whether it had.

        `mend`: whoever had it was ended, and may have left the terminal without echo, say.
        """
        group, self._given_to = self._given_to, None
        if group is None:
            return False
        with contextlib.suppress(OSError, termios.error):
            now = os.tcgetpgrp(self._fd)
            # Where a shell has put itself there meanwhile, it is the shell's.
            if now == group or not _exists(now):
                self._put(os.getpgrp())
                if mend and self._settings is not None:
                    with _without_stop():
                        termios.tcsetattr(self._fd, termios.TCSADRAIN, self._settings)
        return True

    def close(self) -> None:
        os.close(self._fd)

    def _put(self, group: int) -> None:
        with _without_stop():
            os.tcsetpgrp(self._fd, group)


@contextlib.contextmanager
def _without_stop() -> Iterator[None]:
    """A process that changes the terminal from the background is stopped, unless it blocks that signal."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
