r"""Signed requests: HTTP Message Signatures (RFC 9421) by an agent's own Ed25519 key.

A request is signed as a whole or not at all: the signature covers at least the method, the target URI
and the digest of the body (RFC 9530), and carries when it was made, a nonce, and the signer's did:key
as `keyid`:

    Content-Digest: sha-256=:…:
    Signature-Input: agent=("@method" "@target-uri" "content-digest");created=…;keyid="did:key:z6Mk…";\
        nonce="…"
    Signature: agent=:…:

What is here is pure; that each nonce is spent once is the registry's to see to. The library verifies a
verbatim repeat as gladly as the first, and reads the machine's clock, so both are ours.
"""

import datetime
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from http_message_signatures import (
    ContentDigest,
    HTTPMessageSignaturesException,
    HTTPMessageSigner,
    HTTPMessageVerifier,
    HTTPSignatureKeyResolver,
    InvalidSignature,
    MappingKeyResolver,
)
from http_message_signatures.algorithms import ED25519
from http_sf.compat import InnerList

from leaseplane.dids import did_key_of, public_key_of
from leaseplane.limits import NONCE_CHARS_MAX, SIGNATURE_FIELDS_BYTES_MAX, SIGNED_REQUEST_AGE_S_MAX
from leaseplane.resources import NameRefused

COVERED: Final = ("@method", "@target-uri", "content-digest")
"""What a signature has to cover. It may cover more."""

LABEL: Final = "agent"
_FIELDS_READ: Final = (b"signature-input", b"signature", b"content-digest")


class SignatureRefused(Exception):
    """A signed request that proves nothing; the message says which part of it was wrong."""


class Signed(msgspec.Struct, frozen=True):
    """What a signature has proven: who made it, and once it has been spent, that it was made for this."""

    did: str
    nonce: str
    created_s: int


def verify_request(
    method: str,
    target_uri: str,
    headers: Sequence[tuple[bytes, bytes]],
    body: bytes,
    now_wall_ms: int,
) -> Signed:
    """Say which agent signed exactly this request, within the last 60 s by the wall clock (or the next).

    `target_uri` is absolute and undecoded, `headers` are all field lines in order, `body` is what was
    received. Raises `SignatureRefused` where there is not exactly one signature, it does not cover
    `COVERED`, anything it covers was changed, it is not an Ed25519 signature by the did:key it names,
    or it is stale.
    """
    # Before anything is read: it is strangers who send these, and the time goes with their length.
    if sum(len(value) for name, value in headers if name.lower() in _FIELDS_READ) > (
        SIGNATURE_FIELDS_BYTES_MAX
    ):
        raise SignatureRefused(
            f"The fields of a signature have at most {SIGNATURE_FIELDS_BYTES_MAX} bytes together."
        )
    request = _Request(method, target_uri, _Fields(headers))
    try:
        (result,) = _Verifier(now_wall_ms).verify(request, max_age=None)
        missing = [name for name in COVERED if f'"{name}"' not in result.covered_components]
        if missing:
            raise SignatureRefused(f"The signature does not cover {', '.join(missing)}.")
        ContentDigest.verify(result.covered_components['"content-digest"'], body)
    except HTTPMessageSignaturesException as error:
        raise SignatureRefused(f"The signature does not hold: {_reason_of(error)}.") from None
    nonce, did, created_s = (result.parameters.get(name) for name in ("nonce", "keyid", "created"))
    assert isinstance(did, str) and isinstance(created_s, int), "the verifier has seen to both"
    if not isinstance(nonce, str) or not 0 < len(nonce) <= NONCE_CHARS_MAX:
        raise SignatureRefused(f"The signature needs a nonce of 1 to {NONCE_CHARS_MAX} characters.")
    return Signed(did, nonce, created_s)


def _reason_of(error: HTTPMessageSignaturesException) -> str:
    # The library passes on whatever went wrong within. Only its own words and ours are for others to
    # read; the bad signature itself, and what the library did not foresee, come without any.
    cause = error.args[0] if error.args else None
    if isinstance(cause, str | HTTPMessageSignaturesException | NameRefused):
        return str(cause)[:200].rstrip(".")
    return "it was made by another key, or for another request"


def sign_request(
    method: str,
    target_uri: str,
    body: bytes,
    *,
    private_key: Ed25519PrivateKey,
    created_s: int,
    nonce: str,
) -> list[tuple[bytes, bytes]]:
    """The three header fields that sign this request for the agent whose key it is.

    `target_uri` is absolute and encoded, exactly as it will be sent; `created_s` are seconds since 1970,
    now; `nonce` is fresh for each request, also for a repeat of the same one.
    """
    did = did_key_of(private_key.public_key().public_bytes_raw())
    fields: dict[str, str] = {}
    signer = HTTPMessageSigner(
        signature_algorithm=ED25519,
        key_resolver=MappingKeyResolver(public_keys={}, private_keys={did: private_key}),
    )
    signer.sign(
        _Request(method, target_uri, fields),
        key_id=did,
        created=datetime.datetime.fromtimestamp(created_s, tz=datetime.UTC),
        nonce=nonce,
        label=LABEL,
        covered_component_ids=COVERED,
        body=body,
    )
    return [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in fields.items()]


# -- what the library is given -----------------------------------------------------------------


class _Fields:
    """Header field lines as the library reads them: all of them, in order, as Latin-1."""

    def __init__(self, lines: Sequence[tuple[bytes, bytes]]) -> None:
        self._lines = lines

    def items(self) -> Iterable[tuple[str, str]]:
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._lines]


class _Request(msgspec.Struct):
    method: str
    url: str
    headers: _Fields | dict[str, str]


class _KeysInDids(HTTPSignatureKeyResolver):
    def resolve_public_key(self, key_id: str) -> Ed25519PublicKey:
        # What this raises the library passes on as its own exception, with the text.
        return Ed25519PublicKey.from_public_bytes(public_key_of(key_id))


class _Verifier(HTTPMessageVerifier):
    """The library's verifier, on the clock that it is given."""

    def __init__(self, now_wall_ms: int) -> None:
        super().__init__(signature_algorithm=ED25519, key_resolver=_KeysInDids())
        self._now_wall_ms = now_wall_ms

    def validate_created_and_expires(
        self, sig_input: InnerList, max_age: datetime.timedelta | None = None
    ) -> None:
        assert max_age is None, "the age is ours to judge"
        created_s, expires_s = sig_input.params.get("created"), sig_input.params.get("expires")
        if type(created_s) is not int:
            raise InvalidSignature("it does not say when it was created")
        if abs(self._now_wall_ms - created_s * 1_000) > SIGNED_REQUEST_AGE_S_MAX * 1_000:
            raise InvalidSignature(
                f"it was created more than {SIGNED_REQUEST_AGE_S_MAX} s before or after this machine's now"
            )
        if expires_s is not None and (type(expires_s) is not int or expires_s * 1_000 <= self._now_wall_ms):
            raise InvalidSignature("it has expired")
