"""The signing keys on disk: made once, read by nobody else, rotated, published in public parts only."""

import contextlib
import itertools
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.receipts.make_vectors import GOOD_BY_NAME
from tests.receipts.material import statement_in

from leaseplane import limits
from leaseplane.receipts import keyring as keyrings
from leaseplane.receipts.issue import RetiredKey
from leaseplane.receipts.keyring import Keyring, KeyringDamaged, TooManyKeys, read_published
from leaseplane.receipts.verify import verify_receipt

CREATED_S = 1_700_000_000
GRANT = statement_in(GOOD_BY_NAME["coordination.lease granted"]["payload"])


def random_of(seed: int) -> Callable[[int], bytes]:
    count = itertools.count(seed * 1000)
    return lambda length: next(count).to_bytes(length, "big")


def open_ring(folder: Path, *, seed: int = 1, now_s: int = CREATED_S, **more: Any) -> Keyring:
    return Keyring.open(folder, now_s=now_s, random_bytes=random_of(seed), **more)


def signed(ring: Keyring, iat: int) -> str:
    return ring.signer.sign(msgspec.structs.replace(GRANT, iat=iat))


def code_of(receipt: str, ring: Keyring, now_s: int = 2 * CREATED_S) -> str:
    return verify_receipt(receipt, ring.published.jwks(), now_s=now_s).code


def private_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("signing-*"))


def test_a_keyring_is_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "keys"
    first = open_ring(folder, seed=1)
    second = open_ring(folder, seed=2, now_s=CREATED_S + 9)
    assert second.published == first.published == read_published(folder)
    assert second.signer.kid == first.signer.kid
    assert first.published.issuer.startswith("urn:leaseplane:")
    assert code_of(signed(first, CREATED_S), second) == "valid"


def test_a_configured_issuer_is_that_of_the_receipts(tmp_path: Path) -> None:
    own = open_ring(tmp_path)
    configured = open_ring(tmp_path, issuer="https://plane.example")
    assert configured.signer.issuer == "https://plane.example"
    assert configured.published.issuer == own.signer.issuer == own.published.issuer
    with pytest.raises(ValueError, match="issuer"):
        open_ring(tmp_path, issuer="plane")


def test_only_their_owner_can_read_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Also before they have their name: the mode is looked at as each file appears.
    modes = []
    really_open = os.open

    def watched(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        descriptor = really_open(path, flags, mode, **more)
        if flags & os.O_CREAT:
            modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(os, "open", watched)
    folder = tmp_path / "keys"
    before = os.umask(0)
    try:
        ring = open_ring(folder)
        ring.rotate(CREATED_S + 1)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert set(modes) == {0o600}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())


def test_a_private_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    open_ring(tmp_path)
    (path,) = tmp_path.glob("signing-*")
    path.chmod(0o640)
    with pytest.raises(KeyringDamaged, match="chmod 600"):
        open_ring(tmp_path)


# -- rotation ----------------------------------------------------------------------------------


def test_a_receipt_from_before_a_rotation_still_verifies(tmp_path: Path) -> None:
    ring = open_ring(tmp_path)
    receipts = []
    for turn in range(1, 5):
        rotated_s = CREATED_S + 1000 * turn
        receipts.append(signed(ring, rotated_s - 1))
        ring.rotate(rotated_s)
    receipts.append(signed(ring, CREATED_S + 9000))
    assert [code_of(receipt, ring) for receipt in receipts] == ["valid"] * 5
    assert len({receipt.split(".")[0] for receipt in receipts}) == 5
    assert len(ring.published.jwks()["keys"]) == 5
    assert read_published(tmp_path) == ring.published == open_ring(tmp_path, seed=9).published


def test_a_retired_key_cannot_sign(tmp_path: Path) -> None:
    ring, other = open_ring(tmp_path), open_ring(tmp_path)
    old, old_elsewhere = ring.signer, other.signer
    rotated_s = CREATED_S + 1000
    ring.rotate(rotated_s)
    with pytest.raises(RetiredKey):
        old.sign(GRANT)
    # Another process has a moment to notice; after that, what it signs is invalid,
    noticed_s = rotated_s + limits.SIGNING_KEY_NOTICED_S_MAX
    assert code_of(signed(other, noticed_s), ring) == "valid"
    assert code_of(signed(other, noticed_s + 1), ring) == "key_not_valid_then"
    # and once it has noticed, it cannot.
    assert other.refresh() is True
    assert other.refresh() is False
    assert other.signer.kid == ring.signer.kid
    with pytest.raises(RetiredKey):
        old_elsewhere.sign(GRANT)
    # Nor can anyone who comes by the folder.
    assert private_files(tmp_path) == [f"signing-{ring.signer.kid}.pem"]


def test_a_new_key_has_no_past(tmp_path: Path) -> None:
    ring = open_ring(tmp_path)
    ring.rotate(CREATED_S + 1000)
    # An answer from before, repeated: signed anew, and dated to the new key's first second.
    verdict = verify_receipt(signed(ring, CREATED_S), ring.published.jwks(), now_s=2 * CREATED_S)
    assert verdict.payload is not None
    assert verdict.payload.statement.iat == CREATED_S + 1000


def test_a_first_key_outlives_a_clock_that_is_set_back(tmp_path: Path) -> None:
    ring = open_ring(tmp_path)
    assert code_of(signed(ring, CREATED_S - 3600), ring, now_s=CREATED_S - 3600) == "valid"
    ring.rotate(CREATED_S - 7200)
    assert [key.not_before_s for key in ring.published.keys] == [0, CREATED_S - 7200]
    ring.rotate(CREATED_S - 9000)
    assert [key.not_before_s for key in ring.published.keys] == [0, CREATED_S - 7200, CREATED_S - 7200]


def test_two_processes_rotate_at_once(tmp_path: Path) -> None:
    rings = [open_ring(tmp_path, seed=seed) for seed in range(1, 7)]
    threads = [threading.Thread(target=ring.rotate, args=(CREATED_S + 5,)) for ring in rings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ring in rings:
        ring.refresh()
    assert {ring.signer.kid for ring in rings} == {read_published(tmp_path).current.kid}
    assert len(rings[0].published.keys) == 7
    assert len(private_files(tmp_path)) == 1


def test_the_second_to_make_a_keyring_takes_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "keys"
    really_locked = keyrings._locked
    made = []

    def locked_too_late(path: Path) -> contextlib.AbstractContextManager[None]:
        monkeypatch.setattr(keyrings, "_locked", really_locked)
        made.append(open_ring(folder, seed=1))
        return really_locked(path)

    monkeypatch.setattr(keyrings, "_locked", locked_too_late)
    second = open_ring(folder, seed=2)
    assert second.published == made[0].published
    assert second.refresh() is False


def test_a_rotation_while_another_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring, other = open_ring(tmp_path), open_ring(tmp_path, seed=2)
    other.rotate(CREATED_S + 1)
    really_read = keyrings.read_published

    def read_and_then_rotated(folder: Path) -> keyrings.Published:
        published = really_read(folder)
        monkeypatch.setattr(keyrings, "read_published", really_read)
        other.rotate(CREATED_S + 2)
        return published

    monkeypatch.setattr(keyrings, "read_published", read_and_then_rotated)
    assert ring.refresh() is True
    assert ring.signer.kid == other.signer.kid
    assert ring.refresh() is False


def test_ten_processes_open_a_new_folder_at_once(tmp_path: Path) -> None:
    program = (
        "import os, sys, pathlib; from leaseplane.receipts.keyring import Keyring\n"
        "sys.stdin.readline()\n"
        "ring = Keyring.open(pathlib.Path(sys.argv[1]), now_s=1, random_bytes=os.urandom)\n"
        "print(ring.signer.kid, ring.signer.issuer)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(keyrings.__file__).parents[2])}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "keys")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for _ in range(10)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert len({process.communicate()[0] for process in started}) == 1
    assert [process.returncode for process in started] == [0] * 10


def test_there_is_a_last_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SIGNING_KEYS_MAX", 2)
    ring = open_ring(tmp_path)
    ring.rotate(CREATED_S + 1)
    with pytest.raises(TooManyKeys):
        ring.rotate(CREATED_S + 2)
    assert code_of(signed(ring, CREATED_S + 3), ring) == "valid"


# -- crashes and damage ------------------------------------------------------------------------


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", range(16))
def test_a_crash_at_any_step_of_a_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    ring = open_ring(tmp_path)
    receipt = signed(ring, CREATED_S)
    steps = itertools.count()

    def crashing(function: Callable[..., Any]) -> Callable[..., Any]:
        def or_crash(*args: Any, **more: Any) -> Any:
            if next(steps) >= step:  # and nothing after it: the dead tidy nothing up
                raise Crash
            return function(*args, **more)

        return or_crash

    with monkeypatch.context() as patched:
        for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (os, "open")):
            patched.setattr(owner, name, crashing(getattr(owner, name)))
        with pytest.raises(Crash):
            ring.rotate(CREATED_S + 1000)
    again = open_ring(tmp_path, seed=7)
    assert len(again.published.keys) in (1, 2)
    assert code_of(receipt, again) == "valid"
    assert code_of(signed(again, CREATED_S + 2000), again) == "valid"
    again.rotate(CREATED_S + 3000)
    assert code_of(signed(again, CREATED_S + 4000), again) == "valid"
    # What the crash left is gone.
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["keys.json", "lock", f"signing-{again.signer.kid}.pem"]
    )


def change_list(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "keys.json"
    listed = json.loads(path.read_text())
    change(listed)
    path.write_text(json.dumps(listed))


@pytest.mark.parametrize(
    "change",
    [
        lambda listed: listed.update(keys=[]),
        lambda listed: listed.update(issuer="plane"),
        lambda listed: listed.update(more=1),
        lambda listed: listed["keys"][0].update(retiredS=5),
        lambda listed: listed["keys"][0].update(kid="A"),
        lambda listed: listed["keys"][0].update(x="A"),
        lambda listed: listed["keys"][0].update(d="A"),
        lambda listed: listed["keys"].append(listed["keys"][0]),
    ],
)
def test_a_broken_list_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    open_ring(tmp_path)
    change_list(tmp_path, change)
    with pytest.raises(KeyringDamaged, match=r"keys\.json is broken"):
        open_ring(tmp_path)


@pytest.mark.parametrize("content", [b"", b"nothing", b"\xff\xfe", b"null", b"[1]"])
def test_other_content_is_refused(tmp_path: Path, content: bytes) -> None:
    open_ring(tmp_path)
    (path,) = tmp_path.glob("signing-*")
    path.write_bytes(content)
    with pytest.raises(KeyringDamaged, match="not a private key"):
        open_ring(tmp_path)
    (tmp_path / "keys.json").write_bytes(content)
    with pytest.raises(KeyringDamaged, match="is broken"):
        open_ring(tmp_path)


def test_the_private_key_of_another_is_refused(tmp_path: Path) -> None:
    open_ring(tmp_path / "a", seed=1)
    open_ring(tmp_path / "b", seed=2)
    (ours,), (theirs,) = ((tmp_path / side).glob("signing-*") for side in "ab")
    ours.write_bytes(theirs.read_bytes())
    with pytest.raises(KeyringDamaged, match="not the private key of"):
        open_ring(tmp_path / "a")
    ours.unlink()
    with pytest.raises(KeyringDamaged, match="lacks the private key"):
        open_ring(tmp_path / "a")


def test_no_keyring_is_not_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_published(tmp_path)
    assert list(tmp_path.iterdir()) == []


# -- what is published -------------------------------------------------------------------------


def test_what_is_published_holds_public_parts_only(tmp_path: Path) -> None:
    ring = open_ring(tmp_path)
    ring.rotate(CREATED_S + 1000)
    jwks = ring.published.jwks()
    old, new = jwks["keys"]
    assert set(new) == {"kty", "crv", "x", "kid", "use", "iat", "nbf"}
    assert set(old) == {*new, "exp"}
    assert (old["iat"], old["nbf"], old["exp"]) == (CREATED_S, 0, CREATED_S + 1005)
    assert (new["iat"], new["nbf"]) == (CREATED_S + 1000, CREATED_S + 1000)
    secret = (tmp_path / f"signing-{new['kid']}.pem").read_text().split("\n")[1]
    shown = json.dumps([jwks, ring.published.did_document("h")]) + repr(ring) + repr(ring.signer)
    assert secret not in shown
    assert secret not in (tmp_path / "keys.json").read_text()


@pytest.mark.parametrize(
    ("host", "did"),
    [
        ("plane.example", "did:web:plane.example"),
        ("Plane.Example:7411", "did:web:plane.example%3A7411"),
        ("127.0.0.1:7411", "did:web:127.0.0.1%3A7411"),
        ("[::1]:7411", "did:web:%5B%3A%3A1%5D%3A7411"),
    ],
)
def test_the_did_document_says_the_same(tmp_path: Path, host: str, did: str) -> None:
    ring = open_ring(tmp_path)
    ring.rotate(CREATED_S + 1000)
    document: Any = ring.published.did_document(host)
    assert document["id"] == did
    assert document["alsoKnownAs"] == [ring.published.issuer]
    assert [method["publicKeyJwk"] for method in document["verificationMethod"]] == ring.published.jwks()[
        "keys"
    ]
    for method in document["verificationMethod"]:
        assert method["id"] == f"{did}#{method['publicKeyJwk']['kid']}"
        assert (method["type"], method["controller"]) == ("JsonWebKey", did)
        assert method["id"] in document["assertionMethod"]
