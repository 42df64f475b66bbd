"""`leaseplane break`: the operator ends a lease."""

import argparse

from leaseplane.surfaces.cli.asker import add_quiet, asked_plane, tell, tell_refusal
from leaseplane.surfaces.cli.parser import Commands, add_command, add_data, add_json
from leaseplane.surfaces.cli.terminal import Terminal, wrong_usage


def add_to(commands: Commands) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "break",
        "End a lease as the operator: named in the ledger, no trust moves.",
        "The next parked waiter gets the resource in the same step. The holder is not asked: see that it "
        "has stopped, or that what it writes to checks the fence.\n\n"
        "Works on the data folder, beside a running server too; with LEASEPLANE_URL it asks that server, "
        "which takes an operator's key in LEASEPLANE_API_KEY.",
        run=_break,
    )
    parser.add_argument(
        "resource", metavar="RESOURCE", help="whose lease ends, such as lock:deploy/production"
    )
    parser.add_argument("--reason", metavar="TEXT", required=True, help="why; kept in the ledger")
    parser.add_argument(
        "--lease-id", metavar="ID", help="only this lease (default: every lease of the resource)"
    )
    parser.add_argument(
        "--workspace",
        metavar="NAME",
        help="whose resource it is (default: local); over LEASEPLANE_URL the API key says it",
    )
    add_data(parser)
    add_json(parser)
    add_quiet(parser)
    parser.set_defaults(agent=None)


def _break(args: argparse.Namespace, terminal: Terminal) -> int:
    from leaseplane.client.outcomes import Refused

    asks_server = terminal.settings.url is not None and args.data is None
    if asks_server and terminal.settings.api_key is None:
        raise wrong_usage(
            "LEASEPLANE_URL is set but LEASEPLANE_API_KEY is not; set it to an operator's key, or name a "
            "data folder with --data"
        )
    with asked_plane(args, terminal, makes=False) as plane:
        try:
            broken = plane.break_off(args.resource, args.reason, lease_id=args.lease_id)
        except Refused as refused:
            if (told := _to_an_operator(args, asks_server, refused.error)) is not None:
                # No receipt states it: a break has none.
                refused.body["message"] = told
            if args.json:
                terminal.say_json(refused.body)
            return tell_refusal(args, terminal, refused, refused.body["message"], has_told=args.json)
    lines = [
        f"{args.resource} was taken from {lease['holder']} (lease {lease['leaseId']}, fence {lease['fence']})"
        for lease in broken.leases
    ]
    return tell(args, terminal, broken, "\n".join(lines))


def _to_an_operator(args: argparse.Namespace, asks_server: bool, error: str) -> str | None:
    """What a refusal means to whoever breaks a lease; None where the plane's own message says it, which is
    for the agent that thought it was the holder."""
    from leaseplane.identity.registry import LOCAL_WORKSPACE

    workspace = args.workspace or LOCAL_WORKSPACE
    where = "the workspace of this API key" if asks_server else f"the workspace {workspace}"
    elsewhere = "take a key of another" if asks_server else "name another with --workspace"
    match error:
        case "not_held":
            return f"nobody holds {args.resource} in {where}; {elsewhere}"
        case "stale_lease":
            return (
                f"{args.lease_id} is not a current lease of {args.resource} in {where}, so nothing "
                "was ended; without --lease-id whatever lease there is ends"
            )
        case _:
            return None
