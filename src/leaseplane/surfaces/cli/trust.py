"""`leaseplane trust`: what its leases have done to an agent's standing."""

import argparse

from leaseplane.surfaces.cli.asker import add_asker, asked_plane, tell, tell_refusal
from leaseplane.surfaces.cli.parser import Commands, add_command
from leaseplane.surfaces.cli.terminal import Terminal


def add_to(commands: Commands) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "trust",
        "Show an agent's trust score, and how many of its leases were released and ran out.",
        "It starts at 50 and stays within 0 and 100: a lease that its holder lets go of raises it by 0.5, "
        "one that runs out lowers it by 5.",
        run=_trust,
    )
    parser.add_argument("actor", metavar="DID", nargs="?", help="whose (default: that of the agent who asks)")
    add_asker(parser)


def _trust(args: argparse.Namespace, terminal: Terminal) -> int:
    from leaseplane.client.outcomes import Refused

    with asked_plane(args, terminal, makes=False) as plane:
        try:
            trust = plane.trust(args.actor)
        except Refused as refused:
            return tell_refusal(args, terminal, refused)
    line = f"{trust.actor}: {trust.score:g} (released {trust.released}, ran out {trust.expired})"
    return tell(args, terminal, trust, line)
