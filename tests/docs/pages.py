"""Pages: what the documentation says, cut into what a test can look at.

A fenced block is named by the words behind its fence:

- `sh`            is run, all those of a page in one shell, from the first to the last
- `sh serve`      is run beside it, in a terminal of its own, as far as the end of the page
- `sh make`       names targets of the Makefile; they are looked up and not made
- `python NAME`  is saved under this name, for the `sh` blocks of its page to run
- `json output`, `text output`  is what the `sh` block before it prints

Any other block is shown and not run; a shell block under another name is refused.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^(?P<fence>```+)(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=fence) *$", re.DOTALL | re.M)
_LINK = re.compile(r"(?<!!)\[(?:[^\]\[]|\[[^\]]*\])*\]\((?P<target>[^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (?P<text>.+?)\s*$", re.M)


class Block(NamedTuple):
    """One fenced block."""

    line: int
    """Of the fence, from 1."""
    info: str
    text: str


def pages() -> list[Path]:
    """Every page of the project, those at the root first."""
    found = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("**/*.md"))
    assert ROOT / "README.md" in found
    return found


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(text.count("\n", 0, found.start()) + 1, found["info"].strip(), found["text"])
        for found in _FENCE.finditer(text)
    ]


def links_of(page: Path) -> Iterator[str]:
    """The targets of its links, outside of code."""
    prose = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text()))
    for found in _LINK.finditer(prose):
        yield found["target"]


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub gives to its headings."""
    met: Counter[str] = Counter()
    anchors = set()
    for heading in _HEADING.finditer(_FENCE.sub("", page.read_text())):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading["text"]).replace("`", "").lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        # Headings of one text are told apart by their number.
        anchors.add(f"{anchor}-{met[anchor]}" if met[anchor] else anchor)
        met[anchor] += 1
    return anchors
