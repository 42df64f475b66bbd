"""The terminal: where a command reads and writes, what it was told by the environment, and its exit status.

What a command prints is for people on a terminal, with colours and tables, and plain text otherwise;
with `--json` it is one JSON object on stdout, an error too. Every error is also one line on stderr.
"""

import io
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, Final, TextIO

import msgspec

from leaseplane.clock import Clock
from leaseplane.settings import Settings

if TYPE_CHECKING:
    from leaseplane.surfaces.cli.table import Column

DONE: Final = 0
REFUSED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
INTERRUPTED: Final = 130
"""As a shell says it of a command that SIGINT ended."""

PIPE_CLOSED: Final = 141
"""As a shell says it of a command that SIGPIPE ended: whoever read its output has seen enough."""


class CommandRefused(Exception):
    """What was asked for is not done. The message says in one line what is wrong and what to do."""

    def __init__(self, message: str, *, status: int = REFUSED, code: str = "refused") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        """The word for it in `--json`: where REST has one, that one, and otherwise `refused`."""


def wrong_usage(message: str) -> CommandRefused:
    """The command line asks for what cannot be: exit status 2."""
    return CommandRefused(message, status=USAGE, code="invalid_request")


class Terminal(msgspec.Struct, frozen=True):
    """Everything around a command that is not its arguments. Nothing is read from elsewhere."""

    stdin: BinaryIO
    stdout: TextIO
    stderr: TextIO
    environment: Mapping[str, str]
    settings: Settings
    clock: Clock

    @property
    def is_interactive(self) -> bool:
        """Whether a person looks at stdout."""
        return self.stdout.isatty()

    def say(self, line: str = "") -> None:
        """One line of the command's result. Raises `CommandRefused` where it cannot be written."""
        try:
            print(line, file=self.stdout, flush=True)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandRefused(
                f"standard output cannot be written to: {error.strerror}; what was asked for may be done"
            ) from None

    def remark(self, line: str) -> None:
        """One line beside the result, which whoever reads stdout does not get."""
        print(line, file=self.stderr, flush=True)

    def say_json(self, value: object) -> None:
        """The command's result as one JSON object on one line."""
        import json

        self.say(json.dumps(value, ensure_ascii=not self._takes_utf_8))

    def say_body(self, body: bytes) -> None:
        """An answer's own JSON, as it came."""
        if self._takes_utf_8:
            self.say(body.decode())
        else:
            self.say_json(msgspec.json.decode(body))

    @property
    def _takes_utf_8(self) -> bool:
        return (self.stdout.encoding or "").lower().replace("-", "") == "utf8"

    def table(self, columns: "Sequence[Column]", rows: Sequence[Sequence[str]]) -> None:
        """Rows under their heads: within the terminal's width for a person, in plain columns otherwise.

        For a person a time is its date, and no cell is broken over two lines: see `fit`.
        """
        heads = [column.head for column in columns]
        if not self.is_interactive:
            lines = [heads, *rows]
            widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
            for line in lines:
                padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
                self.say("  ".join(padded).rstrip())
            return
        # Only here: rich takes longer to import than most commands take.
        from rich import box
        from rich.cells import cell_len
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        from leaseplane.surfaces.cli.table import GAP, fit, short_times

        console = Console(
            file=self.stdout,
            no_color=bool(self.environment.get("NO_COLOR")),
            _environ=self.environment,
            highlight=False,
        )
        rows = [[short_times(cell) for cell in row] for row in rows]
        fitted = fit(columns, rows, console.width, cell_len)
        if fitted is None:
            margin = max(map(cell_len, heads)) + GAP
            for told in rows:
                for head, cell in zip(heads, told, strict=True):
                    # As text and not as markup: a label may hold square brackets.
                    titled = Text.assemble((head.ljust(margin), "bold"), cell)
                    console.print(titled, soft_wrap=True)
                console.print()
            return
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
        for shown in fitted:
            table.add_column(heads[shown.number], width=shown.width, no_wrap=True, overflow="ellipsis")
        for cells in rows:
            table.add_row(*(Text(cells[shown.number]) for shown in fitted))
        console.print(table)


def open_terminal(environment: Mapping[str, str], settings: Settings, clock: Clock) -> Terminal:
    """The terminal of this process."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # One that cannot show a character gets it spelled out, and not a traceback.
        sys.stdout.reconfigure(errors="backslashreplace")
    # A process may be started without any of them, and is then None of them to Python.
    stdin = io.BytesIO() if sys.stdin is None else sys.stdin.buffer
    stdout, stderr = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    return Terminal(stdin, stdout, stderr, environment, settings, clock)


def error_json(code: str, message: str) -> dict[str, object]:
    """An error as REST would tell it."""
    return {"ok": False, "error": code, "message": message}
