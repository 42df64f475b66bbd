"""The JSON object that a request carries, read strictly.

JSON readers disagree about what RFC 8259 leaves open, and what two programs read differently is a
way to say one thing to the one and another to the other. So a body that could be read in two ways
is refused: duplicate members at any depth, NaN and Infinity, a byte that is no UTF-8. Nesting is
bounded before anything recurses, and a number's length costs no more than reading it.

`receipts.canonical.read_strict` is the reader of a verifier, which refuses more: here numbers may be of
any kind, since a `ttlMs` may hold whatever it likes, and what is wrong is told to whoever wrote the body.
"""

import json
from collections import Counter
from typing import Final, NoReturn

from leaseplane.limits import JSON_DEPTH_MAX, WHOLE_NUMBER_MAX
from leaseplane.operations import RequestRefused
from leaseplane.receipts.canonical import nests_deeper_than

_DIGITS_MAX: Final = 20
_TOLD_CHARS_MAX: Final = 64


def read_object(body: bytes) -> dict[str, object]:
    """The members of the JSON object in `body`; raises `RequestRefused` for anything else.

    A number written with a fraction or an exponent that is whole all the same (`1000.0`) is that
    whole number, as JSON Schema has it. A whole number too long for any member becomes a float.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise RequestRefused(f"The body is not UTF-8: byte {error.start} starts no character.") from None
    if nests_deeper_than(text, JSON_DEPTH_MAX):
        raise RequestRefused(f"The body is nested deeper than {JSON_DEPTH_MAX}.")
    try:
        value: object = _read(text)
    except json.JSONDecodeError as error:
        raise RequestRefused(_what_is_wrong(text, error)) from None
    if type(value) is not dict:
        raise RequestRefused("The body is JSON, but not an object: send {…}.")
    return value


def _what_is_wrong(text: str, error: json.JSONDecodeError) -> str:
    if not text.strip():
        return "The body is empty: send a JSON object."
    if text.startswith("\ufeff"):
        return "The body starts with a byte order mark: send JSON without one."
    return f"The body is not JSON: {error.msg.lower()} at line {error.lineno}, column {error.colno}."


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        counted = Counter(name for name, _ in pairs)
        told = json.dumps(counted.most_common(1)[0][0][:_TOLD_CHARS_MAX])
        raise RequestRefused(f"The member {told} appears twice in one object.")
    return members


def _whole(digits: str) -> int | float:
    # int() of many digits takes quadratic time, and none of our numbers has as many.
    return int(digits) if len(digits) < _DIGITS_MAX else float(digits)


def _number(digits: str) -> int | float:
    value = float(digits)
    return int(value) if value.is_integer() and abs(value) <= WHOLE_NUMBER_MAX else value


def _no_constant(name: str) -> NoReturn:
    raise RequestRefused(f"The body holds {name}, which is not JSON.")


_read: Final = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=_whole, parse_float=_number, parse_constant=_no_constant
).decode
