"""Who may ask for what: the whole table, for every kind of credential and every command."""

import pytest

from leaseplane.identity.access import ActorMismatch, Forbidden, authorise
from leaseplane.model import (
    Acquire,
    Auth,
    Break,
    Command,
    ListWaits,
    Principal,
    ReadTrust,
    Release,
    Withdraw,
)

A, B = "did:web:example.com:a", "did:web:example.com:b"


def principal(auth: Auth, actor: str | None = None, *, operator: bool = False) -> Principal:
    return Principal("w", auth, credential="c", actor=actor, operator=operator)


CREDENTIALS = {
    "bound to A": principal("api-key-bound", A),
    "signed by A": principal("http-signature", A),
    "any actor": principal("api-key"),
    "test": principal("test-key"),
    "operator": principal("api-key", operator=True),
}
COMMANDS: dict[str, Command] = {
    "acquire as A": Acquire("lock:r", A),
    "acquire as B": Acquire("lock:r", B),
    "release as A": Release("lock:r", A),
    "release as B": Release("lock:r", B),
    "withdraw A": Withdraw("lock:r", A),
    "withdraw B": Withdraw("lock:r", B),
    "list": ListWaits(),
    "list A": ListWaits(actor=A),
    "list B": ListWaits(actor=B),
    "trust of A": ReadTrust(A),
    "trust of B": ReadTrust(B),
    "break": Break("lock:r", "stuck"),
}
TABLE = """
                bound to A   signed by A   any actor   test        operator
acquire as A    yes          yes           yes         yes         forbidden
acquire as B    mismatch     mismatch      yes         yes         forbidden
release as A    yes          yes           yes         yes         forbidden
release as B    mismatch     mismatch      yes         yes         forbidden
withdraw A      yes          yes           yes         yes         forbidden
withdraw B      mismatch     mismatch      yes         yes         forbidden
list            yes          yes           yes         yes         yes
list A          yes          yes           yes         yes         yes
list B          yes          yes           yes         yes         yes
trust of A      yes          yes           yes         yes         yes
trust of B      yes          yes           yes         yes         yes
break           forbidden    forbidden     forbidden   forbidden   yes
"""


def cells() -> list[tuple[str, str, str]]:
    lines = TABLE.strip("\n").splitlines()
    return [
        (line[:16].strip(), credential, answer)
        for line in lines[1:]
        for credential, answer in zip(CREDENTIALS, line[16:].split(), strict=True)
    ]


@pytest.mark.parametrize(("command", "credential", "answer"), cells())
def test_the_table(command: str, credential: str, answer: str) -> None:
    asked = (CREDENTIALS[credential], COMMANDS[command])
    match answer:
        case "yes":
            authorise(*asked)
        case "mismatch":
            with pytest.raises(ActorMismatch, match=A):
                authorise(*asked)
        case _:
            assert answer == "forbidden"
            with pytest.raises(Forbidden):
                authorise(*asked)


def test_the_table_is_whole() -> None:
    assert {(command, credential) for command, credential, _ in cells()} == {
        (command, credential) for command in COMMANDS for credential in CREDENTIALS
    }
    assert {type(command) for command in COMMANDS.values()} == set(Command.__args__)  # type: ignore[attr-defined]  # a union has them


def test_case_tells_agents_apart() -> None:
    with pytest.raises(ActorMismatch):
        authorise(CREDENTIALS["bound to A"], Acquire("lock:r", A.replace(":a", ":A")))
