"""The OpenAPI document and the reference page: right, complete, and what the server does."""

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.surfaces.rest.wire import ScriptedEngine, Server

from leaseplane import __version__
from leaseplane.answers import BODY_OF, render
from leaseplane.bodies import STATUS_OF
from leaseplane.operations import ACCEPTED, OPERATIONS, WITHDRAW, Operation, RequestRefused
from leaseplane.operations import LEASE as LEASE_OPERATION
from leaseplane.resources import RESOURCE_PATTERN, NameRefused, check_resource
from leaseplane.surfaces.rest.openapi import failures_of, openapi_document
from leaseplane.surfaces.rest.reference import rest_reference
from leaseplane.surfaces.rest.samples import ADA, OUTCOMES, REQUESTS

ROOT = Path(__file__).parents[3]
DOCUMENT = openapi_document(__version__)
BY_NAME = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)


def described(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][operation.path][operation.method.lower()]
    return found


def followed(part: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in part:
        found: Any = DOCUMENT
        for step in part["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        part = found
    return part


def check(instance: Any, schema: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="needs the dev group's packages")
    whole = {**schema, "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(whole, format_checker=jsonschema.FormatChecker()).validate(instance)


def test_the_document_is_valid() -> None:
    validator = pytest.importorskip("openapi_spec_validator", reason="needs the dev group's packages")
    validator.validate(json.loads(json.dumps(DOCUMENT)))


def test_every_route_of_the_server_is_described_and_nothing_else(
    scripted: Server, engine: ScriptedEngine
) -> None:
    for path, item in DOCUMENT["paths"].items():
        allow = scripted.ask("OPTIONS", path, key=None).header("allow") or ""
        methods = set(allow.split(", ")) - {"OPTIONS", "HEAD"}
        assert methods == {method.upper() for method in item}, path


@BY_NAME
def test_every_sample_request_is_taken_and_every_answer_matches_its_schema(
    operation: Operation, scripted: Server, engine: ScriptedEngine
) -> None:
    command = operation.read(REQUESTS[operation])
    assert type(command) is operation.command
    responses = described(operation)["responses"]
    for outcome in operation.outcomes:
        rendered = render(OUTCOMES[outcome])
        body = msgspec.json.decode(rendered.body_without_receipt)
        response = followed(responses[str(rendered.status)])
        check(body, response["content"]["application/json"]["schema"])
        if rendered.retry_after_s is not None:
            assert "Retry-After" in response["headers"]


@BY_NAME
def test_every_example_matches_its_schema(operation: Operation) -> None:
    for response in map(followed, described(operation)["responses"].values()):
        content = response["content"]["application/json"]
        for example in content["examples"].values():
            check(example["value"], content["schema"])


def test_a_refusal_by_several_readers_is_shown() -> None:
    shown = described(LEASE_OPERATION)["responses"]["409"]["content"]["application/json"]["examples"]
    assert [len(each["value"]["holders"]) for each in shown.values() if "holders" in each["value"]] == [2]


def test_the_page_says_what_every_member_may_hold() -> None:
    page = rest_reference(__version__)
    for operation in OPERATIONS:
        for field in msgspec.structs.fields(operation.request):
            assert f" | {ACCEPTED[field.encode_name]} | " in page
    for told in ('"read", "write" and "delete"', "from 0 to 300000", "at most 200 characters", "512 bytes"):
        assert told in page


@BY_NAME
def test_every_failure_is_described(operation: Operation) -> None:
    responses = described(operation)["responses"]
    for code in failures_of(operation):
        response = followed(responses[str(STATUS_OF[code])])
        sample = response["content"]["application/json"]["examples"][code]["value"]
        check(sample, response["content"]["application/json"]["schema"])


@BY_NAME
def test_requests_are_described_with_every_member(operation: Operation) -> None:
    members = {field.encode_name for field in msgspec.structs.fields(operation.request)}
    parameters = described(operation).get("parameters", [])
    in_query = {parameter["name"] for parameter in parameters if parameter["in"] == "query"}
    headers = {parameter["name"] for parameter in parameters if parameter["in"] == "header"}
    if operation.source == "body":
        schema = described(operation)["requestBody"]["content"]["application/json"]["schema"]
        assert set(followed(schema)["properties"]) == members and not in_query
        check(REQUESTS[operation], schema)
    else:
        assert in_query == members
    assert ("Idempotency-Key" in headers) is operation.keyed


NAMES = {
    "resource": [
        "lock:a",
        "a b",
        "file:x/y",
        "\u00e9",
        "\U0001f600",
        "a" * 512,
        "lock: a",
        "x:y:z",
        "\uffff",
    ],
    "actorDid": [ADA, "did:web:a%3A", "did:web::a", "did:a:b-._"],
    "instance": ["a", "p.1", "a b", "\u00e9\U0001f600"],
    "note": ["", "\u2028", "a b ", "\u202e"],
}
NO_NAMES = {
    "resource": [
        "",
        "a:",
        ":a",
        "A:a",
        " a",
        "a ",
        "lock:a ",
        "a\x00",
        "a\x9f",
        "a\u00a0b",
        "\u00ad",
        "\u200d",
        "a" * 513,
    ],
    "actorDid": [
        "",
        "did:a:",
        "did:a:b:",
        "did:A:b",
        "did:a:%4",
        "did:a:b#c",
        "did:a:b\n",
        "did:a:" + "a" * 251,
    ],
    "instance": ["", " ", "a ", "\t", "a" * 65, "\ufe0f"],
    "note": ["\n", "\x85", "a" * 201],
}


@pytest.mark.parametrize("member", NAMES)
def test_a_schema_refuses_no_name_that_is_taken_and_few_that_are_not(member: str) -> None:
    def is_right(name: str) -> bool:
        schema = DOCUMENT["components"]["schemas"]["LeaseRequest"]["properties"][member]
        fits = schema.get("minLength", 0) <= len(name) <= schema["maxLength"]
        # As ECMA-262 has it: `$` is the end, and not before a line end.
        return fits and re.search(schema["pattern"].replace("$", r"\Z"), name) is not None

    for name in NAMES[member]:
        LEASE_OPERATION.read({**REQUESTS[LEASE_OPERATION], member: name})
        assert is_right(name), name
    for name in NO_NAMES[member]:
        with pytest.raises((NameRefused, RequestRefused)):
            LEASE_OPERATION.read({**REQUESTS[LEASE_OPERATION], member: name})
        assert not is_right(name), name


@given(st.text(max_size=6) | st.from_regex(r"[a-z]:[ -~\u00a0-\u0400]{1,4}", fullmatch=True))
def test_no_resource_that_is_taken_breaks_its_pattern(name: str) -> None:
    with contextlib.suppress(NameRefused):
        check_resource(name)
        assert re.search(RESOURCE_PATTERN, name) is not None


def test_what_a_request_needs_is_required_of_its_query() -> None:
    required = {each["name"] for each in described(WITHDRAW)["parameters"] if each["required"]}
    assert required == {"resource", "actorDid"}


def test_bodies_require_what_is_always_there() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for outcome, body in BODY_OF.items():
        written = msgspec.json.decode(render(OUTCOMES[outcome]).body_without_receipt)
        required = set(schemas[body.__name__]["required"])
        assert required <= set(written), body
        assert {"ok"} <= required and set(written) <= set(schemas[body.__name__]["properties"])


def test_the_reference_page_is_fresh() -> None:
    written = (ROOT / "docs" / "rest.md").read_text(encoding="utf-8")
    assert written == rest_reference(__version__), (
        "run: python -m leaseplane.surfaces.rest.reference > docs/rest.md"
    )
