"""The canonical form of JSON (RFC 8785), and the digests that receipts carry.

Two ways lead to the same bytes. `encode_answer` is what the plane writes its answers with: fast, and
canonical for everything that an answer can hold (tests/receipts/test_canonical.py proves it).
`read_strict` followed by `canonical_form` is what a verifier does with a body of unknown origin.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import msgspec
from cryptography.hazmat.primitives.hashes import SHA256, Hash

from leaseplane import limits

_SHA256: Final = SHA256()

encode_answer: Final[Callable[[object], bytes]] = msgspec.json.Encoder(order="sorted").encode
"""The RFC 8785 form of an answer of the plane.

Holds for objects whose member names are ASCII and whose values are strings, whole numbers below
2^53, booleans, lists, objects, and floats with a fraction: a whole float (50.0) would keep its `.0`,
so a whole score has to be an int. A lone surrogate raises UnicodeEncodeError.
"""


class NotStrictJson(ValueError):
    """The text is not JSON, or is JSON that two readers could understand differently."""


class NotCanonicalizable(ValueError):
    """The value has no RFC 8785 form."""


# -- reading -----------------------------------------------------------------------------------

# A string that is never closed matches up to the end, so that no quote is looked at twice: the
# search is linear, whatever the text.
_BRACKETS: Final = r'"[^"\\]*+(?:\\.?[^"\\]*+)*+"?|[\[\]{}]'
_SURROGATE_ESCAPE: Final = r"\\u[dD][89abAB]|\\u[dD][c-fC-F]"


def _one_value_per_name(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise NotStrictJson("it has duplicate members")
    return members


def _whole_number(digits: str) -> int:
    # The length first: int() of a long text is slow, and refused by Python beyond 4300 digits.
    if len(digits) > 17 or abs(number := int(digits)) > limits.WHOLE_NUMBER_MAX:
        raise NotStrictJson("it holds a whole number of 2^53 or more")
    return number


def _fraction(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise NotStrictJson("it holds a number too large to be read")
    return number


def _no_fraction(text: str) -> NoReturn:
    raise NotStrictJson("it holds a number with a fraction or an exponent")


def _no_constant(name: str) -> NoReturn:
    raise NotStrictJson(f"it holds {name}")


def nests_deeper_than(text: str, depth_max: int) -> bool:
    """Whether objects and lists are nested deeper in this text, whatever it is. Linear, and cheap where
    there are too few brackets for it."""
    if text.count("{") + text.count("[") <= depth_max:
        return False
    depth = 0
    for match in re.finditer(_BRACKETS, text, re.DOTALL):
        bracket = match.group()
        if bracket in "[{":
            depth += 1
            if depth > depth_max:
                return True
        elif bracket in "]}":
            depth -= 1
    return False


def read_strict(data: bytes, *, floats: bool = True, depth_max: int = limits.JSON_DEPTH_MAX) -> object:
    """The JSON value in `data`, if every reader would read the same from it.

    Refused as NotStrictJson, with the reason as its text: what is not UTF-8 or not JSON, duplicate
    members, NaN and infinities, whole numbers of 2^53 and more, lone surrogates, nesting deeper
    than `depth_max`, and with `floats=False` every number that is not written as a whole one.
    """
    # Here and below: a plane that answers has no need of the modules that a verifier needs.
    import json

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise NotStrictJson("it is not UTF-8") from None
    # Measured before it is parsed: the parser recurses, and how deep it may is the caller's stack.
    if nests_deeper_than(text, depth_max):
        raise NotStrictJson(f"it is nested deeper than {depth_max}")
    try:
        value: object = json.loads(
            text,
            object_pairs_hook=_one_value_per_name,
            parse_int=_whole_number,
            parse_float=_fraction if floats else _no_fraction,
            parse_constant=_no_constant,
        )
    except json.JSONDecodeError:
        raise NotStrictJson("it is not JSON") from None
    if re.search(_SURROGATE_ESCAPE, text):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise NotStrictJson("it holds a lone surrogate") from None
    return value


# -- writing -----------------------------------------------------------------------------------


def canonical_form(value: object) -> bytes:
    """The RFC 8785 form of a JSON value.

    Raises NotCanonicalizable for what has none: NaN, infinities, whole numbers of 2^53 and more,
    lone surrogates, member names that are not strings, and types that JSON does not know.
    """
    import rfc8785

    try:
        return rfc8785.dumps(value)  # type: ignore[arg-type]  # it checks the types itself, and raises
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as refused:
        raise NotCanonicalizable(str(refused)) from None


def _as_doubles(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > limits.WHOLE_NUMBER_MAX:
        return float(value)
    if isinstance(value, Mapping):
        return {name: _as_doubles(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_as_doubles(item) for item in value]
    return value


# -- digests -----------------------------------------------------------------------------------


def sha256(data: bytes) -> bytes:
    """SHA-256, by the library that signs: `hashlib` would load OpenSSL a second time."""
    digest = Hash(_SHA256)
    digest.update(data)
    return digest.finalize()


def sha256_hex(data: bytes) -> str:
    """SHA-256 in lower-case hex, the form of every digest in a receipt."""
    return sha256(data).hex()


def digest_of_answer(body: bytes) -> str:
    """The digest that a receipt gives as `answer.digest` for this response body.

    The body is a JSON object, in any spelling; its member `receipt`, if there is one, is left out.
    Raises NotStrictJson where the body is none.
    """
    members = read_strict(body)
    if not isinstance(members, dict):
        raise NotStrictJson("it is not a JSON object")
    return digest_of_members(members)


def digest_of_members(members: Mapping[str, object]) -> str:
    """`digest_of_answer` of a body that has been read already. Raises NotCanonicalizable."""
    return sha256_hex(canonical_form({name: members[name] for name in members if name != "receipt"}))


def digest_of_arguments(arguments: Mapping[str, object]) -> str:
    """The digest that a receipt gives as `request.digest` for the arguments of a tool call.

    Numbers count as IEEE doubles, as RFC 8785 has them: a `ttlMs` of 2^60, which is accepted and
    ignored, does not make a call impossible to describe. Raises NotCanonicalizable.
    """
    try:
        return sha256_hex(canonical_form(_as_doubles(arguments)))
    except (OverflowError, RecursionError):
        raise NotCanonicalizable("a number is too large, or the nesting too deep") from None


def with_receipt(answer: bytes, receipt: str) -> bytes:
    """The response body: the answer as `encode_answer` wrote it, with the member `receipt` added."""
    separator = b"" if answer == b"{}" else b","
    return b"".join((answer[:-1], separator, b'"receipt":"', receipt.encode("ascii"), b'"}'))
