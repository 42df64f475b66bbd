"""The parser: what its commands share in how they are written on the command line."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

from leaseplane.settings import SETTINGS
from leaseplane.surfaces.cli.terminal import USAGE, Terminal, wrong_usage

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
Run: TypeAlias = Callable[[argparse.Namespace, Terminal], int]
"""A command: from its arguments to its exit status. Raises what `__main__` turns into one."""


_WIDTH_UNTOLD: Final = 80
"""For the formatters that argparse makes only to look at an argument: each would look for the terminal's
width, with modules that take long to import."""


class Help(argparse.HelpFormatter):
    """Wraps each paragraph on its own, where argparse would make one of all, and no line of an example."""

    def __init__(self, prog: str, width: int | None = _WIDTH_UNTOLD) -> None:
        super().__init__(prog, max_help_position=26, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(
            paragraph if paragraph.startswith("    ") else fill(paragraph, width, indent)
            for paragraph in text.split("\n\n")
        )


class _AsWideAsTheTerminal(Help):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=None)


class Parser(argparse.ArgumentParser):
    """An argparse parser that says in one line what is wrong and where help is."""

    def __init__(self, **given: Any) -> None:
        given.setdefault("formatter_class", Help)
        # A script that was written with half an option's name would break with the next option.
        super().__init__(allow_abbrev=False, **given)
        self._words_dest: str | None = None

    def format_help(self) -> str:
        """The help, as wide as the terminal."""
        self.formatter_class = _AsWideAsTheTerminal
        return super().format_help()

    def take_command(self, dest: str, told: str) -> None:
        """Take what stands behind `--` as a command line of its own, in which no option is ours.

        argparse would take an option in front of it for a part of it, or one in it for ours.
        """
        self._words_dest = dest
        self.add_argument(dest, metavar="-- COMMAND…", nargs="*", help=told)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, but for what `take_command` takes."""
        if self._words_dest is None:
            return super().parse_known_args(args, namespace)
        words = list(args)
        split = words.index("--") if "--" in words else len(words)
        known, unknown = super().parse_known_args(words[:split], namespace)
        command = words[split + 1 :]
        if getattr(known, self._words_dest) or unknown:
            stray = (getattr(known, self._words_dest) + unknown)[0]
            self.error(f"{stray!r} is not understood; the command stands behind --")
        if not command:
            self.error("say the command, behind --")
        setattr(known, self._words_dest, command)
        return known, []

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


def add_command(
    commands: Commands, name: str, sentence: str, more: str = "", *, run: Run | None = None
) -> Parser:
    """Declare one command. `sentence` is shown in the list of commands, `more` only in its own help."""
    parser = commands.add_parser(
        name, help=sentence[0].lower() + sentence[1:].rstrip("."), description=f"{sentence}\n\n{more}".strip()
    )
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def add_commands(parser: Parser, dest: str) -> Commands:
    """Let a command have commands of its own, one of which has to be said; `dest` is told which."""
    return parser.add_subparsers(title="commands", metavar="COMMAND", dest=dest, required=True)


def setting(field: str) -> Callable[[str], Any]:
    """The type of an argument that overrides a setting: read and checked as the variable would be.

    A list is read into a tuple; its option may be repeated, so its action is `extend`.
    """
    row = next(row for row in SETTINGS if row.field == field)

    def read(text: str) -> Any:
        if not text:
            raise argparse.ArgumentTypeError("must not be empty")
        try:
            return row.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def add_data(parser: argparse.ArgumentParser, *, asks_no_server: bool = False) -> None:
    """Declare `--data`, of a command that may ask the server at LEASEPLANE_URL or, otherwise, never does."""
    told = "the data folder (default: LEASEPLANE_DATA, or the platform's user data folder)"
    if asks_no_server:
        told += ". Needed where LEASEPLANE_URL is set: this works on a folder and asks no server"
    parser.add_argument("--data", metavar="DIR", type=setting("data"), help=told)


def data_folder(args: argparse.Namespace, terminal: Terminal) -> Path:
    """The data folder that is meant."""
    chosen: Path = args.data or terminal.settings.data
    return chosen


def data_folder_alone(args: argparse.Namespace, terminal: Terminal) -> Path:
    """The data folder that is meant, of a command that asks no server.

    Raises `CommandRefused` where the environment points at a server and the command line at no folder:
    whoever set it up would take what is done to the folder for done to the server.
    """
    if terminal.settings.url is not None and args.data is None:
        raise wrong_usage(
            "LEASEPLANE_URL is set, but this command works on a data folder and asks no server; name the "
            "folder with --data"
        )
    return data_folder(args, terminal)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare `--json`."""
    parser.add_argument("--json", action="store_true", help="answer as one JSON object")
