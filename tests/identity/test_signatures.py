"""Signed requests: RFC 9421's own example, and every way in which a signature proves nothing."""

import base64
import datetime
import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_der_private_key
from http_message_signatures import (
    HTTPMessageSigner,
    MappingKeyResolver,
)
from http_message_signatures.algorithms import ED25519

from leaseplane.dids import did_key_of, public_key_of
from leaseplane.identity.signatures import SignatureRefused, Signed, sign_request, verify_request
from leaseplane.resources import NameRefused

NOW_S = 1_764_500_000
URI = "http://127.0.0.1:7411/api/v1/acp/coordination/lease"
BODY = b'{"resource":"lock:deploy","actorDid":"did:key:z"}'
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
DID = did_key_of(KEY.public_key().public_bytes_raw())
Headers = list[tuple[bytes, bytes]]


def signed(
    method: str = "POST", uri: str = URI, body: bytes = BODY, created_s: int = NOW_S, nonce: str = "n-1"
) -> Headers:
    return sign_request(method, uri, body, private_key=KEY, created_s=created_s, nonce=nonce)


def refused(
    headers: Headers,
    match: str | None = None,
    *,
    method: str = "POST",
    uri: str = URI,
    body: bytes = BODY,
    now_ms: int = NOW_S * 1_000,
) -> None:
    with pytest.raises(SignatureRefused, match=match):
        verify_request(method, uri, headers, body, now_ms)


def replaced(headers: Headers, name: bytes, old: bytes, new: bytes) -> Headers:
    changed = [(n, v.replace(old, new) if n == name else v) for n, v in headers]
    assert changed != headers
    return changed


def test_a_signed_request_proves_who_signed_it() -> None:
    others = [(b"host", b"127.0.0.1:7411"), (b"content-type", b"application/json"), (b"x-odd", b"\xff\xfe")]
    found = verify_request("POST", URI, [*others, *signed()], BODY, NOW_S * 1_000)
    assert found == Signed(DID, "n-1", NOW_S)


def test_a_request_without_a_body_and_with_a_query() -> None:
    uri = "https://plane.example/api/v1/acp/coordination/wait?resource=file%3Asrc%2Fapp.py"
    headers = signed("GET", uri, b"")
    assert verify_request("GET", uri, headers, b"", NOW_S * 1_000).did == DID
    refused(headers, "does not hold", method="GET", uri=uri.replace("%2F", "/"), body=b"")


def test_the_signature_is_what_the_rfc_says() -> None:
    """The signature base built by hand, RFC 9421 section 2.5, and RFC 9530's digest."""
    fields = {name.decode(): value.decode() for name, value in signed()}
    digest = base64.b64encode(hashlib.sha256(BODY).digest()).decode()
    assert fields["content-digest"] == f"sha-256=:{digest}:"
    label, _, parameters = fields["signature-input"].partition("=")
    base = (
        f'"@method": POST\n"@target-uri": {URI}\n"content-digest": sha-256=:{digest}:\n'
        f'"@signature-params": {parameters}'
    )
    signature = base64.b64decode(fields["signature"].removeprefix(f"{label}=:").removesuffix(":"))
    KEY.public_key().verify(signature, base.encode())
    assert f";created={NOW_S};" in parameters
    assert f'keyid="{DID}"' in parameters
    assert 'nonce="n-1"' in parameters


# -- RFC 9421 appendix B -----------------------------------------------------------------------

RFC_KEY = load_der_private_key(
    base64.b64decode("MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF"), None
)
RFC_BODY = b'{"hello": "world"}'
RFC_URI = "https://example.com/foo?param=Value&Pet=dog"
RFC_HEADERS = [
    (b"Host", b"example.com"),
    (b"Date", b"Tue, 20 Apr 2021 02:07:55 GMT"),
    (b"Content-Type", b"application/json"),
    (
        b"Content-Digest",
        b"sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:",
    ),
    (b"Content-Length", b"18"),
    (
        b"Signature-Input",
        b'sig-b26=("date" "@method" "@path" "@authority" "content-type" "content-length")'
        b';created=1618884473;keyid="test-key-ed25519"',
    ),
    (
        b"Signature",
        b"sig-b26=:wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==:",
    ),
]


def test_appendix_b_2_6_verifies_and_is_not_enough_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(RFC_KEY, Ed25519PrivateKey)
    public = RFC_KEY.public_key()
    assert base64.b64encode(public.public_bytes_raw()) == b"JrQLj5P/89iXES9+vFgrIy29clF9CC/oPPsw3c5D0bs="
    now_ms = 1_618_884_473_000
    refused(RFC_HEADERS, "not a DID", uri=RFC_URI, body=RFC_BODY, now_ms=now_ms)

    # With that key id resolved the example's signature holds, and what it leaves out is all that is wrong.
    from leaseplane.identity import signatures

    def resolve(_: Any, key_id: str) -> Ed25519PublicKey:
        assert key_id == "test-key-ed25519"
        return public

    monkeypatch.setattr(signatures._KeysInDids, "resolve_public_key", resolve)
    refused(
        RFC_HEADERS, "does not cover @target-uri, content-digest", uri=RFC_URI, body=RFC_BODY, now_ms=now_ms
    )
    broken = replaced(RFC_HEADERS, b"Signature", b":wqcA", b":wqcB")
    refused(broken, "another key", uri=RFC_URI, body=RFC_BODY, now_ms=now_ms)


def test_the_request_of_appendix_b_2_signed_whole() -> None:
    assert isinstance(RFC_KEY, Ed25519PrivateKey)
    did = did_key_of(RFC_KEY.public_key().public_bytes_raw())
    headers = signed_over(
        ("@method", "@target-uri", "content-digest", "date"),
        key=RFC_KEY,
        headers=RFC_HEADERS[:5],
        uri=RFC_URI,
    )
    assert verify_request("POST", RFC_URI, headers, RFC_BODY, NOW_S * 1_000).did == did
    refused(headers, "does not match", uri=RFC_URI, body=RFC_BODY + b" ")
    dated = replaced(headers, b"Date", b"2021", b"2022")
    refused(dated, "another key", uri=RFC_URI, body=RFC_BODY)


# -- half-covered ------------------------------------------------------------------------------


class _Message:
    def __init__(self, method: str, url: str, headers: dict[str, str]) -> None:
        self.method, self.url, self.headers = method, url, headers


def signed_over(
    covered: Sequence[str],
    *,
    key: Ed25519PrivateKey = KEY,
    key_id: str | None = None,
    headers: Headers | None = None,
    uri: str = URI,
    body: bytes = BODY,
    nonce: str | None = "n-1",
    created_s: int = NOW_S,
    expires_s: int | None = None,
    include_alg: bool = True,
) -> Headers:
    """Any signature that the library can make, also those that ours would not."""
    if headers is None:
        digest = base64.b64encode(hashlib.sha256(body).digest())
        headers = [(b"content-digest", b"sha-256=:" + digest + b":")]
    fields = {name.decode(): value.decode() for name, value in headers}
    key_id = key_id or did_key_of(key.public_key().public_bytes_raw())
    utc = datetime.UTC
    HTTPMessageSigner(
        signature_algorithm=ED25519,
        key_resolver=MappingKeyResolver(public_keys={}, private_keys={key_id: key}),
    ).sign(
        _Message("POST", uri, fields),
        key_id=key_id,
        created=datetime.datetime.fromtimestamp(created_s, tz=utc),
        expires=None if expires_s is None else datetime.datetime.fromtimestamp(expires_s, tz=utc),
        nonce=nonce,
        label="agent",
        include_alg=include_alg,
        covered_component_ids=covered,
        use_existing_digest=True,
    )
    return [(name.encode(), value.encode()) for name, value in fields.items()]


WHOLE = ("@method", "@target-uri", "content-digest")


def test_what_the_helper_signs_is_accepted() -> None:
    for headers in (
        signed_over(WHOLE),
        signed_over(tuple(reversed(WHOLE))),
        signed_over((*WHOLE, "@authority", "@path")),
        signed_over(WHOLE, include_alg=False),
        signed_over(WHOLE, expires_s=NOW_S + 1),
        signed_over(WHOLE, nonce="x" * 128),
    ):
        assert verify_request("POST", URI, headers, BODY, NOW_S * 1_000).did == DID


@pytest.mark.parametrize("left_out", WHOLE)
def test_a_part_that_is_not_covered(left_out: str) -> None:
    refused(signed_over([part for part in WHOLE if part != left_out]), f"does not cover {left_out}")


@pytest.mark.parametrize(
    "instead",
    [("@path", "@query"), ("@request-target",), ("@authority", "@path")],
)
def test_parts_of_the_target_do_not_stand_for_the_whole(instead: tuple[str, ...]) -> None:
    refused(signed_over(("@method", *instead, "content-digest")), "does not cover @target-uri")


@pytest.mark.parametrize(
    "component", ['"content-digest";sf', '"content-digest";key="sha-256"', '"content-digest";bs']
)
def test_a_digest_covered_in_another_form_does_not_count(component: str) -> None:
    refused(signed_over(("@method", "@target-uri", component)))


def test_a_nonce_is_needed_and_bounded() -> None:
    for nonce in (None, "", "x" * 129):
        refused(signed_over(WHOLE, nonce=nonce), "needs a nonce")


# -- changed -----------------------------------------------------------------------------------


def test_a_changed_request() -> None:
    refused(signed(), method="DELETE")
    refused(signed(), method="post")
    refused(signed(), uri=URI.replace("lease", "release"))
    refused(signed(), uri=URI + "?")
    refused(signed(), uri=URI.replace("http:", "https:"))
    refused(signed(), uri=URI.replace("127.0.0.1", "localhost"))
    refused(signed(), "does not match", body=BODY + b" ")
    refused(signed(), "does not match", body=b"")


def test_a_changed_signature() -> None:
    refused(replaced(signed(), b"signature-input", b"n-1", b"n-2"))
    refused(replaced(signed(), b"signature-input", str(NOW_S).encode(), str(NOW_S + 1).encode()))
    refused(replaced(signed(), b"signature-input", b"ed25519", b"hmac-sha256"))
    refused(replaced(signed(), b"signature-input", b"ed25519", b"rsa-pss-sha512"))
    other = did_key_of(Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw())
    refused(replaced(signed(), b"signature-input", DID.encode(), other.encode()))
    digest = base64.b64encode(hashlib.sha256(b"other").digest())
    refused(
        [(n, b"sha-256=:" + digest + b":" if n == b"content-digest" else v) for n, v in signed()],
        body=b"other",
    )


def test_each_bit_of_the_signature_counts() -> None:
    headers = signed()
    (encoded,) = (v for n, v in headers if n == b"signature")
    signature = bytearray(base64.b64decode(encoded.removeprefix(b"agent=:").removesuffix(b":")))
    for bit in range(0, 512, 5):
        signature[bit // 8] ^= 1 << bit % 8
        changed = b"agent=:" + base64.b64encode(bytes(signature)) + b":"
        refused([(n, changed if n == b"signature" else v) for n, v in headers])
        signature[bit // 8] ^= 1 << bit % 8


def test_a_digest_field_that_was_added_or_taken_away() -> None:
    headers = signed()
    refused([field for field in headers if field[0] != b"content-digest"])
    refused([*headers, next(field for field in headers if field[0] == b"content-digest")])


# -- stale -------------------------------------------------------------------------------------


def test_sixty_seconds_either_way() -> None:
    for off_ms in (-60_000, 0, 60_000):
        verify_request("POST", URI, signed(), BODY, NOW_S * 1_000 + off_ms)
    for off_ms in (-60_001, 60_001, -3_600_000, 10**12):
        refused(signed(), "created more than 60 s", now_ms=NOW_S * 1_000 + off_ms)


def test_an_expiry_of_the_signers_own() -> None:
    headers = signed_over(WHOLE, expires_s=NOW_S + 5)
    verify_request("POST", URI, headers, BODY, NOW_S * 1_000 + 4_999)
    refused(headers, "expired", now_ms=NOW_S * 1_000 + 5_000)


@pytest.mark.parametrize("created", [b"", b";created=1764500000.0", b';created="1764500000"', b";created=?1"])
def test_a_creation_time_is_needed(created: bytes) -> None:
    refused(replaced(signed(), b"signature-input", f";created={NOW_S}".encode(), created))


@pytest.mark.parametrize("created", [b"-1", b"999999999999999", b"9999999999999999", b"-999999999999999"])
def test_no_creation_time_is_too_odd(created: bytes) -> None:
    refused(replaced(signed(), b"signature-input", f"{NOW_S}".encode(), created))


# -- not by a did:key --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key_id",
    [
        "test-key",
        "did:web:example.com",
        f"{DID}#{DID[8:]}",
        "did:key:z6LSbysY2xFMRpGMhb7tFTLMpeuPRaqaWM1yECx2AtzE3KCc",
    ],
)
def test_the_key_is_named_by_its_did(key_id: str) -> None:
    refused(signed_over(WHOLE, key_id=key_id))


def test_a_key_of_low_order_signs_for_nobody() -> None:
    # R = B·0, S = 0 verifies under the neutral element for any message, unless the key is refused.
    did = "did:key:z6MkeXATEjyXENzBXBxgC5EHk2JE5aqd7qMGGtDpLUH1e2Sj"
    with pytest.raises(NameRefused, match="low order"):
        public_key_of(did)
    neutral = (1).to_bytes(32, "little")
    headers = replaced(signed(), b"signature-input", DID.encode(), did.encode())
    forged = b"agent=:" + base64.b64encode(neutral + bytes(32)) + b":"
    refused([(n, forged if n == b"signature" else v) for n, v in headers])


# -- not one signature -------------------------------------------------------------------------


def test_exactly_one_signature() -> None:
    headers = signed()
    refused([field for field in headers if field[0] != b"signature"])
    refused([field for field in headers if field[0] != b"signature-input"])
    refused([*headers, *signed(nonce="n-2")])
    doubled = [  # one label more in each of the two fields
        (n, v + b", " + v.replace(b"agent=", b"other=") if n.startswith(b"signature") else v)
        for n, v in headers
    ]
    refused(doubled, "Multiple signatures")
    refused(replaced(headers, b"signature", b"agent=", b"other="))


@pytest.mark.parametrize("name", [b"signature-input", b"signature", b"content-digest"])
@pytest.mark.parametrize(
    "junk",
    [b"", b"x", b"agent", b"agent=1", b"agent=:=:", b"agent=()", b'agent=("@method"', b"\xff\x00\r\n",
     b"agent=(1 2)", b'agent=("\xc3\xa9")', b"agent=" + b"(" * 5_000, b"sha-256=:AAAA:", b"md5=:AAAA:",
     b'agent=("@nothing")'],
)  # fmt: skip
def test_junk_is_refused_and_nothing_else(name: bytes, junk: bytes) -> None:
    refused([(n, junk if n == name else v) for n, v in signed()])


@pytest.mark.parametrize("name", [b"signature-input", b"signature", b"content-digest"])
def test_long_fields_are_not_read(name: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    from leaseplane.identity import signatures

    monkeypatch.setattr(signatures._Verifier, "verify", lambda *_, **__: pytest.fail("read"))
    refused([*signed(), (name, b"x" * 4_096)], "at most 4096 bytes")
    refused([*signed(), *[(name, b"x")] * 4_096], "at most 4096 bytes")


def test_no_message_tells_about_the_inside() -> None:
    odd = replaced(signed(), b"signature-input", b'"@method"', b'"@method";odd')
    refused(odd, "^The signature does not hold: it was made by another key, or for another request.$")
