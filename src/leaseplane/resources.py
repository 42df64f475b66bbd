"""Names: what a resource, an instance, a note and a workspace may be called, and what collides.

A name is compared byte by byte and never decoded or resolved against anything, so two spellings of
one thing would be two locks. The grammar therefore refuses the spellings that people cannot tell
apart, and names the right one where there is one. `check_resource` is on the path of every request:
an everyday ASCII name costs one regular expression, everything else takes the slow way through.

Code points that Unicode has not assigned are let through: the contract does not refuse them, and
what is assigned depends on the Python that runs (14.0 in 3.11, 15.1 in 3.13), so refusing them would
make one plane's names another's errors. What is default-ignorable does not depend on it: the table
below is ours, and includes the ranges that Unicode reserves for such characters.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from leaseplane.limits import (
    AGENT_NAME_CHARS_MAX,
    IDEMPOTENCY_KEY_CHARS_MAX,
    INSTANCE_CHARS_MAX,
    KEY_LABEL_CHARS_MAX,
    LEASE_ID_CHARS_MAX,
    NOTE_CHARS_MAX,
    REASON_CHARS_MAX,
    RESOURCE_BYTES_MAX,
    WORKSPACE_CHARS_MAX,
)
from leaseplane.model import Access

SemanticsClass: TypeAlias = Literal["exclusive", "shared_read"]


class NameRefused(ValueError):
    """A name breaks its grammar; answered as `invalid_request` with `field`.

    `message` is one sentence or two that may be shown to anyone: it never repeats what was sent, only
    code points as U+XXXX and `canonical`, the spelling that would be accepted, where there is one.
    """

    def __init__(self, field: str, message: str, canonical: str | None = None) -> None:
        if canonical is not None:
            message = f'{message} Its canonical spelling is "{canonical}".'
        super().__init__(message)
        self.field = field
        self.message = message
        self.canonical = canonical


# -- what no name may hold ---------------------------------------------------------------------

DEFAULT_IGNORABLE_RANGES: Final = (
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)
"""Unicode's Default_Ignorable_Code_Point (DerivedCoreProperties.txt), version 14.0, unchanged to 17.0:
4,174 code points. Python's unicodedata does not carry the property."""

_WIDE_SPACES: Final = r"\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""Unicode's White_Space (PropList.txt, unchanged since 6.3) without the plain space and the controls."""

_IGNORABLE_CLASS: Final = "".join(f"{chr(low)}-{chr(high)}" for low, high in DEFAULT_IGNORABLE_RANGES)
_CONTROL: Final = r"[\x00-\x1f\x7f-\x9f]"
_IGNORABLE: Final = f"[{_IGNORABLE_CLASS}]"
_WIDE_SPACE: Final = f"[{_WIDE_SPACES}]"
_END_SPACES: Final = rf"\A[\t-\r\x85 {_WIDE_SPACES}]+|[\t-\r\x85 {_WIDE_SPACES}]+\Z"

# -- resources ---------------------------------------------------------------------------------

_SCHEME: Final = r"[a-z][a-z0-9+.\-]*"

# What JSON Schema can say of all this (ECMA-262 without its flag for Unicode): not the normal form, not
# what is beyond the BMP, not the rules for file: names. What is accepted here matches; not the reverse.
_SCHEMA_CONTROLS: Final = r"\u0000-\u001f\u007f-\u009f"
_SCHEMA_REFUSED: Final = (
    _SCHEMA_CONTROLS
    + _WIDE_SPACES.replace(r"\x", r"\u00")
    + "".join(rf"\u{low:04x}-\u{high:04x}" for low, high in DEFAULT_IGNORABLE_RANGES if high <= 0xFFFF)
)
TEXT_PATTERN: Final = f"^[^{_SCHEMA_CONTROLS}]*$"
NAME_PATTERN: Final = f"^[^ {_SCHEMA_REFUSED}]([^{_SCHEMA_REFUSED}]*[^ {_SCHEMA_REFUSED}])?$"
RESOURCE_PATTERN: Final = (
    rf"^([a-z][a-z0-9+.\-]*:[^{_SCHEMA_REFUSED}]*[^ {_SCHEMA_REFUSED}]"
    f"|[^ :{_SCHEMA_REFUSED}]([^:{_SCHEMA_REFUSED}]*[^ :{_SCHEMA_REFUSED}])?)$"
)

# Printable ASCII without a space at either end: a plain name, `scheme:rest`, or a `file:` name of
# segments none of which is empty, `.` or `..`. A name that does not match is not thereby wrong.
_EVERYDAY: Final = re.compile(
    r"(?!file:)(?:[a-z][a-z0-9+.\-]*:[ -~]*[!-~]|[!-9;-~](?:[ -9;-~]*[!-9;-~])?)"
    r"|file:(?:(?!\.{1,2}(?:/|$))[ -.0-\[\]-~]+/)*(?!\.{1,2}$)[ -.0-\[\]-~]*[!-.0-\[\]-~]"
)


def check_resource(name: str) -> None:
    """Accept `name` as the name of a resource, or raise `NameRefused`.

    1 to 512 bytes of UTF-8: `scheme:rest` with a scheme `[a-z][a-z0-9+.-]*` and a rest that is not
    empty, or a plain name without a colon. NFC; no control or default-ignorable characters; no white
    space but the plain space, and none at either end. In `file:` names no empty, `.` or `..` segment
    (a slash at either end makes an empty one) and no backslash. Nothing is decoded: `%2e` is three
    characters.
    """
    if len(name) <= RESOURCE_BYTES_MAX and _EVERYDAY.fullmatch(name) is not None:
        return
    fault = _fault_of_resource(name)
    if fault is not None:
        raise NameRefused("resource", fault, _canonical_resource(name))


def _fault_of_resource(name: str) -> str | None:
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        return "A resource is text: it holds half of a surrogate pair."
    if not 0 < size_bytes <= RESOURCE_BYTES_MAX:
        return f"A resource is 1 to {RESOURCE_BYTES_MAX} bytes of UTF-8, this has {size_bytes}."
    fault = _fault_of_characters("A resource", name)
    if fault is not None:
        return fault
    scheme, colon, rest = name.partition(":")
    if not colon:
        return None
    if re.fullmatch(_SCHEME, scheme) is None:
        return (
            "A resource with a colon is scheme:rest, its scheme a small letter and then small letters, "
            "digits, '+', '.' or '-'."
        )
    if not rest:
        return "A resource with a colon is scheme:rest, and this rest is empty."
    if scheme != "file":
        return None
    if rest[0] in "/\\":
        return "A file: name is relative to the repository's root, so it begins with no slash."
    if "\\" in rest:
        return "A file: name separates its segments by a slash, never by a backslash."
    segments = rest.split("/")
    if "" in segments:
        return "A file: name has no slash at its end, and no two in a row."
    if "." in segments or ".." in segments:
        return "A file: name has no segment '.' or '..': it is never resolved against a folder."
    return None


def _fault_of_characters(subject: str, name: str) -> str | None:
    """The rules that hold in every name: what it may hold, what it may begin and end with, NFC."""
    found = re.search(_CONTROL, name)
    if found is not None:
        return f"{subject} holds no control characters: there is a {_code_point(found[0])}."
    found = re.search(_IGNORABLE, name)
    if found is not None:
        return f"{subject} holds no invisible characters: there is a {_code_point(found[0])}."
    found = re.search(_WIDE_SPACE, name)
    if found is not None:
        return f"{subject} holds no white space but the plain space: there is a {_code_point(found[0])}."
    if name[0] == " " or name[-1] == " ":
        return f"{subject} has no space at either end."
    if not name.isascii() and not _is_normal(name):
        return f"{subject} is written in Unicode's normal form NFC."
    return None


def _is_normal(name: str) -> bool:
    import unicodedata

    return unicodedata.is_normalized("NFC", name)


def _code_point(character: str) -> str:
    return f"U+{ord(character):04X}"


def _tidied(name: str) -> str:
    """`name` without what is invisible, with plain spaces, none at the ends, in NFC."""
    # Only here and above: names are ASCII as a rule, which has one normal form.
    import unicodedata

    trimmed = re.sub(_END_SPACES, "", re.sub(_IGNORABLE, "", name))
    return unicodedata.normalize("NFC", re.sub(_WIDE_SPACE, " ", trimmed))


def _canonical_resource(name: str) -> str | None:
    """The spelling that was probably meant, if it is one that would be accepted."""
    if len(name) > RESOURCE_BYTES_MAX:
        return None
    spelling = _tidied(name)
    scheme, colon, rest = spelling.partition(":")
    scheme = scheme.lower() if colon and scheme.isascii() else scheme
    if scheme == "file" and colon:
        if rest.startswith(("/", "\\")):
            # An absolute path names a file of the machine; without its slash it would be another one.
            return None
        segments: list[str] = []
        for segment in rest.replace("\\", "/").split("/"):
            if segment == "..":
                if not segments:
                    return None
                segments.pop()
            elif segment not in ("", "."):
                segments.append(segment)
        rest = "/".join(segments)
    spelling = f"{scheme}{colon}{rest}"
    return spelling if spelling and _fault_of_resource(spelling) is None else None


# -- what collides -----------------------------------------------------------------------------

SHARED_READ_STANDARD: Final = ("file", "doc", "dataset", "table", "page", "api")
"""The schemes whose resources several may read at once, unless the operator says otherwise."""


def class_of(resource: str, table: Mapping[str, SemanticsClass]) -> SemanticsClass:
    """The semantics class of `resource`: its scheme's in `table`; plain and unknown ones are exclusive."""
    scheme, colon, _ = resource.partition(":")
    return table.get(scheme, "exclusive") if colon else "exclusive"


def collides(semantics: SemanticsClass, one: Access, other: Access) -> bool:
    """Whether two holdings of one resource exclude each other: all do, but two reads of a shared_read."""
    return semantics == "exclusive" or one != "read" or other != "read"


# -- the other names and texts -----------------------------------------------------------------

_EVERYDAY_INSTANCE: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_AGENT_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_WORKSPACE: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_IDEMPOTENCY_KEY: Final = re.compile(r"[ -~]+")

assert WORKSPACE_CHARS_MAX == 63 and AGENT_NAME_CHARS_MAX == 64  # as the patterns above have it


def check_instance(instance: str) -> None:
    """Accept a name for one part of an agent: 1 to 64 characters, by the rules for every name."""
    if len(instance) <= INSTANCE_CHARS_MAX and _EVERYDAY_INSTANCE.fullmatch(instance) is not None:
        return
    fault = _fault_of_instance(instance)
    if fault is None:
        return
    canonical = None
    if len(instance) <= INSTANCE_CHARS_MAX:
        tidied = _tidied(instance)
        canonical = tidied if _fault_of_instance(tidied) is None else None
    raise NameRefused("instance", fault, canonical)


def _fault_of_instance(instance: str) -> str | None:
    return _fault_of_text("An instance", instance, 1, INSTANCE_CHARS_MAX) or _fault_of_characters(
        "An instance", instance
    )


def check_note(note: str) -> None:
    """Accept a note: at most 200 characters of text without control characters.

    A note is free text and not a name: nothing is compared with it, so emoji with their joiners,
    writing from right to left and any normal form are welcome. Whoever draws it isolates it.
    """
    _check_text("note", "A note", note, 0, NOTE_CHARS_MAX)


def check_reason(reason: str) -> None:
    """Accept an operator's reason: 1 to 200 characters of text without control characters."""
    _check_text("reason", "A reason", reason, 1, REASON_CHARS_MAX)


def check_label(label: str) -> None:
    """Accept what an operator calls an API key: at most 100 characters without control characters."""
    _check_text("label", "A label", label, 0, KEY_LABEL_CHARS_MAX)


def check_lease_id(lease_id: str) -> None:
    """Accept what could be a lease's id: 1 to 64 characters of text without control characters.

    Any other grammar is the rules' to judge: an id that was never given out is `stale_lease`.
    """
    _check_text("leaseId", "A leaseId", lease_id, 1, LEASE_ID_CHARS_MAX)


def _check_text(field: str, subject: str, text: str, chars_min: int, chars_max: int) -> None:
    fault = _fault_of_text(subject, text, chars_min, chars_max)
    if fault is not None:
        raise NameRefused(field, fault)


def _fault_of_text(subject: str, text: str, chars_min: int, chars_max: int) -> str | None:
    if not chars_min <= len(text) <= chars_max:
        return f"{subject} is {chars_min} to {chars_max} characters long, this has {len(text)}."
    found = re.search(_CONTROL, text)
    if found is not None:
        return f"{subject} holds no control characters: there is a {_code_point(found[0])}."
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"{subject} is text: it holds half of a surrogate pair."
    return None


def check_workspace(name: str) -> None:
    """Accept a workspace's name: 1 to 63 of a-z, 0-9 and '-', no '-' at either end (RFC 1123's labels)."""
    if re.fullmatch(_WORKSPACE, name) is None:
        small = name.lower() if name.isascii() else ""
        raise NameRefused(
            "workspace",
            f"A workspace's name is 1 to {WORKSPACE_CHARS_MAX} small letters, digits and '-', "
            "with no '-' at either end.",
            small if re.fullmatch(_WORKSPACE, small) is not None else None,
        )


def check_agent_name(name: str) -> None:
    """Accept the name that an agent has on this machine: a part of a file's name, and never a DID.

    1 to 64 letters, digits, dots, underscores and hyphens of ASCII, the first of them a letter or a digit.
    """
    if re.fullmatch(_AGENT_NAME, name) is None:
        raise NameRefused(
            "agent",
            f"An agent's name on this machine is 1 to {AGENT_NAME_CHARS_MAX} letters, digits, dots, "
            "underscores and hyphens, the first a letter or a digit.",
        )


def check_idempotency_key(key: str) -> None:
    """Accept an Idempotency-Key: 1 to 255 characters of printable ASCII, compared as they are."""
    if len(key) > IDEMPOTENCY_KEY_CHARS_MAX or _IDEMPOTENCY_KEY.fullmatch(key) is None:
        raise NameRefused(
            "Idempotency-Key",
            f"An Idempotency-Key is 1 to {IDEMPOTENCY_KEY_CHARS_MAX} characters of printable ASCII.",
        )
