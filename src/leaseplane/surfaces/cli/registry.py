"""The registry as the operator's commands open it: for one command, beside a running server too."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leaseplane.model import AuthorityUnavailable
from leaseplane.store.folder import DataFolder
from leaseplane.surfaces.cli.parser import data_folder_alone
from leaseplane.surfaces.cli.terminal import CommandRefused, Terminal, wrong_usage

if TYPE_CHECKING:
    from leaseplane.identity.registry import Registry


@contextmanager
def opened_registry(args: argparse.Namespace, terminal: Terminal, *, make: bool) -> Iterator["Registry"]:
    """The registry of the data folder that is meant, closed in the end.

    Without `make` there has to be one: a mistyped folder is told, and not made. Raises
    `CommandRefused` for that, for what `data_folder_alone` refuses, and for what the registry does.
    """
    from leaseplane.identity.registry import RegistryRefused, open_registry

    path = data_folder_alone(args, terminal)
    if not make and not (path / "registry.db").exists():
        raise wrong_usage(
            f"there is no plane in {path}; name its folder with --data or LEASEPLANE_DATA, or make one with "
            "`leaseplane serve` or `leaseplane workspace create`"
        )
    folder = DataFolder.open(path)
    try:
        registry = open_registry(folder, os.urandom)
        try:
            yield registry
        finally:
            registry.close()
    except RegistryRefused as refused:
        raise CommandRefused(str(refused)) from None
    except OSError as error:
        raise AuthorityUnavailable(f"{path} cannot be used: {error.strerror}") from error


def check_workspace_exists(registry: "Registry", name: str) -> None:
    """Raise `CommandRefused`, saying what to do, where there is no such workspace."""
    if all(each.name != name for each in registry.workspaces()):
        raise CommandRefused(
            f"there is no workspace {name!r}; `leaseplane workspace list` shows what there is, and "
            "`leaseplane workspace create` makes one"
        )
