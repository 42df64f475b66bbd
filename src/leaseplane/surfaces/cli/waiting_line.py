"""The waiting line: who is in the way, told while a command waits for a lease.

On a terminal it is one line of stderr, written anew in place and gone without a trace in the end.
Elsewhere it is one plain line when the wait begins, and one when it is over.
"""

import contextlib
import os
import threading
import unicodedata
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from leaseplane.surfaces.cli.terminal import Terminal

if TYPE_CHECKING:
    from leaseplane.client.outcomes import LeaseHeld

_REDRAWN_S: Final = 1.0
_DID_CHARS_MAX: Final = 24
_NOTE_CELLS_MIN: Final = 8
_WIDTH_UNKNOWN: Final = 80


class InTheWay(msgspec.Struct, frozen=True):
    """What a refusal says about the wait."""

    position: int
    holder: str | None
    instance: str | None
    note: str | None
    held_since_ms: int | None
    """Wall-clock time in milliseconds."""


class WaitingLine:
    """One wait for one resource. `told` with each refusal, `done` when it is over."""

    def __init__(self, resource: str, terminal: Terminal, *, command: str) -> None:
        self._resource = resource
        self._terminal = terminal
        self._command = command
        self._in_the_way: InTheWay | None = None
        self._began_boot_ms = 0
        self._drawn_cells = 0
        self._over = threading.Event()
        self._redraws: threading.Thread | None = None

    def told(self, held: "LeaseHeld") -> None:
        """Tell of a refusal: the first begins the line, the others change it."""
        is_first = self._in_the_way is None
        self._in_the_way = _read(held)
        live = self._terminal.stderr.isatty()
        if is_first:
            self._began_boot_ms = self._terminal.clock.now().boot_ms
            if live:
                # The waiting thread is asleep, and the time is to count on.
                self._redraws = threading.Thread(target=self._redraw, daemon=True)
                self._redraws.start()
            else:
                self._terminal.remark(f"leaseplane {self._command}: {self._text(None)}")

    def done(self, *, granted: bool) -> None:
        """End the line, once. Nothing of it is on the terminal afterwards."""
        if self._over.is_set():
            return
        self._over.set()
        if self._redraws is not None:
            self._redraws.join()
            self._erase()
        elif self._in_the_way is not None and granted:
            waited_s = (self._terminal.clock.now().boot_ms - self._began_boot_ms) // 1000
            self._terminal.remark(
                f"leaseplane {self._command}: got {self._resource} after {duration(waited_s)}"
            )

    def _redraw(self) -> None:
        while True:
            # A terminal that is gone, or that somebody else writes on, needs no line.
            with contextlib.suppress(OSError, ValueError):
                if self._is_ours():
                    self._draw()
            if self._over.wait(_REDRAWN_S):
                return

    def _is_ours(self) -> bool:
        """Whether this process is in the terminal's foreground: `&` would write into a shell's prompt."""
        return os.tcgetpgrp(self._terminal.stderr.fileno()) == os.getpgrp()

    def _draw(self) -> None:
        columns = os.get_terminal_size(self._terminal.stderr.fileno()).columns or _WIDTH_UNKNOWN
        # The last column stays free: what ends there is broken over two lines by some terminals.
        text = self._text(columns - 1)
        cells = cells_of(text)
        self._terminal.stderr.write("\r" + text + " " * (self._drawn_cells - cells))
        self._terminal.stderr.flush()
        self._drawn_cells = cells

    def _erase(self) -> None:
        if self._drawn_cells:
            with contextlib.suppress(OSError, ValueError):
                self._terminal.stderr.write("\r" + " " * self._drawn_cells + "\r")
                self._terminal.stderr.flush()

    def _text(self, cells_max: int | None) -> str:
        assert self._in_the_way is not None
        now_wall_ms = self._terminal.clock.now().wall_ms
        text = waiting_text(self._resource, self._in_the_way, now_wall_ms, cells_max)
        encoding = self._terminal.stderr.encoding or "ascii"
        return text.encode(encoding, errors="replace").decode(encoding)


def waiting_text(resource: str, in_the_way: InTheWay, now_wall_ms: int, cells_max: int | None) -> str:
    """The line, in at most that many cells: the note is cut first, then the whole.

    `3rd in line for lock:deploy/production, held by did:key:z6Mk…doK for 12 s: moving the table`
    """
    text = f"{ordinal(in_the_way.position)} in line for {resource}"
    if in_the_way.holder is not None:
        text += f", held by {short_did(in_the_way.holder)}"
        if in_the_way.instance:
            text += f" ({in_the_way.instance})"
        if in_the_way.held_since_ms is not None:
            # The two wall clocks may differ.
            text += f" for {duration(max(0, now_wall_ms - in_the_way.held_since_ms) // 1000)}"
    text = _shown(text)
    if in_the_way.note:
        note = _shown(in_the_way.note)
        if cells_max is None or cells_max - cells_of(text) - 2 >= min(_NOTE_CELLS_MIN, cells_of(note)):
            text += f": {note}"
    return text if cells_max is None else cut(text, cells_max)


def waiting_words(resource: str, held: "LeaseHeld", now_wall_ms: int) -> str:
    """The line of one refusal, as long as it is."""
    return waiting_text(resource, _read(held), now_wall_ms, None)


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `3rd`, `11th` …"""
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if 11 <= number % 100 <= 13 else endings.get(number % 10, "th")
    return f"{number}{ending}"


def duration(seconds: int) -> str:
    """`12 s`, `3 min 5 s`, `2 h 3 min`."""
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3_600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3_600} h {seconds % 3_600 // 60} min"


def short_did(did: str) -> str:
    """The beginning and the end of a long DID, which is what people compare."""
    if len(did) <= _DID_CHARS_MAX:
        return did
    method = did.split(":", 2)
    head = len(did) - len(method[-1]) + 4
    return f"{did[:head]}…{did[-4:]}"


def cells_of(text: str) -> int:
    """How many cells of a terminal a text takes."""
    return sum(_cells(character) for character in text)


def cut(text: str, cells_max: int) -> str:
    """`text`, or what fits of it and an ellipsis."""
    if cells_of(text) <= cells_max:
        return text
    kept, cells = "", 0
    for character in text:
        cells += _cells(character)
        if cells > cells_max - 1:
            break
        kept += character
    return f"{kept.rstrip()}…" if cells_max > 0 else ""


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _shown(text: str) -> str:
    """`text` without what would change how the rest of the line is drawn: a note is anyone's to write."""
    return "".join(
        character
        for character in text
        if unicodedata.category(character) not in ("Cc", "Cf", "Zl", "Zp", "Cs", "Co")
    )


def _read(held: "LeaseHeld") -> InTheWay:
    since = held.held_since
    return InTheWay(
        held.position,
        held.holder,
        held.instance,
        held.note,
        None if since is None else int(datetime.fromisoformat(since).timestamp() * 1000),
    )
