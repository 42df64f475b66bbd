"""The page of the Python interface, made from the signatures and docstrings of what `leaseplane` exports.

`python -m tests.docs.python_page > docs/python.md` makes it anew.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import leaseplane

GROUPS = (
    ("A plane", ("Plane", "AsyncPlane")),
    ("A lease", ("Lease", "AsyncLease")),
    (
        "What is refused",
        (
            "Refused",
            "LeaseHeld",
            "Deadlock",
            "StaleLease",
            "NotHolder",
            "NotHeld",
            "TooMany",
            "InvalidRequest",
            "NotAllowed",
        ),
    ),
    (
        "What fails",
        ("LeaseLost", "AuthorityUnavailable", "OutcomeUnknown", "SettingRefused", "FolderRefused"),
    ),
    ("Receipts", ("verify_receipt", "Verdict")),
)
"""Everything that is exported, in the order of the page."""

HEAD = """\
# Python

What `leaseplane` exports; made from its signatures and docstrings. How to use it is in
[start.md](start.md) and the [guides](README.md).

    from leaseplane import Plane

    with Plane() as plane, plane.lease("lock:deploy/production", timeout=60) as lease:
        deploy(fence=lease.fence)

Every answer of the plane, a refusal too, keeps what came: `status`, `body` (the JSON object), `raw` (its
bytes, which `leaseplane verify` takes) and `receipt`. Everything is typed (`py.typed`).
"""


def render_python() -> str:
    """The page, in Markdown."""
    lines = [HEAD]
    for title, names in GROUPS:
        lines += [f"## {title}", ""]
        for name in names:
            lines += [*_section(name, getattr(leaseplane, name)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _section(name: str, thing: Any) -> Iterator[str]:
    yield f"### `{name}`"
    yield ""
    if not inspect.isclass(thing):
        yield f"    {name}{_signature(thing)}"
        yield ""
        yield _text(thing)
        return
    if name in ("Plane", "AsyncPlane"):
        yield f"    {name}{_signature(thing.__init__)}"
        yield ""
    yield _text(thing)
    members = [*_members(thing)]
    if members:
        yield ""
        for member in members:
            yield from member


def _members(thing: type) -> Iterator[list[str]]:
    met = set()
    for owner in thing.__mro__:
        if not owner.__module__.startswith("leaseplane."):
            continue
        for name, member in vars(owner).items():
            if name.startswith("_") or name in met:
                continue
            met.add(name)
            if isinstance(member, property) and member.fget is not None:
                kind = _type(inspect.signature(member.fget).return_annotation)
                told = _text(member)
                yield [f"- `{name}`: `{kind}`" + (f". {_indented(told)}" if told else "")]
            elif inspect.isfunction(member) and member.__doc__ and name not in _FOR_OURSELVES:
                word = "await " if inspect.iscoroutinefunction(member) else ""
                yield [f"- `{word}{name}{_signature(member)}`. {_indented(_text(member))}"]


_FOR_OURSELVES = frozenset({"begins", "ends", "changed", "letting_go", "renewal", "named"})
_HIDDEN = frozenset({"settings", "clock"})


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    parts, is_keyword = [], False
    for parameter in signature.parameters.values():
        if parameter.name == "self" or parameter.name in _HIDDEN:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            parts.append("*")
            is_keyword = True
        told = parameter.name
        if parameter.annotation is not parameter.empty:
            told += f": {_type(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            told += f" = {parameter.default!r}"
        parts.append(told)
    answer = signature.return_annotation
    is_told = answer is not signature.empty and answer is not None
    return f"({', '.join(parts)})" + (f" -> {_type(answer)}" if is_told else "")


def _type(annotation: Any) -> str:
    told = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    told = re.sub(r"(?:[a-z_]+\.)+([A-Z]\w*)", r"\1", told).replace("'", "")
    told = told.replace("Literal[read, write, delete]", "Access")
    return re.sub(r"Optional\[(\w+)\]", r"\1 | None", told)


def _text(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


if __name__ == "__main__":
    sys.stdout.write(render_python())
