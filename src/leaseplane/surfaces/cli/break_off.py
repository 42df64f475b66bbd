"""`leaseplane break`: the operator ends a lease."""

import argparse
import json

from leaseplane.limits import ANSWER_LATE_MS_MAX
from leaseplane.secret import Secret
from leaseplane.surfaces.cli.parser import Commands, add_command, add_data, add_json, data_folder
from leaseplane.surfaces.cli.terminal import DONE, REFUSED, UNREACHABLE, USAGE, Terminal, wrong_usage


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


def _break(args: argparse.Namespace, terminal: Terminal) -> int:
    members = {"resource": args.resource, "reason": args.reason}
    if args.lease_id is not None:
        members["leaseId"] = args.lease_id
    # A folder on the command line is meant more than a server in the environment.
    if terminal.settings.url is not None and args.data is None:
        status, body = _ask_server(args, terminal, members)
    else:
        status, body = _ask_folder(args, terminal, members)
    answer = json.loads(body)
    if (told := _to_an_operator(args, terminal, answer.get("error"))) is not None:
        answer["message"] = told
    if args.json:
        terminal.say_json(answer)
    if status == 200:
        if not args.json:
            for lease in answer["broken"]:
                terminal.say(
                    f"{answer['resource']} was taken from {lease['holder']} "
                    f"(lease {lease['leaseId']}, fence {lease['fence']})"
                )
        return DONE
    terminal.remark(f"leaseplane break: {answer['message']}")
    return _EXIT_STATUS.get(status, UNREACHABLE if status >= 500 else REFUSED)


def _to_an_operator(args: argparse.Namespace, terminal: Terminal, error: str | None) -> str | None:
    """What a refusal means to whoever breaks a lease; None where the plane's own message says it.

    The plane's is for the agent that thought it was the holder. No receipt states it: a break has none.
    """
    from leaseplane.identity.registry import LOCAL_WORKSPACE

    asks_server = terminal.settings.url is not None and args.data is None
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


_EXIT_STATUS = {400: USAGE, 413: USAGE}
"""Where it is neither a refusal nor a server in trouble."""


def _ask_server(args: argparse.Namespace, terminal: Terminal, members: dict[str, str]) -> tuple[int, bytes]:
    from leaseplane.client.channel import Request
    from leaseplane.client.remote import RemoteChannel
    from leaseplane.operations import BREAK

    settings = terminal.settings
    assert settings.url is not None
    if args.workspace is not None:
        raise wrong_usage("over LEASEPLANE_URL the API key says the workspace; leave --workspace out")
    if settings.api_key is None:
        raise wrong_usage(
            "LEASEPLANE_URL is set but LEASEPLANE_API_KEY is not; set it to an operator's key, or name a "
            "data folder with --data"
        )
    channel = RemoteChannel(settings.url, _ApiKey(settings.api_key), clock=terminal.clock)
    answer = channel.send(Request(BREAK, {**members}), timeout_ms=ANSWER_LATE_MS_MAX).result()
    return answer.status, answer.body


class _ApiKey:
    """An operator's key, which names no agent."""

    def __init__(self, api_key: Secret) -> None:
        self._api_key = api_key

    def headers(self, method: str, url: str, body: bytes, *, now_s: int) -> list[tuple[str, str]]:
        return [("Authorization", f"Bearer {self._api_key.reveal()}")]


def _ask_folder(args: argparse.Namespace, terminal: Terminal, members: dict[str, str]) -> tuple[int, bytes]:
    import base64
    import os
    from functools import partial

    import msgspec

    from leaseplane.answers import refuse, render
    from leaseplane.authority import decide
    from leaseplane.identity.registry import LOCAL_WORKSPACE
    from leaseplane.model import Ask, Principal, Reply, RequestFacts
    from leaseplane.operations import BREAK, RequestRefused
    from leaseplane.receipts.canonical import digest_of_arguments
    from leaseplane.surfaces.cli.embedded import opened_plane
    from leaseplane.surfaces.cli.registry import check_workspace_exists, opened_registry

    try:
        command = BREAK.read(members)
    except RequestRefused as refused:
        rendered = refuse("invalid_request", refused.message, field=refused.field)
        return rendered.status, rendered.body_without_receipt
    workspace = args.workspace or LOCAL_WORKSPACE
    settings = msgspec.structs.replace(terminal.settings, data=data_folder(args, terminal))
    if workspace != LOCAL_WORKSPACE:
        with opened_registry(args, terminal, make=False) as registry:
            check_workspace_exists(registry, workspace)
    with opened_plane(settings, terminal.clock) as plane:
        ask = Ask(
            principal=Principal(workspace, "local", credential="local", operator=True),
            command=command,
            jti=base64.urlsafe_b64encode(os.urandom(18)).decode("ascii"),
            request_id=plane.new_request_id(),
            process_id=plane.presence.process_id,
            request=RequestFacts("POST", BREAK.name, digest_of_arguments(members)),
        )
        [reply] = plane.transact(partial(decide.decide, ask=ask))
    assert isinstance(reply, Reply), "only an acquire is ever parked"
    rendered = render(reply.outcome)
    return rendered.status, rendered.body_without_receipt
