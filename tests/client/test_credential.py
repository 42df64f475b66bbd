"""What is shown to a server, and which server is shown what."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.surfaces.cli.processes import LEASE, WAIT, Server, leaseplane_command

from leaseplane.client.credential import Bearer, Credential, Signing, credential_for, is_loopback
from leaseplane.clock import SystemClock
from leaseplane.identity.agents import AgentUnknown, create_agent
from leaseplane.identity.api_keys import mint_api_key
from leaseplane.secret import Secret
from leaseplane.settings import SettingRefused, Settings, read_settings
from leaseplane.store.folder import DataFolder, FolderRefused

NOW_S = 1_764_500_000
HERE, ELSEWHERE = "http://127.0.0.1:7411", "https://plane.example"
KEPT = mint_api_key(os.urandom)[1]
ANOTHER = mint_api_key(os.urandom)[1]
DID = "did:web:example.com"


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return DataFolder.open(tmp_path / "data")


@pytest.fixture
def kept(folder: DataFolder) -> DataFolder:
    """A folder in which a server has left its key."""
    folder.api_key.write_text(KEPT.reveal() + "\n")
    folder.api_key.chmod(0o600)
    return folder


def settings(folder: DataFolder, url: str, api_key: Secret | None = None) -> Settings:
    read = read_settings({"LEASEPLANE_DATA": str(folder.path), "LEASEPLANE_URL": url})
    return msgspec.structs.replace(read, api_key=api_key)


def shown(credential: Credential) -> dict[str, str]:
    return dict(credential.headers("POST", f"{HERE}{LEASE}", b"{}", now_s=NOW_S))


def bearer(api_key: Secret) -> dict[str, str]:
    return {"authorization": f"Bearer {api_key.reveal()}"}


# -- which one ---------------------------------------------------------------------------------


@pytest.mark.parametrize("url", [HERE, ELSEWHERE])
def test_the_key_of_the_settings_comes_first(kept: DataFolder, url: str) -> None:
    assert shown(credential_for(settings(kept, url, ANOTHER), kept, "default")) == bearer(ANOTHER)
    assert not kept.agents.exists()


@pytest.mark.parametrize(
    "url", [HERE, "http://localhost:7411", "http://LOCALHOST", "http://[::1]:80", "http://127.9.9.9/plane"]
)
def test_then_the_key_in_the_folder_at_a_loopback_address(kept: DataFolder, url: str) -> None:
    assert shown(credential_for(settings(kept, url), kept, "default")) == bearer(KEPT)
    # The key vouches for any agent, so no key of the agent is needed.
    assert shown(credential_for(settings(kept, url), kept, DID)) == bearer(KEPT)


@pytest.mark.parametrize(
    "url",
    [
        ELSEWHERE,
        "http://10.0.0.1:7411",
        "http://localhost.example",
        "http://127.0.0.1.example",
        "http://127.1",
        "http://0177.0.0.1",
        "http://2130706433",
        "http://0.0.0.0",
        "http://[::]",
        "http://[::2]",
        "http://[::ffff:10.0.0.1]",
        "http://plane.localhost",
    ],
)
def test_it_never_leaves_this_machine(kept: DataFolder, url: str) -> None:
    assert not is_loopback(url)
    create_agent(kept, "a", random_bytes=os.urandom)
    credential = credential_for(settings(kept, url), kept, "a")
    assert isinstance(credential, Signing)
    assert KEPT.reveal() not in json.dumps(shown(credential))
    with pytest.raises(SettingRefused):
        credential_for(settings(kept, url), kept, DID)


def test_then_the_agents_own_key(folder: DataFolder) -> None:
    agent = create_agent(folder, "a", random_bytes=os.urandom)
    for url in (HERE, ELSEWHERE):
        fields = shown(credential_for(settings(folder, url), folder, "a"))
        assert sorted(fields) == ["content-digest", "signature", "signature-input"]
        assert f'keyid="{agent.did}"' in fields["signature-input"]
        assert f"created={NOW_S}" in fields["signature-input"]


def test_the_default_agent_is_made_and_no_other(folder: DataFolder) -> None:
    assert isinstance(credential_for(settings(folder, ELSEWHERE), folder, "default"), Signing)
    with pytest.raises(AgentUnknown, match="leaseplane agent create typo"):
        credential_for(settings(folder, ELSEWHERE), folder, "typo")
    assert [path.name for path in folder.agents.iterdir()] == ["default.json"]


def test_with_nothing_to_show_it_is_said_what_to_do(folder: DataFolder) -> None:
    with pytest.raises(SettingRefused, match=f"LEASEPLANE_API_KEY.*{DID}.*leaseplane agent list"):
        credential_for(settings(folder, ELSEWHERE), folder, DID)


# -- the key in the folder ---------------------------------------------------------------------


def test_one_that_is_open_to_others_is_not_shown(kept: DataFolder) -> None:
    kept.api_key.chmod(0o644)
    with pytest.raises(FolderRefused, match=r"mode 0644.*chmod 600 '.*api-key'"):
        credential_for(settings(kept, HERE), kept, "default")
    # It is not looked at for a server elsewhere.
    credential_for(settings(kept, ELSEWHERE), kept, "default")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_one_of_somebody_elses_is_not_shown(kept: DataFolder) -> None:
    os.chown(kept.api_key, 4_711, -1)
    with pytest.raises(FolderRefused, match="belongs to user 4711"):
        credential_for(settings(kept, HERE), kept, "default")


@pytest.mark.parametrize("damage", ["", "lpk_", "x" * 5_000, "ä"])
def test_a_damaged_one_is_not_shown(kept: DataFolder, damage: str) -> None:
    kept.api_key.write_text(damage)
    with pytest.raises(FolderRefused, match="move it away"):
        credential_for(settings(kept, HERE), kept, "default")


def test_a_mistyped_one_is_not_repeated(kept: DataFolder) -> None:
    mistyped = KEPT.reveal()[:-1] + ("0" if KEPT.reveal()[-1] != "0" else "1")
    kept.api_key.write_text(mistyped)
    with pytest.raises(FolderRefused, match="does not hold an API key") as caught:
        credential_for(settings(kept, HERE), kept, "default")
    assert mistyped not in str(caught.value)


def test_no_secret_is_in_a_representation(kept: DataFolder) -> None:
    assert KEPT.reveal() not in repr(credential_for(settings(kept, HERE), kept, "default"))
    assert isinstance(credential_for(settings(kept, HERE), kept, "default"), Bearer)


# -- against a server --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    server = Server(home, home / "plane")
    yield server
    server.close()


def send(credential: Credential, method: str, url: str, members: dict[str, str] | None) -> tuple[int, dict]:
    body = json.dumps(members).encode() if members else b""
    fields = dict(credential.headers(method, url, body, now_s=SystemClock().now().wall_ms // 1_000))
    request = urllib.request.Request(url, body or None, fields, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def test_the_key_that_the_server_left_opens_it(running: Server) -> None:
    folder = DataFolder(running.data)
    credential = credential_for(settings(folder, running.url), folder, DID)
    asked = {"resource": "lock:local", "actorDid": DID}
    assert send(credential, "POST", running.url + LEASE, asked)[0] == 200


def test_a_signature_counts_once_the_operator_has_admitted_the_agent(
    running: Server, folder: DataFolder, tmp_path: Path
) -> None:
    agent = create_agent(folder, "a", random_bytes=os.urandom)
    credential = credential_for(settings(folder, running.url), folder, "a")
    asked = {"resource": "lock:signed", "actorDid": agent.did}
    refused, body = send(credential, "POST", running.url + LEASE, asked)
    assert (refused, body["error"]) == (401, "unauthenticated")
    assert "no operator has admitted this agent" in body["message"]

    def operate(verb: str) -> int:
        words = ("workspace", verb, agent.did, "--workspace", "local", "--data", str(running.data))
        return leaseplane_command(tmp_path, *words).status

    assert operate("admit") == 0
    # Twice: each request has a nonce of its own.
    for renewed in (False, True):
        status, body = send(credential, "POST", running.url + LEASE, asked)
        assert (status, body["lease"]["holder"], body["lease"]["renewed"]) == (200, agent.did, renewed)
    assert send(credential, "GET", f"{running.url}{WAIT}?resource=lock%3Asigned", None)[0] == 200
    another = {"resource": "lock:signed", "actorDid": DID}
    assert send(credential, "POST", running.url + LEASE, another)[1]["error"] == "actor_mismatch"
    assert operate("dismiss") == 0
    assert send(credential, "POST", running.url + LEASE, asked)[0] == 401
