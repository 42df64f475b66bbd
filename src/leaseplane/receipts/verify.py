"""Reading receipts: is this what the plane said, and what does that prove?

Nothing here trusts what it reads. The keys come from the caller, never from where a receipt says;
each check runs on bytes that the ones before it have vouched for; and every input has a verdict:
nothing raises.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias, get_args

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from leaseplane import limits
from leaseplane.model import Auth
from leaseplane.receipts import base64url
from leaseplane.receipts.canonical import (
    NotCanonicalizable,
    NotStrictJson,
    digest_of_arguments,
    digest_of_members,
    read_strict,
    sha256_hex,
)
from leaseplane.receipts.jwk import UnusableKey, public_key_of
from leaseplane.receipts.profile import (
    ALGORITHM,
    RECEIPT_TYPE,
    Grant,
    LeaseRefusal,
    Listing,
    OutsideProfile,
    Payload,
    Release,
    ReleaseRefusal,
    Renewal,
    read_payload,
)

Code: TypeAlias = Literal[
    "valid",
    "too_large",
    "receipt_missing",
    "malformed",
    "header_invalid",
    "algorithm_refused",
    "type_refused",
    "keys_invalid",
    "key_unknown",
    "key_unusable",
    "signature_wrong",
    "payload_invalid",
    "key_not_valid_then",
    "dated_ahead",
    "body_invalid",
    "answer_differs",
    "request_differs",
]
"""`valid`, or which check failed. These words do not change."""

CODES: Final[tuple[Code, ...]] = get_args(Code)

HOW_THE_ACTOR_WAS_KNOWN: Final[Mapping[Auth, str]] = {
    "http-signature": "The actor proved itself with its own key.",
    "api-key-bound": "The actor was vouched for by an API key that is bound to it.",
    "api-key": "The actor was only named, by an API key that may name any agent of its workspace.",
    "test-key": "The actor was only named, by the test key of a sandbox.",
    "local": "The actor was only named, by a process with access to the plane's data folder.",
}

SELF_ISSUED: Final = (
    "Self-issued: whoever can read the plane's data folder could have written this receipt, so towards "
    "others it proves nothing."
)

_LAST_SECOND_OF_9999: Final = 253_402_300_799


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a receipt holds, and what it proves. True in a condition only if it is valid."""

    valid: bool
    code: Code
    """`valid`, or which check failed."""
    sentence: str
    """For people: what was proven and how the actor was known, or what is wrong. It begins with `Valid: `
    or `Not valid: `."""
    auth: Auth | None = None
    """How the actor was known. Like all that follows, only told of a valid receipt."""
    self_issued: bool = False
    answer_checked: bool = False
    """A response body was given, and is the one that was signed."""
    request_checked: bool = False
    """A request body was given, and is the one that was answered."""
    payload: Payload | None = None

    def __bool__(self) -> bool:
        return self.valid


class _Fails(Exception):
    """One check failed. Never leaves this module."""

    def __init__(self, code: Code, sentence: str) -> None:
        self.code = code
        self.sentence = sentence


def verify_receipt(
    receipt: str | bytes,
    jwks: Mapping[str, object],
    *,
    now_s: int,
    body: bytes | None = None,
    request_body: bytes | None = None,
    self_issued: bool = False,
) -> Verdict:
    """Say whether a receipt is what the plane with these keys signed, and what that proves.

    `receipt` is a compact JWS, or a whole response body with a member `receipt`, whose content is
    then checked too. `jwks` is the plane's key set, which the caller trusts. `body` is a response
    body and `request_body` a request body (or, for a tool call, its arguments as JSON) that the
    receipt has to be about. `now_s` is unix seconds. `self_issued` says that the keys are those of
    an embedded plane.

    Answers a Verdict for every input, and raises nothing. Nothing is fetched from anywhere.
    Sources: RFC 7515, RFC 7638, RFC 8037, RFC 8725, RFC 8785; the profile is in docs/receipts.md.
    """
    try:
        compact, enclosing = _compact_in(receipt)
        payload = _check_signed(compact, jwks, now_s)
        answers = [enclosing] if enclosing is not None else []
        if body is not None:
            answers.append(_members_of(body))
        for members in answers:
            _check_answer(payload, members)
        if request_body is not None:
            _check_request(payload, request_body)
    except _Fails as failed:
        return Verdict(valid=False, code=failed.code, sentence=_not_valid(failed.sentence))
    auth = payload.statement.auth
    by_itself = self_issued or auth == "local"
    return Verdict(
        valid=True,
        code="valid",
        sentence=_proven(payload, bool(answers), by_itself),
        auth=auth,
        self_issued=by_itself,
        answer_checked=bool(answers),
        request_checked=request_body is not None,
        payload=payload,
    )


# -- form --------------------------------------------------------------------------------------


def _compact_in(receipt: object) -> tuple[bytes, dict[str, object] | None]:
    if isinstance(receipt, str):
        try:
            receipt = receipt.encode("utf-8")
        except UnicodeEncodeError:
            raise _Fails("malformed", "The receipt is not text: it holds a lone surrogate.") from None
    if not isinstance(receipt, bytes):
        raise _Fails("malformed", "The receipt is neither text nor bytes.")
    if not receipt.lstrip(b" \t\r\n").startswith(b"{"):
        return receipt, None
    members = _members_of(receipt)
    within = members.get("receipt")
    if not isinstance(within, str) or not within.isascii():
        raise _Fails("receipt_missing", "The response body has no member `receipt` that could be one.")
    return within.encode("ascii"), members


def _members_of(body: object) -> dict[str, object]:
    if not isinstance(body, bytes):
        raise _Fails("body_invalid", "The response body is not bytes.")
    if len(body) > limits.ANSWER_BYTES_MAX:
        raise _Fails("too_large", f"The response body is over {limits.ANSWER_BYTES_MAX} bytes.")
    try:
        members = read_strict(body)
    except NotStrictJson as refused:
        raise _Fails("body_invalid", f"The response body cannot be read: {refused}.") from None
    if not isinstance(members, dict):
        raise _Fails("body_invalid", "The response body is not a JSON object.")
    return members


def _segment(name: str, text: bytes) -> bytes:
    try:
        return base64url.decode(text)
    except base64url.NotBase64Url as refused:
        raise _Fails("malformed", f"The receipt's {name} is not base64url: {refused}.") from None


def _check_signed(compact: bytes, jwks: object, now_s: int) -> Payload:
    if len(compact) > limits.RECEIPT_BYTES_MAX:
        raise _Fails("too_large", f"The receipt is over {limits.RECEIPT_BYTES_MAX} bytes.")
    segments = compact.split(b".")
    if len(segments) != 3 or not all(segments):
        raise _Fails("malformed", "The receipt is not a compact JWS: three segments with dots between.")
    header = _segment("header", segments[0])
    payload = _segment("payload", segments[1])
    signature = _segment("signature", segments[2])

    kid = _kid_of(header)
    key, valid_from_s, valid_to_s = _key_named(kid, jwks)
    if not signature_holds(key, segments[0] + b"." + segments[1], signature):
        raise _Fails(
            "signature_wrong",
            "The signature is not the plane's: the receipt was changed, or never signed with this key.",
        )
    try:
        read = read_payload(payload)
    except OutsideProfile as refused:
        raise _Fails(
            "payload_invalid", f"The signed content is not that of a receipt: {_shown(str(refused))}."
        ) from None
    _check_date(read.statement.iat, valid_from_s, valid_to_s, now_s)
    return read


def _kid_of(header: bytes) -> str:
    try:
        members = read_strict(header, floats=False)
    except NotStrictJson as refused:
        raise _Fails("header_invalid", f"The receipt's header cannot be read: {refused}.") from None
    if not isinstance(members, dict) or not all(isinstance(value, str) for value in members.values()):
        raise _Fails("header_invalid", "The receipt's header is not an object with three texts.")
    # What names a key or changes the rules (jwk, jku, x5u, x5c, crit, b64) is no part of it.
    if members.keys() != {"alg", "kid", "typ"}:
        raise _Fails("header_invalid", "The receipt's header is not exactly alg, kid and typ.")
    if members["alg"] != ALGORITHM:
        raise _Fails("algorithm_refused", f"The receipt's alg is not {ALGORITHM}.")
    if members["typ"] != RECEIPT_TYPE:
        raise _Fails("type_refused", f"The receipt's typ is not {RECEIPT_TYPE}: it is something else.")
    return str(members["kid"])


# -- keys and signature ------------------------------------------------------------------------


def key_set_fault(jwks: object) -> str | None:
    """What keeps `jwks` from being a JWK Set (RFC 7517 section 5), as a sentence, or None."""
    keys = jwks.get("keys") if isinstance(jwks, Mapping) else None
    if not isinstance(keys, list):
        return "The key set is not a JSON object with a list `keys`."
    if not all(isinstance(key, Mapping) for key in keys):
        return "The key set lists something that is not a key."
    return None


def _key_named(kid: str, jwks: object) -> tuple[bytes, int, int | None]:
    if (fault := key_set_fault(jwks)) is not None:
        raise _Fails("keys_invalid", fault)
    assert isinstance(jwks, Mapping)
    # Other keys of the set may be of any kind, or broken: only the one that is named counts.
    named = [key for key in jwks["keys"] if key.get("kid") == kid]
    if not named:
        raise _Fails("key_unknown", "The receipt was signed with a key that is not in the key set.")
    if len(named) > 1:
        raise _Fails("keys_invalid", "The key set lists the receipt's key more than once.")
    try:
        key = public_key_of(named[0])
    except UnusableKey as refused:
        raise _Fails("key_unusable", f"The receipt's key in the key set is unusable: {refused}.") from None
    valid_from_s, valid_to_s = named[0].get("nbf", 0), named[0].get("exp")
    if type(valid_from_s) is not int or ("exp" in named[0] and type(valid_to_s) is not int):
        raise _Fails("key_unusable", "The receipt's key in the key set has a validity that is no time.")
    return key, valid_from_s, valid_to_s


def signature_holds(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` is the Ed25519 signature of `message` (RFC 8032), in its one encoding."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _check_date(iat_s: int, valid_from_s: int, valid_to_s: int | None, now_s: object) -> None:
    if iat_s < valid_from_s or (valid_to_s is not None and iat_s > valid_to_s):
        raise _Fails("key_not_valid_then", "The receipt is dated to a time at which its key was not in use.")
    # A clock that is no number cannot show that the date has come.
    if not isinstance(now_s, int) or iat_s - now_s > limits.RECEIPT_AHEAD_S_MAX:
        raise _Fails("dated_ahead", f"The receipt is dated more than {limits.RECEIPT_AHEAD_S_MAX} s ahead.")


# -- digests -----------------------------------------------------------------------------------


def _check_answer(payload: Payload, members: dict[str, object]) -> None:
    try:
        digest = digest_of_members(members)
    except NotCanonicalizable as refused:
        raise _Fails("body_invalid", f"The response body has no canonical form: {refused}.") from None
    if digest != payload.statement.answer.digest:
        raise _Fails(
            "answer_differs",
            "The plane signed this receipt, but for another answer: the response body is not the one "
            "that it states.",
        )


def _check_request(payload: Payload, request_body: object) -> None:
    if not isinstance(request_body, bytes):
        raise _Fails("request_differs", "The request body is not bytes.")
    if len(request_body) > limits.ANSWER_BYTES_MAX:
        raise _Fails("too_large", f"The request body is over {limits.ANSWER_BYTES_MAX} bytes.")
    request = payload.statement.request
    if request.path.startswith("/"):
        digest = sha256_hex(request_body)
    else:
        digest = _digest_of_tool_arguments(request_body)
    if digest != request.digest:
        raise _Fails(
            "request_differs", "The plane signed this receipt, but as the answer to another request body."
        )


def _digest_of_tool_arguments(arguments: bytes) -> str:
    # Other than an answer's, these were the caller's to choose: what the plane took is not bound by
    # our rules for reading, except that it is JSON with one meaning.
    try:
        members = json.loads(arguments.decode("utf-8"))
        if isinstance(members, dict):
            return digest_of_arguments(members)
    except (ValueError, RecursionError):
        pass
    raise _Fails("request_differs", "The arguments of the request are not a JSON object.")


# -- in words ----------------------------------------------------------------------------------


def _shown(name: str) -> str:
    """A name as a terminal may see it: what cannot be printed, or reorders text, is spelled out."""
    return "".join(char if char.isprintable() else f"\\u{{{ord(char):x}}}" for char in name)


def _when(unix_s: int) -> str:
    # Python's calendar ends with the year 9999, a receipt's numbers later.
    if unix_s > _LAST_SECOND_OF_9999:
        return f"unix time {unix_s}"
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _what_was_answered(payload: Payload) -> str:
    said = payload.statement
    match said:
        case Grant() | Renewal():
            link = "to" if isinstance(said, Grant) else "for"
            lease = f"lease {said.lease.lease_id}, fence {said.lease.fence}, until {said.lease.expires_at}"
            return f"{said.outcome} {_shown(said.resource)} {link} {_shown(said.actor_did)} ({lease})"
        case Release():
            lease = f"lease {said.lease.lease_id}, fence {said.lease.fence}"
            return f"recorded that {_shown(said.actor_did)} let go of {_shown(said.resource)} ({lease})"
        case LeaseRefusal():
            return f"refused {_shown(said.resource)} to {_shown(said.actor_did)} as {said.code}"
        case ReleaseRefusal():
            return (
                f"refused to let {_shown(said.actor_did)} let go of {_shown(said.resource)}, as {said.code}"
            )
        case Listing():
            asker = "" if said.actor_did is msgspec.UNSET else f" about {_shown(said.actor_did)}"
            place = "" if said.resource is msgspec.UNSET else f" for {_shown(said.resource)}"
            return f"listed the waiting agents{place}{asker}"


def _not_valid(sentence: str) -> str:
    return f"Not valid: {sentence[0].lower()}{sentence[1:]}"


def _proven(payload: Payload, answer_checked: bool, self_issued: bool) -> str:
    said = payload.statement
    sentences = [
        f"Valid: in workspace {_shown(said.workspace)} the plane {payload.iss} "
        f"{_what_was_answered(payload)}, at {_when(said.iat)}.",
        HOW_THE_ACTOR_WAS_KNOWN[said.auth],
    ]
    if answer_checked:
        sentences.append("The response body is the one that was signed.")
    if self_issued:
        sentences.append(SELF_ISSUED)
    return " ".join(sentences)
