"""`leaseplane key`: the API keys of workspaces, and the key with which the plane signs its receipts."""

import argparse
import os
from typing import TYPE_CHECKING

from leaseplane.model import AuthorityUnavailable
from leaseplane.store.folder import DataFolder
from leaseplane.surfaces.cli.parser import (
    Commands,
    add_command,
    add_commands,
    add_data,
    add_json,
    data_folder_alone,
)
from leaseplane.surfaces.cli.registry import check_workspace_exists, opened_registry
from leaseplane.surfaces.cli.table import Column
from leaseplane.surfaces.cli.terminal import DONE, CommandRefused, Terminal, wrong_usage

if TYPE_CHECKING:
    from leaseplane.identity.registry import KeyRecord


def add_to(commands: Commands) -> None:
    """Declare the commands."""
    key = add_command(
        commands,
        "key",
        "Make, list and revoke API keys, and rotate the signing key.",
        "All of this works on the data folder, while the server runs, too. A revoked key is refused within a "
        "second.",
    )
    actions = add_commands(key, "action")

    create = add_command(
        actions,
        "create",
        "Make an API key and show it, this once.",
        "The key alone is printed to stdout, what there is to know about it to stderr.",
        run=_create,
    )
    create.add_argument("--workspace", metavar="NAME", required=True, help="the workspace it opens")
    whose = create.add_mutually_exclusive_group(required=True)
    whose.add_argument(
        "--actor", metavar="DID", help="bound to one agent: it can name only this DID. What an agent gets"
    )
    whose.add_argument(
        "--any-actor",
        action="store_true",
        help="speaks for every agent of the workspace. What an orchestrator gets",
    )
    whose.add_argument(
        "--operator", action="store_true", help="may break leases and manage agents, and holds none itself"
    )
    create.add_argument("--label", metavar="TEXT", default="", help="what the list calls it")

    list_all = add_command(
        actions, "list", "List the API keys, revoked ones too; never the keys themselves.", run=_list
    )
    list_all.add_argument("--workspace", metavar="NAME", help="only those of this workspace")

    revoke = add_command(
        actions, "revoke", "Revoke an API key: no process accepts it after a second.", run=_revoke
    )
    revoke.add_argument(
        "key_id",
        metavar="KEYID",
        help="its id, as `key list` shows it: the first part of the key, up to the second _",
    )

    rotate = add_command(
        actions,
        "rotate-signing",
        "Retire the key that signs receipts and sign with a new one.",
        "Receipts of the retired key stay valid; its private part is destroyed, so it signs no new ones. "
        "Running processes change over within seconds.",
        run=_rotate_signing,
    )

    for each in (create, list_all, revoke, rotate):
        add_data(each, asks_no_server=True)
        add_json(each)


def _create(args: argparse.Namespace, terminal: Terminal) -> int:
    from leaseplane.identity.registry import KeyKind

    kind: KeyKind = "bound" if args.actor is not None else "any-actor" if args.any_actor else "operator"
    with opened_registry(args, terminal, make=False) as registry:
        check_workspace_exists(registry, args.workspace)
        record, api_key = registry.create_key(
            args.workspace, kind, terminal.clock.now().wall_ms, actor=args.actor, label=args.label
        )
    if args.json:
        terminal.say_json({"ok": True, "apiKey": api_key.reveal(), **_told(record)})
        return DONE
    terminal.say(api_key.reveal())
    terminal.remark(
        f"key {record.key_id} of workspace {record.workspace}, {_whose(record)}. It is shown this once; "
        f"revoke it with: leaseplane key revoke {record.key_id}"
    )
    return DONE


def _list(args: argparse.Namespace, terminal: Terminal) -> int:
    from leaseplane.answers import time_text

    with opened_registry(args, terminal, make=False) as registry:
        records = registry.keys(args.workspace)
    if args.json:
        terminal.say_json({"ok": True, "keys": [_told(record) for record in records]})
        return DONE
    rows = [
        (
            record.key_id,
            record.workspace,
            _whose(record),
            record.label,
            time_text(record.created_wall_ms),
            "in use" if record.revoked_wall_ms is None else f"revoked {time_text(record.revoked_wall_ms)}",
        )
        for record in records
    ]
    columns = (
        Column("key"),
        Column("workspace"),
        Column("speaks for"),
        Column("label", "cut"),
        Column("created", "left out"),
        Column("state"),
    )
    terminal.table(columns, rows)
    return DONE


def _revoke(args: argparse.Namespace, terminal: Terminal) -> int:
    with opened_registry(args, terminal, make=False) as registry:
        record = registry.revoke_key(args.key_id, terminal.clock.now().wall_ms)
    if args.json:
        terminal.say_json({"ok": True, "revoked": _told(record)})
    else:
        terminal.say(f"key {record.key_id} of workspace {record.workspace} is revoked")
    return DONE


def _rotate_signing(args: argparse.Namespace, terminal: Terminal) -> int:
    from leaseplane.receipts.keyring import Keyring, KeyringDamaged, TooManyKeys

    folder = DataFolder(data_folder_alone(args, terminal).absolute())
    if not (folder.keys / "keys.json").exists():
        raise wrong_usage(
            f"there is no plane in {folder.path}; name its folder with --data or LEASEPLANE_DATA"
        )
    now_s = terminal.clock.now().wall_ms // 1000
    DataFolder.open(folder.path)
    try:
        keyring = Keyring.open(folder.keys, now_s=now_s, random_bytes=os.urandom)
        retired = keyring.published.current
        new = keyring.rotate(now_s)
    except (KeyringDamaged, TooManyKeys) as refused:
        raise CommandRefused(str(refused)) from None
    except OSError as error:
        raise AuthorityUnavailable(f"{folder.keys} cannot be used: {error.strerror}") from error
    if args.json:
        terminal.say_json({"ok": True, "kid": new.kid, "retiredKid": retired.kid})
    else:
        terminal.say(f"receipts are signed with {new.kid} from now on; {retired.kid} is retired")
    return DONE


def _whose(record: "KeyRecord") -> str:
    if record.actor is not None:
        return record.actor
    return {"any-actor": "any agent", "operator": "the operator", "test": "test agents"}[record.kind]


def _told(record: "KeyRecord") -> dict[str, object]:
    from leaseplane.answers import time_text

    told: dict[str, object] = {
        "keyId": record.key_id,
        "workspace": record.workspace,
        "kind": record.kind,
        "label": record.label,
        "createdAt": time_text(record.created_wall_ms),
    }
    if record.actor is not None:
        told["actorDid"] = record.actor
    if record.expires_wall_ms is not None:
        told["expiresAt"] = time_text(record.expires_wall_ms)
    if record.revoked_wall_ms is not None:
        told["revokedAt"] = time_text(record.revoked_wall_ms)
    return told
