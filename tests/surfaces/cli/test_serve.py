"""`leaseplane serve`: its start, what it refuses to start on, its log, and its end."""

import json
import logging
import os
import re
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.surfaces.cli.processes import A, B, C, ParkedCaller, Said, Server

from leaseplane.identity.api_keys import API_KEY_PATTERN
from leaseplane.settings import read_settings
from leaseplane.surfaces.cli import serve as serve_module
from leaseplane.surfaces.cli.log import OneLine

Serve = Callable[..., Server]
Command = Callable[..., Said]


def test_it_tells_its_url_and_where_the_key_is_and_ends_in_good_order(serve: Serve) -> None:
    server = serve("--log", "debug")
    assert server.first_line == f"leaseplane listens on {server.url}\n"
    assert stat.S_IMODE((server.data / "api-key").stat().st_mode) == 0o600
    assert server.acquire("lock:x", A).status == 200
    assert server.ask("GET", "/healthz").body == {"ok": True}
    assert "/api/v1/acp/coordination/lease" in server.ask("GET", "/openapi.json").body["paths"]
    did = server.ask("GET", "/.well-known/did.json").body["id"]
    assert did == f"did:web:127.0.0.1%3A{server.port}"
    server.ask("GET", "/healthz", api_key="lpk_nobody")
    server.ask("POST", "/api/v1/acp/coordination/lease", {}, api_key=server.api_key)
    api_key = server.api_key
    said = server.stop()
    assert said.status == 0
    kept = f"the API key of this machine's commands is kept in {server.data}/api-key"
    assert said.stdout.splitlines()[1] == f"{kept} (made just now, workspace local)"
    # One line for each event, no event for a request, and no secret.
    lines = said.stderr.splitlines()
    assert [re.sub(r"^\S+Z ", "", line).split(":")[0] for line in lines] == [
        "info leaseplane.serve",
        "info leaseplane.rest",
        "info leaseplane.serve",
    ]
    assert re.match(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info leaseplane.serve: started: process", lines[0]
    )
    assert api_key not in said.stdout + said.stderr
    assert re.search(API_KEY_PATTERN, said.stdout + said.stderr) is None


def test_a_second_start_keeps_the_key_and_the_leases(serve: Serve) -> None:
    first = serve()
    api_key = first.api_key
    fence = first.acquire("lock:x", A).body["lease"]["fence"]
    assert first.stop(signal.SIGINT).status == 0
    second = serve("--json")
    told = json.loads(second.first_line)
    assert told == {
        "ok": True,
        "url": second.url,
        "data": str(second.data),
        "apiKeyFile": str(second.data / "api-key"),
    }
    assert second.api_key == api_key
    refused = second.acquire("lock:x", B)
    assert (refused.status, refused.body["holder"]) == (409, A)
    renewed = second.acquire("lock:x", A).body["lease"]
    assert (renewed["fence"], renewed["renewed"]) == (fence, True)


def test_a_second_server_is_refused_and_told_of_the_first(serve: Serve, command: Command) -> None:
    first = serve()
    refused = command("serve", "--port", "0", "--data", str(first.data))
    assert refused.status == 1
    assert f"owned by the server at {first.url} (process {first.process.pid}" in refused.complaint
    as_json = command("serve", "--port", "0", "--data", str(first.data), "--json")
    assert as_json.status == 1
    assert first.url in as_json.json["message"]
    assert first.acquire("lock:x", A).status == 200


def test_a_killed_server_does_not_keep_its_folder(serve: Serve) -> None:
    first = serve()
    first.process.kill()
    first.process.wait()
    assert serve().acquire("lock:x", A).status == 200


def test_a_port_that_is_taken(serve: Serve, command: Command, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = command("serve", "--port", str(port), "--data", str(tmp_path / "data"))
    assert refused.status == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in refused.complaint
    assert "--port" in refused.complaint
    assert not (tmp_path / "data").exists()
    server = serve()
    server.stop()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert command("serve", "--port", str(port), "--data", str(server.data)).status == 1
    # It has let go of the folder.
    serve()


def test_an_address_of_another_machine(command: Command, tmp_path: Path) -> None:
    refused = command("serve", "--host", "203.0.113.7", "--port", "0", "--data", str(tmp_path / "data"))
    assert refused.status == 1
    assert "no such address; use --host 127.0.0.1" in refused.complaint
    assert not (tmp_path / "data").exists()


def test_a_folder_of_another_lease_length(serve: Serve, command: Command) -> None:
    server = serve(LEASEPLANE_LEASE_MS="2000")
    assert server.acquire("lock:x", A).body["lease"]["ttlMs"] == 2000
    server.stop()
    refused = command("serve", "--port", "0", "--data", str(server.data), LEASEPLANE_LEASE_MS="3000")
    assert refused.status == 2
    assert "2000" in refused.complaint
    assert "3000" in refused.complaint
    assert serve().acquire("lock:y", A).body["lease"]["ttlMs"] == 2000


@pytest.mark.parametrize(
    ("words", "settings", "status", "complaint"),
    [
        (["--store", "etcd://127.0.0.1"], {}, 2, "--store: must be sqlite"),
        (["--port", "70000"], {}, 2, "--port: must be a whole number from 0 to 65535"),
        (["--port", ""], {}, 2, "--port: must not be empty"),
        (["--log", "loud"], {}, 2, "--log: must be one of debug"),
        (["--allow-host", "http://x"], {}, 2, "--allow-host: must list host names"),
        (["--allow-origin", "x"], {}, 2, "--allow-origin: must be a URL"),
        (["--prot", "1"], {}, 2, "unrecognized arguments: --prot 1"),
        ([], {"LEASEPLANE_LEASE_MS": "5"}, 2, "LEASEPLANE_LEASE_MS='5': must be a whole number"),
        (["--store", ""], {}, 2, "--store: must be sqlite"),
    ],
)
def test_what_it_does_not_start_with(
    in_process: Command, words: list[str], settings: dict[str, str], status: int, complaint: str
) -> None:
    refused = in_process("serve", "--port", "0", *words, **settings)
    assert refused.status == status
    assert complaint in refused.complaint
    assert refused.stdout == ""


def test_folders_that_cannot_be(command: Command) -> None:
    file = command("serve", "--port", "0", "--data", "/etc/passwd")
    assert file.status == 2
    assert "/etc/passwd is not a folder" in file.complaint
    nowhere = command("serve", "--port", "0", "--data", "/proc/nowhere", "--json")
    assert (nowhere.status, nowhere.json["error"]) == (3, "authority_unavailable")
    assert "/proc/nowhere cannot be made" in nowhere.complaint


def test_a_broken_signing_key_is_told(serve: Serve, command: Command) -> None:
    server = serve()
    server.stop()
    (server.data / "keys" / "keys.json").write_text("{")
    refused = command("serve", "--port", "0", "--data", str(server.data))
    assert refused.status == 2
    assert "keys.json is broken" in refused.complaint


def test_hosts_and_origins_that_were_allowed(serve: Serve) -> None:
    server = serve(
        "--allow-host",
        "plane.example",
        "--allow-host",
        "more.example,other.example:8",
        "--allow-origin",
        "https://c.example",
    )
    get = ("GET", "/healthz")
    assert server.ask(*get, Host="plane.example").status == 200
    assert server.ask(*get, Host="other.example:8").status == 200
    assert server.ask(*get, Host="more.example").status == 200
    assert server.ask(*get, Host="foreign.example").status == 403
    assert server.ask(*get, Origin="https://c.example").status == 200
    assert server.ask(*get, Origin="https://d.example").status == 403


def test_parked_requests_are_answered_at_the_end_and_keep_their_place(serve: Serve) -> None:
    server = serve()
    assert server.acquire("lock:x", A).status == 200
    parked = [ParkedCaller(server, "lock:x", B), ParkedCaller(server, "lock:x", C)]
    said = server.stop()
    assert said.status == 0
    assert "parked requests to be answered: 2" in said.stderr
    for position, caller in enumerate(parked, 1):
        answer = caller.answer()
        assert (answer.status, answer.body["error"]) == (409, "lease_held")
        assert (answer.body["holder"], answer.body["position"]) == (A, position)
        assert answer.body["receipt"]
    again = serve()
    assert again.queue("lock:x") == [B, C]


def test_what_others_can_reach_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def warnings(**given: str) -> list[str]:
        caplog.clear()
        settings = read_settings({"HOME": "/", **given})
        serve_module._warn_of_exposure(settings, logging.getLogger("leaseplane.serve"))
        return [record.getMessage() for record in caplog.records]

    for loopback in ("127.0.0.1", "127.8.8.8", "localhost", "::1"):
        assert warnings(LEASEPLANE_HOST=loopback) == []
    in_the_clear, by_name = warnings(LEASEPLANE_HOST="0.0.0.0")
    assert "TLS" in in_the_clear
    assert "--allow-host" in by_name
    assert len(warnings(LEASEPLANE_HOST="10.0.0.7", LEASEPLANE_ALLOW_HOSTS="plane.example")) == 1


def test_a_log_line_is_one_line_without_secrets() -> None:
    api_key = "lpk_0123456789ab_" + "x" * 39
    try:
        raise ValueError(f"two\nlines and {api_key}")
    except ValueError as error:
        raised = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("leaseplane.x", logging.ERROR, "", 0, "a\nb %s", (api_key,), raised)
    line = OneLine().format(record)
    assert "\n" not in line
    assert "x" * 39 not in line
    assert " error leaseplane.x: a | b lpk_… | Traceback (most recent call last): | " in line
    assert line.endswith("ValueError: two | lines and lpk_…")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may listen anywhere")
def test_a_port_that_only_root_may_have(command: Command, tmp_path: Path) -> None:
    refused = command("serve", "--port", "80", "--data", str(tmp_path / "data"))
    assert refused.status == 1
    assert "from 1024 on" in refused.complaint
