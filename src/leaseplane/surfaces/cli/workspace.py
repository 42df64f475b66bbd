"""`leaseplane workspace`: the tenants of a plane, and the agents that may sign requests in each."""

import argparse

from leaseplane.surfaces.cli.parser import Commands, add_command, add_commands, add_data, add_json
from leaseplane.surfaces.cli.registry import check_workspace_exists, opened_registry
from leaseplane.surfaces.cli.table import Column
from leaseplane.surfaces.cli.terminal import DONE, CommandRefused, Terminal


def add_to(commands: Commands) -> None:
    """Declare the commands."""
    workspace = add_command(
        commands,
        "workspace",
        "Make and list workspaces, and say which agents may sign requests in them.",
        "Resources, agents, trust, queue and ledger entries of one workspace are invisible to another. "
        "All of this works on the data folder, while the server runs, too.",
    )
    actions = add_commands(workspace, "action")

    create = add_command(actions, "create", "Make a workspace.", run=_create)
    create.add_argument("name", metavar="NAME", help="small letters, digits and hyphens, at most 63")

    list_all = add_command(actions, "list", "List the workspaces.", run=_list)

    admit = add_command(
        actions,
        "admit",
        "Let an agent ask in a workspace by signing its requests.",
        "The agent needs no API key then: it signs with the key of its did:key. It may name only itself, "
        "and belongs to one workspace at a time.",
        run=_admit,
    )
    dismiss = add_command(
        actions, "dismiss", "Let an agent's signed requests count no more, at once.", run=_dismiss
    )
    for each in (admit, dismiss):
        each.add_argument("did", metavar="DID", help="the agent: the did:key of an Ed25519 key")
        each.add_argument("--workspace", metavar="NAME", required=True, help="the workspace")

    agents = add_command(actions, "agents", "List the agents that may sign requests.", run=_agents)
    agents.add_argument("--workspace", metavar="NAME", help="only those of this workspace")

    for each in (create, list_all, admit, dismiss, agents):
        add_data(each, asks_no_server=True)
        add_json(each)


def _create(args: argparse.Namespace, terminal: Terminal) -> int:
    from leaseplane.answers import time_text

    with opened_registry(args, terminal, make=True) as registry:
        made = registry.create_workspace(args.name, terminal.clock.now().wall_ms)
    if args.json:
        told = {"name": made.name, "createdAt": time_text(made.created_wall_ms)}
        terminal.say_json({"ok": True, "workspace": told})
    else:
        terminal.say(f"workspace {made.name} is made")
        terminal.remark(f"give it a key: leaseplane key create --workspace {made.name} --actor DID")
    return DONE


def _list(args: argparse.Namespace, terminal: Terminal) -> int:
    from leaseplane.answers import time_text

    with opened_registry(args, terminal, make=False) as registry:
        found = [(each.name, time_text(each.created_wall_ms)) for each in registry.workspaces()]
    if args.json:
        listed = [{"name": name, "createdAt": created} for name, created in found]
        terminal.say_json({"ok": True, "workspaces": listed})
    else:
        terminal.table((Column("workspace"), Column("created", "left out")), found)
    return DONE


def _admit(args: argparse.Namespace, terminal: Terminal) -> int:
    from leaseplane.answers import time_text

    with opened_registry(args, terminal, make=False) as registry:
        check_workspace_exists(registry, args.workspace)
        agent = registry.admit_agent(args.did, args.workspace, terminal.clock.now().wall_ms)
    if args.json:
        told = {
            "actorDid": agent.did,
            "workspace": agent.workspace,
            "admittedAt": time_text(agent.admitted_wall_ms),
        }
        terminal.say_json({"ok": True, "agent": told})
    else:
        terminal.say(f"{agent.did} may sign requests in workspace {agent.workspace}")
    return DONE


def _dismiss(args: argparse.Namespace, terminal: Terminal) -> int:
    with opened_registry(args, terminal, make=False) as registry:
        if not registry.remove_agent(args.did, args.workspace):
            raise CommandRefused(
                f"this agent is not admitted to workspace {args.workspace}; `leaseplane workspace agents` "
                "lists those that are"
            )
    if args.json:
        terminal.say_json({"ok": True, "dismissed": {"actorDid": args.did, "workspace": args.workspace}})
    else:
        terminal.say(f"{args.did} may sign no more requests in workspace {args.workspace}")
    return DONE


def _agents(args: argparse.Namespace, terminal: Terminal) -> int:
    from leaseplane.answers import time_text

    with opened_registry(args, terminal, make=False) as registry:
        found = [
            (agent.workspace, agent.did, time_text(agent.admitted_wall_ms))
            for agent in registry.agents(args.workspace)
        ]
    if args.json:
        listed = [
            {"actorDid": did, "workspace": workspace, "admittedAt": admitted}
            for workspace, did, admitted in found
        ]
        terminal.say_json({"ok": True, "agents": listed})
    else:
        columns = (Column("workspace"), Column("agent"), Column("admitted", "left out"))
        terminal.table(columns, found)
    return DONE
