"""The command `leaseplane`: where the parts are put together.

Each module of `surfaces/cli` declares its commands, and imports what they need only when one of them
runs. What they raise becomes an exit status and one line here, and nowhere else.
"""

import json
import os
import sys
from collections.abc import Sequence

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
    error_json,
    open_terminal,
    wrong_usage,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and answer its exit status. Nothing that a user did wrong raises."""
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as stopped:
        # argparse has said what there is to say: its help, or what is wrong.
        return stopped.code if isinstance(stopped.code, int) else USAGE
    name = " ".join(word for word in ("leaseplane", args.command, getattr(args, "action", None)) if word)
    as_json: bool = getattr(args, "json", False)
    try:
        terminal = open_terminal(os.environ, read_settings(os.environ), SystemClock())
    except (SettingRefused, ClockMissing) as refused:
        return _refuse(name, as_json, wrong_usage(str(refused)))
    try:
        status: int = args.run(args, terminal)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would try to write once more when it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as failure:
        refusal = _as_refusal(failure)
        if refusal is None:
            raise
        return _refuse(name, as_json, refusal)
    return status


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


def _refuse(name: str, as_json: bool, refused: CommandRefused) -> int:
    message = " ".join(str(refused).split())
    if as_json:
        print(json.dumps(error_json(refused.code, message)))
    print(f"{name}: {message}", file=sys.stderr)
    return refused.status


if __name__ == "__main__":
    sys.exit(main())
