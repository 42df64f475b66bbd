"""Writing receipts: typed facts in, a compact JWS (RFC 7515, RFC 8037) out."""

import re
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from leaseplane import limits
from leaseplane.receipts import base64url
from leaseplane.receipts.jwk import ed25519_thumbprint
from leaseplane.receipts.profile import ALGORITHM, RECEIPT_TYPE, VERSION, Statement

_ISSUER: Final = r"[a-z][a-z0-9+.-]*:[!-~]+"
_encode = msgspec.json.Encoder().encode


class RetiredKey(Exception):
    """This key is retired and signs nothing any more: take the keyring's current signer."""


def check_issuer(issuer: str) -> str:
    """The issuer, if it is a URI of at most RECEIPT_ISSUER_CHARS_MAX ASCII characters; else ValueError."""
    if len(issuer) > limits.RECEIPT_ISSUER_CHARS_MAX or not re.fullmatch(_ISSUER, issuer):
        raise ValueError(
            "the issuer has to be a URI such as urn:leaseplane:… or https://plane.example, "
            f"of at most {limits.RECEIPT_ISSUER_CHARS_MAX} ASCII characters"
        )
    return issuer


class Signer:
    """Signs statements with one key in the name of one issuer, until that key is retired.

    The key is never shown: not by repr, not by pickling, and no method returns it.
    """

    __slots__ = (
        "_header_segment",
        "_is_retired",
        "_payload_start",
        "_private_key",
        "issuer",
        "kid",
        "not_before_s",
    )

    def __init__(self, private_key: Ed25519PrivateKey, issuer: str, *, not_before_s: int = 0) -> None:
        """A signer for `private_key`; receipts are dated `not_before_s` (unix seconds) at the earliest."""
        self.issuer = check_issuer(issuer)
        self.kid = ed25519_thumbprint(private_key.public_key().public_bytes_raw())
        self.not_before_s = not_before_s
        self._private_key = private_key
        self._is_retired = False
        header = {"alg": ALGORITHM, "kid": self.kid, "typ": RECEIPT_TYPE}
        self._header_segment = base64url.encode(_encode(header)) + b"."
        # All receipts of a plane begin alike: what the statement adds goes behind its `{`.
        self._payload_start = _encode({"v": VERSION, "iss": issuer})[:-1] + b","

    def __repr__(self) -> str:
        return f"Signer(kid={self.kid!r}, issuer={self.issuer!r})"

    def __reduce__(self) -> str:
        raise TypeError("a Signer holds a private key and is not copied")

    def retire(self) -> None:
        """From here on `sign` raises RetiredKey."""
        self._is_retired = True

    def sign(self, statement: Statement) -> str:
        """The receipt of `statement`, as a compact JWS.

        A statement dated before the key was in use is dated to its first second: an answer repeated
        after a rotation is signed anew, and a key vouches for nothing from before its time.
        Raises RetiredKey once the key is retired.
        """
        if self._is_retired:
            raise RetiredKey("the signing key has been retired")
        if statement.iat < self.not_before_s:
            statement = msgspec.structs.replace(statement, iat=self.not_before_s)
        payload = self._payload_start + _encode(statement)[1:]
        signing_input = self._header_segment + base64url.encode(payload)
        signature = base64url.encode(self._private_key.sign(signing_input))
        return (signing_input + b"." + signature).decode("ascii")
