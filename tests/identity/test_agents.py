"""This machine's agents: one key pair a name, whoever makes it, and none that others could use."""

import json
import os
import stat
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from leaseplane.dids import did_key_of
from leaseplane.identity.agents import Agent, AgentExists, AgentUnknown, agent_named, agents_of, create_agent
from leaseplane.identity.signatures import verify_request
from leaseplane.limits import SECRET_FILE_BYTES_MAX
from leaseplane.model import AuthorityUnavailable
from leaseplane.resources import NameRefused
from leaseplane.store.folder import DataFolder, FolderRefused

NOW_S = 1_764_500_000
IS_ROOT = os.geteuid() == 0
SEED = bytes(range(32))
DID = did_key_of(Ed25519PrivateKey.from_private_bytes(SEED).public_key().public_bytes_raw())


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path / "data")


def find(folder: DataFolder, name: str, *, make: bool = False) -> Agent:
    return agent_named(folder, name, make=make, random_bytes=os.urandom)


def make(folder: DataFolder, name: str) -> Agent:
    return create_agent(folder, name, random_bytes=os.urandom)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def kept(folder: DataFolder, name: str) -> Path:
    return folder.agents / f"{name}.json"


# -- making and finding ------------------------------------------------------------------------


def test_an_agent_stays_who_it_is(folder: DataFolder) -> None:
    made = make(folder, "build-1")
    assert made.name == "build-1"
    assert made.did.startswith("did:key:z6Mk")
    assert find(folder, "build-1").did == made.did
    assert find(folder, "build-1", make=True).did == made.did


def test_its_did_is_that_of_its_key(folder: DataFolder) -> None:
    agent = create_agent(folder, "a", random_bytes=lambda count: SEED[:count])
    assert agent.did == DID
    assert find(folder, "a").did == DID


def test_what_it_signs_is_proven_to_be_its_own(folder: DataFolder) -> None:
    make(folder, "a")
    agent, url, body = find(folder, "a"), "http://127.0.0.1/api?x=%20", b"{}"
    fields = agent.sign_request("POST", url, body, created_s=NOW_S, nonce="n1")
    raw = [(name.encode(), value.encode()) for name, value in fields]
    signed = verify_request("POST", url, raw, body, NOW_S * 1_000)
    assert (signed.did, signed.nonce, signed.created_s) == (agent.did, "n1", NOW_S)


def test_another_of_the_same_name_is_not_made(folder: DataFolder) -> None:
    first = make(folder, "a")
    with pytest.raises(AgentExists, match=first.did) as caught:
        make(folder, "a")
    assert caught.value.agent.did == first.did
    assert find(folder, "a").did == first.did
    assert [path.name for path in folder.agents.iterdir()] == ["a.json"]


def test_one_that_is_not_there_is_told_and_not_made(folder: DataFolder) -> None:
    with pytest.raises(AgentUnknown, match=r"leaseplane agent create typo$"):
        find(folder, "typo")
    assert not folder.path.exists()


def test_the_default_is_made_when_it_is_needed(folder: DataFolder) -> None:
    made = find(folder, "default", make=True)
    assert find(folder, "default").did == made.did


@pytest.mark.parametrize("name", ["", "../x", ".a", "a/b", "a" * 65, "did:key:z6Mk", "a\n", "ä"])
def test_a_name_that_could_be_another_file(folder: DataFolder, name: str) -> None:
    for attempt in (lambda: find(folder, name, make=True), lambda: make(folder, name)):
        with pytest.raises(NameRefused, match="1 to 64 letters"):
            attempt()
    assert not folder.path.exists()


def test_all_of_them_by_name_and_no_draft_among_them(folder: DataFolder) -> None:
    assert agents_of(folder) == []
    made = {name: make(folder, name).did for name in ("b", "a.json", "C", "default")}
    (folder.agents / ".b.0011223344556677").write_text("what a crash left")
    (folder.agents / "notes.txt").write_text("what somebody put there")
    listed = agents_of(folder)
    assert [agent.name for agent in listed] == ["C", "a.json", "b", "default"]
    assert {agent.name: agent.did for agent in listed} == made


MAKER = """
import os, sys
from pathlib import Path
from leaseplane.identity.agents import AgentExists, agent_named, create_agent
from leaseplane.store.folder import DataFolder
folder = DataFolder(Path(sys.argv[1]))
sys.stdin.readline()
if sys.argv[2] == "find":
    print(agent_named(folder, "default", make=True, random_bytes=os.urandom).did)
else:
    try:
        print("made", create_agent(folder, "default", random_bytes=os.urandom).did)
    except AgentExists as exists:
        print("exists", exists.agent.did)
"""


@pytest.mark.parametrize("how", ["find", "create"])
def test_ten_processes_at_once_make_one(folder: DataFolder, how: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MAKER, str(folder.path), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(10)
    ]
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("now\n")
            process.stdin.flush()
        told = [process.communicate(timeout=60)[0].split() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert {words[-1] for words in told} == {find(folder, "default").did}
    if how == "create":
        assert sorted(words[0] for words in told) == ["exists"] * 9 + ["made"]
    assert [path.name for path in folder.agents.iterdir()] == ["default.json"]


# -- its file ----------------------------------------------------------------------------------


def test_it_is_its_owners_alone_from_its_first_instant(folder: DataFolder, monkeypatch: Any) -> None:
    modes = []
    link = os.link

    def looks_and_links(draft: Path, path: Path) -> None:
        modes.extend([mode(folder.path), mode(folder.agents), mode(draft)])
        link(draft, path)

    monkeypatch.setattr(os, "link", looks_and_links)
    before = os.umask(0)
    try:
        make(folder, "a")
    finally:
        os.umask(before)
    assert modes == [0o700, 0o700, 0o600]
    assert mode(kept(folder, "a")) == 0o600


@pytest.mark.parametrize("rights", [0o644, 0o640, 0o602, 0o660])
def test_one_that_is_open_to_others(folder: DataFolder, rights: int) -> None:
    make(folder, "a")
    kept(folder, "a").chmod(rights)
    for attempt in (
        lambda: find(folder, "a", make=True),
        lambda: agents_of(folder),
        lambda: make(folder, "a"),
    ):
        with pytest.raises(FolderRefused, match=f"mode {rights:04o}.*chmod 600 '.*a.json'"):
            attempt()


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a file to somebody else")
def test_one_that_is_somebody_elses(folder: DataFolder) -> None:
    make(folder, "a")
    os.chown(kept(folder, "a"), 4_711, -1)
    with pytest.raises(FolderRefused, match=r"belongs to user 4711.*chown 0 '"):
        find(folder, "a")


@pytest.mark.skipif(not IS_ROOT, reason="only root can be somebody else")
def test_one_that_may_not_be_read(folder: DataFolder) -> None:
    make(folder, "a")
    os.seteuid(4_711)
    try:
        with pytest.raises(FolderRefused, match=r"a\.json may not be read by this user"):
            find(folder, "a")
    finally:
        os.seteuid(0)


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a folder to somebody else")
def test_root_may_use_what_belongs_to_the_folders_owner(folder: DataFolder) -> None:
    made = make(folder, "a")
    for path in (folder.path, folder.agents, kept(folder, "a")):
        os.chown(path, 4_711, -1)
    assert find(folder, "a").did == made.did


def damaged(folder: DataFolder, **changes: Any) -> None:
    path = kept(folder, "a")
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"privateKey": "00" * 31}, "does not hold an agent's key"),
        ({"privateKey": "no hex"}, "does not hold an agent's key"),
        ({"privateKey": "11" * 32}, "do not belong together"),
        ({"did": "did:web:example.com"}, "do not belong together"),
        ({"did": 7}, "does not hold an agent's key"),
        ({"more": 1}, "does not hold an agent's key"),
        ({"name": "b"}, "holds the key of an agent 'b'"),
    ],
)
def test_one_that_was_changed(folder: DataFolder, changes: dict[str, Any], fault: str) -> None:
    create_agent(folder, "a", random_bytes=lambda count: SEED[:count])
    damaged(folder, **changes)
    with pytest.raises(FolderRefused, match=f"{fault}.*leaseplane agent create a$") as caught:
        find(folder, "a", make=True)
    told = "".join(traceback.format_exception(caught.value))
    assert SEED.hex() not in told
    assert changes.get("privateKey", SEED.hex()) not in told


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b" " * (SECRET_FILE_BYTES_MAX + 1)])
def test_one_that_holds_something_else(folder: DataFolder, content: bytes) -> None:
    make(folder, "a")
    kept(folder, "a").write_bytes(content)
    with pytest.raises(FolderRefused, match="move it away"):
        find(folder, "a")


def test_what_is_no_file(folder: DataFolder) -> None:
    folder.agents.mkdir(parents=True)
    folder.agents.chmod(0o700)
    folder.path.chmod(0o700)
    os.mkfifo(kept(folder, "pipe"), 0o600)
    kept(folder, "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(FolderRefused, match="is not a file; move it away"):
            find(folder, name)


def test_a_folder_that_others_can_write_to(folder: DataFolder) -> None:
    folder.path.mkdir()
    folder.path.chmod(0o777)
    with pytest.raises(FolderRefused, match="chmod go-w"):
        find(folder, "default", make=True)
    assert list(folder.path.iterdir()) == []


def test_a_disk_that_is_full(small_disk: Path) -> None:
    folder = DataFolder(small_disk / "data")
    make(folder, "a")
    with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(bytes(4_096))
    with pytest.raises(AuthorityUnavailable, match="cannot be written: No space"):
        make(folder, "b")
    assert [path.name for path in folder.agents.iterdir()] == ["a.json"]


# -- its key -----------------------------------------------------------------------------------


def test_its_key_is_in_no_representation(folder: DataFolder) -> None:
    agent = create_agent(folder, "a", random_bytes=lambda count: SEED[:count])
    for text in (repr(agent), str(agent), f"{agent}", repr(agents_of(folder))):
        assert SEED.hex() not in text
        assert repr(SEED) not in text
    assert repr(agent) == f"Agent('a', did='{DID}')"


def test_finding_one_does_not_load_what_only_signing_needs(folder: DataFolder) -> None:
    make(folder, "a")
    code = (
        "import os, sys; from pathlib import Path; from leaseplane.identity.agents import agent_named;"
        "from leaseplane.store.folder import DataFolder;"
        "agent_named(DataFolder(Path(sys.argv[1])), 'a', make=False, random_bytes=os.urandom);"
        "heavy = {'http_message_signatures', 'asyncio', 'json', 'logging', 'sqlite3'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(folder.path)], capture_output=True, text=True, check=True
    )
    assert told.stdout == "[]\n"
