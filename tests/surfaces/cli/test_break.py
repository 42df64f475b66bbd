"""`leaseplane break`: on the folder beside a running server, and over HTTP."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.surfaces.cli.processes import A, B, ParkedCaller, Said, Server

Command = Callable[..., Said]


@pytest.fixture
def operator(command: Command, running: Server) -> dict[str, str]:
    """The settings of someone with an operator's key."""
    data = str(running.data)
    made = command("key", "create", "--workspace", "local", "--operator", "--data", data)
    return {"LEASEPLANE_URL": running.url, "LEASEPLANE_API_KEY": made.stdout.strip()}


def test_beside_a_running_server_the_next_parked_one_is_served(command: Command, running: Server) -> None:
    held = running.acquire("lock:a", A).body["lease"]
    parked = ParkedCaller(running, "lock:a", B)
    broken = command("break", "lock:a", "--reason", "stuck", "--data", str(running.data), "--json")
    assert broken.status == 0
    assert (broken.json["ok"], broken.json["resource"], broken.json["reason"]) == (True, "lock:a", "stuck")
    (lease,) = broken.json["broken"]
    assert (lease["leaseId"], lease["holder"]) == (held["leaseId"], A)
    answer = parked.answer()
    assert (answer.status, answer.body["lease"]["holder"]) == (200, B)
    assert answer.body["lease"]["fence"] > held["fence"]
    trust = running.ask("GET", f"/api/v1/acp/trust?actorDid={A}").body
    assert (trust["score"], trust["expired"]) == (50, 0)


def test_over_http_with_an_operators_key(command: Command, running: Server, operator: dict[str, str]) -> None:
    running.acquire("lock:b", A)
    parked = ParkedCaller(running, "lock:b", B)
    broken = command("break", "lock:b", "--reason", "stuck", **operator)
    assert broken.status == 0
    assert broken.stdout.startswith(f"lock:b was taken from {A} (lease lease-")
    assert parked.answer().status == 200


def test_an_agents_key_may_not(command: Command, running: Server) -> None:
    running.acquire("lock:c", A)
    settings = {"LEASEPLANE_URL": running.url, "LEASEPLANE_API_KEY": running.api_key}
    refused = command("break", "lock:c", "--reason", "r", "--json", **settings)
    assert refused.status == 1
    assert refused.json["error"] == "forbidden"
    assert refused.complaint == f"leaseplane break: {refused.json['message']}\n"
    assert running.acquire("lock:c", B).status == 409


def test_a_revoked_key_is_not_authorised(command: Command, running: Server) -> None:
    settings = {"LEASEPLANE_URL": running.url, "LEASEPLANE_API_KEY": "lpk_wrong"}
    refused = command("break", "lock:c", "--reason", "r", **settings)
    assert refused.status == 1
    assert "API key" in refused.complaint


def test_nobody_holds_it(command: Command, running: Server, operator: dict[str, str]) -> None:
    for where in ({"LEASEPLANE_DATA": str(running.data)}, operator):
        refused = command("break", "lock:nobody", "--reason", "r", "--json", **where)
        assert (refused.status, refused.json["error"]) == (1, "not_held")
        # The plane's own message is for the agent that thought it was the holder.
        place = "the workspace of this API key" if where is operator else "the workspace local"
        assert f"nobody holds lock:nobody in {place}; " in refused.complaint
        assert refused.complaint == f"leaseplane break: {refused.json['message']}\n"


def test_whose_workspace_it_was_looked_for_in(command: Command, running: Server) -> None:
    data = str(running.data)
    assert command("workspace", "create", "elsewhere", "--data", data).status == 0
    refused = command("break", "lock:x", "--reason", "r", "--workspace", "elsewhere", "--data", data)
    assert refused.complaint == (
        "leaseplane break: nobody holds lock:x in the workspace elsewhere; name another with --workspace\n"
    )


def test_another_lease_is_left_alone(command: Command, running: Server, operator: dict[str, str]) -> None:
    lease_id = running.acquire("lock:d", A).body["lease"]["leaseId"]
    for where in ({"LEASEPLANE_DATA": str(running.data)}, operator):
        refused = command("break", "lock:d", "--reason", "r", "--lease-id", "lease-0", "--json", **where)
        assert (refused.status, refused.json["error"]) == (1, "stale_lease")
        assert "lease-0 is not a current lease of lock:d" in refused.complaint
    done = command("break", "lock:d", "--reason", "r", "--lease-id", lease_id, "--json", **operator)
    assert done.status == 0
    assert done.json["broken"][0]["leaseId"] == lease_id


def test_without_a_server(command: Command, serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve()
    server.acquire("lock:x", A)
    server.stop()
    done = command("break", "lock:x", "--reason", "r", LEASEPLANE_DATA=str(server.data))
    assert done.status == 0
    assert serve().acquire("lock:x", B).status == 200


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        (["lock:x ", "--reason", "r"], 2, "resource"),
        (["../x", "--reason", "\n"], 2, "reason"),
        (["lock:x"], 2, "required: --reason"),
        (["lock:x", "--reason", "r", "--workspace", "nowhere"], 1, "there is no workspace 'nowhere'"),
        (["lock:x", "--reason", "x" * 201], 2, "reason"),
    ],
)
def test_what_cannot_be_broken(
    in_process: Command, running: Server, words: list[str], status: int, complaint: str
) -> None:
    refused = in_process("break", *words, LEASEPLANE_DATA=str(running.data))
    assert refused.status == status
    assert complaint in refused.complaint


def test_a_url_says_everything(in_process: Command, running: Server, operator: dict[str, str]) -> None:
    url = {"LEASEPLANE_URL": running.url}
    no_key = in_process("break", "lock:x", "--reason", "r", **url)
    assert no_key.status == 2
    assert "LEASEPLANE_API_KEY is not" in no_key.complaint
    workspace = in_process("break", "lock:x", "--reason", "r", "--workspace", "local", **operator)
    assert workspace.status == 2
    assert "leave --workspace out" in workspace.complaint
    # A folder on the command line is meant more than a server in the environment.
    folder = in_process("break", "lock:none", "--reason", "r", "--data", str(running.data), "--json", **url)
    assert folder.json["error"] == "not_held"


def test_a_server_that_is_not_there(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    settings = {"LEASEPLANE_URL": f"http://127.0.0.1:{port}", "LEASEPLANE_API_KEY": "lpk_x"}
    unreachable = command("break", "lock:x", "--reason", "r", "--json", **settings)
    assert unreachable.status == 3
    assert unreachable.json["error"] == "authority_unavailable"
    assert "cannot be reached: connection refused; see that it runs" in unreachable.complaint
    assert "lpk_x" not in unreachable.stdout + unreachable.stderr
