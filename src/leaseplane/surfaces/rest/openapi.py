"""The OpenAPI document, derived from the operations and the bodies.

Schemas come from the types that requests are read into and answers are written from; examples are
rendered by the code that renders answers. Nothing in it is kept by hand but what no type says.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UnsetType

from leaseplane.answers import BODY_OF, CODE_OF, refuse, render
from leaseplane.bodies import STATUS_OF, ErrorBody, ErrorCode
from leaseplane.limits import BODY_BYTES_MAX, IDEMPOTENCY_KEPT_MS, IDEMPOTENCY_KEY_CHARS_MAX
from leaseplane.model import Outcome
from leaseplane.operations import OPERATIONS, Operation
from leaseplane.surfaces.rest.samples import FURTHER, OUTCOMES, REQUESTS

Json: TypeAlias = dict[str, Any]

_SCHEMA_AT: Final = "#/components/schemas/{name}"

FAILURES: Final[dict[ErrorCode, str]] = {
    "invalid_request": "What was sent is no request of this kind; `field` names what is at fault.",
    "unauthenticated": "It is not known who asks.",
    "actor_mismatch": "An authenticated agent named another.",
    "forbidden": "A credential without that right, or a foreign Host or Origin.",
    "not_found": "There is nothing at this path.",
    "method_not_allowed": "This path takes other methods; Allow lists them.",
    "body_too_large": f"The body is over {BODY_BYTES_MAX} bytes.",
    "quota_exhausted": "The credential's quota is used up; `quota` names it.",
    "too_many": "A bound of the workspace is reached; `bound` and `limit` name it.",
    "internal_error": "A fault in the plane. It may or may not have happened before the decision stood.",
    "authority_unavailable": "The lease authority cannot be reached. No lease was granted.",
    "outcome_unknown": "The decision may or may not stand: repeat with the same Idempotency-Key.",
}
"""The errors that are no refusal by the rules, each in one sentence."""

_RETRY_AFTER: Final[Json] = {
    "description": "Whole seconds after which asking again makes sense (RFC 9110, 10.2.3).",
    "schema": {"type": "integer", "minimum": 1},
}
_RETRIED: Final = frozenset(("lease_held", "quota_exhausted", "too_many", "authority_unavailable"))


def openapi_document(version: str) -> Json:
    """The OpenAPI 3.1 document of the REST surface of this `version` of leaseplane."""
    paths: Json = {}
    shared: Json = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, shared)
    for path, (name, sentence, content_type, schema, failing) in DOCUMENTS.items():
        responses: Json = {
            "200": {"description": sentence, "content": {content_type: {"schema": schema}}},
            "400": _failures(400, ("invalid_request",), shared),
            "403": _failures(403, ("forbidden",), shared),
            "500": _failures(500, ("internal_error",), shared),
        }
        if failing:
            responses["503"] = _failures(503, ("authority_unavailable",), shared)
        paths[path] = {
            "get": {
                "operationId": name,
                "summary": sentence,
                "tags": ["server"],
                "security": [],
                "responses": responses,
            }
        }
    return {
        "openapi": "3.1.1",
        "jsonSchemaDialect": "https://spec.openapis.org/oas/3.1/dialect/base",
        "info": {
            "title": "leaseplane",
            "version": version,
            "summary": "Leases for AI agents: one holder at a time, a fair queue, deadlocks refused.",
            "description": (
                "Every error is an object with `ok` false, a code in `error` and a `message` that says what "
                "to do. A path that is not listed here is answered 404 `not_found`, and another method on "
                "one that is 405 `method_not_allowed`, with an Allow header. A request whose header or body "
                "is not complete within 20 s is closed."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [
            {"name": "coordination", "description": "Leases, the queue, deadlocks and trust."},
            {"name": "server", "description": "The server itself. These need no credential."},
        ],
        "security": [{"apiKey": []}, {"httpSignature": []}],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "responses": {name: shared[name] for name in sorted(shared)},
            "securitySchemes": {
                "apiKey": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key of the workspace.",
                },
                "httpSignature": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Signature",
                    "description": (
                        "An HTTP message signature (RFC 9421, Ed25519) by the key of the agent's did:key, "
                        "over method, target URI, content digest, creation time and nonce; with "
                        "Signature-Input and Content-Digest. It authenticates the agent as itself only."
                    ),
                },
            },
        },
    }


# -- one operation -----------------------------------------------------------------------------


def _operation(operation: Operation, shared: Json) -> Json:
    described: Json = {
        "operationId": operation.name.replace(".", "_"),
        "summary": operation.sentence,
        "tags": ["coordination"],
        "responses": _responses(operation, shared),
    }
    parameters: list[Json] = []
    if operation.source != "body":
        parameters += _query_parameters(operation)
    if operation.keyed:
        parameters.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": (
                    "Makes a repeat answer what the first one answered (200 and 409 only), for "
                    f"{IDEMPOTENCY_KEPT_MS // 60_000} minutes. The same key with another body is refused: "
                    "make one up for each request."
                ),
                "schema": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": IDEMPOTENCY_KEY_CHARS_MAX,
                    "pattern": "^[ -~]+$",
                },
            }
        )
    if parameters:
        described["parameters"] = parameters
    if operation.source == "body":
        described["requestBody"] = {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"$ref": _SCHEMA_AT.format(name=operation.request.__name__)},
                    "example": REQUESTS[operation],
                }
            },
        }
    elif operation.source == "query or body":
        described["description"] = "The same members may be sent as a JSON object in the body instead."
    return described


def _query_parameters(operation: Operation) -> list[Json]:
    schema = _component_schemas((operation.request,))[operation.request.__name__]
    parameters: list[Json] = []
    for name, member in schema["properties"].items():
        of_value = {key: value for key, value in member.items() if key not in ("description", "examples")}
        parameter: Json = {
            "name": name,
            "in": "query",
            # Where it may be in the body instead, only the way of asking that is described here needs it.
            "required": name in schema.get("required", ()),
            "description": member["description"],
            "schema": of_value,
        }
        if name in REQUESTS[operation]:
            parameter["example"] = REQUESTS[operation][name]
        parameters.append(parameter)
    return parameters


def _responses(operation: Operation, shared: Json) -> Json:
    outcomes_at: dict[int, list[type[Outcome]]] = {}
    codes_at: dict[int, list[ErrorCode]] = {}
    for outcome in operation.outcomes:
        code = CODE_OF[outcome]
        if BODY_OF[outcome] is not ErrorBody:
            outcomes_at.setdefault(200 if code is None else STATUS_OF[code], []).append(outcome)
    for code in failures_of(operation):
        codes_at.setdefault(STATUS_OF[code], []).append(code)
    responses: Json = {}
    for status, outcomes in outcomes_at.items():
        responses[str(status)] = _outcomes(outcomes)
    for status, codes in codes_at.items():
        responses[str(status)] = _failures(status, tuple(codes), shared)
    return {status: responses[status] for status in sorted(responses)}


def failures_of(operation: Operation) -> tuple[ErrorCode, ...]:
    """The codes that this operation can be answered with although the rules refused nothing."""
    codes: list[ErrorCode] = ["invalid_request", "unauthenticated"]
    codes += ["actor_mismatch", "forbidden"] if not operation.read_only else ["forbidden"]
    codes += ["body_too_large", "quota_exhausted"]
    if any(CODE_OF[outcome] == "too_many" for outcome in operation.outcomes):
        codes.append("too_many")
    codes += ["internal_error", "authority_unavailable"]
    if not operation.read_only:
        codes.append("outcome_unknown")
    return tuple(codes)


def _outcomes(outcomes: list[type[Outcome]]) -> Json:
    bodies = [{"$ref": _SCHEMA_AT.format(name=BODY_OF[outcome].__name__)} for outcome in outcomes]
    response: Json = {
        "description": " ".join(_first_sentence(BODY_OF[outcome]) for outcome in outcomes),
        "content": {
            "application/json": {
                "schema": bodies[0] if len(bodies) == 1 else {"oneOf": bodies},
                "examples": {
                    CODE_OF[outcome] or "ok": {"value": body_sample(OUTCOMES[outcome])}
                    for outcome in outcomes
                }
                | {
                    f"{CODE_OF[outcome] or 'ok'} {case}".replace(" ", "_"): {
                        "summary": case,
                        "value": body_sample(answered),
                    }
                    for outcome in outcomes
                    for case, answered in FURTHER.get(outcome, ())
                },
            }
        },
    }
    if any(CODE_OF[outcome] in _RETRIED for outcome in outcomes):
        response["headers"] = {"Retry-After": _RETRY_AFTER}
    return response


def _failures(status: int, codes: tuple[ErrorCode, ...], shared: Json) -> Json:
    """A reference to the response for these codes, which is put into `shared`."""
    response: Json = {
        "description": " ".join(f"`{code}`: {FAILURES[code]}" for code in codes),
        "content": {
            "application/json": {
                "schema": {
                    "allOf": [
                        {"$ref": _SCHEMA_AT.format(name=ErrorBody.__name__)},
                        {"type": "object", "properties": {"error": {"enum": list(codes)}}},
                    ]
                },
                "examples": {code: {"value": failure_sample(code)} for code in codes},
            }
        },
    }
    if status == 401:
        response["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    elif any(code in _RETRIED for code in codes):
        response["headers"] = {"Retry-After": _RETRY_AFTER}
    name = "_or_".join(codes)
    shared[name] = response
    return {"$ref": f"#/components/responses/{name}"}


# -- samples and schemas -----------------------------------------------------------------------


def body_sample(outcome: Outcome) -> Json:
    """The body of this answer, as the plane would write it (its receipt aside)."""
    sample: Json = msgspec.json.decode(render(outcome).body_without_receipt)
    return sample


def failure_sample(code: ErrorCode) -> Json:
    """An error body of this code."""
    sample: Json = msgspec.json.decode(refuse(code, FAILURES[code]).body_without_receipt)
    return sample


def _first_sentence(body: type[msgspec.Struct]) -> str:
    assert body.__doc__ is not None, "every body says what it is"
    return body.__doc__.split(". ")[0].rstrip(".\n") + "."


def _schemas() -> Json:
    bodies = tuple(dict.fromkeys(BODY_OF.values()))
    requests = tuple(operation.request for operation in OPERATIONS if operation.source == "body")
    schemas = _component_schemas((*bodies, ErrorBody, *requests))
    for body in _with_parts(bodies):
        schemas[body.__name__]["required"] = _always_there(body)
    return {name: _with_constants(schemas[name]) for name in sorted(schemas)}


def _component_schemas(types: tuple[type[msgspec.Struct], ...]) -> Json:
    _, schemas = msgspec.json.schema_components(types, ref_template=_SCHEMA_AT)
    return dict(schemas)


def _with_parts(bodies: tuple[type[msgspec.Struct], ...]) -> list[type[msgspec.Struct]]:
    """The bodies and the structures within them."""
    found: dict[type[msgspec.Struct], None] = {}
    pending: list[Any] = list(bodies)
    while pending:
        each = pending.pop()
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            if each not in found:
                found[each] = None
                pending += [field.type for field in msgspec.structs.fields(each)]
        else:
            pending += getattr(each, "__args__", ())
    return list(found)


def _always_there(body: type[msgspec.Struct]) -> list[str]:
    # A member with a default is optional to a reader of the type, and yet always written.
    return [
        field.encode_name
        for field in msgspec.structs.fields(body)
        if UnsetType not in getattr(field.type, "__args__", ())
    ]


def _with_constants(schema: Mapping[str, Any]) -> Json:
    properties: Json = {}
    for name, member in schema.get("properties", {}).items():
        if len(member.get("enum", ())) == 1:
            properties[name] = {"const": member["enum"][0]}
        else:
            properties[name] = {key: value for key, value in member.items() if key != "default"}
    return {**schema, "properties": properties}


DOCUMENTS: Final[dict[str, tuple[str, str, str, Json, bool]]] = {
    "/healthz": ("healthz", "The process is up.", "application/json", {"type": "object"}, False),
    "/readyz": ("readyz", "The authority's store answers.", "application/json", {"type": "object"}, True),
    "/metrics": (
        "metrics",
        "Counters and gauges, in the text format of Prometheus.",
        "text/plain",
        {"type": "string"},
        False,
    ),
    "/openapi.json": ("openapi", "This document.", "application/json", {"type": "object"}, False),
    "/.well-known/jwks.json": (
        "jwks",
        "Every key that ever signed a receipt, as a JWK set (RFC 7517).",
        "application/json",
        {"type": "object", "required": ["keys"], "properties": {"keys": {"type": "array"}}},
        False,
    ),
    "/.well-known/did.json": (
        "did_document",
        "The same keys as a DID document (W3C DID Core).",
        "application/json",
        {"type": "object", "required": ["id"]},
        False,
    ),
}
"""The server's own documents: operation id, what it is, content type, schema, whether 503 can happen."""
