"""`leaseplane agent`: this machine's agents, on the command line."""

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.surfaces.cli.processes import Said

from leaseplane.dids import public_key_of

Command = Callable[..., Said]


@pytest.fixture
def agent(command: Command, tmp_path: Path) -> Command:
    return lambda *words, **more: command("agent", *words, "--data", str(tmp_path / "data"), **more)


def test_it_is_made_once_shown_and_listed(agent: Command, tmp_path: Path) -> None:
    made = agent("create", "build-1", "--json")
    did = made.json["did"]
    assert (made.status, made.json) == (0, {"ok": True, "name": "build-1", "did": did})
    assert len(public_key_of(did)) == 32
    file = tmp_path / "data" / "agents" / "build-1.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = agent("create", "build-1")
    assert (again.status, again.stdout) == (1, "")
    assert again.complaint == f"leaseplane agent create: there is an agent build-1 already, {did}\n"
    assert agent("create", "build-1", "--json").json == {
        "ok": False,
        "error": "refused",
        "message": f"there is an agent build-1 already, {did}",
    }
    assert agent("show", "build-1") == (0, f"{did}\n", "")
    assert agent("show", "build-1", "--json").json["did"] == did
    other = agent("create", "a")
    assert other.stdout.startswith("did:key:z6Mk")
    assert "LEASEPLANE_AGENT=a" in other.complaint
    assert agent("list", "--json").json == {
        "ok": True,
        "agents": [{"name": "a", "did": other.stdout.strip()}, {"name": "build-1", "did": did}],
    }
    assert [line.split() for line in agent("list").stdout.splitlines()] == [
        ["agent", "did"],
        ["a", other.stdout.strip()],
        ["build-1", did],
    ]
    private_key = json.loads(file.read_text())["privateKey"]
    for said in (made, again, other, agent("list"), agent("show", "build-1")):
        assert private_key not in said.stdout + said.stderr


def test_one_that_is_missing_is_told_and_not_made(agent: Command, tmp_path: Path) -> None:
    for name in ("typo", "default"):
        refused = agent("show", name)
        assert (refused.status, refused.stdout) == (1, "")
        assert f"this machine has no agent {name}" in refused.complaint
        assert f"leaseplane agent create {name}" in refused.complaint
    assert agent("list", "--json").json == {"ok": True, "agents": []}
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("verb", ["create", "show"])
@pytest.mark.parametrize("name", ["../x", "did:web:example.com", ""])
def test_what_cannot_be_a_name(agent: Command, verb: str, name: str) -> None:
    refused = agent(verb, name, "--json")
    assert (refused.status, refused.json["error"]) == (2, "invalid_request")
    assert "1 to 64 letters" in refused.complaint


@pytest.mark.parametrize(
    ("damage", "told"),
    [(lambda f: f.chmod(0o644), "chmod 600"), (lambda f: f.write_text("{}"), "move it away")],
)
def test_a_file_that_cannot_be_used(
    agent: Command, tmp_path: Path, damage: Callable[[Path], object], told: str
) -> None:
    assert agent("create", "a").status == 0
    damage(tmp_path / "data" / "agents" / "a.json")
    for words in (("show", "a"), ("create", "a"), ("list",)):
        refused = agent(*words)
        assert refused.status == 2
        assert told in refused.complaint


def test_agents_are_this_machines_where_a_server_elsewhere_is_asked(command: Command, tmp_path: Path) -> None:
    elsewhere = {"LEASEPLANE_URL": "https://plane.example", "LEASEPLANE_DATA": str(tmp_path / "data")}
    did = command("agent", "create", "a", **elsewhere).stdout
    assert command("agent", "show", "a", **elsewhere).stdout == did
    assert (tmp_path / "data" / "agents" / "a.json").exists()


def test_a_mistyped_agent_asks_for_nothing(command: Command, tmp_path: Path) -> None:
    refused = command(
        "acquire", "lock:x", "--agent", "typo", "--json", LEASEPLANE_DATA=str(tmp_path / "data")
    )
    assert (refused.status, refused.json["error"]) == (2, "invalid_request")
    assert "leaseplane agent create typo" in refused.complaint


def test_who_asks_is_the_agent_that_was_named(command: Command, tmp_path: Path) -> None:
    here = {"LEASEPLANE_DATA": str(tmp_path / "data")}
    did = command("agent", "create", "a", **here).stdout.strip()
    by_name = command("acquire", "lock:x", "--agent", "a", "--json", **here)
    assert by_name.json["lease"]["holder"] == did
    by_did = command("acquire", "lock:y", "--json", LEASEPLANE_AGENT="did:web:example.com", **here)
    assert by_did.json["lease"]["holder"] == "did:web:example.com"
    default = command("acquire", "lock:z", "--json", **here).json["lease"]["holder"]
    assert default == command("agent", "show", "default", **here).stdout.strip()
