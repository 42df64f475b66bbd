"""Writing receipts, and what stock JOSE libraries make of them."""

import base64
import copy
import json
import pickle
from typing import Any

import joserfc.errors
import joserfc.jwk
import joserfc.jws
import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.receipts.make_vectors import GOOD_BY_NAME, LONGEST
from tests.receipts.material import statement_in

from leaseplane import limits
from leaseplane.receipts import base64url, verify
from leaseplane.receipts.issue import RetiredKey, Signer

SEED = bytes(range(32))
ISSUER = "urn:leaseplane:test"
NOW_S = 1_800_000_000


def make_signer(**more: Any) -> Signer:
    return Signer(Ed25519PrivateKey.from_private_bytes(SEED), ISSUER, **more)


def key_set(signer: Signer) -> dict[str, Any]:
    public = Ed25519PrivateKey.from_private_bytes(SEED).public_key().public_bytes_raw()
    x = base64url.encode(public).decode()
    return {"keys": [{"kty": "OKP", "crv": "Ed25519", "x": x, "kid": signer.kid, "use": "sig"}]}


@pytest.mark.parametrize("name", GOOD_BY_NAME)
def test_what_is_signed_is_what_is_read(name: str) -> None:
    payload = GOOD_BY_NAME[name]["payload"]
    signer = make_signer()
    receipt = signer.sign(statement_in(payload))
    verdict = verify.verify_receipt(receipt, key_set(signer), now_s=NOW_S)
    assert verdict, verdict.sentence
    assert verdict.payload is not None
    assert verdict.payload.iss == ISSUER
    assert verdict.payload.statement == statement_in(payload)
    written = json.loads(base64.urlsafe_b64decode(receipt.split(".")[1] + "=="))
    assert written == payload | {"iss": ISSUER}


@pytest.mark.parametrize("name", GOOD_BY_NAME)
def test_stock_libraries_verify_a_receipt_as_it_is(name: str) -> None:
    signer = make_signer()
    receipt = signer.sign(statement_in(GOOD_BY_NAME[name]["payload"]))
    jwks = key_set(signer)

    key = jwt.PyJWKSet.from_dict(jwks)[signer.kid]
    by_pyjwt = jwt.api_jws.decode_complete(receipt, key, algorithms=["EdDSA"])
    assert json.loads(by_pyjwt["payload"])["iss"] == ISSUER
    assert by_pyjwt["header"] == {"alg": "EdDSA", "kid": signer.kid, "typ": "leaseplane-receipt+jws"}

    keys = joserfc.jwk.KeySet.import_key_set(jwks)  # type: ignore[arg-type]
    # It would rather see RFC 9864's name `Ed25519`, which most others refuse: it warns, and verifies.
    with pytest.warns(joserfc.errors.SecurityWarning, match="9864"):
        by_joserfc = joserfc.jws.deserialize_compact(receipt, keys, algorithms=["EdDSA"])
    assert json.loads(by_joserfc.payload) == json.loads(by_pyjwt["payload"])

    # And refuse what was changed.
    changed = receipt[:-10] + ("A" if receipt[-10] != "A" else "B") + receipt[-9:]
    with pytest.raises(jwt.InvalidSignatureError):
        jwt.api_jws.decode_complete(changed, key, algorithms=["EdDSA"])


def test_the_longest_receipt_fits() -> None:
    private_key = Ed25519PrivateKey.from_private_bytes(SEED)
    signer = Signer(private_key, "https:" + "i" * (limits.RECEIPT_ISSUER_CHARS_MAX - 6))
    longest = statement_in(GOOD_BY_NAME["the longest names"]["payload"])
    escaped = msgspec.structs.replace(
        longest, workspace="🦆" * limits.WORKSPACE_CHARS_MAX, iat=limits.WHOLE_NUMBER_MAX
    )
    assert LONGEST["lease"]["fence"] == limits.WHOLE_NUMBER_MAX
    assert len(signer.sign(escaped)) <= limits.RECEIPT_BYTES_MAX


def test_rfc_8037_appendix_a_4() -> None:
    # The example key, message and signature of the RFC, by the function that verification uses.
    x = base64url.decode(b"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")
    signing_input = b"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc"
    signature = b"hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"
    assert verify.signature_holds(x, signing_input, base64url.decode(signature))
    assert not verify.signature_holds(x, signing_input + b"A", base64url.decode(signature))
    # It is a JWS, and no receipt.
    jws = (signing_input + b"." + signature).decode()
    assert verify.verify_receipt(jws, {"keys": []}, now_s=NOW_S).code == "header_invalid"


def test_signing_is_deterministic() -> None:
    statement = statement_in(GOOD_BY_NAME["coordination.lease granted"]["payload"])
    assert make_signer().sign(statement) == make_signer().sign(statement)


def test_a_key_vouches_for_nothing_before_its_time() -> None:
    statement = statement_in(GOOD_BY_NAME["coordination.lease granted"]["payload"])
    signer = make_signer(not_before_s=statement.iat + 5)
    verdict = verify.verify_receipt(signer.sign(statement), key_set(signer), now_s=NOW_S)
    assert verdict.payload is not None
    assert verdict.payload.statement == msgspec.structs.replace(statement, iat=statement.iat + 5)


def test_a_retired_key_signs_nothing() -> None:
    signer = make_signer()
    signer.retire()
    with pytest.raises(RetiredKey):
        signer.sign(statement_in(GOOD_BY_NAME["coordination.lease granted"]["payload"]))


def test_the_private_key_is_not_shown() -> None:
    signer = make_signer()
    shown = f"{signer!r} {signer!s}"
    for secret in (SEED.hex(), repr(SEED), base64url.encode(SEED).decode(), "Ed25519PrivateKey"):
        assert secret not in shown
    assert not hasattr(signer, "__dict__")
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            copied(signer)


@pytest.mark.parametrize("issuer", ["", "plane", "URN:x", "urn:a b", "urn:é", "urn:x\n", "urn:" + "x" * 253])
def test_an_issuer_is_a_uri(issuer: str) -> None:
    with pytest.raises(ValueError, match="issuer"):
        Signer(Ed25519PrivateKey.from_private_bytes(SEED), issuer)
