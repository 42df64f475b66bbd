"""The reference page of the command line (`docs/cli.md`), made from the parsers.

`python -m leaseplane.surfaces.cli.reference` prints it. It does not use argparse's own rendering, which
differs from one Python to the next.
"""

import argparse
import sys
from collections.abc import Iterator

from leaseplane.surfaces.cli.commands import build_parser
from leaseplane.surfaces.cli.parser import Parser

_HEAD = """\
# The command line

Made from the parsers in `leaseplane/surfaces/cli`; the settings that options fall back to are in
[settings.md](settings.md).
"""

_STATUSES = """\
## Exit status

| status | means |
| --- | --- |
| 0 | done |
| 1 | refused: held, deadlock, stale, not authorised, a receipt that does not verify |
| 2 | wrong usage: of the command line, a setting, or a data folder |
| 3 | the authority cannot be reached |
| 4 | of `run`: the lease was lost, and the command was ended for it |

`run` otherwise has the status of its command, or 128 and a signal's number, 126 or 127 as a shell has them.

What went wrong is one line on stderr, which says what to do. With `--json`, stdout has one JSON object
then, too: the REST body where there is one, and otherwise `{"ok": false, "error": …, "message": …}`, where
`error` is

- a code of REST, as in [rest.md](rest.md#errors); wrong usage is `invalid_request`;
- of `verify`, why the receipt is not valid, as in [receipts.md](receipts.md#why-a-receipt-is-refused);
- `refused`, with status 1, what only the command line refuses: a workspace, key or agent that is not there,
  a name that is taken, a port or a data folder that another server has.

(A command line that cannot be read at all is told on stderr alone.)
"""


def render_reference() -> str:
    """The page, in Markdown."""
    parser = build_parser()
    sections = [_HEAD, f"{parser.description}\n\n{parser.epilog}\n".replace("exit status:", "Exit status:")]
    sections += [_section(each) for each in _commands(parser)]
    return "\n".join([*sections, _STATUSES])


def _commands(parser: Parser) -> Iterator[Parser]:
    """Every command that can be run, in the order of its declaration."""
    choices = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not choices:
        yield parser
    for each in choices:
        for command in each.values():
            yield from _commands(command)


def _section(parser: Parser) -> str:
    positionals = [action for action in parser._actions if not action.option_strings]
    options = [action for action in parser._actions if action.option_strings and action.dest != "help"]
    lines = [f"## `{parser.prog}`", "", str(parser.description), "", f"    {_usage(parser)}", ""]
    if positionals or options:
        lines += ["| argument | what it is |", "| --- | --- |"]
        for action in positionals + options:
            told = (action.help or "").replace("|", "\\|")
            lines.append(f"| `{_spelled(action)}` | {told} |")
        lines.append("")
    return "\n".join(lines)


def _usage(parser: Parser) -> str:
    parts = [parser.prog]
    groups = {
        action.dest: group for group in parser._mutually_exclusive_groups for action in group._group_actions
    }
    told = set()
    for action in parser._actions:
        group = groups.get(action.dest)
        if action.dest == "help" or action.dest in told:
            continue
        if group is not None:
            one_of = " | ".join(_spelled(each) for each in group._group_actions)
            parts.append(f"({one_of})" if group.required else f"[{one_of}]")
            told |= {each.dest for each in group._group_actions}
        elif action.required or not action.option_strings:
            parts.append(_spelled(action))
        else:
            again = "…" if isinstance(action, argparse._AppendAction) else ""
            parts.append(f"[{_spelled(action)}]{again}")
    return " ".join(parts)


def _spelled(action: argparse.Action) -> str:
    name = action.option_strings[-1] if action.option_strings else ""
    if action.nargs == 0:
        return name
    value = action.metavar or "{" + ",".join(map(str, action.choices or ())) + "}"
    return f"{name} {value}".strip()


if __name__ == "__main__":
    sys.stdout.write(render_reference())
