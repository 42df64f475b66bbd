"""The program: from a command line to an exit status.

Each module of `surfaces/cli` declares its commands, and imports what they need only when one of them
runs. What they raise becomes an exit status and one line here, and nowhere else.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from leaseplane.clock import ClockMissing, SystemClock
from leaseplane.model import AuthorityUnavailable, OutcomeUnknown
from leaseplane.resources import NameRefused
from leaseplane.settings import SettingRefused, read_settings
from leaseplane.store.folder import FolderRefused
from leaseplane.surfaces.cli.commands import build_parser
from leaseplane.surfaces.cli.terminal import (
    INTERRUPTED,
    PIPE_CLOSED,
    UNREACHABLE,
    USAGE,
    CommandRefused,
    Terminal,
    error_json,
    open_terminal,
    wrong_usage,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and answer its exit status. Nothing that a user did wrong raises."""
    try:
        args = parsed(sys.argv[1:] if argv is None else argv)
    except SystemExit as stopped:
        # argparse has said what there is to say: its help, or what is wrong.
        return stopped.code if isinstance(stopped.code, int) else USAGE
    try:
        terminal = open_terminal(os.environ, read_settings(os.environ), SystemClock())
    except (SettingRefused, ClockMissing) as refused:
        message = " ".join(str(refused).split())
        if getattr(args, "json", False):
            import json

            print(json.dumps(error_json("invalid_request", message)))
        print(f"{_name(args)}: {message}", file=sys.stderr)
        return USAGE
    return perform(args, terminal)


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """What this command line asks for. Raises SystemExit as argparse does."""
    first = next((word for word in words if not word.startswith("-")), None)
    return build_parser(first).parse_args(words)


def perform(args: argparse.Namespace, terminal: Terminal) -> int:
    """Run a command on this terminal and answer its exit status."""
    try:
        status: int = args.run(args, terminal)
        terminal.stdout.flush()
    except BrokenPipeError:
        # Python would try to write once more when it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), terminal.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as failure:
        refused = _as_refusal(failure)
        if refused is None:
            raise
        message = " ".join(str(refused).split())
        if getattr(args, "json", False):
            # Where nothing can be written to it, stderr says so.
            with suppress(CommandRefused, BrokenPipeError):
                terminal.say_json(error_json(refused.code, message))
        terminal.remark(f"{_name(args)}: {message}")
        return refused.status
    return status


def _name(args: argparse.Namespace) -> str:
    return " ".join(word for word in ("leaseplane", args.command, getattr(args, "action", None)) if word)


def _as_refusal(failure: Exception) -> CommandRefused | None:
    """What a failure means to whoever typed the command; None for a fault of ours."""
    match failure:
        case CommandRefused():
            return failure
        case NameRefused():
            return wrong_usage(failure.message)
        case FolderRefused() | SettingRefused():
            return wrong_usage(str(failure))
        case AuthorityUnavailable():
            return CommandRefused(str(failure), status=UNREACHABLE, code="authority_unavailable")
        case OutcomeUnknown():
            return CommandRefused(str(failure), status=UNREACHABLE, code="outcome_unknown")
        case _:
            return None
