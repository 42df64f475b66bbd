"""Reading a body: what is plain JSON is read as everyone reads it, and nothing makes it fail otherwise."""

import contextlib
import json
import time
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseplane.operations import RequestRefused
from leaseplane.surfaces.rest.json_object import read_object
from leaseplane.surfaces.rest.query import read_query

SCALARS = st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.text() | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS.filter(lambda value: value not in (float("inf"), float("-inf"))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


@given(st.dictionaries(st.text(), VALUES, max_size=5), st.booleans(), st.sampled_from([None, 1]))
def test_a_plain_object_is_read_as_everyone_reads_it(
    value: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    try:
        body = text.encode()
    except UnicodeEncodeError:
        return  # half a surrogate pair, written as it is: no UTF-8 says that
    if depth_of(value) > 16:
        with pytest.raises(RequestRefused):
            read_object(body)
    else:
        assert read_object(body) == value


@given(
    st.binary(max_size=200) | st.text(max_size=200).map(lambda text: ("{" + text).encode("utf-8", "replace"))
)
def test_no_bytes_make_it_fail_otherwise(body: bytes) -> None:
    try:
        assert type(read_object(body)) is dict
    except RequestRefused as refusal:
        assert refusal.message and len(refusal.message) < 300


@given(st.integers(1, 40), st.booleans())
def test_depth_counts_the_outer_object_and_no_brackets_in_strings(depth: int, with_text: bool) -> None:
    text = '"]]}}[[{{\\\\"' if with_text else "0"
    body = ('{"a":' * depth + text + "}" * depth).encode()
    if depth <= 16:
        assert depth_of(read_object(body)) == depth
    else:
        with pytest.raises(RequestRefused, match="deeper than 16"):
            read_object(body)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 65_536,
        b'{"a":' * 13_107,
        b'{"a":' + b"9" * 65_000 + b"}",
        b'{"a":0.' + b"9" * 65_000 + b"}",
        b'{"a":1e' + b"9" * 65_000 + b"}",
        b'{"a":"' + b"\\" * 65_000 + b'"}',
        b'{"a":"' + b'\\"' * 32_000,
        b"[" * 17 + b'"' + b'\\"' * 32_000,
        b"[" * 17 + b'"' + b"\\" * 65_000,
        b'{"a":' + b'"[' * 32_000,
        b"[" * 17 + b'"' + b'\\"' * 32_000,
        b"[" * 17 + b'"' + b'\\"' * 32_000 + b"\\",
        b"[" * 17 + b'"' * 65_001,
        b"{" + b",".join(b'"%d":0' % n for n in range(7_000)) + b',"0":1}',
        b"{" + b",".join(b'"%x":0' % n for n in range(7_000)) + b',"1b57":1}',
        b" " * 65_536,
    ],
)
def test_64_kib_of_malice_take_no_time(body: bytes) -> None:
    started_s = time.process_time()
    with contextlib.suppress(RequestRefused):
        read_object(body)
    assert time.process_time() - started_s < 0.25


@pytest.mark.parametrize(
    ("text", "value"),
    [("1000.0", 1000), ("1e3", 1000), ("1.5", 1.5), ("-0.0", 0), ("9007199254740993.0", 2.0**53), ("-0", 0)],
)
def test_a_whole_number_is_one_however_it_is_written(text: str, value: float) -> None:
    [read] = read_object(f'{{"a":{text}}}'.encode()).values()
    assert read == value and type(read) is type(value)


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=5))
def test_a_query_is_read_as_it_was_written(parameters: dict[str, str]) -> None:
    try:
        query = urlencode(parameters).encode()
    except UnicodeEncodeError:
        return
    assert read_query(query) == parameters


@given(st.binary(max_size=100))
def test_no_query_makes_it_fail_otherwise(query: bytes) -> None:
    with contextlib.suppress(RequestRefused):
        read_query(query)
