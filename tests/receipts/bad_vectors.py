"""What is no receipt, each with the check that it has to fail."""

import base64
import copy
import hmac
import json
from typing import Any

from tests.receipts.vector_parts import (
    ALICE,
    ASKED,
    BODIES,
    FOREIGN,
    GRANT,
    LEASE,
    NOW_S,
    OLD,
    PATHS,
    PLANE,
    REFUSAL,
    RESOURCE,
    ROTATED_S,
    SMALL_ORDER,
    TYPE,
    b64,
    canonical,
    kid_of,
    payload_of,
    receipt,
    sha,
    sign,
)

GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493


def bad() -> list[dict[str, Any]]:
    vectors = []
    payload = payload_of(*GRANT)
    base = receipt(payload)
    header_segment, payload_segment, signature_segment = base.split(".")
    header_text = json.dumps(PLANE.header())
    payload_text = json.dumps(payload)

    def add(code: str, name: str, text: str, **more: Any) -> None:
        vectors.append(
            {"name": name, "receipt": text, "keys": "plane", "nowS": NOW_S, "expect": {"code": code}, **more}
        )

    # form
    whole = {"receipt": base, **BODIES[GRANT]}
    add("malformed", "nothing", "")
    add("malformed", "one segment", header_segment)
    add("malformed", "two segments", f"{header_segment}.{payload_segment}")
    add("malformed", "four segments", f"{base}.{signature_segment}")
    add("malformed", "no signature", f"{header_segment}.{payload_segment}.")
    add("malformed", "padded", base + "=")
    add("malformed", "padded with two", base + "==")
    add("malformed", "header padded", f"{header_segment}=.{payload_segment}.{signature_segment}")
    add("malformed", "a line break at the end", base + "\n")
    add("malformed", "a line break inside", f"{base[:200]}\n{base[200:]}")
    add("malformed", "a space in front", " " + base)
    add("malformed", "cut short by one", base[:-1])
    add("signature_wrong", "cut short by two", base[:-2])
    add("malformed", "beyond ASCII", base[:-1] + "é")
    add("malformed", "a full-width digit", base[:-1] + "\uff10")
    add("malformed", "the plain alphabet", plain_alphabet(payload))
    add("malformed", "unused bits of the signature set", base[:-1] + next_letter(base[-1]))
    for name, segment in (("header", 0), ("payload", 1)):
        add("malformed", f"unused bits of the {name} set", with_unused_bits(payload, segment))
    add("too_large", "over 4 KiB", receipt(payload | {"resource": "lock:" + "x" * 4096}))
    add("receipt_missing", "JSON serialisation", flattened(base))
    add("receipt_missing", "a response body without one", json.dumps(BODIES[GRANT]))
    add("receipt_missing", "a response body with a null for one", json.dumps(whole | {"receipt": None}))
    add("malformed", "a response body with a broken one", json.dumps(whole | {"receipt": "a.b"}))
    add("body_invalid", "a response body with two", f'{{"receipt":"{base}",{json.dumps(whole)[1:]}')
    add("body_invalid", "a response body cut short", json.dumps(whole)[:-1])

    # header
    for name, text in {
        "null": "null",
        "a list": f"[{header_text}]",
        "a text": '"EdDSA"',
        "not JSON": "alg=EdDSA",
        "empty": "{}",
        "with alg twice": header_text.replace("{", '{"alg":"EdDSA",', 1),
        "with NaN": header_text.replace('"EdDSA"', "NaN"),
        "with alg null": header_text.replace('"EdDSA"', "null"),
        "with kid a number": json.dumps(PLANE.header() | {"kid": 1}),
        "with kid a list": json.dumps(PLANE.header() | {"kid": ["a"]}),
        "nested deep": '{"alg":' + "[" * 1000 + "]" * 1000 + "}",
        "with a lone surrogate": header_text.replace(TYPE, "\\ud800"),
        "with a byte order mark": "\ufeff" + header_text,
        "without alg": json.dumps({"kid": PLANE.kid, "typ": TYPE}),
        "without kid": json.dumps({"alg": "EdDSA", "typ": TYPE}),
        "without typ": json.dumps({"alg": "EdDSA", "kid": PLANE.kid}),
    }.items():
        add("header_invalid", f"header {name}", sign(text, payload_text))
    add("header_invalid", "header not UTF-8", sign(b'{"alg":"\xff"}', payload_text))
    for name, member in {
        "jwk": FOREIGN.jwk(),
        "jku": "https://evil.example/jwks.json",
        "x5u": "https://evil.example/cert.pem",
        "x5c": ["AAAA"],
        "crit": ["exp"],
        "b64": True,
        "crv": "Ed25519",
        "cty": "JSON",
        "nonce": "1",
    }.items():
        add(
            "header_invalid",
            f"header with {name}",
            sign(json.dumps(PLANE.header(**{name: member})), payload_text),
        )
    own = json.dumps({"alg": "EdDSA", "typ": TYPE, "jwk": FOREIGN.jwk(), "kid": FOREIGN.kid})
    add("header_invalid", "carries and is signed by its own key", sign(own, payload_text, FOREIGN))
    for alg in ("none", "None", "HS256", "Ed25519", "eddsa", "ES256", "RS256", ""):
        add(
            "algorithm_refused",
            f"alg {alg or 'empty'}",
            sign(json.dumps(PLANE.header(alg=alg)), payload_text),
        )
    unsigned = f"{b64(json.dumps(PLANE.header(alg='none')).encode())}.{payload_segment}."
    add("malformed", "alg none and no signature", unsigned)
    add("algorithm_refused", "HS256 with the public key as secret", hs256(payload_text))
    for typ in ("JWT", "leaseplane-receipt+JWS", "leaseplane-receipt", "application/" + TYPE, ""):
        add("type_refused", f"typ {typ or 'empty'}", sign(json.dumps(PLANE.header(typ=typ)), payload_text))

    # keys and signature
    add("key_unknown", "a key that is not the plane's", receipt(payload, FOREIGN))
    add("key_unknown", "another plane's key set", base, keys="other plane")
    add("key_unknown", "an empty key set", base, keys="empty")
    add(
        "key_unknown",
        "kid of another spelling",
        sign(json.dumps(PLANE.header(kid=PLANE.kid + "=")), payload_text),
    )
    for keys in ("null", "list", "without keys", "keys is an object", "a key is null", "twice"):
        add("keys_invalid", f"key set: {keys}", base, keys=keys)
    for keys in (
        "x too short", "x padded", "x is a number", "x of another key", "another curve", "another kty",
        "for encryption", "for another alg", "to sign", "private", "nbf is text", "exp is a fraction",
        "exp is null",
    ):  # fmt: skip
        add("key_unusable", f"key: {keys}", base, keys=keys)
    small = f"{b64(json.dumps(PLANE.header(kid=kid_of(SMALL_ORDER))).encode())}.{payload_segment}"
    add(
        "key_unusable",
        "forged under a key of small order",
        f"{small}.{b64(SMALL_ORDER + bytes(32))}",
        keys="x of small order",
    )
    add("signature_wrong", "signed by another key under this kid", sign(header_text, payload_text, FOREIGN))
    add("signature_wrong", "payload of another receipt", swapped_payload(base))
    add(
        "signature_wrong",
        "header written again",
        f"{b64(canonical(PLANE.header()))}.{payload_segment}.{signature_segment}",
    )
    add("signature_wrong", "signature of zeros", f"{header_segment}.{payload_segment}.{b64(bytes(64))}")
    add("signature_wrong", "signature a byte short", f"{header_segment}.{payload_segment}.{b64(bytes(63))}")
    add("signature_wrong", "signature two bytes long", f"{base[:-2]}{b64(bytes(3))}")
    add("signature_wrong", "signature with S plus the group order", malleated(base))

    # payload
    for name, signed in bad_payload_texts(payload_text).items():
        add("payload_invalid", f"payload {name}", sign(header_text, signed))
    for name, changed in bad_payloads().items():
        add("payload_invalid", f"payload {name}", receipt(changed))

    # dates
    add("dated_ahead", "dated 61 s ahead", receipt(payload_of(*GRANT, iat=NOW_S + 61)))
    add("dated_ahead", "dated a day ahead", receipt(payload_of(*GRANT, iat=NOW_S + 86_400)))
    add("dated_ahead", "dated as far ahead as can be", receipt(payload_of(*GRANT, iat=2**53 - 1)))
    add(
        "key_not_valid_then",
        "dated after its key was retired",
        receipt(payload_of(*GRANT, iat=ROTATED_S + 6), OLD),
    )
    add(
        "key_not_valid_then",
        "dated before its key was in use",
        receipt(payload_of(*GRANT, iat=ROTATED_S - 1)),
    )

    # digests
    refusal = receipt(payload_of(*REFUSAL))
    body, other = json.dumps(BODIES[GRANT]), json.dumps(BODIES[REFUSAL])
    add("answer_differs", "another answer's body", base, body=other)
    add("answer_differs", "another answer's receipt", refusal, body=body)
    add("answer_differs", "swapped in the response body", json.dumps(BODIES[GRANT] | {"receipt": refusal}))
    add("answer_differs", "a whole response body that is not the one given", json.dumps(whole), body=other)
    add("answer_differs", "one member of the body changed", base, body=body.replace("30000", "30001"))
    add("answer_differs", "one member of the body added", base, body=body.replace("{", '{"x":1,', 1))
    add(
        "answer_differs",
        "another member called receipt, further in",
        base,
        body=body.replace('"leaseId"', '"receipt"'),
    )
    for name, text in {
        "not JSON": "ok", "a list": "[]", "null": "null",
        "with a member twice": body.replace("{", '{"ok":true,', 1),
        "with NaN": '{"a":NaN}', "with 2^53": '{"a":9007199254740992}', "with 1e400": '{"a":1e400}',
        "with a lone surrogate": '{"a":"\\udfff"}', "nested deep": '{"a":' + "[" * 1000 + "]" * 1000 + "}",
        "empty": "",
    }.items():  # fmt: skip
        add("body_invalid", f"body {name}", base, body=text)
    add("request_differs", "another request", base, requestBody=ASKED.decode().replace(" ", ""))
    arguments = {"resource": RESOURCE}
    tool = {"method": "tools/call", "path": "coordination.lease.acquire", "digest": sha(canonical(arguments))}
    called = receipt(payload_of(*GRANT, request=tool))
    add("request_differs", "other arguments of a tool", called, requestBody='{"resource":"lock:other"}')
    add("request_differs", "arguments that are a list", called, requestBody="[]")
    add("request_differs", "arguments that are not JSON", called, requestBody="{")
    add("request_differs", "arguments nested deep", called, requestBody='{"a":' + "[" * 3_000)
    return vectors


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def next_letter(letter: str) -> str:
    return LETTERS[LETTERS.index(letter) + 1]


def plain_alphabet(payload: dict[str, Any]) -> str:
    for attempt in range(1000):
        text = receipt(payload | {"jti": f"jti-{attempt}"})
        if "-" in text and "_" in text:
            return text.replace("-", "+").replace("_", "/")
    raise AssertionError("no signature with both letters")


def with_unused_bits(payload: dict[str, Any], segment: int) -> str:
    """A receipt with one segment of a length that leaves unused bits, and these set; rightly signed."""
    header, body = json.dumps(PLANE.header()), json.dumps(payload)
    while len(body) % 3 != 1:
        body = body.replace('"jti": "', '"jti": "x')
    while len(header) % 3 != 1:
        header = header.replace("{", "{ ", 1)
    segments = [b64(header.encode()), b64(body.encode())]
    segments[segment] = segments[segment][:-1] + next_letter(segments[segment][-1])
    signing_input = ".".join(segments)
    return f"{signing_input}.{b64(PLANE.private.sign(signing_input.encode()))}"


def flattened(base: str) -> str:
    protected, payload, signature = base.split(".")
    return json.dumps({"protected": protected, "payload": payload, "signature": signature})


def hs256(payload_text: str) -> str:
    signing_input = f"{b64(json.dumps(PLANE.header(alg='HS256')).encode())}.{b64(payload_text.encode())}"
    return f"{signing_input}.{b64(hmac.digest(PLANE.public, signing_input.encode(), 'sha256'))}"


def swapped_payload(base: str) -> str:
    header, _, signature = base.split(".")
    return f"{header}.{receipt(payload_of(*REFUSAL)).split('.')[1]}.{signature}"


def malleated(base: str) -> str:
    signing_input, _, segment = base.rpartition(".")
    signature = base64.urlsafe_b64decode(segment + "==")
    s = int.from_bytes(signature[32:], "little") + GROUP_ORDER
    return f"{signing_input}.{b64(signature[:32] + s.to_bytes(32, 'little'))}"


def bad_payload_texts(text: str) -> dict[str, str | bytes]:
    return {
        "null": "null",
        "a list": f"[{text}]",
        "a text": '"granted"',
        "a number": "1",
        "not JSON": "granted",
        "cut short": text[:-1],
        "with something behind it": text + "{}",
        "with a byte order mark": "\ufeff" + text,
        "in UTF-16": text.encode("utf-16"),
        "not UTF-8": text.encode().replace(b"local", b"\xff\xfe"),
        "with a member twice": text.replace("{", '{"iat": 1,', 1),
        "with a member twice, alike": text.replace("{", '{"v": 1,', 1),
        "with a member of the lease twice": text.replace('{"leaseId"', '{"fence": 1, "leaseId"'),
        "with NaN": text.replace(str(NOW_S), "NaN"),
        "with Infinity": text.replace(str(NOW_S), "Infinity"),
        "with -Infinity": text.replace(str(NOW_S), "-Infinity"),
        "with 2^53": text.replace(str(LEASE["fence"]), str(2**53)),
        "with 2^53+1": text.replace(str(LEASE["fence"]), str(2**53 + 1)),
        "with 2^53+1 as iat": text.replace(f": {NOW_S},", f": {2**53 + 1},", 1),
        "with a number of 1,000 digits": text.replace(str(LEASE["fence"]), "1" * 1_000),
        "with a float that is whole": text.replace(f": {NOW_S},", f": {NOW_S}.0,", 1),
        "with an exponent": text.replace(f": {NOW_S},", ": 18e8,", 1),
        "with a minus zero": text.replace(f": {NOW_S},", ": -0.0,", 1),
        "with a lone surrogate": text.replace("local", "\\ud800"),
        "with a lone low surrogate": text.replace("local", "\\uDC00"),
        "with a lone surrogate as a name": text.replace('"iss"', '"\\udbff": 1, "iss"'),
        "nested deep": text.replace('"local"', "[" * 900 + "]" * 900),
        "with a raw control character": text.replace("local", "lo\ncal"),
        "with a comment": text.replace("{", "{/**/", 1),
    }


def bad_payloads() -> dict[str, dict[str, Any]]:
    changed: dict[str, dict[str, Any]] = {}

    def change(name: str, *path_and_value: Any, kind: Any = GRANT) -> None:
        payload = copy.deepcopy(payload_of(*kind))
        *path, last, value = path_and_value
        within = payload
        for step in path:
            within = within[step]
        if value is ...:
            del within[last]
        else:
            within[last] = value
        changed[name] = payload

    payload = payload_of(*GRANT)
    for member in payload:
        change(f"without {member}", member, ...)
        change(f"with {member} null", member, None)
    for part in ("lease", "request", "answer"):
        for member in payload[part]:
            change(f"without {part}.{member}", part, member, ...)
            change(f"with {part}.{member} null", part, member, None)
        change(f"with {part} a list", part, [])
        change(f"with another member in {part}", part, "extra", 1)
    change("with another member", "extra", 1)
    change("with sub", "sub", ALICE)
    change("with v 2", "v", 2)
    change("with v true", "v", True)
    change("with v as text", "v", "1")
    change("with iat as text", "iat", str(NOW_S))
    change("with iat true", "iat", True)
    change("with iat negative", "iat", -1)
    change("with iss no URI", "iss", "plane")
    change("with iss of spaces", "iss", "urn:lease plane")
    change("with iss too long", "iss", "urn:" + "x" * 253)
    change("with jti empty", "jti", "")
    change("with jti of spaces", "jti", "a b")
    change("with jti too long", "jti", "j" * 65)
    change("with jti and a line end", "jti", "jti\n")
    change("with an unknown op", "op", "coordination.admit")
    change("with an unknown outcome", "outcome", "expired")
    change("with op a list", "op", ["coordination.lease"])
    change("with an unknown auth", "auth", "password")
    change("with workspace empty", "workspace", "")
    change("with workspace too long", "workspace", "w" * 253)
    change("with actorDid empty", "actorDid", "")
    change("with actorDid too long", "actorDid", "did:web:" + "x" * 249)
    change("with resource empty", "resource", "")
    change("with resource too long", "resource", "lock:" + "x" * 508)
    change("with resource too long in bytes", "resource", "lock:" + "ü" * 254)
    change("with a control character in resource", "resource", "lock:\x1b[2J")
    change("with a line separator in resource", "resource", "lock:\u2028")
    change("with fence 0", "lease", "fence", 0)
    change("with fence negative", "lease", "fence", -1)
    change("with fence as text", "lease", "fence", "7")
    change("with leaseId too long", "lease", "leaseId", "l" * 65)
    for name, instant in {
        "without milliseconds": "2027-01-15T08:00:00Z",
        "with microseconds": "2027-01-15T08:00:00.000000Z",
        "of another zone": "2027-01-15T08:00:00.000+00:00",
        "that does not exist": "2027-02-30T08:00:00.000Z",
        "at hour 24": "2027-01-15T24:00:00.000Z",
        "in small letters": "2027-01-15t08:00:00.000z",
        "of other digits": "２027-01-15T08:00:00.000Z",
    }.items():
        change(f"with a time {name}", "lease", "grantedAt", instant)
        change(f"with an end {name}", "lease", "expiresAt", instant)
    for part in ("request", "answer"):
        digest = payload[part]["digest"]
        change(f"with {part}.digest in capitals", part, "digest", digest.upper())
        change(f"with {part}.digest short", part, "digest", digest[:-1])
        change(f"with {part}.digest and a line end", part, "digest", digest + "\n")
    change("with a query in the path", "request", "path", PATHS["coordination.lease"] + "?x=1")
    change("with a fragment in the path", "request", "path", PATHS["coordination.lease"] + "#x")
    change("with a path that is none", "request", "path", "api")
    change("with a path too long", "request", "path", "/" + "p" * 128)
    change("with a method of spaces", "request", "method", "PO ST")
    change("granted with status 409", "answer", "status", 409)
    change("granted with status as text", "answer", "status", "200")
    change("granted with a code", "code", "lease_held")
    change("refused with status 200", "answer", "status", 200, kind=REFUSAL)
    change("refused without a code", "code", ..., kind=REFUSAL)
    change("refused with an unknown code", "code", "busy", kind=REFUSAL)
    change("refused with a lease", "lease", LEASE, kind=REFUSAL)
    change("a lease refused as not_held", "code", "not_held", kind=REFUSAL)
    release = ("coordination.release", "refused", "not_held")
    change("a release refused as deadlock", "code", "deadlock", kind=release)
    change("a lease that is released", "outcome", "released")
    change("a lease that is listed", "outcome", "listed")
    change("a release that is granted", "op", "coordination.release")
    change("a list that is refused", "outcome", "refused", kind=("coordination.wait", "listed", None))
    change("a list with a lease", "lease", LEASE, kind=("coordination.wait", "listed", None))
    change("a list with a null resource", "resource", None, kind=("coordination.wait", "listed", None))
    return changed
