"""Whatever is done to a receipt, there is a verdict: false, with a reason, and nothing raises."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.receipts.make_vectors import GOOD_BY_NAME
from tests.receipts.material import UNHURRIED, published
from tests.receipts.vector_parts import NOW_S, PLANE, SETS, b64, receipt

import leaseplane
from leaseplane import limits
from leaseplane.receipts import base64url, jwk, verify

GRANT = GOOD_BY_NAME["coordination.lease granted"]
RECEIPT: str = GRANT["receipt"]
KEYS = SETS["plane"]


def code_of(given_receipt: Any, keys: Any = KEYS, **more: Any) -> str:
    verdict = verify.verify_receipt(given_receipt, keys, **{"now_s": NOW_S, **more})
    assert verdict.valid is (verdict.code == "valid")
    return verdict.code


def test_the_receipt_of_these_tests_is_valid() -> None:
    assert code_of(RECEIPT) == code_of(RECEIPT.encode()) == "valid"


def test_no_single_bit_can_change() -> None:
    original = RECEIPT.encode()
    for position in range(len(original)):
        for bit in range(8):
            changed = bytearray(original)
            changed[position] ^= 1 << bit
            assert code_of(bytes(changed)) != "valid", (position, bit)


def test_no_single_bit_of_what_is_encoded_can_change() -> None:
    segments = [base64url.decode(segment.encode()) for segment in RECEIPT.split(".")]
    for index, segment in enumerate(segments):
        for bit in range(len(segment) * 8):
            changed = bytearray(segment)
            changed[bit // 8] ^= 1 << bit % 8
            parts = [*segments[:index], bytes(changed), *segments[index + 1 :]]
            assert code_of(".".join(map(b64, parts))) != "valid", (index, bit)


def test_no_prefix_or_suffix_of_a_receipt_is_one() -> None:
    for length in range(len(RECEIPT)):
        assert code_of(RECEIPT[:length]) != "valid"
        assert code_of(RECEIPT[length + 1 :]) != "valid"


@UNHURRIED
@given(st.integers(0, len(RECEIPT)), st.text(min_size=1, max_size=5))
def test_nothing_can_be_put_into_a_receipt(position: int, text: str) -> None:
    assert code_of(RECEIPT[:position] + text + RECEIPT[position:]) != "valid"


# A surrogate included: a caller's str may hold one.
@UNHURRIED
@given(st.text(st.characters(), max_size=200) | st.binary(max_size=200))
@example("")
@example("\ud800")
@example("{")
@example("..")
@example(" {}")
def test_anything_has_a_verdict(anything: str | bytes) -> None:
    has_a_verdict(anything)


def has_a_verdict(anything: str | bytes) -> None:
    assert code_of(anything) != "valid"
    assert code_of(RECEIPT, request_body=anything) != "valid"
    assert code_of(RECEIPT, body=anything) != "valid"


@pytest.mark.parametrize("unit", ["e", ".", "{", "[", '"', "\\", '{"a":', "{}", "é", "\ud800"])
def test_anything_long_has_a_verdict(unit: str) -> None:
    has_a_verdict(unit * 1_000_000)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@UNHURRIED
@given(JSON, st.sampled_from(["header", "payload"]))
def test_any_signed_json_has_a_verdict(value: Any, where: str) -> None:
    parts = {"header": json.dumps(PLANE.header()), "payload": json.dumps(GRANT["payload"])}
    parts[where] = json.dumps(value)
    signing_input = f"{b64(parts['header'].encode())}.{b64(parts['payload'].encode())}"
    signature = b64(PLANE.private.sign(signing_input.encode()))
    assert code_of(f"{signing_input}.{signature}") in ("header_invalid", "payload_invalid")


@UNHURRIED
@given(st.sampled_from(sorted(GRANT["payload"])), JSON)
def test_any_member_of_a_payload_has_a_verdict(member: str, value: Any) -> None:
    code = code_of(receipt(GRANT["payload"] | {member: value}) if encodable(value) else "")
    if value != GRANT["payload"][member]:
        assert code != "valid" or member in ("jti", "iss", "workspace", "actorDid", "resource", "iat")


def encodable(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


@UNHURRIED
@given(JSON)
def test_any_key_set_has_a_verdict(value: Any) -> None:
    assert code_of(RECEIPT, value) != "valid"
    assert code_of(RECEIPT, {"keys": value}) != "valid"
    assert code_of(RECEIPT, {"keys": [value]}) != "valid"


@UNHURRIED
@given(st.sampled_from(["kty", "crv", "x", "kid", "use", "alg", "key_ops", "d", "nbf", "exp"]), JSON)
def test_any_member_of_a_key_has_a_verdict(member: str, value: Any) -> None:
    code_of(RECEIPT, {"keys": [PLANE.jwk() | {member: value}]})


@pytest.mark.parametrize("wrong", [None, 1, 1.5, [], {}, object(), bytearray(RECEIPT.encode())])
def test_what_is_no_text_has_a_verdict(wrong: Any) -> None:
    assert code_of(wrong) == "malformed"
    assert code_of(RECEIPT, request_body=object()) == "request_differs"
    assert code_of(RECEIPT, body=object()) == "body_invalid"
    assert code_of(RECEIPT, wrong) == "keys_invalid"


@pytest.mark.parametrize("now_s", [None, float("nan"), float("inf"), "0", -1, 0])
def test_a_clock_that_is_none_shows_no_date(now_s: Any) -> None:
    assert code_of(RECEIPT, now_s=now_s) == "dated_ahead"


def test_what_is_too_long_is_not_read() -> None:
    assert code_of("A" * (limits.RECEIPT_BYTES_MAX + 1)) == "too_large"
    long_body = b'{"a":"' + b"a" * limits.ANSWER_BYTES_MAX + b'"}'
    assert code_of(RECEIPT, body=long_body) == "too_large"
    assert code_of(long_body) == "too_large"
    assert code_of(RECEIPT, request_body=long_body) == "too_large"


@pytest.mark.parametrize(
    ("iat", "shown"),
    [
        (0, "at 1970-01-01 00:00:00 UTC."),
        (NOW_S, "at 2027-01-15 08:00:00 UTC."),
        (253_402_300_799, "at 9999-12-31 23:59:59 UTC."),
        (253_402_300_800, "at unix time 253402300800."),
        (limits.WHOLE_NUMBER_MAX, "at unix time 9007199254740991."),
    ],
)
def test_every_date_can_be_said(iat: int, shown: str) -> None:
    keys = {"keys": [PLANE.jwk()]}
    verdict = verify.verify_receipt(receipt(GRANT["payload"] | {"iat": iat}), keys, now_s=iat)
    assert verdict
    assert shown in verdict.sentence


def test_200_ms_ahead_is_not_ahead() -> None:
    # A receipt is dated in whole seconds: 200 ms may be one of them.
    assert code_of(receipt(GRANT["payload"] | {"iat": NOW_S + 1})) == "valid"


def test_names_cannot_take_over_a_terminal() -> None:
    sneaky = GRANT["payload"] | {"resource": "lock:\u202egpj.exe", "workspace": "w\u200b"}
    verdict = verify.verify_receipt(receipt(sneaky), KEYS, now_s=NOW_S)
    assert verdict
    assert verdict.sentence.isprintable()
    assert "\\u{202e}" in verdict.sentence


def test_a_verdict_counts_as_what_it_says() -> None:
    assert bool(verify.verify_receipt(RECEIPT, KEYS, now_s=NOW_S)) is True
    assert bool(verify.verify_receipt("", KEYS, now_s=NOW_S)) is False


def test_the_public_door() -> None:
    assert leaseplane.verify_receipt is verify.verify_receipt
    assert leaseplane.Verdict is verify.Verdict
    assert {"verify_receipt", "Verdict"} <= set(dir(leaseplane))
    with pytest.raises(AttributeError, match="nothing_such"):
        leaseplane.nothing_such  # noqa: B018


def test_the_door_alone_loads_nothing() -> None:
    program = (
        "import sys, leaseplane; assert leaseplane.__version__; print(*sys.modules)\n"
        "leaseplane.verify_receipt; assert 'cryptography' in sys.modules"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(leaseplane.__file__).parents[1])},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert not {"cryptography", "msgspec", "rfc8785", "json"} & set(loaded)


# -- vectors of Project Wycheproof -------------------------------------------------------------


def wycheproof(name: str) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = json.loads(published(f"wycheproof/{name}").read_text())["testGroups"]
    return groups


def test_wycheproof_ed25519() -> None:
    results = set()
    for group in wycheproof("ed25519_test.json"):
        public_key = bytes.fromhex(group["publicKey"]["pk"])
        key = group["publicKeyJwk"] | {"kid": jwk.ed25519_thumbprint(public_key)}
        assert jwk.public_key_of(key) == public_key
        for case in group["tests"]:
            message, signature = bytes.fromhex(case["msg"]), bytes.fromhex(case["sig"])
            holds = verify.signature_holds(public_key, message, signature)
            assert holds is (case["result"] == "valid"), case
            results.add(case["result"])
    assert results == {"valid", "invalid"}


def test_wycheproof_json_web_signatures_are_no_receipts() -> None:
    # Other algorithms, base64 with quirks, keys for something else: for a verifier of receipts each
    # is invalid, also where it is a fine JWS, and none of them raises.
    seen = 0
    for group in wycheproof("json_web_signature_test.json"):
        keys = [group[part] for part in ("public", "private") if part in group]
        for case in group["tests"]:
            jws = case["jws"] if isinstance(case["jws"], str) else json.dumps(case["jws"])
            assert code_of(jws, {"keys": keys}) != "valid", case
            seen += 1
    assert seen > 300
