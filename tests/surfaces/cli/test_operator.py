"""`leaseplane workspace` and `leaseplane key`, beside a running server."""

import json
import os
import re
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.surfaces.cli.processes import LEASE, A, B, Said, Server

from leaseplane.dids import did_key_of
from leaseplane.identity.api_keys import API_KEY_PATTERN
from leaseplane.identity.registry import open_registry
from leaseplane.limits import REVOKED_WITHIN_MS
from leaseplane.store.folder import DataFolder

Command = Callable[..., Said]

SIGNER = did_key_of(Ed25519PrivateKey.from_private_bytes(bytes(31) + b"\1").public_key().public_bytes_raw())
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def operate(command: Command, running: Server) -> Command:
    """A command on the running server's folder."""
    return lambda *words: command(*words, "--data", str(running.data))


@pytest.fixture
def team(running: Server, request: pytest.FixtureRequest) -> str:
    """A workspace of this test's own."""
    name = re.sub("[^a-z]", "-", request.node.name)[-60:].strip("-")
    with closing(open_registry(DataFolder(running.data), os.urandom)) as registry:
        registry.create_workspace(name, 0)
    return name


def asks(server: Server, api_key: str, actor: str) -> tuple[int, str | None]:
    answer = server.ask("POST", LEASE, {"resource": "lock:x", "actorDid": actor}, api_key=api_key)
    return answer.status, answer.body.get("error")


def test_workspaces(operate: Command) -> None:
    made = operate("workspace", "create", "blue", "--json")
    assert made.status == 0
    assert made.json["ok"] is True
    assert made.json["workspace"]["name"] == "blue"
    assert re.fullmatch(TIME, made.json["workspace"]["createdAt"])
    again = operate("workspace", "create", "blue")
    assert again.status == 1
    assert again.complaint == 'leaseplane workspace create: There is a workspace "blue" already.\n'
    plain = operate("workspace", "create", "green")
    assert plain.stdout == "workspace green is made\n"
    wrong = operate("workspace", "create", "Green!")
    assert wrong.status == 2
    assert "small letters" in wrong.complaint
    listed = operate("workspace", "list", "--json").json["workspaces"]
    assert {"blue", "green", "local"} <= {each["name"] for each in listed}
    table = operate("workspace", "list").stdout.splitlines()
    assert re.fullmatch("workspace +created", table[0])
    assert any(re.fullmatch(f"blue +{TIME}", line) for line in table)


def test_a_bound_key(operate: Command, running: Server, team: str) -> None:
    made = operate("key", "create", "--workspace", team, "--actor", A, "--label", "ci [1]", "--json")
    assert made.status == 0
    told = made.json
    api_key, key_id = told.pop("apiKey"), told["keyId"]
    assert re.fullmatch(API_KEY_PATTERN, api_key)
    assert api_key.startswith(key_id)
    assert re.fullmatch(TIME, told.pop("createdAt"))
    assert told == {
        "ok": True,
        "keyId": key_id,
        "workspace": team,
        "kind": "bound",
        "label": "ci [1]",
        "actorDid": A,
    }
    assert asks(running, api_key, A) == (200, None)
    assert asks(running, api_key, B) == (403, "actor_mismatch")


def test_a_key_is_alone_on_stdout(operate: Command, running: Server, team: str) -> None:
    made = operate("key", "create", "--workspace", team, "--any-actor")
    assert re.fullmatch(API_KEY_PATTERN + "\n", made.stdout)
    api_key = made.stdout.strip()
    assert "shown this once" in made.complaint
    assert api_key not in made.stderr
    assert asks(running, api_key, A) == (200, None)
    assert asks(running, api_key, B) == (409, "lease_held")


def test_an_operators_key_holds_nothing(operate: Command, running: Server, team: str) -> None:
    api_key = operate("key", "create", "--workspace", team, "--operator").stdout.strip()
    assert asks(running, api_key, A) == (403, "forbidden")


def test_keys_are_listed_without_their_secrets(operate: Command, team: str) -> None:
    key = operate("key", "create", "--workspace", team, "--actor", A, "--json").json
    operate("key", "create", "--workspace", team, "--operator", "--label", "ops")
    as_json = operate("key", "list", "--workspace", team, "--json")
    first, second = as_json.json["keys"]
    assert (first["keyId"], first["actorDid"]) == (key["keyId"], A)
    assert (second["kind"], second["label"]) == ("operator", "ops")
    table = operate("key", "list", "--workspace", team)
    lines = table.stdout.splitlines()
    assert lines[0].split()[:2] == ["key", "workspace"]
    assert lines[1].split()[:3] == [key["keyId"], team, A]
    assert lines[2].endswith("in use")
    assert len(lines) == 3
    assert re.search(API_KEY_PATTERN, as_json.stdout + table.stdout) is None
    assert len(operate("key", "list", "--json").json["keys"]) > 2


def test_a_revoked_key_is_refused_within_a_second(operate: Command, running: Server, team: str) -> None:
    key = operate("key", "create", "--workspace", team, "--any-actor", "--json").json
    assert asks(running, key["apiKey"], A) == (200, None)
    revoked = operate("key", "revoke", key["keyId"], "--json")
    began = time.monotonic()
    while asks(running, key["apiKey"], A) != (401, "unauthenticated"):
        assert (time.monotonic() - began) * 1000 < REVOKED_WITHIN_MS
        time.sleep(0.02)
    assert revoked.status == 0
    assert revoked.json["revoked"]["keyId"] == key["keyId"]
    assert re.fullmatch(TIME, revoked.json["revoked"]["revokedAt"])
    again = operate("key", "revoke", key["keyId"])
    assert again.stdout == f"key {key['keyId']} of workspace {team} is revoked\n"
    assert "revoked 20" in operate("key", "list", "--workspace", team).stdout


def test_a_key_that_there_is_not(operate: Command, team: str) -> None:
    whole = operate("key", "create", "--workspace", team, "--any-actor").stdout.strip()
    for key_id in (whole, "lpk_000000000000"):
        refused = operate("key", "revoke", key_id, "--json")
        assert refused.status == 1
        assert "`key list`" in refused.json["message"]
        assert refused.json["error"] == "refused"
        assert ("Its id is its first part" in refused.json["message"]) is (key_id == whole)
        # Who pastes a whole key by mistake does not find it in the log of a terminal once more.
        assert whole[17:] not in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        (["--workspace", "w"], 2, "one of the arguments --actor --any-actor --operator is required"),
        (["--workspace", "w", "--operator", "--any-actor"], 2, "not allowed with argument"),
        (["--any-actor"], 2, "the following arguments are required: --workspace"),
        (
            ["--workspace", "nowhere", "--any-actor"],
            1,
            "no workspace 'nowhere'; `leaseplane workspace list`",
        ),
        (["--workspace", "local", "--actor", "agent-7"], 2, "DID"),
        (["--workspace", "local", "--any-actor", "--label", "a\nb"], 2, "label"),
    ],
)
def test_keys_that_cannot_be(
    in_process: Command, running: Server, words: list[str], status: int, complaint: str
) -> None:
    refused = in_process("key", "create", *words, LEASEPLANE_DATA=str(running.data))
    assert refused.status == status
    assert complaint in refused.complaint
    assert refused.stdout == ""


def test_agents_that_sign(operate: Command, team: str) -> None:
    admitted = operate("workspace", "admit", SIGNER, "--workspace", team, "--json")
    assert admitted.status == 0
    assert (admitted.json["agent"]["actorDid"], admitted.json["agent"]["workspace"]) == (SIGNER, team)
    listed = operate("workspace", "agents", "--workspace", team, "--json").json["agents"]
    assert listed == [admitted.json["agent"]]
    assert SIGNER in operate("workspace", "agents").stdout
    elsewhere = operate("workspace", "admit", SIGNER, "--workspace", "local")
    assert elsewhere.status == 1
    assert "another workspace" in elsewhere.complaint
    dismissed = operate("workspace", "dismiss", SIGNER, "--workspace", team, "--json")
    assert dismissed.json == {"ok": True, "dismissed": {"actorDid": SIGNER, "workspace": team}}
    again = operate("workspace", "dismiss", SIGNER, "--workspace", team)
    assert again.status == 1
    assert "is not admitted" in again.complaint
    assert operate("workspace", "admit", SIGNER, "--workspace", "local").stdout.endswith("workspace local\n")
    assert operate("workspace", "dismiss", SIGNER, "--workspace", "local").status == 0


def test_agents_that_cannot_sign(operate: Command) -> None:
    wrong = operate("workspace", "admit", A, "--workspace", "local")
    assert wrong.status == 2
    assert "did:key" in wrong.complaint
    nowhere = operate("workspace", "admit", SIGNER, "--workspace", "nowhere")
    assert nowhere.status == 1
    assert "there is no workspace" in nowhere.complaint


@pytest.mark.parametrize(
    "words",
    [
        ["workspace", "list"],
        ["workspace", "agents"],
        ["workspace", "admit", SIGNER, "--workspace", "local"],
        ["key", "list"],
        ["key", "create", "--workspace", "local", "--any-actor"],
        ["key", "revoke", "lpk_000000000000"],
        ["key", "rotate-signing"],
        ["break", "lock:x", "--reason", "r"],
    ],
    ids=" ".join,
)
def test_a_mistyped_folder_is_told_and_not_made(
    in_process: Command, tmp_path: Path, words: list[str]
) -> None:
    refused = in_process(*words, LEASEPLANE_DATA=str(tmp_path / "typo"))
    assert refused.status == 2
    assert f"there is no plane in {tmp_path / 'typo'}" in refused.complaint
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["workspace", "create", "w"],
        ["workspace", "list"],
        ["workspace", "agents"],
        ["workspace", "admit", SIGNER, "--workspace", "local"],
        ["workspace", "dismiss", SIGNER, "--workspace", "local"],
        ["key", "list"],
        ["key", "create", "--workspace", "local", "--any-actor"],
        ["key", "revoke", "lpk_000000000000"],
        ["key", "rotate-signing"],
    ],
    ids=" ".join,
)
def test_what_works_on_a_folder_is_not_done_in_place_of_a_server(
    in_process: Command, running: Server, words: list[str]
) -> None:
    url = {"LEASEPLANE_URL": running.url, "LEASEPLANE_DATA": str(running.data)}
    refused = in_process(*words, "--json", **url)
    assert (refused.status, refused.json["error"]) == (2, "invalid_request")
    assert "name the folder with --data" in refused.complaint
    if words[-1] in ("list", "agents"):
        assert in_process(*words, "--data", str(running.data), **url).status == 0


def test_a_workspace_can_be_made_before_the_first_start(
    command: Command, serve: Callable[..., Server], tmp_path: Path
) -> None:
    data = str(tmp_path / "data")
    assert command("workspace", "create", "early", "--data", data).status == 0
    api_key = command("key", "create", "--workspace", "early", "--any-actor", "--data", data).stdout.strip()
    server = serve()
    assert asks(server, api_key, A) == (200, None)


def test_the_signing_key_is_rotated_while_the_server_runs(
    operate: Command, command: Command, running: Server, tmp_path: Path
) -> None:
    before = running.acquire("lock:rotated", A)
    rotated = operate("key", "rotate-signing", "--json").json
    after = running.acquire("lock:rotated", A)
    jwks = running.ask("GET", "/.well-known/jwks.json")
    kids = [key["kid"] for key in jwks.body["keys"]]
    assert kids[-2:] == [rotated["retiredKid"], rotated["kid"]]
    (tmp_path / "jwks.json").write_bytes(jwks.raw)
    for answer in (before, after):
        checked = command("verify", "-", "--jwks", str(tmp_path / "jwks.json"), "--json", stdin=answer.raw)
        assert (checked.status, checked.json["code"]) == (0, "valid")
    assert kid_of(before.body["receipt"]) == rotated["retiredKid"]
    assert kid_of(after.body["receipt"]) == rotated["kid"]
    assert "is retired" in operate("key", "rotate-signing").stdout


def kid_of(receipt: str) -> str:
    from leaseplane.receipts import base64url

    header: dict[str, str] = json.loads(base64url.decode(receipt.split(".")[0].encode()))
    return header["kid"]
