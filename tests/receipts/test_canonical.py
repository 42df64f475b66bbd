"""The canonical form: what the plane writes fast is RFC 8785, and what it reads has one meaning."""

import json
import sys
from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from tests.receipts.material import UNHURRIED, published

from leaseplane import limits
from leaseplane.receipts import canonical

TEXT = st.text(st.characters(exclude_categories=("Cs",)))
NAME = st.from_regex(r"\A[a-zA-Z][a-zA-Z0-9]{0,12}\Z")
WHOLE = st.integers(-limits.WHOLE_NUMBER_MAX, limits.WHOLE_NUMBER_MAX)
HALF = st.integers(-(2**40), 2**40).map(lambda whole: whole + 0.5)
ANSWER = st.dictionaries(
    NAME,
    st.recursive(
        TEXT | WHOLE | HALF | st.booleans(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAME, inner, max_size=4),
        max_leaves=12,
    ),
    max_size=6,
)


@UNHURRIED
@given(ANSWER)
def test_what_the_plane_writes_is_rfc_8785(answer: dict[str, Any]) -> None:
    assert canonical.encode_answer(answer) == rfc8785.dumps(answer)


def test_every_character_is_written_as_rfc_8785_has_it() -> None:
    # In context, since an encoder may look at several characters at a time.
    for first in range(0, sys.maxunicode + 1, 0x800):
        if first == 0xD800:
            continue
        text = "".join(map(chr, range(first, first + 0x800)))
        assert canonical.encode_answer(text) == rfc8785.dumps(text)
    for escaped in map(chr, range(0x20)):
        for length in range(18):
            text = "a" * length + escaped + "é"
            assert canonical.encode_answer(text) == rfc8785.dumps(text)


def test_members_of_structs_are_sorted() -> None:
    class Inner(msgspec.Struct):
        z: int
        a: str

    class Outer(msgspec.Struct, rename="camel"):
        wait_ms: int
        holder: str
        Zero: Inner

    answer = Outer(wait_ms=1, holder="h", Zero=Inner(z=1, a="b"))
    assert canonical.encode_answer(answer) == rfc8785.dumps(msgspec.to_builtins(answer))


def test_what_encode_answer_is_not_for() -> None:
    # The reasons for its conditions; should msgspec change, they can go.
    assert canonical.encode_answer(50.0) != rfc8785.dumps(50.0)
    beyond_ascii = {"\ue000": 1, "\U00010000": 2}
    assert canonical.encode_answer(beyond_ascii) != rfc8785.dumps(beyond_ascii)


@UNHURRIED
@given(ANSWER, st.text("abcDEF-_.123"))
def test_the_digest_is_of_the_answer_alone(answer: dict[str, Any], receipt: str) -> None:
    answer.pop("receipt", None)
    written = canonical.encode_answer(answer)
    body = canonical.with_receipt(written, receipt)
    assert json.loads(body) == {**answer, "receipt": receipt}
    digest = canonical.sha256_hex(written)
    assert canonical.digest_of_answer(body) == digest
    assert canonical.digest_of_answer(written) == digest
    respelled = json.dumps(dict(reversed(json.loads(body).items())), indent=3)
    assert canonical.digest_of_answer(respelled.encode()) == digest


def test_only_the_outer_receipt_is_left_out() -> None:
    assert canonical.digest_of_answer(b'{"a":{"receipt":"x"}}') != canonical.digest_of_answer(b'{"a":{}}')


@pytest.mark.parametrize(
    "body",
    ["[]", "null", '"a"', "", "{", '{"a":1,"a":1}', '{"a":NaN}', '{"a":-Infinity}', '{"a":1e999}',
     '{"a":9007199254740992}', '{"a":-9007199254740992}', '{"a":"\\ud800"}', '{"\\uDfFf":1}',
     '{"a":' + "9" * 5000 + "}", "[" * 17 + "]" * 17, "[" * 10**6, '{"a":' * 10**5, "\ufeff{}",
     '{"a":1}{}', "{'a':1}", '{"a":01}', '{"a":1,}'],
)  # fmt: skip
def test_what_has_no_one_meaning_is_refused(body: str) -> None:
    with pytest.raises(canonical.NotStrictJson):
        canonical.digest_of_answer(body.encode())


def test_depth_is_counted_outside_of_strings() -> None:
    depth = limits.JSON_DEPTH_MAX
    assert canonical.read_strict(b"[" * depth + b"]" * depth) is not None
    assert canonical.read_strict(b'["' + b"[" * 100 + b'\\"[[", "\\\\"]') == ["[" * 100 + '"[[', "\\"]
    with pytest.raises(canonical.NotStrictJson, match="deeper"):
        canonical.read_strict(b'["\\\\",' + b"[" * depth)


def test_reading_is_linear_in_what_is_never_closed() -> None:
    for text in (b'"' + b'\\"' * 10**6, b'["a' * 10**6, b"\\" * 10**6, b'"\\' * 10**6):
        with pytest.raises(canonical.NotStrictJson):
            canonical.read_strict(text)


@UNHURRIED
@given(st.binary(max_size=60) | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_reading_has_one_kind_of_refusal(data: bytes) -> None:
    try:
        value = canonical.read_strict(data)
    except canonical.NotStrictJson:
        return
    canonical.canonical_form(value)


def test_escaped_pairs_of_surrogates_are_characters() -> None:
    assert canonical.read_strict(rb'"\ud83e\udd86 \\ud800"') == "🦆 \\ud800"


def test_arguments_hold_any_number() -> None:
    # ttlMs is accepted whatever it holds: the arguments that carry it still have a digest.
    in_doubles = canonical.digest_of_arguments({"ttlMs": 2**60, "a": [2**53, True], "b": {"c": -(2**54)}})
    expected = b'{"a":[9007199254740992,true],"b":{"c":-18014398509481984},"ttlMs":1152921504606847000}'
    assert in_doubles == canonical.sha256_hex(expected)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for refused in ({"a": float("nan")}, {"a": 10**400}, {"a": "\ud800"}, {"a": deep}, {"a": object()}):
        with pytest.raises(canonical.NotCanonicalizable):
            canonical.digest_of_arguments(refused)


def test_the_vectors_of_rfc_8785() -> None:
    inputs = sorted((published("jcs") / "input").iterdir())
    assert inputs
    for path in inputs:
        expected = (published("jcs") / "output" / path.name).read_bytes()
        assert canonical.canonical_form(canonical.read_strict(path.read_bytes())) == expected, path.name
