"""Keys: base64url in its one spelling, thumbprints, and points under which signatures mean something."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.receipts.material import UNHURRIED

from leaseplane.receipts import base64url, jwk

FIELD_PRIME = 2**255 - 19
RFC_8037_X = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"


@UNHURRIED
@given(st.binary(max_size=70))
def test_each_byte_string_has_one_spelling(data: bytes) -> None:
    spelled = base64url.encode(data)
    assert base64url.decode(spelled) == data
    assert b"=" not in spelled


@UNHURRIED
@given(st.text("ABCDwxyz0189-_", max_size=12).map(str.encode))
def test_each_spelling_has_one_byte_string(text: bytes) -> None:
    try:
        data = base64url.decode(text)
    except base64url.NotBase64Url:
        return
    assert base64url.encode(data) == text


@pytest.mark.parametrize(
    "text", [b"A", b"AB", b"AAB", b"AA==", b"AAA=", b"A+AA", b"A/AA", b"AAAA\n", b"AA AA", b"\xff", b"AAAAA"]
)
def test_other_spellings_are_refused(text: bytes) -> None:
    with pytest.raises(base64url.NotBase64Url):
        base64url.decode(text)


def test_thumbprint_of_rfc_7638_section_3_1() -> None:
    n = (
        "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4"
        "n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0"
        "zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-c"
        "sFCur-kEgU8awapJzKnqDKgw"
    )
    assert (
        jwk.thumbprint({"e": "AQAB", "kty": "RSA", "n": n}) == "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"
    )


def test_thumbprint_of_rfc_8037_appendix_a_3() -> None:
    public_key = base64url.decode(RFC_8037_X.encode())
    assert jwk.ed25519_thumbprint(public_key) == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


# -- points ------------------------------------------------------------------------------------


def on_curve(y: int) -> list[tuple[int, int]]:
    """The points of edwards25519 with this y (RFC 8032 section 5.1.3)."""
    d = -121665 * pow(121666, -1, FIELD_PRIME) % FIELD_PRIME
    x_squared = (y * y - 1) * pow(d * y * y + 1, -1, FIELD_PRIME) % FIELD_PRIME
    x = pow(x_squared, (FIELD_PRIME + 3) // 8, FIELD_PRIME)
    if (x * x - x_squared) % FIELD_PRIME:
        x = x * pow(2, (FIELD_PRIME - 1) // 4, FIELD_PRIME) % FIELD_PRIME
    if (x * x - x_squared) % FIELD_PRIME:
        return []
    return [(x, y), (-x % FIELD_PRIME, y)]


def add(p: tuple[int, int], q: tuple[int, int]) -> tuple[int, int]:
    d = -121665 * pow(121666, -1, FIELD_PRIME) % FIELD_PRIME
    (x1, y1), (x2, y2) = p, q
    product = d * x1 * x2 * y1 * y2 % FIELD_PRIME
    return (
        (x1 * y2 + x2 * y1) * pow(1 + product, -1, FIELD_PRIME) % FIELD_PRIME,
        (y1 * y2 + x1 * x2) * pow(1 - product, -1, FIELD_PRIME) % FIELD_PRIME,
    )


def test_the_points_of_small_order_are_all_there() -> None:
    found = set()
    for y in jwk._SMALL_ORDER_Y:
        for point in on_curve(y):
            eightfold = point
            for _ in range(3):
                eightfold = add(eightfold, eightfold)
            assert eightfold == (0, 1)
            found.add(point)
    assert len(found) == 8  # as many as there are: the cofactor


@pytest.mark.parametrize("sign", [0, 1 << 255])
@pytest.mark.parametrize("y", sorted(jwk._SMALL_ORDER_Y) + list(range(FIELD_PRIME, 2**255)))
def test_small_and_uncanonical_points_are_no_keys(y: int, sign: int) -> None:
    with pytest.raises(jwk.UnusableKey):
        jwk.check_point((y | sign).to_bytes(32, "little"))
