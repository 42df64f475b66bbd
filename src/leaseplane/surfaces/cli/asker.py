"""The asker: what the commands that ask a plane share, whether it is embedded or at a URL."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leaseplane.surfaces.cli.parser import add_data, add_json, setting
from leaseplane.surfaces.cli.terminal import DONE, REFUSED, USAGE, CommandRefused, Terminal, wrong_usage

if TYPE_CHECKING:
    from leaseplane.client.outcomes import Refused, Response
    from leaseplane.client.plane import Plane


def add_asker(parser: argparse.ArgumentParser, *, names_part: bool = False, answers: bool = True) -> None:
    """Declare who asks, where, and how the answer is told. `names_part`: `--instance`, too. Unless
    `answers`, stdout is not for an answer, and there is no `--json`."""
    parser.add_argument(
        "--agent",
        metavar="NAME",
        type=setting("agent"),
        help="who asks: one of this machine's agents, or a DID (default: LEASEPLANE_AGENT, or `default`)",
    )
    if names_part:
        parser.add_argument(
            "--instance",
            metavar="TEXT",
            help="which part of the agent asks (default: LEASEPLANE_INSTANCE, or the agent as a whole)",
        )
    parser.add_argument(
        "--workspace",
        metavar="NAME",
        help="whose resources (default: local); over LEASEPLANE_URL the API key says it",
    )
    add_data(parser)
    if answers:
        add_json(parser)
    add_quiet(parser)


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Declare `--quiet`."""
    parser.add_argument(
        "--quiet", action="store_true", help="print nothing but errors; the exit status tells"
    )


@contextmanager
def asked_plane(args: argparse.Namespace, terminal: Terminal, *, makes: bool) -> Iterator["Plane"]:
    """The plane that is meant, closed in the end. Unless `makes`, an embedded one has to be there: a
    mistyped folder is told, and not made."""
    from leaseplane.client.caller import WorkspaceUnknown
    from leaseplane.client.plane import Plane
    from leaseplane.settings import SettingRefused
    from leaseplane.store.folder import DataFolder

    embedded = args.data is not None or terminal.settings.url is None
    data = args.data or terminal.settings.data
    if embedded and not makes and not DataFolder(data).database.exists():
        raise wrong_usage(f"there is no plane in {data}; name its folder with --data or LEASEPLANE_DATA")
    if args.workspace is not None and not embedded:
        raise wrong_usage("over LEASEPLANE_URL the API key says the workspace; leave --workspace out")
    try:
        plane = Plane(
            data=args.data,
            agent=args.agent,
            workspace=args.workspace,
            settings=terminal.settings,
            clock=terminal.clock,
        )
    except WorkspaceUnknown as unknown:
        raise CommandRefused(str(unknown)) from None
    except SettingRefused as refused:
        raise wrong_usage(str(refused)) from None
    try:
        yield plane
    finally:
        plane.close()


def part_of(args: argparse.Namespace, terminal: Terminal) -> str | None:
    """The instance that is meant; None for the agent as a whole."""
    chosen: str | None = terminal.settings.instance if args.instance is None else args.instance
    return chosen


def tell(args: argparse.Namespace, terminal: Terminal, answer: "Response", line: str) -> int:
    """Say that it is done: in this line, or as the answer's own JSON."""
    if args.json:
        terminal.say_body(answer.raw)
    elif not args.quiet:
        terminal.say(line)
    return DONE


def tell_refusal(
    args: argparse.Namespace,
    terminal: Terminal,
    refused: "Refused",
    line: str = "",
    *,
    has_told: bool = False,
) -> int:
    """Say that it is refused, in this line or in the plane's own words; the exit status that says it.

    `has_told`: stdout has its JSON already.
    """
    if args.json and not has_told:
        terminal.say_body(refused.raw)
    terminal.remark(f"leaseplane {args.command}: {' '.join((line or str(refused)).split())}")
    return USAGE if refused.status in (400, 413) else REFUSED
