"""The page of the Python package, made from what `leaseplane.__all__` names: signatures and docstrings.

`python -m tests.docs.python_page > docs/python.md` makes it anew.
"""

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

import leaseplane

INTRODUCTION = """\
# Python

Made from `leaseplane.__all__`; `tests/docs/python_page.py` makes it.

```python deploy.py
from leaseplane import LeaseHeld, Plane

with Plane() as plane:
    try:
        with plane.lease("lock:deploy/production", timeout=60, note="rolling out 4.2") as lease:
            lease.ensure_held()
            print("deploying under fence", lease.fence)
    except LeaseHeld as held:
        print(f"given up: {held.holder} has it for {held.note}, until {held.expires_at} at least")
```

```sh
. .venv/bin/activate
python deploy.py
```

```text output
deploying under fence …
```

Without a server and without settings this works on the data folder of this machine; with `LEASEPLANE_URL`
and `LEASEPLANE_API_KEY` it asks that server, and nothing in the program changes
([embedded or with a server](guides/embedded-or-server.md)). All names are typed.

- A *result* is what was done. A *refusal* is an exception, a subclass of `Refused`: the plane answered, and
  nothing was granted. A *failure* is another exception: nobody answered, or not in time.
- Each result and each refusal keeps the answer as it came: `status`, `body`, `raw`, `receipt`.
- Times that end in `_ms` are whole milliseconds, `timeout` is in seconds. `access` is `"read"`, `"write"`
  or `"delete"`.
- A lease is renewed on a thread that belongs to its plane, a third of its term after the last renewal.
  Whether it is held is known by local elapsed time, counted from before the request was sent: `is_held`,
  `ensure_held` and `wait_lost` ask nobody.
"""

SECTIONS = {
    "Planes": ("Plane", "AsyncPlane"),
    "Leases": ("Lease", "AsyncLease"),
    "Results": (),
    "Refusals": (
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
    "Failures": ("LeaseLost", "AuthorityUnavailable", "OutcomeUnknown", "SettingRefused", "FolderRefused"),
    "Receipts": ("verify_receipt", "Verdict"),
}
CALLED = ("Plane", "AsyncPlane")
"""What programs make themselves."""

ALIKE = {"AsyncPlane": "Plane", "AsyncLease": "Lease"}
"""What is told by its differences."""

RESULTS = ("Response", "Granted", "Released", "Waiting", "Withdrawn", "Trust", "Broken")
"""What the methods of a plane return; not made by programs, and so not in `__all__`."""


class Member(NamedTuple):
    name: str
    title: str
    """How it is written: a signature, or a name and its type."""
    says: str


def render_python() -> str:
    """The page, in Markdown."""
    named = [name for names in SECTIONS.values() for name in names]
    assert sorted([*named, "__version__"]) == sorted(leaseplane.__all__), "a name has no section"
    outcomes = importlib.import_module("leaseplane.client.outcomes")
    lines = [INTRODUCTION]
    for section, names in SECTIONS.items():
        lines.append(f"## {section}\n")
        if section == "Results":
            lines.append("What the methods of a plane return. `Response` is what they have in common.\n")
            lines += [_entry(getattr(outcomes, name)) for name in RESULTS]
        lines += [_entry(getattr(leaseplane, name)) for name in names]
    lines.append('## Version\n\n`leaseplane.__version__` is the version of the package, such as `"0.1.0"`.\n')
    return "\n".join(lines)


def _entry(thing: Any) -> str:
    """One heading: how it is called, what it promises, its members."""
    lines = [f"### `{thing.__name__}`\n"]
    if not inspect.isclass(thing):
        return "\n".join([*lines, _code(_title_of(_tree_of(thing))), _text(inspect.getdoc(thing)), ""])
    if thing.__name__ in CALLED:
        lines.append(_code(_title_of(_init_of(thing), thing.__name__)))
    over = [each.__name__ for each in thing.__bases__ if _is_public(each) or each is ValueError]
    kinds = f"A {' and '.join(f'`{name}`' for name in over)}. " if over else ""
    lines.append(f"{kinds}{_text(inspect.getdoc(thing))}\n")
    members = list(_members(thing))
    if like := ALIKE.get(thing.__name__):
        told = set(_members(getattr(leaseplane, like)))
        lines.append(f"What is not listed is as with `{like}`.\n")
        members = [each for each in members if each not in told]
    for member in members:
        says = textwrap.indent(member.says, "  ").strip()
        lines.append(f"- `{member.title}`" + (f": {says}" if says else ""))
    return "\n".join([*lines, ""] if members else lines)


def _is_public(kind: type) -> bool:
    return kind.__module__.startswith("leaseplane.") and (
        kind.__name__ in leaseplane.__all__ or kind.__name__ in RESULTS
    )


def _members(kind: type) -> Iterator[Member]:
    """Its public members, after those of the bases that have no entry of their own."""
    seen = set()
    for each in reversed(kind.__mro__):
        if not each.__module__.startswith("leaseplane.") or (each is not kind and _is_public(each)):
            continue
        for member in _members_in(each):
            if member.name not in seen:
                seen.add(member.name)
                yield member


_FOR_THE_KEEPER = frozenset(
    {"renewal", "letting_go", "changed", "named", "begins", "ends", "holding", "body", "raw", "status"}
)
"""What a lease shows to the thread that renews it."""


def _members_in(kind: type) -> Iterator[Member]:
    tree = _tree_of(kind)
    assert isinstance(tree, ast.ClassDef)
    is_answer = kind.__name__ == "Response"
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        match node:
            case ast.FunctionDef(name="__init__"):
                yield from (each for each in _set_in(node) if is_answer or each.name not in _FOR_THE_KEEPER)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not node.name.startswith("_"):
                if node.name not in _FOR_THE_KEEPER:
                    yield Member(node.name, _title_of(node), _text(ast.get_docstring(node)))
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                annotation = ast.unparse(node.annotation)
                yield Member(
                    name, f"{name}: {annotation.removeprefix('ClassVar[').rstrip(']')}", _told(after)
                )


def _set_in(init: ast.FunctionDef) -> Iterator[Member]:
    """The attributes that it sets from its parameters, with what is said below each."""
    types = {each.arg: ast.unparse(each.annotation) for each in init.args.args if each.annotation}
    for node, after in zip(init.body, [*init.body[1:], None], strict=True):
        match node:
            case ast.Assign(targets=[ast.Attribute(attr=name)]) if name in types:
                yield Member(name, f"{name}: {types[name]}", _told(after))
            case ast.AnnAssign(target=ast.Attribute(attr=name)) if not name.startswith("_"):
                yield Member(name, f"{name}: {ast.unparse(node.annotation)}", _told(after))


def _told(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return _text(text)
    return ""


def _title_of(node: ast.AST, name: str | None = None) -> str:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    returns = ast.unparse(node.returns).strip("'") if node.returns else "None"
    if any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list):
        return f"{node.name}: {returns}"
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
    # An annotation in quotes names what stands further down.
    arguments = ", ".join(_spaced(each) for each in _split(arguments.replace("'", "")))
    before = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    after = "" if name or returns == "None" else f" -> {returns}"
    return f"{before}{name or node.name}({arguments}){after}"


def _split(arguments: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(arguments):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            parts.append(arguments[start:at].strip())
            start = at + 1
    return [*parts, arguments[start:].strip()] if arguments[start:].strip() else parts


def _spaced(argument: str) -> str:
    name, is_given, default = argument.rpartition("=")
    return f"{name} = {default}" if is_given and ":" in name else argument


def _code(title: str) -> str:
    head, _, rest = title.partition("(")
    inside, _, after = rest.rpartition(")")
    parts = _split(inside)
    told = title if len(title) < 90 else f"{head}(\n    " + ",\n    ".join(parts) + f",\n){after}"
    return f"```text\n{told}\n```\n"


def _init_of(kind: type) -> ast.AST:
    tree = _tree_of(kind)
    assert isinstance(tree, ast.ClassDef)
    return next(each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")


def _tree_of(thing: Any) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def _text(docstring: str | None) -> str:
    """A docstring as Markdown, in which its indented lines are code already."""
    return inspect.cleandoc(docstring) if docstring else ""


if __name__ == "__main__":
    sys.stdout.write(render_python())
