"""`leaseplane run`: a command that runs while a lease is held, and not a moment longer.

The command waits behind its guard (`guard.py`) from the start; here is what stands between the guard and
the plane: the wait, the lease's deadlines, the signals, the terminal, and the exit status.
"""

import argparse
import contextlib
import os
import select
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

from leaseplane.limits import (
    RUN_KILL_AFTER_LOSS_MS,
    RUN_KILL_AFTER_ORPHANED_MS,
    RUN_KILL_AFTER_TERM_MS,
    RUN_KILL_BEFORE_END_MS_MAX,
    RUN_KILL_BEFORE_END_PART,
    RUN_LOOK_MS,
    RUN_STILL_RETRY_MS,
    RUN_TERM_BEFORE_END_MS_MAX,
    RUN_TERM_BEFORE_END_PART,
)
from leaseplane.resources import check_note, check_resource
from leaseplane.surfaces.cli.asker import add_asker, asked_plane
from leaseplane.surfaces.cli.executable import find_command, refusal_to_run, restore_signals, run_command
from leaseplane.surfaces.cli.foreground import Foreground
from leaseplane.surfaces.cli.guard import (
    Ended,
    Ending,
    Gone,
    Guard,
    GuardLost,
    GuardMissing,
    Stopped,
    start_guard,
)
from leaseplane.surfaces.cli.interruption import Interrupted, Signals, end_by
from leaseplane.surfaces.cli.lease import seconds
from leaseplane.surfaces.cli.parser import Commands, add_command
from leaseplane.surfaces.cli.terminal import REFUSED, USAGE, CommandRefused, Terminal
from leaseplane.surfaces.cli.waiting_line import WaitingLine, duration, waiting_words

if TYPE_CHECKING:
    from leaseplane.client.lease import HeldLease
    from leaseplane.client.outcomes import LeaseHeld
    from leaseplane.client.plane import Lease, Plane

LOST: Final = 4
"""The exit status of a `run` whose lease was lost."""

_FROM_THE_KEYBOARD: Final = (signal.SIGINT, signal.SIGQUIT)
_WANTS_THE_TERMINAL: Final = (signal.SIGTTIN, signal.SIGTTOU)

_MORE = """\
Waits in the queue for the lease, runs the command, renews the lease while it runs, and lets go of it \
when the command and all it left behind in its process group have ended. Without the lease the command \
is never started, whatever happens to this program.

The command has the terminal, the pipes and the signals that it would have without `run`: SIGINT, \
SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 go on to its whole process group, and one that ignores \
them keeps the lease. If the lease cannot be renewed, the group is ended before anyone else can have the \
resource: SIGTERM 5 seconds before the lease ends and SIGKILL 1 second before, sooner after one another \
for a lease of less than 20 seconds. If this program is killed, the group gets SIGTERM at once and \
SIGKILL 2 seconds later. Ctrl-Z stops the command; stopped for longer than the lease runs, it loses it \
and is ended. A process that leaves the group (a daemon, a job of an interactive shell), or that runs as \
another user, cannot be ended.

In the command's environment are LEASEPLANE_FENCE (send it with what you write, and refuse there what is \
lower), LEASEPLANE_LEASE_ID, LEASEPLANE_RESOURCE, LEASEPLANE_INSTANCE, and LEASEPLANE_HELD: all that is \
held, one a line. A `run` inside asks for nothing that is held there already.

Examples:

    leaseplane run lock:deploy/production --note "4.2" -- ./deploy.sh

    leaseplane run table:users --timeout 60 -- ./migrate.sh

    git diff | leaseplane run file:src/app.py -- patch -p1

Exit status: the command's own, or 128+n where signal n ended it; 126 where it cannot be run, 127 where \
it is not there; 1 where the lease was refused (still held after --timeout, deadlock), 2 wrong usage, 3 \
the authority cannot be reached, 4 the lease was lost and the command was ended for it; 128+n where \
signal n came while waiting: the wait is given up."""


def add_to(commands: Commands) -> None:
    """Declare the command."""
    parser = add_command(commands, "run", "Run a command under a lease.", _MORE, run=_run)
    parser.usage = "leaseplane run [OPTION]… RESOURCE -- COMMAND…"
    parser.add_argument("resource", metavar="RESOURCE", help="what is leased, such as lock:deploy/production")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=seconds,
        help="wait for so many seconds; 0 asks once (default: as long as it takes)",
    )
    parser.add_argument("--note", metavar="TEXT", help="what it is for; shown to those who wait")
    parser.add_argument("--access", choices=("read", "write", "delete"), help="what for (default: write)")
    add_asker(parser, answers=False)
    parser.take_command("words", "the command and its arguments, as they are; no shell reads them")


def _run(args: argparse.Namespace, terminal: Terminal) -> int:
    check_resource(args.resource)
    if args.note is not None:
        check_note(args.note)
    _check_command(args.words, terminal)
    if args.resource in terminal.settings.held:
        _become(args, terminal)
    try:
        guard = start_guard(
            args.words,
            terminal.environment,
            lambda: terminal.clock.now().boot_ms,
            kill_after_ms=RUN_KILL_AFTER_TERM_MS,
            # Inside another `run`, whose guard kills us when its own time is all but over: it has sent TERM.
            orphan_kill_after_ms=0 if terminal.settings.held else RUN_KILL_AFTER_ORPHANED_MS,
        )
    except GuardMissing as missing:
        raise CommandRefused(str(missing)) from None
    _open_standard_files()
    foreground = Foreground.open()
    signals = Signals()
    try:
        return _Run(args, terminal, guard, foreground, signals).to_its_end()
    except Interrupted as interrupted:
        # While waiting. As for a command that was ended, below.
        if foreground is not None and interrupted.number == signal.SIGINT:
            guard.close()
            end_by(signal.SIGINT, everyone=False)
        return 128 + interrupted.number
    finally:
        # Whatever it was: nothing that has not begun will, and nothing that has is left.
        guard.close()
        if foreground is not None:
            foreground.close()
        signals.ignore()


def _check_command(words: list[str], terminal: Terminal) -> None:
    """Refuse a command that is not there before anyone waits for it."""
    try:
        find_command(words[0], terminal.environment)
    except OSError as error:
        status, complaint = refusal_to_run(words[0], error)
        raise CommandRefused(complaint, status=status) from None


def _become(args: argparse.Namespace, terminal: Terminal) -> NoReturn:
    """Be the command, of whose lease the `run` around this process takes care."""
    settings = terminal.settings
    environment = {**terminal.environment, "LEASEPLANE_RESOURCE": args.resource}
    if settings.held_leases:
        fence, lease_id = settings.held_leases[settings.held.index(args.resource)]
        environment |= {"LEASEPLANE_FENCE": str(fence), "LEASEPLANE_LEASE_ID": lease_id}
    elif terminal.environment.get("LEASEPLANE_RESOURCE") != args.resource:
        # Those of another resource: a wrong fence is worse than none.
        environment.pop("LEASEPLANE_FENCE", None)
        environment.pop("LEASEPLANE_LEASE_ID", None)
    restore_signals()
    try:
        run_command(args.words, environment)
    except OSError as error:
        status, complaint = refusal_to_run(args.words[0], error)
        raise CommandRefused(complaint, status=status) from None


def _open_standard_files() -> None:
    """Occupy 0, 1 and 2 where this process was started without: a database must not get one of them, on
    which an error message may be written. The command is forked already, and has them as they were."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def deadlines(ends_boot_ms: int, ttl_ms: int) -> tuple[int, int]:
    """When a command gets TERM, and when KILL, for a lease that is certainly held until `ends_boot_ms`."""
    return (
        ends_boot_ms - min(RUN_TERM_BEFORE_END_MS_MAX, ttl_ms // RUN_TERM_BEFORE_END_PART),
        ends_boot_ms - min(RUN_KILL_BEFORE_END_MS_MAX, ttl_ms // RUN_KILL_BEFORE_END_PART),
    )


class _Run:
    """One command, from the wait for its lease to its exit status."""

    def __init__(
        self,
        args: argparse.Namespace,
        terminal: Terminal,
        guard: Guard,
        foreground: Foreground | None,
        signals: Signals,
    ) -> None:
        self._args = args
        self._terminal = terminal
        self._guard = guard
        self._foreground = foreground
        self._signals = signals
        self._was_in_foreground = False
        self._is_ended_by_us = False
        """The guard has begun to end it: for the lease, since nothing else makes it."""
        self._lost_boot_ms: int | None = None
        self._plane: Plane | None = None
        self._refused_status = REFUSED

    def to_its_end(self) -> int:
        """The exit status of `leaseplane run`."""
        with asked_plane(self._args, self._terminal, makes=True) as plane:
            self._plane = plane
            stopping = signal.getsignal(signal.SIGTSTP)
            self._stop_between_transactions()
            try:
                lease = self._waited_for(plane)
                if lease is None:
                    return self._refused_status
                try:
                    ended = self._under(lease)
                finally:
                    # The command is gone, or never was; `Guard.close` sees to it where we fail.
                    self._guard.close()
                    if self._foreground is not None:
                        self._foreground.take_back()
                status = self._let_go(lease, ended)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGTSTP, stopping)
        self._signals.ignore()
        by_keyboard = ended.number in _FROM_THE_KEYBOARD and self._foreground is not None
        if by_keyboard and status != LOST:
            end_by(ended.number, everyone=self._was_in_foreground)
        return status

    # -- the wait ------------------------------------------------------------------------------

    def _waited_for(self, plane: "Plane") -> "Lease | None":
        """The lease; None, and `_refused_status`, where it was refused."""
        from leaseplane.client.outcomes import LeaseHeld, Refused

        args = self._args
        line = WaitingLine(args.resource, self._terminal, command="run")
        granted = False
        try:
            lease = plane.acquire(
                args.resource,
                timeout=args.timeout,
                access=args.access,
                note=args.note,
                on_wait=None if args.quiet else line.told,
            )
            granted = True
            return lease
        except Interrupted:
            line.done(granted=False)
            self._let_go_of_what_came_too_late(plane)
            raise
        except LeaseHeld as held:
            line.done(granted=False)
            self._say(self._still_held(held))
            self._refused_status = REFUSED
        except Refused as refused:
            line.done(granted=False)
            self._say(str(refused))
            self._refused_status = USAGE if refused.status in (400, 413) else REFUSED
        finally:
            line.done(granted=granted)
        return None

    def _let_go_of_what_came_too_late(self, plane: "Plane") -> None:
        """The signal may have come between the grant and the moment when `acquire` had a handle on it."""
        from leaseplane.client.outcomes import Refused
        from leaseplane.model import AuthorityUnavailable, OutcomeUnknown

        with contextlib.suppress(Refused, AuthorityUnavailable, OutcomeUnknown):
            # Each lease of a plane is INSTANCE.n, and this would be its first.
            plane.release(self._args.resource, instance=f"{plane.instance}.1")

    def _still_held(self, held: "LeaseHeld") -> str:
        waited = f"after {duration(int(self._args.timeout))}" if self._args.timeout else "at once"
        words = waiting_words(self._args.resource, held, self._terminal.clock.now().wall_ms)
        return f"not granted {waited}: {words}; the command was not started"

    # -- under the lease -----------------------------------------------------------------------

    def _under(self, lease: "Lease") -> Ended:
        """Run the command; how it ended. Nothing of its group is left then."""
        guard = self._guard
        ttl_ms = lease.holding.ttl_ms
        term_at, kill_at = deadlines(lease.ends_boot_ms, ttl_ms)
        lease.watch(self._changed)
        # The deadline first: a command that runs always has one.
        guard.hold_until(term_at, kill_at)
        try:
            group = guard.group
            if self._foreground is not None and self._wants_foreground(self._foreground):
                self._give_foreground(group)
            self._signals.pass_on_to(guard)
            self._stop_with_the_command()
            guard.begin(self._environment(lease), term_at)
        except GuardMissing as missing:
            raise CommandRefused(str(missing)) from None
        ended: Ended | None = None
        while True:
            put_down_at = self._put_down_at(lease)
            wait_ms = max(0, min(RUN_LOOK_MS, put_down_at - self._now_ms()))
            has_acted = self._is_ended_by_us or ended is not None
            for event in guard.events(wait_ms):
                has_acted = True
                match event:
                    case Stopped(number):
                        self._stopped(lease, group, number)
                    case Ending():
                        self._is_ended_by_us = True
                        self._say(f"ending the command: {_why_ending(lease)}")
                    case Ended():
                        ended = event
                    case Gone():
                        assert ended is not None
                        self._take_terminal_back(ended)
                        return ended
                    case GuardLost():
                        # The kernel has killed the command; what is left of its group we do.
                        guard.put_down()
                        return ended or Ended(0, signal.SIGKILL)
            if not has_acted and self._now_ms() >= put_down_at:
                # The guard should have acted long ago: it is stopped, say.
                self._is_ended_by_us = True
                guard.put_down()
                return Ended(0, signal.SIGKILL)

    def _environment(self, lease: "Lease") -> dict[str, str | None]:
        args, settings = self._args, self._terminal.settings
        changes: dict[str, str | None] = {
            "LEASEPLANE_FENCE": str(lease.fence),
            "LEASEPLANE_LEASE_ID": lease.lease_id,
            "LEASEPLANE_RESOURCE": lease.resource,
            "LEASEPLANE_INSTANCE": lease.instance,
            "LEASEPLANE_HELD": "\n".join([*settings.held, lease.resource]),
        }
        if len(settings.held) == len(settings.held_leases):
            leases = [*settings.held_leases, (lease.fence, lease.lease_id)]
            changes["LEASEPLANE_HELD_LEASES"] = "\n".join(f"{fence} {name}" for fence, name in leases)
        # What asks from within the command asks the same plane as the same agent.
        if args.agent is not None:
            changes["LEASEPLANE_AGENT"] = args.agent
        if args.data is not None:
            changes |= {"LEASEPLANE_DATA": str(Path(args.data).absolute()), "LEASEPLANE_URL": None}
        return changes

    def _changed(self, lease: "HeldLease") -> None:
        """On the keeper's thread: the lease was renewed, or is lost."""
        if lease.is_held:
            self._guard.hold_until(*deadlines(lease.ends_boot_ms, lease.holding.ttl_ms))
        else:
            self._lost_boot_ms = self._now_ms()
            self._guard.end(RUN_KILL_AFTER_LOSS_MS)

    def _put_down_at(self, lease: "Lease") -> int:
        """When to do without the guard: the command should be gone, and the lease is all but over."""
        _, kill_at = deadlines(lease.ends_boot_ms, lease.holding.ttl_ms)
        spare_ms = (lease.ends_boot_ms - kill_at) // 2
        if self._lost_boot_ms is not None:
            kill_at = min(kill_at, self._lost_boot_ms + RUN_KILL_AFTER_LOSS_MS)
        return kill_at + spare_ms

    # -- the terminal --------------------------------------------------------------------------

    def _wants_foreground(self, foreground: Foreground) -> bool:
        """Whether the command gets the terminal from the start. Where it is in a pipeline, others in it may
        need the keys (`leaseplane run … | less`), and it gets the terminal when it reads from it."""
        return os.isatty(0) and os.isatty(1) and foreground.is_ours()

    def _give_foreground(self, group: int) -> None:
        assert self._foreground is not None
        self._foreground.give(group)
        self._was_in_foreground = True

    def _take_terminal_back(self, ended: Ended) -> None:
        if self._foreground is not None:
            self._foreground.take_back(mend=bool(ended.number) or self._is_ended_by_us)

    def _stop_with_the_command(self) -> None:
        """Have Ctrl-Z stop the command first, and us when it has stopped."""
        if self._foreground is not None and signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            signal.signal(signal.SIGTSTP, lambda number, frame: self._guard.signal(number))

    def _stop_between_transactions(self) -> None:
        """Have Ctrl-Z stop us while we wait, but not in a transaction, where we would keep everyone from the
        data folder for as long as we are stopped."""
        if signal.getsignal(signal.SIGTSTP) is signal.SIG_IGN:
            return

        def stop_or_try_again(number: int, frame: FrameType | None) -> None:
            if not self._stop_ourselves(signal.SIGTSTP):
                signal.setitimer(signal.ITIMER_REAL, RUN_STILL_RETRY_MS / 1000)

        signal.signal(signal.SIGALRM, stop_or_try_again)
        signal.signal(signal.SIGTSTP, stop_or_try_again)

    def _stopped(self, lease: "Lease", group: int, number: int) -> None:
        """The command is stopped. A shell expects its job to be, and to have the terminal."""
        foreground = self._foreground
        if foreground is None:
            # No shell waits for it: it goes on when whoever stopped it says so. The lease is renewed.
            return
        if number in _WANTS_THE_TERMINAL and foreground.is_ours():
            self._give_foreground(group)
            self._guard.signal(signal.SIGCONT)
            return
        had_foreground = foreground.take_back()
        while not self._stop_ourselves(number if number in _WANTS_THE_TERMINAL else signal.SIGTSTP):
            select.poll().poll(RUN_STILL_RETRY_MS)
        # Continued, perhaps hours later. By then the guard may have ended what it had to.
        if not lease.is_held:
            self._guard.end(RUN_KILL_AFTER_LOSS_MS)
            return
        if had_foreground and foreground.is_ours():
            self._give_foreground(group)
        self._guard.signal(signal.SIGCONT)

    def _stop_ourselves(self, number: int) -> bool:
        """Stop this process and the rest of its job, as Ctrl-Z would have if the command were one of them.

        False where it is in a transaction now; otherwise it returns when it is continued. Where no shell
        could continue it, it is not stopped (POSIX: a terminal's signal does not stop an orphaned group).
        """
        assert self._plane is not None
        with self._plane.still() as still:
            if still:
                handler = signal.signal(number, signal.SIG_DFL)
                # Of the threads that could take it the kernel prefers the one that runs, which is this one.
                os.killpg(os.getpgrp(), number)
                signal.signal(number, handler)
        return still

    # -- the end -------------------------------------------------------------------------------

    def _let_go(self, lease: "Lease", ended: Ended) -> int:
        """Let go of the lease. The exit status that says how it all went."""
        from leaseplane.client.outcomes import LeaseLost
        from leaseplane.model import AuthorityUnavailable, OutcomeUnknown

        self._signals.interrupt()
        status = LOST if self._is_ended_by_us else ended.exit_status
        try:
            lease.release()
        except LeaseLost as lost:
            # It was broken off, say, and nobody had told us yet: what the command did may have overlapped.
            self._say(str(lost))
            status = LOST
        except (AuthorityUnavailable, OutcomeUnknown, KeyboardInterrupt) as failure:
            told = str(failure) or "interrupted"
            self._say(f"the lease of {lease.resource} could not be let go of, and runs out by itself: {told}")
        return status

    def _say(self, line: str) -> None:
        self._terminal.remark(f"leaseplane run: {' '.join(line.split())}")

    def _now_ms(self) -> int:
        return self._terminal.clock.now().boot_ms


def _why_ending(lease: "Lease") -> str:
    from leaseplane.client.outcomes import LeaseLost

    try:
        lease.ensure_held()
    except LeaseLost as lost:
        return str(lost)
    return f"the lease of {lease.resource} could not be renewed and ends soon"
