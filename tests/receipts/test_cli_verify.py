"""`leaseplane verify`: what it says, on which stream, and its exit status."""

import argparse
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.receipts.make_vectors import GOOD_BY_NAME
from tests.receipts.vector_parts import NOW_S, SETS

from leaseplane.model import AuthorityUnavailable
from leaseplane.surfaces.cli import verify

GRANT = GOOD_BY_NAME["coordination.lease granted"]
WHOLE = GOOD_BY_NAME["coordination.lease granted, as a whole response body"]["receipt"]


class Said(NamedTuple):
    status: int
    stdout: str
    stderr: str


def no_keys() -> tuple[dict[str, Any], bool]:
    raise AssertionError("the plane was asked")


def leaseplane_verify(*arguments: str, stdin: bytes = b"", keys: verify.Keys = no_keys) -> Said:
    parser = argparse.ArgumentParser()
    verify.add_arguments(parser)
    stdout, stderr = io.StringIO(), io.StringIO()
    status = verify.run(
        parser.parse_args(arguments),
        stdin=io.BytesIO(stdin),
        stdout=stdout,
        stderr=stderr,
        now_s=NOW_S,
        keys=keys,
    )
    return Said(status, stdout.getvalue(), stderr.getvalue())


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    contents = {
        "receipt": GRANT["receipt"],
        "line": GRANT["receipt"] + "\n",
        "crlf": GRANT["receipt"] + "\r\n",
        "two lines": GRANT["receipt"] + "\n\n",
        "inside": GRANT["receipt"][:99] + "\n" + GRANT["receipt"][99:],
        "whole": WHOLE,
        "body": GRANT["body"],
        "other body": GOOD_BY_NAME["coordination.wait listed"]["body"],
        "request": GRANT["requestBody"],
        "other request": "{}",
        "jwks": json.dumps(SETS["plane"]),
        "other jwks": json.dumps(SETS["other plane"]),
        "list": "[]",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content.encode())
    return {name: str(tmp_path / name) for name in [*contents, "nowhere"]} | {"folder": str(tmp_path)}


@pytest.mark.parametrize("name", ["receipt", "line", "crlf", "whole"])
def test_a_valid_one_offline(files: dict[str, str], name: str) -> None:
    said = leaseplane_verify(files[name], "--jwks", files["jwks"])
    assert (said.status, said.stderr) == (0, "")
    assert said.stdout.startswith("Valid: in workspace local the plane urn:leaseplane:vectors granted lock:")
    assert said.stdout.endswith(".\n")
    assert "The actor was vouched for by an API key that is bound to it." in said.stdout
    assert said.stdout.count("\n") == 1
    assert ("The response body is the one that was signed." in said.stdout) is (name == "whole")


@pytest.mark.parametrize("name", ["inside", "two lines", "body", "list"])
def test_what_is_no_receipt(files: dict[str, str], name: str) -> None:
    said = leaseplane_verify(files[name], "--jwks", files["jwks"])
    assert (said.status, said.stderr) == (1, "")
    assert said.stdout.startswith("Not valid: the re")


def test_from_stdin(files: dict[str, str]) -> None:
    assert leaseplane_verify("-", "--jwks", files["jwks"], stdin=WHOLE.encode()).status == 0
    assert leaseplane_verify("-", "--jwks", files["jwks"], stdin=b"").status == 1
    keys = json.dumps(SETS["plane"]).encode()
    assert leaseplane_verify(files["receipt"], "--jwks", "-", stdin=keys).status == 0
    twice = leaseplane_verify("-", "--jwks", "-")
    assert (twice.status, twice.stdout) == (2, "")
    assert "only one" in twice.stderr


def test_bodies(files: dict[str, str]) -> None:
    offline = (files["receipt"], "--jwks", files["jwks"])
    said = leaseplane_verify(*offline, "--body", files["body"], "--request", files["request"])
    assert said.status == 0
    assert leaseplane_verify(*offline, "--body", files["other body"]).status == 1
    assert leaseplane_verify(*offline, "--request", files["other request"]).status == 1
    assert (
        leaseplane_verify(files["whole"], "--jwks", files["jwks"], "--body", files["other body"]).status == 1
    )


def test_json_is_one_stable_object(files: dict[str, str]) -> None:
    said = leaseplane_verify(files["whole"], "--jwks", files["jwks"], "--request", files["request"], "--json")
    answered = json.loads(said.stdout)
    assert "granted lock:deploy/production" in answered.pop("message")
    assert answered == {
        "ok": True,
        "code": "valid",
        "auth": "api-key-bound",
        "selfIssued": False,
        "answerChecked": True,
        "requestChecked": True,
        "payload": GRANT["payload"],
    }
    said = leaseplane_verify(files["receipt"], "--jwks", files["other jwks"], "--json")
    assert said.status == 1
    answered = json.loads(said.stdout)
    assert answered.pop("message").startswith("Not valid: the receipt was signed with a key that is not in")
    assert answered == {"ok": False, "error": "key_unknown", "code": "key_unknown"}


def test_a_terminal_without_unicode(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "beyond").write_text(GOOD_BY_NAME["names beyond ASCII"]["receipt"])
    parser = argparse.ArgumentParser()
    verify.add_arguments(parser)
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    status = verify.run(
        parser.parse_args([str(tmp_path / "beyond"), "--jwks", files["jwks"]]),
        stdin=io.BytesIO(),
        stdout=terminal,
        stderr=io.StringIO(),
        now_s=NOW_S,
        keys=no_keys,
    )
    assert status == 0
    terminal.seek(0)
    assert "doc:\\xfcbung/\\U0001f986" in terminal.read()


@pytest.mark.parametrize("unreadable", ["nowhere", "folder"])
@pytest.mark.parametrize("place", ["file", "--jwks", "--body", "--request"])
def test_a_file_that_cannot_be_read_is_usage(files: dict[str, str], place: str, unreadable: str) -> None:
    arguments = {"file": files["receipt"], "--jwks": files["jwks"]} | {place: files[unreadable]}
    said = leaseplane_verify(arguments.pop("file"), *(part for pair in arguments.items() for part in pair))
    assert (said.status, said.stdout) == (2, "")
    assert files[unreadable] in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("name", ["list", "receipt", "body"])
def test_a_bad_key_set_is_usage(files: dict[str, str], name: str) -> None:
    said = leaseplane_verify(files["receipt"], "--jwks", files[name])
    assert (said.status, said.stdout) == (2, "")
    assert "is not a key set" in said.stderr


def test_without_a_key_set_the_configured_plane_is_asked(files: dict[str, str]) -> None:
    asked = []

    def keys_of(self_issued: bool) -> verify.Keys:
        def keys() -> tuple[dict[str, Any], bool]:
            asked.append(self_issued)
            return SETS["plane"], self_issued

        return keys

    server = leaseplane_verify(files["receipt"], keys=keys_of(False))
    embedded = leaseplane_verify(files["receipt"], keys=keys_of(True))
    assert (server.status, embedded.status) == (0, 0)
    assert asked == [False, True]
    assert "Self-issued" not in server.stdout
    assert "Self-issued" in embedded.stdout


@pytest.mark.parametrize("failure", [AuthorityUnavailable("nobody listens"), OSError("no route")])
def test_keys_out_of_reach(files: dict[str, str], failure: Exception) -> None:
    def keys() -> tuple[dict[str, Any], bool]:
        raise failure

    said = leaseplane_verify(files["receipt"], keys=keys)
    assert (said.status, said.stdout) == (3, "")
    assert str(failure) in said.stderr
