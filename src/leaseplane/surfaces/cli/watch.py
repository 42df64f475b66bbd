"""The watch that a guard keeps: its one loop, and what it and its wrapper say to each other.

Runs in a process of its own, forked by `guard.start_guard`, and depends on nothing but what it is given.
"""

import contextlib
import os
import select
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from leaseplane.limits import RUN_LOOK_MS, RUN_SWEEP_LOOK_MS_MAX

BootClock: TypeAlias = Callable[[], int]
"""Tells the boot time in milliseconds."""

# One message, in either direction: what it is, and two numbers. Shorter than a pipe's atomic write, so
# that several threads of the wrapper, and its signal handlers, may send at any time.
MESSAGE: Final = struct.Struct("=cqq")
DEADLINE: Final = b"D"  # TERM at, KILL at
SIGNAL: Final = b"S"  # number
END: Final = b"E"  # KILL after
STARTED: Final = b"P"  # group
STOPPED: Final = b"T"  # number
ENDING: Final = b"N"
ENDED: Final = b"X"  # exit status, signal
GONE: Final = b"G"

_FIRST_FREE_FD: Final = 3

_NOT_FOR_THE_GUARD: Final = (
    # From a terminal, from a shell's job control, from whoever ends everything in sight: the guard has to
    # outlive all of it, since the command may.
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
)


def keep_watch(
    child: int,
    orders_fd: int,
    events_fd: int,
    boot_ms: BootClock,
    kill_after_ms: int,
    orphan_kill_after_ms: int,
) -> None:
    """Be the guard of `child`, which this process has forked, until nothing of its group is left.

    Each number is what `start_guard` says of it. Nothing of this process's parent is used any more: not its
    files, its signals or its terminal.
    """
    # The child does so too; whichever is first, it has happened before anyone hears of the group.
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    for number in _NOT_FOR_THE_GUARD:
        signal.signal(number, signal.SIG_IGN)
    woken_fd, wake_fd = open_pipe()
    os.set_blocking(woken_fd, False)
    os.set_blocking(wake_fd, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
    _keep_only(orders_fd, events_fd, woken_fd, wake_fd)
    # Blocked signals of the caller are the command's affair; a blocked SIGCHLD would be ours.
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    try:
        _Watch(child, orders_fd, events_fd, woken_fd, boot_ms, kill_after_ms, orphan_kill_after_ms).keep_on()
    except BaseException:
        # A fault of ours. No guard, no command.
        send(child, signal.SIGKILL)
        raise


def _keep_only(*kept: int) -> None:
    """Close every other file: whoever reads the command's output must not wait for us."""
    null_fd = os.open(os.devnull, os.O_RDWR)
    for standard in range(_FIRST_FREE_FD):
        os.dup2(null_fd, standard)
    last = _FIRST_FREE_FD
    for fd in sorted(kept):
        os.closerange(last, fd)
        last = fd + 1
    os.closerange(last, max(last, os.sysconf("SC_OPEN_MAX")))


class _Watch:
    """What the guard knows. Its one loop is `keep_on`."""

    def __init__(
        self,
        child: int,
        orders_fd: int,
        events_fd: int,
        woken_fd: int,
        boot_ms: BootClock,
        kill_after_ms: int,
        orphan_kill_after_ms: int,
    ) -> None:
        self.child = child
        """The command, and the number of its group."""
        self.orders_fd = orders_fd
        self.events_fd = events_fd
        self.woken_fd = woken_fd
        self.boot_ms = boot_ms
        self.kill_after_ms = kill_after_ms
        self.orphan_kill_after_ms = orphan_kill_after_ms
        self.unread = b""
        self.orphaned = False
        """The wrapper is gone."""
        self.term_at: int | None = None
        self.kill_at: int | None = None
        """The boot times that the wrapper has told. None: the command has not begun."""
        self.ending_kill_at: int | None = None
        """The boot time of KILL once TERM is sent. There is no way back from it."""
        self.killed = False
        self.reaped = False
        """The command itself has ended."""
        self.look_ms = 1
        """How soon to look again whether the rest of the group is gone: there is no event for it."""

    def keep_on(self) -> None:
        """Until nothing of the group is left."""
        self.tell(STARTED, self.child)
        poll = select.poll()
        poll.register(self.woken_fd, select.POLLIN)
        poll.register(self.orders_fd, select.POLLIN)
        while True:
            ready = dict(poll.poll(self.sleep_ms()))
            with contextlib.suppress(BlockingIOError):
                while self.woken_fd in ready and os.read(self.woken_fd, 512):
                    pass
            if self.orders_fd in ready and not self.take_orders():
                self.orphaned = True
                poll.unregister(self.orders_fd)
            self.observe()
            if self.reaped and not lives(self.child):
                break
            self.enforce()
            if self.killed:
                # Again each time: it costs nothing, and one may have joined since.
                send(self.child, signal.SIGKILL)
        self.tell(GONE)

    def sleep_ms(self) -> int | None:
        times = [self.ending_kill_at] if self.ending_kill_at is not None else [self.term_at]
        due = [time - self.boot_ms() for time in times if time is not None and not self.killed]
        if self.reaped or self.killed:
            self.look_ms = min(2 * self.look_ms, RUN_SWEEP_LOOK_MS_MAX)
            due.append(self.look_ms)
        if not due:
            return None
        # poll(2) counts on a clock that stands still while the machine is suspended.
        return max(0, min(*due, RUN_LOOK_MS))

    def take_orders(self) -> bool:
        """Do what the wrapper says. False: it is gone."""
        data = os.read(self.orders_fd, 4_096)
        self.unread += data
        while len(self.unread) >= MESSAGE.size:
            kind, one, other = MESSAGE.unpack(self.unread[: MESSAGE.size])
            self.unread = self.unread[MESSAGE.size :]
            if kind == DEADLINE:
                # They never go back: two threads of the wrapper may tell theirs in either order.
                self.term_at = max(one, self.term_at or one)
                self.kill_at = max(other, self.kill_at or other)
            elif kind == SIGNAL:
                send(self.child, one)
            elif kind == END:
                self.begin_ending(one)
            else:
                raise AssertionError(kind)
        return bool(data)

    def observe(self) -> None:
        """See what has become of the command."""
        while not self.reaped:
            # What is waited for here: a stop, and the end.
            pid, status = os.waitpid(self.child, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                break
            if os.WIFSTOPPED(status):
                self.tell(STOPPED, os.WSTOPSIG(status))
                continue
            # From here on the number is kept by what is left of the group, if anything is: `lives` is
            # asked before each signal, and numbers come round again only after tens of thousands.
            self.reaped = True
            by_signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            self.tell(ENDED, os.WEXITSTATUS(status) if not by_signal else 0, by_signal)

    def enforce(self) -> None:
        """TERM and KILL when their times have come."""
        now = self.boot_ms()
        if self.ending_kill_at is None:
            if self.orphaned:
                self.begin_ending(self.orphan_kill_after_ms)
            elif self.reaped or (self.term_at is not None and now >= self.term_at):
                self.begin_ending(self.kill_after_ms)
        elif self.orphaned:
            # Whatever was granted to the command before, it was by a wrapper that watched.
            self.ending_kill_at = min(self.ending_kill_at, now + self.orphan_kill_after_ms)
        if self.ending_kill_at is not None and self.kill_at is not None:
            self.ending_kill_at = min(self.ending_kill_at, max(self.kill_at, now))
        if self.ending_kill_at is not None and now >= self.ending_kill_at and not self.killed:
            self.killed = True

    def begin_ending(self, kill_after_ms: int) -> None:
        kill_at = self.boot_ms() + kill_after_ms
        if self.ending_kill_at is not None:
            self.ending_kill_at = min(self.ending_kill_at, kill_at)
            return
        self.ending_kill_at = kill_at
        if not self.reaped:
            # Not for what the command left behind when it was done.
            self.tell(ENDING)
        send(self.child, signal.SIGTERM)
        # One that is stopped would not get TERM before it goes on.
        send(self.child, signal.SIGCONT)

    def tell(self, kind: bytes, one: int = 0, other: int = 0) -> None:
        # Nobody reads what is told to a wrapper that is gone. SIGPIPE is ignored.
        with contextlib.suppress(BrokenPipeError):
            os.write(self.events_fd, MESSAGE.pack(kind, one, other))


def send(group: int, number: int) -> None:
    # A command that runs as somebody else (sudo) is not ours to signal.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def lives(group: int) -> bool:
    """Whether a process of this group may still do something."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # On macOS this is what is said of zombies, too.
        return sys.platform == "linux"
    if sys.platform != "linux":
        return True
    # A zombie is in the group as well, and nobody may ever fetch it: in many containers process 1 does not.
    looked_at = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                text = (Path(entry.path) / "stat").read_bytes()
            except OSError:
                continue
            looked_at += 1
            state, _parent, its_group = text.rpartition(b")")[2].split()[:3]
            if int(its_group) == group and state not in (b"Z", b"X"):
                return True
    # Where /proc shows nothing, the answer of kill(2) is all there is.
    return looked_at == 0


def open_pipe() -> tuple[int, int]:
    """A pipe whose ends are not inherited over exec, and are none of the standard files'.

    A process may be started with those closed, and the command has to find them as they were.
    """
    import fcntl

    ends = []
    for fd in os.pipe():
        if fd < _FIRST_FREE_FD:
            ends.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD))
            os.close(fd)
        else:
            ends.append(fd)
    reader, writer = ends
    return reader, writer
