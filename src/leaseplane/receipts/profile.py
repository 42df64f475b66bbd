"""What a receipt may say: the frozen payload, one type for each kind of answer.

A payload is `v`, `iss` and a *statement*. `STATEMENTS` lists the statements by operation and
outcome; nothing else is a receipt. Changing anything here changes what every published verifier
reads: it needs another `v`, and other vectors in tests/receipts/vectors.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from leaseplane import limits
from leaseplane.model import Auth
from leaseplane.receipts.canonical import NotStrictJson, read_strict

ALGORITHM: Final = "EdDSA"
RECEIPT_TYPE: Final = "leaseplane-receipt+jws"
VERSION: Final = 1

LeaseRefusalCode: TypeAlias = Literal["lease_held", "deadlock", "stale_lease"]
ReleaseRefusalCode: TypeAlias = Literal["not_held", "not_holder", "stale_lease"]

Issuer = Annotated[str, Meta(max_length=limits.RECEIPT_ISSUER_CHARS_MAX)]
Id = Annotated[str, Meta(max_length=limits.JTI_CHARS_MAX)]
LeaseId = Annotated[str, Meta(max_length=limits.LEASE_ID_CHARS_MAX)]
Seconds = Annotated[int, Meta(ge=0, le=limits.WHOLE_NUMBER_MAX)]
Fence = Annotated[int, Meta(ge=1, le=limits.WHOLE_NUMBER_MAX)]
Digest: TypeAlias = str
Method = Annotated[str, Meta(max_length=32)]
Path = Annotated[str, Meta(max_length=limits.RECEIPT_PATH_CHARS_MAX)]
"""The path of a URL without query or fragment, or the dotted name of a tool."""
Instant: TypeAlias = str
Name: TypeAlias = str
"""A name of the plane. Its grammar was checked when the plane took it; here only what could
mislead a reader of the verdict is refused. Its bound is in bytes and stands in `_BYTES_MAX`."""

_ISSUER: Final = r"\A[a-z][a-z0-9+.-]*:[!-~]+\Z"
_ID: Final = r"\A[A-Za-z0-9_.:-]+\Z"
_NAME: Final = r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029]+\Z"
_INSTANT: Final = r"\A[0-9]{4}-[01][0-9]-[0-3][0-9]T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{3}Z\Z"
# In the types, msgspec would compile them for everyone who signs, and only readers need them.
GRAMMAR: Final[Mapping[str, str]] = {
    "jti": _ID,
    "workspace": _NAME,
    "actorDid": _NAME,
    "resource": _NAME,
    "leaseId": _ID,
    "grantedAt": _INSTANT,
    "expiresAt": _INSTANT,
    "method": r"\A[A-Za-z]+(/[a-z]+)?\Z",
    "path": r"\A(/[!-\"$->@-~]*|coordination(\.[a-z]+)+)\Z",
    "digest": r"\A[0-9a-f]{64}\Z",
}
"""How the texts of a statement are spelled: every member that is a string and no fixed word, by its name,
which means the same wherever it stands."""

_BYTES_MAX: Final[Mapping[str, int]] = {
    "workspace": limits.WORKSPACE_CHARS_MAX * 4,
    "actorDid": limits.ACTOR_DID_BYTES_MAX,
    "resource": limits.RESOURCE_BYTES_MAX,
}


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, gc=False):
    """A part of the payload: exactly these members, of exactly these types."""


class LeaseStated(_Part, frozen=True, kw_only=True):
    """The lease that the answer is about."""

    lease_id: LeaseId
    fence: Fence
    granted_at: Instant
    expires_at: Instant


class RequestStated(_Part, frozen=True, kw_only=True):
    """The request that was answered. `digest` is of its body as sent, or of a tool's arguments."""

    method: Method
    path: Path
    digest: Digest


class AnswerGiven(_Part, frozen=True, kw_only=True):
    """An answer with status 200. `digest` is of its RFC 8785 form without the member `receipt`."""

    digest: Digest
    status: Literal[200] = 200


class AnswerRefused(_Part, frozen=True, kw_only=True):
    """An answer with status 409. `digest` is of its RFC 8785 form without the member `receipt`."""

    digest: Digest
    status: Literal[409] = 409


class _Stated(_Part, frozen=True, kw_only=True):
    """What every statement says."""

    jti: Id
    iat: Seconds
    workspace: Name
    auth: Auth
    request: RequestStated


class Grant(_Stated, frozen=True, kw_only=True):
    """A new lease was granted."""

    actor_did: Name
    resource: Name
    lease: LeaseStated
    answer: AnswerGiven
    op: Literal["coordination.lease"] = "coordination.lease"
    outcome: Literal["granted"] = "granted"


class Renewal(_Stated, frozen=True, kw_only=True):
    """The lease that the actor held already got a new end."""

    actor_did: Name
    resource: Name
    lease: LeaseStated
    answer: AnswerGiven
    op: Literal["coordination.lease"] = "coordination.lease"
    outcome: Literal["renewed"] = "renewed"


class LeaseRefusal(_Stated, frozen=True, kw_only=True):
    """No lease was granted."""

    actor_did: Name
    resource: Name
    code: LeaseRefusalCode
    answer: AnswerRefused
    op: Literal["coordination.lease"] = "coordination.lease"
    outcome: Literal["refused"] = "refused"


class Release(_Stated, frozen=True, kw_only=True):
    """The holder let go of its lease."""

    actor_did: Name
    resource: Name
    lease: LeaseStated
    answer: AnswerGiven
    op: Literal["coordination.release"] = "coordination.release"
    outcome: Literal["released"] = "released"


class ReleaseRefusal(_Stated, frozen=True, kw_only=True):
    """Nothing was released."""

    actor_did: Name
    resource: Name
    code: ReleaseRefusalCode
    answer: AnswerRefused
    op: Literal["coordination.release"] = "coordination.release"
    outcome: Literal["refused"] = "refused"


class Listing(_Stated, frozen=True, kw_only=True):
    """The queue was listed; narrowed to an actor or a resource where the request named one."""

    answer: AnswerGiven
    actor_did: Name | UnsetType = UNSET
    resource: Name | UnsetType = UNSET
    op: Literal["coordination.wait"] = "coordination.wait"
    outcome: Literal["listed"] = "listed"


Statement: TypeAlias = Grant | Renewal | LeaseRefusal | Release | ReleaseRefusal | Listing

STATEMENTS: Final[Mapping[tuple[str, str], type[Statement]]] = {
    ("coordination.lease", "granted"): Grant,
    ("coordination.lease", "renewed"): Renewal,
    ("coordination.lease", "refused"): LeaseRefusal,
    ("coordination.release", "released"): Release,
    ("coordination.release", "refused"): ReleaseRefusal,
    ("coordination.wait", "listed"): Listing,
}
AUTHS: Final[tuple[Auth, ...]] = get_args(Auth)


class Payload(msgspec.Struct, frozen=True):
    """Who states, and what. `v` is always VERSION."""

    iss: str
    statement: Statement


class OutsideProfile(ValueError):
    """The payload is not one that a plane of this version writes."""


def _instant_exists(instant: str) -> bool:
    try:
        datetime.fromisoformat(instant)
    except ValueError:
        return False
    return True


def _check_spelling(members: Mapping[str, object], place: str = "") -> None:
    for name, value in members.items():
        if isinstance(value, dict):
            _check_spelling(value, f"{name}.")
        elif isinstance(value, str) and (pattern := GRAMMAR.get(name)) and not re.search(pattern, value):
            raise OutsideProfile(f"{_not_spelled(pattern)} ({place}{name})")


def _not_spelled(pattern: str) -> str:
    return f"Expected `str` matching regex {pattern!r}"


def read_payload(payload: bytes) -> Payload:
    """What the payload of a receipt states.

    Raises OutsideProfile, with the reason as its text, for everything that is not exactly in the
    profile: a missing, unknown or duplicate member, a null, a float, a number of 2^53 or more, an
    op without that outcome, a code or an auth that does not exist, a name beyond its bound.
    """
    try:
        members = read_strict(payload, floats=False)
    except NotStrictJson as refused:
        raise OutsideProfile(str(refused)) from None
    if not isinstance(members, dict):
        raise OutsideProfile("it is not a JSON object")
    if type(version := members.pop("v", None)) is not int or version != VERSION:
        raise OutsideProfile(f"its v is not {VERSION}")
    op, outcome = members.get("op"), members.get("outcome")
    if not isinstance(op, str) or not isinstance(outcome, str) or (op, outcome) not in STATEMENTS:
        raise OutsideProfile("its op and outcome do not go together")
    try:
        issuer = msgspec.convert(members.pop("iss", None), Issuer)
        if re.search(_ISSUER, issuer) is None:
            raise OutsideProfile(_not_spelled(_ISSUER))
        statement = msgspec.convert(members, STATEMENTS[op, outcome])
    except msgspec.ValidationError as refused:
        raise OutsideProfile(re.sub(r" - at `\$\.?(.*)`\Z", r" (\1)", str(refused))) from None
    _check_spelling(members)
    # Members with one possible value have it as their default: a payload that leaves one out
    # would be filled in above. What comes back differs from what came in then.
    if msgspec.to_builtins(statement) != members:
        raise OutsideProfile("a member is missing")
    for name, bytes_max in _BYTES_MAX.items():
        if name in members and len(members[name].encode("utf-8")) > bytes_max:
            raise OutsideProfile(f"its {name} is longer than {bytes_max} bytes")
    if isinstance(statement, Grant | Renewal | Release) and not (
        _instant_exists(statement.lease.granted_at) and _instant_exists(statement.lease.expires_at)
    ):
        raise OutsideProfile("its lease has a time that does not exist")
    return Payload(issuer, statement)
