"""`leaseplane acquire` and `leaseplane release`: one lease, asked for and let go of by a script."""

import argparse
from typing import TYPE_CHECKING

from leaseplane.limits import PARK_MS_MAX, PARK_SLICE_TOLD_MS
from leaseplane.surfaces.cli.asker import add_asker, asked_plane, part_of, tell, tell_refusal
from leaseplane.surfaces.cli.parser import Commands, add_command
from leaseplane.surfaces.cli.terminal import Terminal

if TYPE_CHECKING:
    from leaseplane.client.outcomes import Granted, LeaseHeld
    from leaseplane.client.plane import Plane
    from leaseplane.surfaces.cli.waiting_line import WaitingLine

_RESOURCE = "the resource, such as lock:deploy/production or file:src/app.py"


def add_acquire(commands: Commands) -> None:
    """Declare `acquire`."""
    parser = add_command(
        commands,
        "acquire",
        "Ask for a lease, or renew the one that is held already.",
        "The lease runs for its term, 30 seconds as a rule, and is not renewed by this command: ask again, "
        "or let `leaseplane run` hold one while a command runs. A refused ask keeps its place in the queue "
        "for one term.\n\n"
        "Examples:\n\n"
        "    leaseplane acquire lock:deploy/production --note 'rolling out 4.2'\n\n"
        "    leaseplane acquire lock:db --timeout 60 --json > grant.json\n\n"
        "    leaseplane verify grant.json\n\n"
        "Exit status: 0 granted or renewed, 1 refused, 2 wrong usage, 3 the authority cannot be reached.",
        run=_acquire,
    )
    parser.add_argument("resource", metavar="RESOURCE", help=_RESOURCE)
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=seconds,
        default=0.0,
        help="wait in the queue for so many seconds (default: 0, ask once)",
    )
    parser.add_argument(
        "--access",
        choices=("read", "write", "delete"),
        help="what for (default: write, or what is held already)",
    )
    parser.add_argument("--note", metavar="TEXT", help="what it is for; shown to those who wait")
    parser.add_argument("--lease-id", metavar="ID", help="renew this lease only, and never take another")
    parser.add_argument(
        "--idempotency-key", metavar="KEY", help="a repeat under the same key gets the same answer"
    )
    add_asker(parser, names_part=True)


def add_release(commands: Commands) -> None:
    """Declare `release`."""
    parser = add_command(
        commands,
        "release",
        "Let go of a lease that is held.",
        "The next in line gets it. Letting go in time raises the agent's trust by 0.5; a lease that runs out "
        "lowers it by 5.",
        run=_release,
    )
    parser.add_argument("resource", metavar="RESOURCE", help=_RESOURCE)
    parser.add_argument(
        "--lease-id", metavar="ID", help="only this lease, whichever part of the agent holds it"
    )
    parser.add_argument(
        "--idempotency-key", metavar="KEY", help="a repeat under the same key gets the same answer"
    )
    add_asker(parser, names_part=True)


def seconds(text: str) -> float:
    """The type of an argument in seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError("must be a number of seconds, 0 or more")
    return value


def _acquire(args: argparse.Namespace, terminal: Terminal) -> int:
    from leaseplane.client.outcomes import LeaseHeld, Refused

    with asked_plane(args, terminal, makes=True) as plane:
        try:
            granted = _asked(args, terminal, plane)
        except LeaseHeld as held:
            return tell_refusal(args, terminal, held, _held_line(args.resource, held))
        except Refused as refused:
            return tell_refusal(args, terminal, refused)
    lease = granted.lease
    what = "renewed" if granted.renewed else f"{lease['access']} lease granted"
    waiting = f"; {granted.waiting} waiting" if granted.waiting else ""
    line = (
        f"{lease['resource']}: {what} until {lease['expiresAt']} "
        f"(lease {granted.lease_id}, fence {granted.fence}){waiting}"
    )
    return tell(args, terminal, granted, line)


def _asked(args: argparse.Namespace, terminal: Terminal, plane: "Plane") -> "Granted":
    """Ask, and ask again until the time is over. A place in the queue that is not wanted any more, since
    the person at the terminal has had enough, is given up."""
    from leaseplane.client.outcomes import LeaseHeld

    instance, key = part_of(args, terminal), args.idempotency_key
    until_ms = terminal.clock.now().boot_ms + int(args.timeout * 1000)
    is_watched = bool(args.timeout) and terminal.stderr.isatty() and not args.quiet
    line = _waiting_line(args, terminal) if is_watched else None
    # Whoever looks on wants to see at once who is in the way, and how the queue does.
    slice_ms = 0 if is_watched else PARK_MS_MAX
    granted = False
    try:
        while True:
            left_ms = max(0, until_ms - terminal.clock.now().boot_ms)
            try:
                answer = plane.ask(
                    args.resource,
                    access=args.access,
                    max_wait_ms=min(left_ms, slice_ms) or None,
                    lease_id=args.lease_id,
                    note=args.note,
                    instance=instance,
                    idempotency_key=key,
                )
                granted = True
                return answer
            except LeaseHeld as held:
                if left_ms <= slice_ms:
                    raise
                if line is not None:
                    line.told(held)
                    slice_ms = PARK_SLICE_TOLD_MS
            # A key is for one request, with one answer.
            key = None
    except KeyboardInterrupt:
        plane.withdraw(args.resource, instance=instance)
        raise
    finally:
        if line is not None:
            line.done(granted=granted)


def _waiting_line(args: argparse.Namespace, terminal: Terminal) -> "WaitingLine":
    from leaseplane.surfaces.cli.waiting_line import WaitingLine

    return WaitingLine(args.resource, terminal, command="acquire")


def _held_line(resource: str, held: "LeaseHeld") -> str:
    """What a refusal means to whoever typed the command."""
    if held.holder is None:
        return f"nobody holds {resource} now, but others are before you; ask again, or wait with --timeout"
    by = f"{held.holder} (instance {held.instance})" if held.instance else held.holder
    what_for = f" for “{held.note}”" if held.note else ""
    return (
        f"{resource} is held by {by}{what_for} since {held.held_since}, until {held.expires_at} unless it is "
        f"renewed; you are number {held.position} in line: ask again, or wait with --timeout"
    )


def _release(args: argparse.Namespace, terminal: Terminal) -> int:
    from leaseplane.client.outcomes import Refused

    with asked_plane(args, terminal, makes=False) as plane:
        try:
            released = plane.release(
                args.resource,
                lease_id=args.lease_id,
                instance=part_of(args, terminal),
                idempotency_key=args.idempotency_key,
            )
        except Refused as refused:
            return tell_refusal(args, terminal, refused)
    return tell(args, terminal, released, f"{args.resource} was let go of; trust is {released.trust:g} now")
