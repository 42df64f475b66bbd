"""The table: one row for each thing measured, what it came to, and whether that is what was wanted."""

import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line. What has a `target` has a `ratio`, and is met or not; the rest is for information."""

    section: str
    what: str
    unit: str
    ours: float | None = None
    peer: float | None = None
    ratio: float | None = None
    lowest: float | None = None
    highest: float | None = None
    """The lowest and highest ratio of a single round."""
    also: float | None = None
    """The ratio to the second peer."""
    target: str | None = None
    met: bool | None = None
    void: str | None = None
    """Why nothing was measured: an answer that was not of the expected kind, say."""


def compared(
    section: str,
    what: str,
    unit: str,
    ours: Sequence[float],
    peer: Sequence[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    also: Sequence[float] = (),
) -> Row:
    """A row of rounds: `ours[n]` and `peer[n]` (and `also[n]`) were measured right after one another."""
    ratios = [one / other for one, other in zip(ours, peer, strict=True)]
    ratio = statistics.median(ratios)
    return Row(
        section=section,
        what=what,
        unit=unit,
        ours=statistics.median(ours),
        peer=statistics.median(peer),
        ratio=ratio,
        lowest=min(ratios),
        highest=max(ratios),
        also=statistics.median(one / other for one, other in zip(ours, also, strict=True)) if also else None,
        target=_target(at_least, at_most),
        met=None if at_least is at_most is None else (at_least or 0) <= ratio <= (at_most or math.inf),
    )


def _target(at_least: float | None, at_most: float | None) -> str | None:
    if at_least is not None:
        return f">= {at_least}"
    return None if at_most is None else f"<= {at_most}"


def bounded(section: str, what: str, unit: str, ours: float, limit: float) -> Row:
    """A row whose measure has to stay within a limit."""
    return Row(
        section=section,
        what=what,
        unit=unit,
        ours=ours,
        peer=limit,
        ratio=ours / limit,
        target="<= 1",
        met=ours <= limit,
    )


def told(section: str, what: str, unit: str, ours: float) -> Row:
    """A row for information."""
    return Row(section=section, what=what, unit=unit, ours=ours)


def void(section: str, what: str, reason: object) -> Row:
    """A row of which nothing can be said."""
    return Row(section=section, what=what, unit="", met=False, void=str(reason))


def said(section: str, what: str) -> Row:
    """A row that only says something: what was measured against, or why nothing was."""
    return Row(section=section, what=what, unit="")


def of_a_hundred(values: Sequence[float], at: int) -> float:
    """The value that so many of a hundred do not exceed."""
    return statistics.quantiles(values, n=100, method="inclusive")[at - 1]


def print_json(facts: Mapping[str, object], rows: Sequence[Row]) -> None:
    """The whole run as one JSON object on standard output."""
    shown = [
        {name: value for name, value in msgspec.to_builtins(row).items() if value is not None} for row in rows
    ]
    json.dump({**facts, "rows": shown}, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def print_table(facts: Mapping[str, object], rows: Sequence[Row], notes: Sequence[str]) -> None:
    """The run for people: with colours on a terminal, plain lines anywhere else."""
    console = Console()
    for name, fact in facts.items():
        console.print(f"{name}: {fact}", highlight=False, markup=False, soft_wrap=True)
    if console.is_terminal:
        _print_rich(console, rows)
    else:
        _print_plain(rows)
    for number, note in enumerate(notes, 1):
        console.print(f"{number}. {note}", highlight=False, markup=False, soft_wrap=True)


_HEADINGS = ("what", "ours", "peer or limit", "ratio", "spread", "to bare ASGI", "target", "met")
_NARROW = (0, 1, 2, 3, 7)
_WIDE_COLUMNS = 140


def _print_rich(console: Console, rows: Sequence[Row]) -> None:
    # On a narrow terminal what was measured stays readable, and what explains the ratio goes.
    shown = range(len(_HEADINGS)) if console.width >= _WIDE_COLUMNS else _NARROW
    table = Table(box=SIMPLE_HEAD)
    for at in shown:
        table.add_column(_HEADINGS[at], justify="right" if 0 < at < 6 else "left", no_wrap=at > 0)
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            table.add_section()
            table.add_row(f"[bold]{section}[/]")
        style = "red" if row.met is False else "green" if row.met else "dim"
        cells = _cells(row)
        table.add_row(*(cells[at] for at in shown), style=style)
    console.print(table)
    for row in rows:
        if row.void is not None:
            console.print(f"{row.what} is void: {row.void[:500]}", style="red", markup=False)


def _print_plain(rows: Sequence[Row]) -> None:
    lines: list[tuple[str, ...] | str] = [_HEADINGS]
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            lines.append(section)
        lines.append(_cells(row))
    cells = [line for line in lines if isinstance(line, tuple)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(_HEADINGS))]
    sys.stdout.write("\n")
    for line in lines:
        if isinstance(line, str):
            sys.stdout.write(f"\n{line}\n")
            continue
        padded = [
            cell.rjust(width) if 0 < at < 6 else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        sys.stdout.write("  ".join(padded).rstrip() + "\n")
    sys.stdout.write("\n")
    for row in rows:
        if row.void is not None:
            sys.stdout.write(f"{row.what} is void: {row.void[:500]}\n")


def _cells(row: Row) -> tuple[str, ...]:
    if row.void is not None:
        return (row.what, "void", "", "", "", "", "", "no")
    return (
        row.what,
        _number(row.ours, row.unit),
        _number(row.peer, row.unit),
        _ratio(row.ratio),
        f"{_ratio(row.lowest)} to {_ratio(row.highest)}" if row.lowest is not None else "",
        _ratio(row.also),
        row.target or "",
        "" if row.met is None else "yes" if row.met else "no",
    )


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}".rstrip()


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
