"""`leaseplane wait` and `leaseplane withdraw`: who waits for what, and one who does no longer."""

import argparse

from leaseplane.surfaces.cli.asker import add_asker, asked_plane, part_of, tell, tell_refusal
from leaseplane.surfaces.cli.parser import Commands, add_command
from leaseplane.surfaces.cli.table import Column
from leaseplane.surfaces.cli.terminal import DONE, Terminal


def add_wait(commands: Commands) -> None:
    """Declare `wait`."""
    parser = add_command(
        commands,
        "wait",
        "Show the queue of waiting agents and the deadlock pairs, oldest wait first.",
        "It does not wait itself: `leaseplane acquire --timeout` and `leaseplane run` do.",
        run=_wait,
    )
    parser.add_argument("resource", metavar="RESOURCE", nargs="?", help="only the queue of this resource")
    parser.add_argument("--actor", metavar="DID", help="only what this agent waits for")
    add_asker(parser)


def add_withdraw(commands: Commands) -> None:
    """Declare `withdraw`."""
    parser = add_command(
        commands,
        "withdraw",
        "Give up a place in the queue of a resource.",
        "What is kept waiting under it is refused. It is done, too, where there was no place.",
        run=_withdraw,
    )
    parser.add_argument("resource", metavar="RESOURCE", help="the resource that is waited for")
    add_asker(parser, names_part=True)


def _wait(args: argparse.Namespace, terminal: Terminal) -> int:
    from leaseplane.client.outcomes import Refused

    with asked_plane(args, terminal, makes=False) as plane:
        try:
            answer = plane.waiting(args.resource, args.actor)
        except Refused as refused:
            return tell_refusal(args, terminal, refused)
    if args.json or args.quiet:
        return tell(args, terminal, answer, "")
    if not answer.waiting and not answer.deadlocks:
        terminal.say("nobody waits")
    if answer.waiting:
        columns = (
            Column("resource"),
            Column("place"),
            Column("agent", "cut"),
            Column("part", "left out"),
            Column("held by", "cut"),
            Column("since", "left out"),
        )
        terminal.table(
            columns,
            [
                (
                    wait["resource"],
                    str(wait["position"]),
                    wait["actorDid"],
                    wait.get("instance", ""),
                    wait.get("holder", "nobody"),
                    wait["since"],
                )
                for wait in answer.waiting
            ],
        )
    for pair in answer.deadlocks:
        terminal.say(
            f"deadlock refused at {pair['at']}: {pair['actorDid']} wanted {pair['resource']}, whose holder "
            f"{pair['holder']} waits on {pair['waitingOn']}"
        )
    return DONE


def _withdraw(args: argparse.Namespace, terminal: Terminal) -> int:
    from leaseplane.client.outcomes import Refused

    with asked_plane(args, terminal, makes=False) as plane:
        try:
            answer = plane.withdraw(args.resource, instance=part_of(args, terminal))
        except Refused as refused:
            return tell_refusal(args, terminal, refused)
    line = "the wait was given up" if answer.existed else "there was no wait to give up"
    return tell(args, terminal, answer, f"{args.resource}: {line}")
