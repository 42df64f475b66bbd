"""The commands: all that `leaseplane` can be told."""

from leaseplane import __version__
from leaseplane.surfaces.cli import agent, break_off, demo, key, lease, queue, serve, trust, verify, workspace
from leaseplane.surfaces.cli.parser import Parser, add_commands

_MORE = (
    "LEASEPLANE_URL and LEASEPLANE_API_KEY point commands at a server; without them they work on the data "
    "folder itself, beside a running server too. `workspace` and `key` always do: where LEASEPLANE_URL is "
    "set, name the folder with --data. `agent` does, too: agents are this machine's.\n\n"
    "exit status: 0 done, 1 refused, 2 wrong usage, 3 the authority cannot be reached"
)


def build_parser() -> Parser:
    """The parser of the whole command line."""
    parser = Parser(
        prog="leaseplane",
        description="A coordination plane for AI agents: one agent at a time holds a resource.",
        epilog=_MORE,
    )
    parser.add_argument("--version", action="version", version=f"leaseplane {__version__}")
    commands = add_commands(parser, "command")
    serve.add_to(commands)
    demo.add_to(commands)
    lease.add_acquire(commands)
    lease.add_release(commands)
    queue.add_wait(commands)
    queue.add_withdraw(commands)
    trust.add_to(commands)
    for noun in (verify, break_off, agent, workspace, key):
        noun.add_to(commands)
    return parser
