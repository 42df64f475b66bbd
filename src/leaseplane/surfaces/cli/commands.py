"""The commands: all that `leaseplane` can be told.

One line each. What a command needs is imported when it is the one that was asked for, since a command is
started far more often than it is changed.
"""

import importlib
from typing import Final

import msgspec

from leaseplane import __version__
from leaseplane.surfaces.cli.parser import Parser, add_commands

_MORE = (
    "LEASEPLANE_URL and LEASEPLANE_API_KEY point commands at a server; without them they work on the data "
    "folder itself, beside a running server too. `workspace` and `key` always do: where LEASEPLANE_URL is "
    "set, name the folder with --data. `agent` does, too: agents are this machine's.\n\n"
    "exit status: 0 done, 1 refused, 2 wrong usage, 3 the authority cannot be reached, 4 `run` lost its lease"
)


class Command(msgspec.Struct, frozen=True):
    """One command: its name, the module beside this one that declares it, and the function there."""

    name: str
    module: str
    declare: str = "add_to"


COMMANDS: Final = (
    Command("serve", "serve"),
    Command("run", "run"),
    Command("demo", "demo"),
    Command("acquire", "lease", "add_acquire"),
    Command("release", "lease", "add_release"),
    Command("wait", "queue", "add_wait"),
    Command("withdraw", "queue", "add_withdraw"),
    Command("trust", "trust"),
    Command("verify", "verify"),
    Command("break", "break_off"),
    Command("agent", "agent"),
    Command("workspace", "workspace"),
    Command("key", "key"),
    Command("completion", "completion"),
)
"""In the order in which they are told."""


def build_parser(word: str | None = None) -> Parser:
    """The parser of the whole command line; of the one command `word`, where it is one."""
    parser = Parser(
        prog="leaseplane",
        description="A coordination plane for AI agents: one agent at a time holds a resource.",
        epilog=_MORE,
    )
    parser.add_argument("--version", action="version", version=f"leaseplane {__version__}")
    commands = add_commands(parser, "command")
    asked_for = tuple(command for command in COMMANDS if command.name == word)
    for command in asked_for or COMMANDS:
        module = importlib.import_module(f"leaseplane.surfaces.cli.{command.module}")
        getattr(module, command.declare)(commands)
    return parser
