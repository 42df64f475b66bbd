"""Ed25519 public keys as JSON Web Keys (RFC 8037), and their thumbprints (RFC 7638)."""

from collections.abc import Mapping
from typing import Final

from leaseplane.receipts import base64url
from leaseplane.receipts.canonical import encode_answer, sha256

_FIELD_PRIME: Final = 2**255 - 19
_SIGN_BIT: Final = 1 << 255

# The y-coordinates of the eight points whose order divides 8. A signature under such a key can be
# made without knowing anything, so a key set that holds one proves nothing (RFC 8032 leaves the
# check to the application).
_Y_OF_ORDER_8: Final = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER_Y: Final = frozenset(
    {0, 1, _FIELD_PRIME - 1, _Y_OF_ORDER_8, _FIELD_PRIME - _Y_OF_ORDER_8},
)


class UnusableKey(ValueError):
    """The JWK is not an Ed25519 public key that a plane could have published."""


def thumbprint(required_members: Mapping[str, str]) -> str:
    """The RFC 7638 thumbprint, by SHA-256, of a key given by its required members alone."""
    digest = sha256(encode_answer(dict(required_members)))
    return base64url.encode(digest).decode("ascii")


def ed25519_thumbprint(public_key: bytes) -> str:
    """The `kid` of an Ed25519 public key of 32 bytes."""
    x = base64url.encode(public_key).decode("ascii")
    return thumbprint({"crv": "Ed25519", "kty": "OKP", "x": x})


def check_point(public_key: bytes) -> None:
    """Refuse, as UnusableKey, what is no canonical encoding of a point of large order."""
    if len(public_key) != 32:
        raise UnusableKey("its x is not 32 bytes")
    y = int.from_bytes(public_key, "little") & ~_SIGN_BIT
    if y >= _FIELD_PRIME:
        raise UnusableKey("its x is not the canonical encoding of a point")
    if y in _SMALL_ORDER_Y:
        raise UnusableKey("its x is a point of small order, under which anyone can sign")


def public_key_of(jwk: Mapping[str, object]) -> bytes:
    """The 32 bytes of the public key in `jwk`, whose `kid` must be its thumbprint.

    Raises UnusableKey, saying why, for another kind of key, a private key, a key that says it is for
    something else, a wrong `kid`, and a point under which signatures prove nothing.
    """
    if jwk.get("kty") != "OKP" or jwk.get("crv") != "Ed25519":
        raise UnusableKey("it is not an OKP key on the curve Ed25519")
    if "d" in jwk:
        raise UnusableKey("it holds a private key, which is never published")
    if jwk.get("use", "sig") != "sig" or jwk.get("alg", "EdDSA") not in ("EdDSA", "Ed25519"):
        raise UnusableKey("it is not for EdDSA signatures")
    if "key_ops" in jwk and jwk["key_ops"] != ["verify"]:
        raise UnusableKey("its key_ops are not to verify")
    x = jwk.get("x")
    if not isinstance(x, str) or not x.isascii():
        raise UnusableKey("its x is not base64url")
    try:
        public_key = base64url.decode(x.encode("ascii"))
    except base64url.NotBase64Url as refused:
        raise UnusableKey(f"its x is not base64url: {refused}") from None
    check_point(public_key)
    if jwk.get("kid") != ed25519_thumbprint(public_key):
        raise UnusableKey("its kid is not its RFC 7638 thumbprint")
    return public_key
