"""Agents' names: DIDs as W3C DID Core writes them, and the keys that a `did:key` holds.

Nothing is resolved: a DID is a name, compared byte by byte, and a `did:key` is in addition a public
key. One key must not have two names, and a name must not stand for a key that anyone can sign for,
so a `did:key` is accepted only as the one canonical encoding of a key whose points could be checked:

| key | multicodec | checked |
| --- | --- | --- |
| Ed25519 | 0xed | canonical, on the curve, not of low order |
| X25519 | 0xec | canonical, not of low order |
| secp256k1, P-256, P-384, P-521 | 0xe7, 0x1200 to 0x1202 | compressed, on the curve |

Others (BLS, RSA, Ed448, JWK) are refused: what cannot be checked here cannot be called usable. Only
Ed25519 keys can sign requests (RFC 9421); the others name an agent that shows an API key.

Sources: DID Core section 3.1; the did:key method v0.7; the multicodec table; RFC 8032 section 5.1.3;
RFC 7748 section 5.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from leaseplane.limits import ACTOR_DID_BYTES_MAX, DIDS_CACHED_MAX
from leaseplane.resources import NameRefused

_DID: Final = re.compile(r"did:[a-z0-9]+:(?:[A-Za-z0-9._\-:]|%[0-9A-Fa-f]{2})+(?<!:)")
DID_PATTERN: Final = r"^did:[a-z0-9]+:([A-Za-z0-9._\-:]|%[0-9A-Fa-f]{2})*([A-Za-z0-9._\-]|%[0-9A-Fa-f]{2})$"
"""The same for JSON Schema, which knows no lookbehind. It says nothing of the key in a did:key."""
_DID_KEY: Final = "did:key:"

_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58_VALUE: Final = {digit: value for value, digit in enumerate(_BASE58)}

_ED25519: Final = 0xED
_CODE_MAX: Final = 0x3FFF
"""The largest multicodec that two bytes of varint hold; every key type that we know is below it."""


@lru_cache(maxsize=DIDS_CACHED_MAX)
def check_actor(did: str, field: str = "actorDid") -> None:
    """Accept `did` as an agent's name, or raise `NameRefused` for `field`.

    At most 256 bytes in the syntax of DID Core, without path, query or fragment; a `did:key` also is
    the one canonical encoding of a usable key. What was accepted is remembered, so that the second
    look costs a dictionary's; refusals are not, so that nobody can fill the memory with them.
    """
    fault = _fault_of_did(did)
    if fault is not None:
        raise NameRefused(field, fault, _canonical_did(did))


def _fault_of_did(did: str) -> str | None:
    if len(did) > ACTOR_DID_BYTES_MAX:
        return f"A DID is at most {ACTOR_DID_BYTES_MAX} bytes long, this has {len(did)}."
    if _DID.fullmatch(did) is None:
        return (
            'This is not a DID. One looks like "did:key:z6Mk…" or "did:web:example.com": "did:", a method of '
            "small letters and digits, and an id without path, query or fragment."
        )
    if did.startswith(_DID_KEY):
        return _fault_of_did_key(did.removeprefix(_DID_KEY))
    return None


def _canonical_did(did: str) -> str | None:
    """The DID in a DID URL, with its first two parts in small letters, if that is accepted."""
    if len(did) > 2 * ACTOR_DID_BYTES_MAX or not did.isascii():
        return None
    parts = re.split(r"[/?#]", did.strip(" "), maxsplit=1)[0].split(":", 2)
    if len(parts) != 3:
        return None
    spelling = f"{parts[0].lower()}:{parts[1].lower()}:{parts[2]}"
    return spelling if spelling != did and _fault_of_did(spelling) is None else None


def did_key_of(public_bytes: bytes) -> str:
    """The `did:key` of an Ed25519 public key, given as its 32 bytes (RFC 8032 section 5.1.5).

    Raises `ValueError` for bytes that are no usable key: a name for them would be refused everywhere.
    """
    fault = _fault_of_ed25519(public_bytes)
    if fault is not None:
        raise ValueError(fault)
    return f"{_DID_KEY}z{_base58_of(_varint(_ED25519) + public_bytes)}"


def public_key_of(did: str) -> bytes:
    """The 32 bytes of the Ed25519 key that `did` names, for checking what its agent signed.

    Raises `NameRefused` where `did` is no DID, no `did:key`, or the key of another algorithm.
    """
    check_actor(did)
    if not did.startswith(_DID_KEY):
        raise NameRefused("actorDid", "Only a did:key holds the key of its agent.")
    code, key = _decoded(did.removeprefix(_DID_KEY))
    if code != _ED25519:
        raise NameRefused("actorDid", "Only an Ed25519 key (did:key:z6Mk…) signs requests.")
    return key


# -- did:key -----------------------------------------------------------------------------------


def _fault_of_did_key(multibase: str) -> str | None:
    try:
        code, key = _decoded(multibase)
    except ValueError as error:
        return str(error)
    fault_of = _FAULTS_OF_KEYS.get(code)
    if fault_of is None:
        return (
            f"A did:key of multicodec 0x{code:x} cannot be checked here: use an Ed25519 key (did:key:z6Mk…), "
            "X25519, secp256k1, P-256, P-384 or P-521."
        )
    return fault_of(key)


def _decoded(multibase: str) -> tuple[int, bytes]:
    """The multicodec and the key's bytes. Raises `ValueError`, whose text may be shown to anyone."""
    if not multibase.startswith("z"):
        raise ValueError("A did:key is written in base58btc: its id begins with 'z'.")
    digits = multibase[1:]
    number = 0
    for digit in digits:
        value = _BASE58_VALUE.get(digit)
        if value is None:
            raise ValueError("A did:key is written in base58btc: it has no 0, O, I, l and no punctuation.")
        number = number * 58 + value
    # A leading '1' stands for a zero byte, and no multicodec begins with one: those encodings of the
    # number are not canonical, and without them every number has exactly one.
    if not digits or digits[0] == "1":
        raise ValueError("A did:key begins with the multicodec of its key, not with zero bytes.")
    content = number.to_bytes((number.bit_length() + 7) // 8, "big")
    code = content[0] & 0x7F
    if content[0] < 0x80:
        return code, content[1:]
    # A second byte of 0 would be a longer way to write a code below 0x80, and no key type has one.
    if len(content) < 2 or content[1] >= 0x80:
        raise ValueError("A did:key begins with the multicodec of its key, a varint of two bytes.")
    return code | content[1] << 7, content[2:]


def _varint(code: int) -> bytes:
    assert 0x80 <= code <= _CODE_MAX
    return bytes((code & 0x7F | 0x80, code >> 7))


def _base58_of(content: bytes) -> str:
    assert content[0] != 0
    number, digits = int.from_bytes(content, "big"), ""
    while number:
        number, value = divmod(number, 58)
        digits = _BASE58[value] + digits
    return digits


# -- keys --------------------------------------------------------------------------------------

_P25519: Final = 2**255 - 19
_D: Final = -121665 * pow(121666, -1, _P25519) % _P25519
_SQRT_MINUS_1: Final = pow(2, (_P25519 - 1) // 4, _P25519)


# An agent's own key is looked at twice in a row: when it is read, and when the agent asks.
@lru_cache(maxsize=1)
def _fault_of_ed25519(key: bytes) -> str | None:
    """RFC 8032 section 5.1.3, in affine coordinates, and then a multiplication by the cofactor 8."""
    if len(key) != 32:
        return f"An Ed25519 key has 32 bytes, this has {len(key)}."
    number = int.from_bytes(key, "little")
    y = number & (2**255 - 1)
    if y >= _P25519:
        return "This Ed25519 key is not in its canonical encoding."
    u, v = (y * y - 1) % _P25519, (_D * y * y + 1) % _P25519
    x = u * pow(v, 3, _P25519) * pow(u * pow(v, 7, _P25519), (_P25519 - 5) // 8, _P25519) % _P25519
    if v * x * x % _P25519 == -u % _P25519:
        x = x * _SQRT_MINUS_1 % _P25519
    if v * x * x % _P25519 != u:
        return "This Ed25519 key is not a point on the curve."
    # The sign of x matters only where x is 0, and both of these points are of low order anyway. Nor does
    # it matter to whether 8·P is the neutral element (0, 1). Projective doubling (Hisil et al. 2008, with
    # a = -1), as an inversion for each step would cost more than all the rest.
    z = 1
    for _ in range(3):
        a, b, c = x * x, y * y, 2 * z * z
        e, g, h = (x + y) * (x + y) - a - b, b - a, -a - b
        f = g - c
        x, y, z = e * f % _P25519, g * h % _P25519, f * g % _P25519
    if x == 0 and y == z:
        return "This Ed25519 key is of low order: anyone can sign for it."
    return None


_X25519_LOW_ORDER: Final = frozenset(
    (
        0,
        1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
        _P25519 - 1,
    )
)
"""The u-coordinates of small order below p (https://cr.yp.to/ecdh.html): with them no secret is shared."""


def _fault_of_x25519(key: bytes) -> str | None:
    if len(key) != 32:
        return f"An X25519 key has 32 bytes, this has {len(key)}."
    u = int.from_bytes(key, "little")
    if u >= _P25519:
        return "This X25519 key is not in its canonical encoding."
    if u in _X25519_LOW_ORDER:
        return "This X25519 key is of low order."
    return None


def _fault_of_weierstrass(curve: str, bits: int, title: str) -> Callable[[bytes], str | None]:
    size = (bits + 7) // 8 + 1

    def fault(key: bytes) -> str | None:
        if len(key) != size or key[0] not in (2, 3):
            return f"A {title} key has {size} bytes in its compressed form."
        # Keys of these curves are rare, and the module takes longer to import than an ask.
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            ec.EllipticCurvePublicKey.from_encoded_point(getattr(ec, curve)(), key)
        except ValueError:
            return f"This {title} key is not a point on the curve."
        return None

    return fault


_FAULTS_OF_KEYS: Final[dict[int, Callable[[bytes], str | None]]] = {
    _ED25519: _fault_of_ed25519,
    0xEC: _fault_of_x25519,
    0xE7: _fault_of_weierstrass("SECP256K1", 256, "secp256k1"),
    0x1200: _fault_of_weierstrass("SECP256R1", 256, "P-256"),
    0x1201: _fault_of_weierstrass("SECP384R1", 384, "P-384"),
    0x1202: _fault_of_weierstrass("SECP521R1", 521, "P-521"),
}
