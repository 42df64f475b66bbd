"""Statements: every answer of the three routes is stated as what it is, and no other answer is."""

import msgspec
import pytest

from leaseplane.answers import CODE_OF, render
from leaseplane.model import (
    Acquire,
    Ask,
    Break,
    Command,
    Granted,
    ListWaits,
    Outcome,
    Principal,
    ReadTrust,
    Release,
    Reply,
    RequestFacts,
    Withdraw,
)
from leaseplane.operations import OPERATIONS, Operation
from leaseplane.receipts.canonical import sha256_hex
from leaseplane.statements import statement_of
from leaseplane.surfaces.rest.samples import ADA, OUTCOMES

RESOURCE = "lock:deploy/production"
COMMANDS: dict[type, Command] = {
    Acquire: Acquire(RESOURCE, ADA),
    Release: Release(RESOURCE, ADA),
    ListWaits: ListWaits(RESOURCE, ADA),
    Withdraw: Withdraw(RESOURCE, ADA),
    ReadTrust: ReadTrust(ADA),
    Break: Break(RESOURCE, "stuck"),
}
CASES = [(operation, outcome) for operation in OPERATIONS for outcome in operation.outcomes]


def stated(command: Command, outcome: Outcome) -> dict[str, object] | None:
    ask = Ask(
        principal=Principal("acme", "api-key-bound", credential="lpk_1", actor=ADA),
        command=command,
        jti="j1",
        request_id="r1",
        process_id="p1",
        request=RequestFacts("POST", "/path", "ab" * 32),
    )
    # A repeat is answered under the first one's id and date, not under its own.
    statement = statement_of(ask, Reply(outcome, "j0", 1_767_225_600), sha256_hex(b"answer"))
    return None if statement is None else msgspec.to_builtins(statement)


@pytest.mark.parametrize(
    ("operation", "outcome"), CASES, ids=[f"{row.name}-{outcome.__name__}" for row, outcome in CASES]
)
def test_every_200_and_409_of_the_three_routes_is_stated_as_what_it_is(
    operation: Operation, outcome: type[Outcome]
) -> None:
    sample = OUTCOMES[outcome]
    status = render(sample).status
    statement = stated(COMMANDS[operation.command], sample)
    if operation.receipt_op is None or status not in (200, 409):
        assert statement is None
        return
    assert statement is not None
    assert statement["op"] == operation.receipt_op
    assert statement.get("code") == CODE_OF[outcome]
    assert (statement["outcome"] == "refused") is (CODE_OF[outcome] is not None)
    assert statement["answer"] == {"digest": sha256_hex(b"answer"), "status": status}
    assert (statement["jti"], statement["iat"], statement["workspace"]) == ("j0", 1_767_225_600, "acme")
    assert statement["auth"] == "api-key-bound"
    assert statement["request"] == {"method": "POST", "path": "/path", "digest": "ab" * 32}
    assert (statement["actorDid"], statement["resource"]) == (ADA, RESOURCE)
    assert ("lease" in statement) is (statement["outcome"] in ("granted", "renewed", "released"))
    if "lease" in statement:
        assert statement["lease"] == {
            "leaseId": "lease-19b76daa800",
            "fence": 1_767_225_600_000,
            "grantedAt": "2026-01-01T00:00:00.000Z",
            "expiresAt": "2026-01-01T00:00:30.000Z",
        }


def test_a_renewal_is_stated_as_one() -> None:
    granted = OUTCOMES[Granted]
    assert isinstance(granted, Granted)
    for renewed, told in ((False, "granted"), (True, "renewed")):
        statement = stated(COMMANDS[Acquire], msgspec.structs.replace(granted, renewed=renewed))
        assert statement is not None and statement["outcome"] == told


def test_a_list_that_was_not_narrowed_names_nobody() -> None:
    for outcome in (sample for kind, sample in OUTCOMES.items() if kind.__name__ == "Listed"):
        statement = stated(ListWaits(), outcome)
        assert statement is not None and not {"actorDid", "resource"} & statement.keys()
