"""`leaseplane agent`: this machine's agents, each with a key pair and the DID that it makes."""

import argparse
import os

from leaseplane.store.folder import DataFolder
from leaseplane.surfaces.cli.parser import (
    Commands,
    add_command,
    add_commands,
    add_data,
    add_json,
    data_folder,
)
from leaseplane.surfaces.cli.table import Column
from leaseplane.surfaces.cli.terminal import DONE, CommandRefused, Terminal


def add_to(commands: Commands) -> None:
    """Declare the commands."""
    agent = add_command(
        commands,
        "agent",
        "Make and show this machine's agents: a name, a key pair and its DID.",
        "--agent NAME or LEASEPLANE_AGENT says which of them is asking; without either it is `default`, "
        "which is made when it is first needed.\n\n"
        "They are kept in the data folder, in agents/NAME.json, also where LEASEPLANE_URL is set: no server "
        "has their keys. Whoever can read such a file can ask as that agent.",
    )
    actions = add_commands(agent, "action")
    create = add_command(
        actions,
        "create",
        "Make an agent and show its DID.",
        "An operator lets it ask a server by signing its requests with `leaseplane workspace admit DID`, or "
        "gives it an API key of its own with `leaseplane key create --actor DID`.",
        run=_create,
    )
    show = add_command(actions, "show", "Show an agent's DID.", run=_show)
    for each in (create, show):
        each.add_argument(
            "name", metavar="NAME", help="letters, digits, dots, underscores and hyphens, at most 64"
        )
    list_all = add_command(actions, "list", "List this machine's agents.", run=_list)
    for each in (create, show, list_all):
        add_data(each)
        add_json(each)


def _create(args: argparse.Namespace, terminal: Terminal) -> int:
    from leaseplane.identity.agents import AgentExists, create_agent

    try:
        agent = create_agent(_folder(args, terminal), args.name, random_bytes=os.urandom)
    except AgentExists as exists:
        raise CommandRefused(str(exists)) from None
    _tell(args, terminal, agent.name, agent.did)
    if not args.json:
        terminal.remark(
            f"agent {agent.name} is made; name it with --agent {agent.name} or LEASEPLANE_AGENT={agent.name}"
        )
    return DONE


def _show(args: argparse.Namespace, terminal: Terminal) -> int:
    from leaseplane.identity.agents import AgentUnknown, agent_named

    try:
        agent = agent_named(_folder(args, terminal), args.name, make=False, random_bytes=os.urandom)
    except AgentUnknown as unknown:
        raise CommandRefused(str(unknown)) from None
    _tell(args, terminal, agent.name, agent.did)
    return DONE


def _list(args: argparse.Namespace, terminal: Terminal) -> int:
    from leaseplane.identity.agents import agents_of

    agents = agents_of(_folder(args, terminal))
    if args.json:
        terminal.say_json({"ok": True, "agents": [{"name": each.name, "did": each.did} for each in agents]})
    else:
        terminal.table((Column("agent"), Column("did")), [(each.name, each.did) for each in agents])
    return DONE


def _folder(args: argparse.Namespace, terminal: Terminal) -> DataFolder:
    return DataFolder(data_folder(args, terminal).absolute())


def _tell(args: argparse.Namespace, terminal: Terminal, name: str, did: str) -> None:
    # The DID alone on stdout: it is what a script wants to have.
    if args.json:
        terminal.say_json({"ok": True, "name": name, "did": did})
    else:
        terminal.say(did)
