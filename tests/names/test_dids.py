"""DIDs and did:keys: syntax, the one encoding, the keys that may be used."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseplane.dids import check_actor, did_key_of, public_key_of
from leaseplane.resources import NameRefused

P = 2**255 - 19
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
SAMPLE = "did:key:z6MktwupdmLXVVqTzCw4i46r4uGyosGXRnR3XjN4Zq7oMMsw"


def vectors(path: str) -> Any:
    named = os.environ.get("LEASEPLANE_VECTORS")
    folders = (
        [Path(named)] if named else [p.parent / "shared/vectors" for p in Path(__file__).resolve().parents]
    )
    for folder in folders:
        if (folder / path).is_file():
            return json.loads((folder / path).read_text())
    pytest.skip(f"no test vectors {path}: set LEASEPLANE_VECTORS, or put shared/vectors beside the project")


def did_of(content: bytes) -> str:
    """base58btc with its leading zeros, as the specification has it and unlike the code under test."""
    digits, number = "", int.from_bytes(content, "big")
    while number:
        digits, number = ALPHABET[number % 58] + digits, number // 58
    return "did:key:z" + "1" * (len(content) - len(content.lstrip(b"\0"))) + digits


def accepted(did: str) -> bool:
    try:
        check_actor(did)
    except NameRefused as refusal:
        assert refusal.field == "actorDid"
        return False
    return True


# -- syntax ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "did",
    ["did:web:example.com", "did:web:localhost%3A8443:agents:7", "did:a::b", "did:a:%4f%4F", "did:0:-._",
     SAMPLE, "did:x:" + "a" * 250, "did:a:b:c", "did:keys:whatever"],
)  # fmt: skip
def test_dids(did: str) -> None:
    check_actor(did)


@pytest.mark.parametrize(
    "did",
    ["", "did", "did:", "did:a", "did:a:", "did:a:b:", "did::a", "DID:a:b", "did:A:b", "did:a-b:c",
     "did:a:b/c", "did:a:b?c", "did:a:b#c", "did:a:b c", " did:a:b", "did:a:b\n", "did:a:%4", "did:a:%zz",
     "did:a:é", "agent-7", "did:x:" + "a" * 251, "did:a:\ud800", "did:a:b\u200b"],
)  # fmt: skip
def test_no_dids(did: str) -> None:
    assert not accepted(did)


@pytest.mark.parametrize(
    "wrong", [f"{SAMPLE}#{SAMPLE[8:]}", "DID" + SAMPLE[3:], f" {SAMPLE}", f"{SAMPLE}/path"]
)
def test_the_did_in_it_is_named(wrong: str) -> None:
    with pytest.raises(NameRefused) as refused:
        check_actor(wrong)
    assert refused.value.canonical == SAMPLE


def test_case_tells_agents_apart() -> None:
    check_actor("did:web:example.com:A")
    check_actor("did:web:example.com:a")
    assert not accepted(SAMPLE.swapcase())


def test_the_field_can_be_named() -> None:
    with pytest.raises(NameRefused) as refused:
        check_actor("x", "--actor")
    assert refused.value.field == "--actor"


def test_a_known_did_costs_less_than_a_microsecond() -> None:
    best_us = 1e9
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(1_000):
            check_actor(SAMPLE)
        best_us = min(best_us, (time.perf_counter() - start) * 1e3)
    assert best_us < 1


# -- one key, one name -------------------------------------------------------------------------


def test_published_vectors() -> None:
    found = vectors("did-key/vectors.json")["vectors"]
    assert found
    for vector in found:
        key = bytes.fromhex(vector["public_key_hex"])
        assert did_key_of(key) == vector["did"]
        assert public_key_of(vector["did"]) == key


def test_keys_of_wycheproof() -> None:
    groups = vectors("wycheproof/ed25519_test.json")["testGroups"]
    keys = {bytes.fromhex(group["publicKey"]["pk"]) for group in groups}
    assert keys
    for key in keys:
        assert public_key_of(did_key_of(key)) == key


@pytest.mark.parametrize(
    "did",
    [
        "did:key:z6LSbysY2xFMRpGMhb7tFTLMpeuPRaqaWM1yECx2AtzE3KCc",
        "did:key:zQ3shokFTS3brHcDQrn82RUDfCZESWL1ZdCEJwekUDPQiYBme",
        "did:key:zDnaerDaTF5BXEavCrfRZEk316dpbLsfPDZ3WJ5hRTPFU2169",
        "did:key:z82Lm1MpAkeJcix9K8TMiLd5NMAhnwkjjCBeWHXyu3U4oT2MVJJKXkcVBgjGhnLBn2Kaau9",
        "did:key:z2J9gaYxrKVpdoG9A4gRnmpnRCcxU6agDtFVVBVdn1JedouoZN7SzcyREXXzWgt3gGiwpoHq7K68X4m32D8HgzG8wv3sY5j7",
    ],
)
def test_other_keys_of_the_specification_name_agents_but_sign_nothing(did: str) -> None:
    check_actor(did)
    with pytest.raises(NameRefused, match="Ed25519"):
        public_key_of(did)


@settings(deadline=None)
@given(st.binary(min_size=32, max_size=32))
def test_a_name_is_given_only_to_a_key_that_is_accepted_under_it(seed: bytes) -> None:
    key = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    did = did_key_of(key)
    assert did == did_of(b"\xed\x01" + key)
    assert public_key_of(did) == key


@settings(deadline=None)
@given(st.integers(8, len(SAMPLE) - 1), st.sampled_from(ALPHABET + "0OIl+/=_-"))
def test_a_changed_did_is_another_key_or_none(position: int, character: str) -> None:
    changed = SAMPLE[:position] + character + SAMPLE[position + 1 :]
    if accepted(changed) and changed.startswith("did:key:z6Mk"):
        assert did_key_of(public_key_of(changed)) == changed


@settings(deadline=None)
@given(st.text(st.sampled_from(ALPHABET), max_size=60))
def test_any_base58_is_answered(digits: str) -> None:
    accepted(f"did:key:z{digits}")


def ed25519_key() -> bytes:
    return bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")


@pytest.mark.parametrize(
    "content",
    [
        b"\0\xed\x01" + ed25519_key(),
        b"\xed\x81\x00" + ed25519_key(),
        b"\xed\x00" + ed25519_key(),
        b"\xed" + ed25519_key(),
        b"\xed\x01" + ed25519_key()[:31],
        b"\xed\x01" + ed25519_key() + b"\0",
        b"\xed\x01",
        b"\xed",
        b"\x01" + ed25519_key(),
        b"\xeb\x01" + bytes(96),
        b"\x85\x24" + bytes(140),
    ],
)
def test_other_encodings_and_unknown_keys_are_refused(content: bytes) -> None:
    assert not accepted(did_of(content))


def test_other_bases_and_versions_are_refused() -> None:
    for multibase in ("fed01" + ed25519_key().hex(), "z", "", "1.1:" + SAMPLE[8:], SAMPLE[8:] + ":x"):
        assert not accepted(f"did:key:{multibase}")


# -- keys that may be used ---------------------------------------------------------------------

D = -121665 * pow(121666, -1, P) % P
ORDER = 2**252 + 27742317777372353535851937790883648493
Point = tuple[int, int]


def add(one: Point, other: Point) -> Point:
    (a, b), (c, d) = one, other
    t = D * a * b * c * d % P
    return (a * d + b * c) * pow(1 + t, -1, P) % P, (b * d + a * c) * pow(1 - t, -1, P) % P


def times(number: int, point: Point) -> Point:
    result: Point = (0, 1)
    while number:
        if number & 1:
            result = add(result, point)
        point, number = add(point, point), number >> 1
    return result


def x_of(y: int) -> int | None:
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    root = pow(square, (P + 3) // 8, P)
    for x in (root, root * pow(2, (P - 1) // 4, P) % P):
        if x * x % P == square:
            return x
    return None


def encoded(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def test_points_of_low_order_are_refused() -> None:
    # L·Q lies in the subgroup of order 8 for any Q; a few of them give all eight points.
    found: set[Point] = set()
    y = 2
    while len(found) < 8:
        x = x_of(y)
        if x is not None:
            torsion = times(ORDER, (x, y))
            found |= {times(n, torsion) for n in range(8)}
        y += 1
    assert len(found) == 8
    for point in found:
        with pytest.raises(ValueError, match="low order"):
            did_key_of(encoded(point))
        assert not accepted(did_of(b"\xed\x01" + encoded(point)))


def test_what_is_no_point_is_refused() -> None:
    off_curve = [y for y in range(2, 60) if x_of(y) is None]
    on_curve = [y for y in range(2, 60) if x_of(y) is not None]
    assert off_curve and on_curve
    for y in off_curve:
        assert not accepted(did_of(b"\xed\x01" + y.to_bytes(32, "little")))
    for y in on_curve:
        assert accepted(did_of(b"\xed\x01" + y.to_bytes(32, "little")))


@pytest.mark.parametrize("number", [P, P + 1, P + 18, 1 | 1 << 255, P - 1 | 1 << 255, 2**256 - 1])
def test_other_encodings_of_a_point_are_refused(number: int) -> None:
    assert not accepted(did_of(b"\xed\x01" + number.to_bytes(32, "little")))


def test_x25519_keys_without_use_are_refused() -> None:
    # The u-coordinates of order 1, 2, 4 and 8, by the birational map from the points above.
    low = {0, 1, P - 1}
    y = 2
    while len(low) < 5:
        x = x_of(y)
        if x is not None:
            _, v = times(ORDER, (x, y))
            if v != 1:
                low.add((1 + v) * pow(1 - v, -1, P) % P)
        y += 1
    for u in (*low, P, P + 1, 9 | 1 << 255):
        assert not accepted(did_of(b"\xec\x01" + u.to_bytes(32, "little")))
    check_actor(did_of(b"\xec\x01" + (9).to_bytes(32, "little")))


@pytest.mark.parametrize(
    ("code", "curve"),
    [
        (b"\xe7\x01", ec.SECP256K1()),
        (b"\x80\x24", ec.SECP256R1()),
        (b"\x81\x24", ec.SECP384R1()),
        (b"\x82\x24", ec.SECP521R1()),
    ],
)
def test_weierstrass_keys_are_compressed_points_on_their_curve(code: bytes, curve: ec.EllipticCurve) -> None:
    public = ec.derive_private_key(7, curve).public_key()
    point = public.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    check_actor(did_of(code + point))
    whole = public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    # About half of all x have no point; among these few there is one, and it is refused.
    tried = [point[:1] + x.to_bytes(len(point) - 1, "big") for x in range(2, 20)]
    refused = [key for key in tried if not accepted(did_of(code + key))]
    assert 0 < len(refused) < len(tried)
    for key in (whole, point[:-1], point + b"\0", b"\x04" + point[1:], b"\x02" + b"\xff" * (len(point) - 1)):
        assert not accepted(did_of(code + key))
