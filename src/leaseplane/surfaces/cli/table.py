"""Tables: rows under their heads, as wide as the terminal, in which nothing is broken over two lines.

What is copied from a table (an id, a name, a file) is of no use with a line break in it. So what does
not fit is cut where it is free text, left out where it can be done without, and otherwise every row is
told as a few lines of its own.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

GAP: Final = 2
"""Spaces between two columns."""

CUT_CHARS_MIN: Final = 8
_TIME: Final = r"(\d{4}-\d\d-\d\d)T\d\d:\d\d:\d\d\.\d{3}Z"


class Column(msgspec.Struct, frozen=True):
    """One column: its head, and what becomes of it where the whole table is too wide."""

    head: str
    if_narrow: Literal["kept", "cut", "left out"] = "kept"


class Fitted(msgspec.Struct, frozen=True):
    """One column that is shown: which, and how wide."""

    number: int
    width: int


def fit(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, wide: Callable[[str], int]
) -> list[Fitted] | None:
    """The columns that are shown in `width` cells, or None where not even those that are kept fit.

    `wide` says how many cells a text takes. First what may be cut is, then what may be left out is, the
    last column first.
    """
    wanted = [
        max(wide(column.head), *(wide(row[number]) for row in rows), 0)
        for number, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    leave_out = [number for number in shown if columns[number].if_narrow == "left out"]
    while True:
        least = {
            number: min(wanted[number], max(CUT_CHARS_MIN, wide(columns[number].head)))
            if columns[number].if_narrow == "cut"
            else wanted[number]
            for number in shown
        }
        room = width - sum(least.values()) - GAP * (len(shown) - 1)
        if room >= 0:
            break
        if not leave_out:
            return None
        shown.remove(leave_out.pop())
    fitted = []
    for number in shown:
        more = min(room, wanted[number] - least[number])
        room -= more
        fitted.append(Fitted(number, least[number] + more))
    return fitted


def short_times(cell: str) -> str:
    """`cell` with the date alone of each time: people compare days, and scripts read `--json`."""
    return re.sub(_TIME, r"\1", cell)
