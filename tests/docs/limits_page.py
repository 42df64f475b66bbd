"""The page of limits, made from `leaseplane/limits.py`: its sections, its values, its reasons.

`python -m tests.docs.limits_page > docs/limits.md` makes it anew.
"""

import ast
import re
import sys
from pathlib import Path

from leaseplane import limits

_SECTION = re.compile(r"^# -- (?P<name>.+?) -+$", re.MULTILINE)


def render_limits() -> str:
    """The page, in Markdown."""
    source = Path(limits.__file__).read_text(encoding="utf-8")
    lines = [
        "# Limits",
        "",
        "Nothing in the plane grows without one of these; a name says in which unit its value is. Their",
        "relations are asserted where they stand. This page is made from `leaseplane/limits.py`.",
    ]
    sections = [(found.start(), found["name"]) for found in _SECTION.finditer(source)]
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    body = ast.parse(source).body
    told = ""
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign):
            continue
        assert isinstance(statement.target, ast.Name)
        name = statement.target.id
        section = [title for at, title in sections if at < starts[statement.lineno - 1]][-1]
        if section != told:
            told = section
            lines += [
                "",
                f"## {told[0].upper()}{told[1:]}",
                "",
                "| limit | value | |",
                "| --- | ---: | --- |",
            ]
        reason = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            reason = " ".join(str(following.value.value).split())
        lines.append(f"| `{name}` | {_value_of(name)} | {reason} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def _value_of(name: str) -> str:
    value = getattr(limits, name)
    if name == "WHOLE_NUMBER_MAX":
        return "2^53 − 1"
    shown = f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return shown.replace("-", "−")


if __name__ == "__main__":
    sys.stdout.write(render_limits())
