"""Output: whether a command printed what its page shows.

`…` stands for anything: within a text or a JSON string for any characters, alone on a line for any
lines, as a member's name for any other members, as an item for any further items. What differs from
one run to the next is compared by its form alone.
"""

import json
import re
from typing import Any

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_TIMES = frozenset({"grantedAt", "expiresAt", "heldSince", "since", "lastAskedAt", "at", "createdAt"})
_NUMBERS = frozenset({"fence", "retryAfterMs"})
_LEASE_ID = re.compile(r"lease-[0-9a-f]+")


def difference_of_text(shown: str, printed: str) -> str | None:
    """None where `printed` is what is `shown`, or else both of them."""
    lines = shown.rstrip().splitlines()
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n"
        for line in lines
    )
    printed = "\n".join(line.rstrip() for line in printed.rstrip().splitlines())
    if re.fullmatch(pattern, f"{printed}\n" if printed else ""):
        return None
    return f"the page shows\n{shown.rstrip()}\nbut this was printed\n{printed}"


def difference_of_json(shown: str, printed: str) -> str | None:
    """None where `printed` is the JSON that is `shown`, or else where they part."""
    try:
        found = json.loads(printed)
    except ValueError:
        return f"this is not JSON: {printed!r}"
    return _differ(json.loads(shown), found, "$")


def _differ(shown: Any, found: Any, at: str) -> str | None:
    name = at.rpartition(".")[2]
    different = f"{at}: the page shows {shown!r}, but it is {found!r}"
    match shown, found:
        case "…", _:
            return None
        case dict(), dict():
            wanted = {key for key in shown if key != "…"}
            if wanted - found.keys() or (found.keys() - wanted and "…" not in shown):
                return f"{at}: the page shows the members {sorted(shown)}, but it has {sorted(found)}"
            inside = (_differ(shown[key], found[key], f"{at}.{key}") for key in sorted(wanted))
            return next(filter(None, inside), None)
        case list(), list():
            if shown[-1:] == ["…"]:
                shown, found = shown[:-1], found[: len(shown) - 1]
            if len(shown) != len(found):
                return f"{at}: the page shows {len(shown)} items, but it has {len(found)}"
            pairs = enumerate(zip(shown, found, strict=True))
            return next(filter(None, (_differ(a, b, f"{at}[{n}].{name}") for n, (a, b) in pairs)), None)
        case str(), str():
            if name in _TIMES:
                alike = all(map(_TIME.fullmatch, (shown, found)))
            elif name == "leaseId":
                alike = all(map(_LEASE_ID.fullmatch, (shown, found)))
            else:
                alike = bool(re.fullmatch(".*".join(map(re.escape, shown.split("…"))), found, re.DOTALL))
            return None if alike else different
        case int(), int() if name in _NUMBERS and type(shown) is type(found) and found > 0:
            return None
        case _:
            return None if type(shown) is type(found) and shown == found else different
