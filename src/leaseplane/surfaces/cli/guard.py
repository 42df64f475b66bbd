"""The guard: a process between a wrapper and its command, which ends the command when its time is over.

    wrapper (W) ──fork──▶ guard (G) ──fork──▶ command (C)
        │  deadlines, signals  ▲ │ stopped, ended    ▲
        └──────────────────────┘ └───────────────────┘
        └─────────── environment, go ────────────────┘

Who trusts whom:

- C does not run until W says so: it waits at a pipe, and where W dies it reads the end of that pipe and
  exits. So a wrapper that fails, at any point, never lets the action through.
- G does not trust W to be there: it knows the boot time at which the command has to be gone, and when that
  comes near (W is stopped, stuck, or cannot move it on), or when W's end of the pipe closes (W was killed),
  it ends the command's whole process group, TERM first and then KILL.
- W does not trust G to be there either: where G is gone or does not act, W kills the group (`put_down`), and
  where G dies the kernel kills C (Linux).
- Only G signals the group while G lives. It is C's parent, so it knows first when C's number is free: it
  fetches C's zombie itself, and from then on asks whether the group lives before each signal.

Here are processes, pipes and signals only; nothing knows of planes or leases. A process that leaves the
group, a daemon, is out of reach.
"""

import contextlib
import os
import select
import signal
import struct
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NoReturn, TypeAlias

import msgspec

from leaseplane.limits import RUN_SWEEP_LOOK_MS_MAX
from leaseplane.surfaces.cli.executable import NOT_EXECUTABLE, refusal_to_run, restore_signals, run_command
from leaseplane.surfaces.cli.watch import (
    DEADLINE,
    END,
    MESSAGE,
    SIGNAL,
    STARTED,
    BootClock,
    keep_watch,
    lives,
    open_pipe,
    send,
)

_Signals: TypeAlias = set[int | signal.Signals]

# What W tells C: start before, and how long the changes of the environment are that follow.
_GO: Final = struct.Struct("=qQ")

_PR_SET_PDEATHSIG: Final = 1


class GuardMissing(Exception):
    """The guard could not be started, or is gone; the command has not been started and never will be."""


# -- what the guard tells ----------------------------------------------------------------------


class Stopped(msgspec.Struct, frozen=True):
    """The command was stopped by this signal."""

    number: int


class Ending(msgspec.Struct, frozen=True):
    """The guard has begun to end the command: its time was over, or it was told to."""


class Ended(msgspec.Struct, frozen=True):
    """The command itself has ended, by itself with this status, or by this signal."""

    status: int
    number: int
    """The signal that ended it; 0: none did."""

    @property
    def exit_status(self) -> int:
        """As a shell says it."""
        return 128 + self.number if self.number else self.status


class Gone(msgspec.Struct, frozen=True):
    """Nothing of the command's group is left."""


class GuardLost(msgspec.Struct, frozen=True):
    """The guard is dead. Whoever hears this has to end the group: `put_down`."""


Event: TypeAlias = Stopped | Ending | Ended | Gone | GuardLost


# -- the wrapper's side ------------------------------------------------------------------------


def start_guard(
    command: Sequence[str],
    environment: Mapping[str, str],
    boot_ms: BootClock,
    *,
    kill_after_ms: int,
    orphan_kill_after_ms: int,
) -> "Guard":
    """Fork the guard and, behind it, the command, which waits for `Guard.begin`.

    Called while the process has one thread and nothing open that a child must not have: neither database
    nor lock nor socket. The command gets the files, the signals and the terminal that this process was
    started with. Once the command has ended by itself, what it leaves behind in its group gets TERM, and
    KILL `kill_after_ms` later; when the wrapper dies, the whole group does, after `orphan_kill_after_ms`.

    Raises `GuardMissing` where the system starts no more processes.
    """
    assert threading.active_count() == 1, "a lock that another thread holds would stay held in the child"
    ours_in, guard_out = open_pipe()
    guard_in, ours_out = open_pipe()
    command_in, go_out = open_pipe()
    # No signal between the fork and the moment when each process has its own dispositions.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for each in (ours_in, guard_out, guard_in, ours_out, command_in, go_out):
            os.close(each)
        raise GuardMissing(f"the system starts no more processes: {error.strerror}") from None
    if pid == 0:
        with _no_return():
            for each in (ours_in, ours_out, go_out):
                os.close(each)
            os.setpgid(0, 0)
            guard = os.getpid()
            child = os.fork()
            if child == 0:
                os.close(guard_in)
                os.close(guard_out)
                _be_the_command(command, environment, command_in, guard, boot_ms, mask)
            os.close(command_in)
            keep_watch(child, guard_in, guard_out, boot_ms, kill_after_ms, orphan_kill_after_ms)
            os._exit(0)
    # The guard is waited for, whatever this process's parent left as the disposition.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for each in (guard_out, guard_in, command_in):
        os.close(each)
    # A guard that is stopped reads nothing; whoever tells it something must not be stopped by that.
    os.set_blocking(ours_out, False)
    return Guard(pid, ours_in, ours_out, go_out)


class Guard:
    """The wrapper's hold on the guard and, through it, on the command.

    `hold_until`, `signal` and `end` may be called from any thread and from signal handlers; the others
    from one thread.
    """

    def __init__(self, pid: int, events_fd: int, orders_fd: int, go_fd: int) -> None:
        self._pid = pid
        self._events_fd = events_fd
        self._orders_fd = orders_fd
        self._go_fd = go_fd
        self._unread = b""
        self._group: int | None = None

    @property
    def group(self) -> int:
        """The number of the command's process group, which is there from the start.

        Raises `GuardMissing` where the guard has not come up.
        """
        if self._group is None:
            data = b""
            while len(data) < MESSAGE.size:
                more = os.read(self._events_fd, MESSAGE.size - len(data))
                if not more:
                    raise GuardMissing("the process that guards the command has ended; try again")
                data += more
            kind, self._group, _ = MESSAGE.unpack(data)
            assert kind == STARTED
        return self._group

    def hold_until(self, term_at_boot_ms: int, kill_at_boot_ms: int) -> None:
        """Let the command run until these boot times. Later ones move them on, until the first has come."""
        self._tell(DEADLINE, term_at_boot_ms, kill_at_boot_ms)

    def begin(self, changes: Mapping[str, str | None], start_before_boot_ms: int) -> None:
        """Start the command, with these changes of its environment (None: without that variable).

        After `hold_until`. A command that does not get to start before `start_before_boot_ms` never does.
        Raises `GuardMissing` where there is nothing that could be started any more.
        """
        told = [name if value is None else f"{name}={value}" for name, value in changes.items()]
        payload = os.fsencode("\0".join(told))
        message = memoryview(_GO.pack(start_before_boot_ms, len(payload)) + payload)
        try:
            while message:
                message = message[os.write(self._go_fd, message) :]
        except BrokenPipeError:
            raise GuardMissing("the process that was to become the command has ended; try again") from None
        os.close(self._go_fd)
        self._go_fd = -1

    def signal(self, number: int) -> None:
        """Send this signal to the command's whole process group."""
        self._tell(SIGNAL, number, 0)

    def end(self, kill_after_ms: int) -> None:
        """End the command's whole process group: TERM now, KILL after that time."""
        self._tell(END, kill_after_ms, 0)

    def events(self, wait_ms: int) -> Iterator[Event]:
        """What has happened, in order; waits for it for at most `wait_ms`."""
        poll = select.poll()
        poll.register(self._events_fd, select.POLLIN)
        if not poll.poll(wait_ms):
            return
        data = os.read(self._events_fd, 4_096)
        if not data:
            yield GuardLost()
            return
        self._unread += data
        while len(self._unread) >= MESSAGE.size:
            kind, one, other = MESSAGE.unpack(self._unread[: MESSAGE.size])
            self._unread = self._unread[MESSAGE.size :]
            match kind:
                case b"P":
                    self._group = one
                case b"T":
                    yield Stopped(one)
                case b"N":
                    yield Ending()
                case b"X":
                    yield Ended(one, other)
                case b"G":
                    yield Gone()
                case _:
                    raise AssertionError(kind)

    def put_down(self) -> None:
        """Kill the command's group and the guard from here, for a guard that is dead or does not act.

        Its number is safe: a guard that is stopped keeps C's zombie, and where the guard is dead a group
        of this number can only be C's, since numbers come round again after tens of thousands.
        """
        send(self.group, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        while lives(self.group):
            select.poll().poll(RUN_SWEEP_LOOK_MS_MAX)

    def close(self) -> None:
        """Part with the guard, and wait until it is gone. A command that was not begun never runs."""
        # First forgotten: a signal may come in between, and what it has to tell goes nowhere then.
        closing = (self._go_fd, self._orders_fd, self._events_fd)
        self._go_fd = self._orders_fd = self._events_fd = -1
        for each in closing:
            if each >= 0:
                os.close(each)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _tell(self, kind: bytes, one: int, other: int) -> None:
        # Lost only on a guard that is dead, whose end `events` tells, or one that was stopped for thousands
        # of messages: the deadlines that it has then are earlier ones.
        if self._orders_fd >= 0:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(self._orders_fd, MESSAGE.pack(kind, one, other))


@contextlib.contextmanager
def _no_return() -> Iterator[None]:
    """In a forked child: whatever happens, nothing of the parent's code is run."""
    try:
        yield
    finally:
        os._exit(NOT_EXECUTABLE)


# -- the command, before it is one -------------------------------------------------------------


def _be_the_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    go_fd: int,
    guard: int,
    boot_ms: BootClock,
    mask: _Signals,
) -> NoReturn:
    os.setpgid(0, 0)
    _die_with(guard)
    restore_signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    start_before_boot_ms, length = _GO.unpack(_read_whole(go_fd, _GO.size))
    changed = dict(environment)
    for told in os.fsdecode(_read_whole(go_fd, length)).split("\0"):
        name, has_value, value = told.partition("=")
        if has_value:
            changed[name] = value
        else:
            changed.pop(name, None)
    if boot_ms() >= start_before_boot_ms:
        # The wrapper was held up between the lease and the go. The guard has the same deadline.
        signal.pause()
        os._exit(NOT_EXECUTABLE)
    try:
        run_command(command, changed)
    except OSError as error:
        status, complaint = refusal_to_run(command[0], error)
        with contextlib.suppress(OSError):
            os.write(2, f"leaseplane run: {complaint}\n".encode(errors="backslashreplace"))
        os._exit(status)


def _read_whole(fd: int, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = os.read(fd, length - len(data))
        if not more:
            # The wrapper has ended without a go: nothing is run.
            os._exit(NOT_EXECUTABLE)
        data += more
    return data


def _die_with(guard: int) -> None:
    """Have the kernel kill this process when its parent, the guard, dies; only Linux can."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # It may have died before that, even before this process first ran: told by the guard, not asked now.
        if os.getppid() != guard:
            os._exit(NOT_EXECUTABLE)
