"""The OpenAPI document and the reference page: right, complete, and what the server does."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.surfaces.rest.wire import ScriptedEngine, Server

from leaseplane import __version__
from leaseplane.answers import BODY_OF, render
from leaseplane.bodies import STATUS_OF
from leaseplane.operations import OPERATIONS, Operation
from leaseplane.surfaces.rest.openapi import failures_of, openapi_document
from leaseplane.surfaces.rest.reference import rest_reference
from leaseplane.surfaces.rest.samples import OUTCOMES, REQUESTS

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
