"""`leaseplane verify`: where it takes the plane's keys from. What it says is tested in tests/receipts."""

import socket
from collections.abc import Callable
from pathlib import Path

from tests.surfaces.cli.processes import A, Said, Server

Command = Callable[..., Said]


def test_keys_of_a_server(command: Command, running: Server) -> None:
    granted = running.acquire("lock:x", A)
    checked = command("verify", "-", stdin=granted.raw, LEASEPLANE_URL=running.url)
    assert checked.status == 0
    assert checked.stdout.startswith("Valid: ")
    assert "Self-issued" not in checked.stdout
    changed = granted.raw.replace(b'"fence":1', b'"fence":2')
    assert changed != granted.raw
    refused = command("verify", "-", "--json", stdin=changed, LEASEPLANE_URL=running.url)
    assert (refused.status, refused.json["code"]) == (1, "answer_differs")


def test_keys_of_a_folder(command: Command, running: Server, tmp_path: Path) -> None:
    granted = running.acquire("lock:x", A)
    (tmp_path / "answer.json").write_bytes(granted.raw)
    checked = command("verify", str(tmp_path / "answer.json"), "--json", LEASEPLANE_DATA=str(running.data))
    assert checked.status == 0
    # Who can read the folder could have signed this as well.
    assert checked.json["selfIssued"] is True
    # A folder on the command line is meant more than a server in the environment.
    url = {"LEASEPLANE_URL": "http://127.0.0.1:1"}
    assert command("verify", "-", "--data", str(running.data), stdin=granted.raw, **url).status == 0


def test_no_keys_to_be_had(command: Command, running: Server, tmp_path: Path) -> None:
    granted = running.acquire("lock:x", A)
    nowhere = command("verify", "-", "--data", str(tmp_path / "typo"), stdin=granted.raw)
    assert nowhere.status == 3
    assert f"there is no plane in {tmp_path / 'typo'}" in nowhere.complaint
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    unreachable = command("verify", "-", stdin=granted.raw, LEASEPLANE_URL=f"http://127.0.0.1:{port}")
    assert unreachable.status == 3
    assert "connection refused" in unreachable.complaint


def test_a_file_that_is_not_there(command: Command) -> None:
    refused = command("verify", "/nowhere/receipt")
    assert refused.status == 2
    assert "cannot read /nowhere/receipt" in refused.complaint
