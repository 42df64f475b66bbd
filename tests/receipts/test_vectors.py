"""The published vectors: what is a receipt, and for everything that is none, why."""

import json
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import msgspec.inspect
import pytest
from tests.receipts import make_vectors

from leaseplane.receipts import verify
from leaseplane.receipts.profile import AUTHS, GRAMMAR, STATEMENTS, LeaseRefusalCode, ReleaseRefusalCode


def vectors(name: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads((make_vectors.FOLDER / name).read_text())
    return listed


KEYS = json.loads((make_vectors.FOLDER / "keys.json").read_text())
GOOD, BAD = vectors("good.json"), vectors("bad.json")


def verdict_of(vector: dict[str, Any]) -> verify.Verdict:
    def given(member: str) -> bytes | None:
        return vector[member].encode() if member in vector else None

    return verify.verify_receipt(
        vector["receipt"],
        KEYS[vector["keys"]],
        now_s=vector["nowS"],
        body=given("body"),
        request_body=given("requestBody"),
        self_issued=vector.get("selfIssued", False),
    )


def test_the_files_are_what_the_script_writes() -> None:
    for name, content in make_vectors.files().items():
        written = (make_vectors.FOLDER / name).read_text(encoding="utf-8")
        assert written == content, f"run python -m tests.receipts.make_vectors: {name} is out of date"


@pytest.mark.parametrize("vector", GOOD, ids=lambda vector: vector["name"])
def test_good(vector: dict[str, Any]) -> None:
    verdict = verdict_of(vector)
    assert verdict.code == "valid", verdict.sentence
    assert verdict
    assert verdict.auth is not None
    assert verdict.auth == vector["expect"]["auth"]
    assert verdict.self_issued is vector["expect"]["selfIssued"]
    assert ("Self-issued" in verdict.sentence) is verdict.self_issued
    assert verdict.answer_checked is ("body" in vector or vector["receipt"].startswith("{"))
    assert verdict.request_checked is ("requestBody" in vector)
    assert verify.HOW_THE_ACTOR_WAS_KNOWN[verdict.auth] in verdict.sentence


@pytest.mark.parametrize("vector", BAD, ids=lambda vector: vector["name"])
def test_bad(vector: dict[str, Any]) -> None:
    verdict = verdict_of(vector)
    assert verdict.code == vector["expect"]["code"], verdict.sentence
    assert not verdict
    assert not verdict.valid
    # Nothing of what could not be proven is passed on.
    assert verdict.payload is None
    assert verdict.auth is None
    assert verdict.sentence.endswith(".")
    assert len(verdict.sentence) < 400


def test_there_is_a_good_one_for_each_statement_and_each_auth() -> None:
    payloads = [vector["payload"] for vector in GOOD]
    assert {(payload["op"], payload["outcome"]) for payload in payloads} == set(STATEMENTS)
    assert {payload["auth"] for payload in payloads} == set(AUTHS)
    codes = {(payload["op"], payload.get("code")) for payload in payloads if "code" in payload}
    assert codes == {
        *(("coordination.lease", code) for code in get_args(LeaseRefusalCode)),
        *(("coordination.release", code) for code in get_args(ReleaseRefusalCode)),
    }


def test_there_is_a_bad_one_for_each_check() -> None:
    assert {vector["expect"]["code"] for vector in BAD} == set(verify.CODES) - {"valid"}


def test_names_are_given_once() -> None:
    names = [vector["name"] for vector in GOOD + BAD]
    assert len(names) == len(set(names))


def texts_of(kind: type) -> Iterator[str]:
    """The members of a statement, however deep, that are strings and no fixed words."""
    for field in msgspec.structs.fields(kind):
        described = msgspec.inspect.type_info(field.type)
        alternatives = described.types if isinstance(described, msgspec.inspect.UnionType) else (described,)
        for alternative in alternatives:
            if isinstance(alternative, msgspec.inspect.StrType):
                yield field.encode_name
            elif isinstance(alternative, msgspec.inspect.StructType):
                yield from texts_of(alternative.cls)


def test_every_text_of_a_statement_has_a_grammar() -> None:
    assert {name for kind in STATEMENTS.values() for name in texts_of(kind)} == set(GRAMMAR)
