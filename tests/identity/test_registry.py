"""The operator's registry: workspaces, keys, agents, nonces, and the first start."""

import os
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from leaseplane import limits
from leaseplane.dids import did_key_of
from leaseplane.identity import registry as registry_module
from leaseplane.identity.api_keys import ApiKeyMalformed
from leaseplane.identity.registry import LOCAL_WORKSPACE, Registry, RegistryRefused, open_registry
from leaseplane.model import AuthorityUnavailable, Moment
from leaseplane.resources import NameRefused
from leaseplane.secret import Secret
from leaseplane.store.folder import DataFolder, FolderRefused

NOW = 1_764_500_000_000
X25519_DID = "did:key:z6LSbysY2xFMRpGMhb7tFTLMpeuPRaqaWM1yECx2AtzE3KCc"


def agent_did(number: int = 1) -> str:
    seed = number.to_bytes(32, "big")
    return did_key_of(Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw())


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    opened = open_registry(DataFolder.open(tmp_path), os.urandom)
    yield opened
    opened.close()


@pytest.fixture
def another(registry: Registry, tmp_path: Path) -> Iterator[Registry]:
    """The same folder, opened by someone else."""
    opened = open_registry(DataFolder.open(tmp_path), os.urandom)
    yield opened
    opened.close()


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("registry.db*")))


# -- workspaces --------------------------------------------------------------------------------


def test_workspaces_are_made_once_and_listed(registry: Registry, another: Registry) -> None:
    registry.create_workspace("beta", NOW)
    another.create_workspace("alpha", NOW + 1)
    with pytest.raises(RegistryRefused, match='"beta"'):
        another.create_workspace("beta", NOW)
    assert [(w.name, w.created_wall_ms) for w in registry.workspaces()] == [("alpha", NOW + 1), ("beta", NOW)]
    with pytest.raises(NameRefused):
        registry.create_workspace("Beta!", NOW)


def test_workspaces_are_bounded(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "WORKSPACES_MAX", 2)
    registry.create_workspace("a", NOW)
    registry.create_workspace("b", NOW)
    with pytest.raises(RegistryRefused, match="at most 2"):
        registry.create_workspace("c", NOW)


# -- API keys ----------------------------------------------------------------------------------


def test_a_key_is_found_by_what_was_shown_once(registry: Registry, another: Registry, tmp_path: Path) -> None:
    registry.create_workspace("w", NOW)
    record, key = registry.create_key("w", "bound", NOW, actor=agent_did(), label="ci")
    assert another.find_key(key.reveal()) == record
    assert (record.workspace, record.kind, record.actor, record.label) == ("w", "bound", agent_did(), "ci")
    assert record.revoked_wall_ms is None
    secret = key.reveal()[17:]
    assert secret.encode() not in everything_in(tmp_path)
    assert secret not in repr(record)
    assert secret not in repr(registry.keys())


def test_an_unknown_key_is_not_found(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = open_registry(DataFolder.open(tmp_path_factory.mktemp("elsewhere")), os.urandom)
    elsewhere.create_workspace("w", NOW)
    registry.create_workspace("w", NOW)
    _, foreign = elsewhere.create_key("w", "any-actor", NOW)
    elsewhere.close()
    assert registry.find_key(foreign.reveal()) is None
    with pytest.raises(ApiKeyMalformed):
        registry.find_key("lpk_x")


def test_the_id_of_a_key_is_not_enough(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.create_workspace("w", NOW)
    _, key = registry.create_key("w", "any-actor", NOW)
    monkeypatch.setattr(registry_module, "key_id_of", lambda _: key.reveal()[:16])
    assert registry.find_key(key.reveal()) is not None
    assert registry.find_key(key.reveal()[:-1] + "-") is None


def test_a_revoked_key_stays_revoked(registry: Registry, another: Registry) -> None:
    registry.create_workspace("w", NOW)
    record, key = registry.create_key("w", "any-actor", NOW)
    assert another.revoke_key(record.key_id, NOW + 1).revoked_wall_ms == NOW + 1
    assert registry.revoke_key(record.key_id, NOW + 9).revoked_wall_ms == NOW + 1
    found = registry.find_key(key.reveal())
    assert found is not None
    assert found.revoked_wall_ms == NOW + 1
    assert registry.keys("w") == [found]


def test_a_key_of_another_workspace_is_unknown(registry: Registry) -> None:
    registry.create_workspace("w", NOW)
    registry.create_workspace("v", NOW)
    record, key = registry.create_key("w", "any-actor", NOW)
    with pytest.raises(RegistryRefused) as refused:
        registry.revoke_key(record.key_id, NOW, workspace="v")
    with pytest.raises(RegistryRefused) as unknown:
        registry.revoke_key("lpk_000000000000", NOW, workspace="v")
    assert str(refused.value) == str(unknown.value)
    found = registry.find_key(key.reveal())
    assert found is not None
    assert found.revoked_wall_ms is None
    assert registry.revoke_key(record.key_id, NOW, workspace="w").revoked_wall_ms == NOW


def test_a_whole_key_pasted_in_place_of_its_id_is_not_repeated(registry: Registry) -> None:
    registry.create_workspace("w", NOW)
    _, key = registry.create_key("w", "any-actor", NOW)
    with pytest.raises(RegistryRefused) as refused:
        registry.revoke_key(key.reveal(), NOW)
    assert key.reveal()[17:40] not in repr(refused.value)


def test_keys_need_a_workspace_and_right_names(registry: Registry) -> None:
    with pytest.raises(RegistryRefused, match="no workspace"):
        registry.create_key("w", "any-actor", NOW)
    registry.create_workspace("w", NOW)
    with pytest.raises(NameRefused):
        registry.create_key("w", "bound", NOW, actor="agent-7")
    with pytest.raises(NameRefused):
        registry.create_key("w", "any-actor", NOW, label="a\nb")
    with pytest.raises(AssertionError):
        registry.create_key("w", "bound", NOW)
    with pytest.raises(AssertionError):
        registry.create_key("w", "operator", NOW, actor=agent_did())
    assert registry.keys() == []


def test_keys_are_listed_oldest_first(registry: Registry) -> None:
    registry.create_workspace("w", NOW)
    registry.create_workspace("v", NOW)
    made = [registry.create_key("w", "any-actor", NOW + n)[0] for n in (3, 1, 2)]
    other, _ = registry.create_key("v", "operator", NOW)
    assert [key.created_wall_ms - NOW for key in registry.keys("w")] == [1, 2, 3]
    assert registry.keys() == [other, *sorted(made, key=lambda key: key.created_wall_ms)]


def test_many_keys_push_out_revoked_ones_and_then_are_too_many(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "API_KEYS_PER_WORKSPACE_MAX", 3)
    registry.create_workspace("w", NOW)
    records = [registry.create_key("w", "any-actor", NOW + n)[0] for n in range(3)]
    with pytest.raises(RegistryRefused, match="at most 3"):
        registry.create_key("w", "any-actor", NOW)
    registry.revoke_key(records[2].key_id, NOW + 10)
    registry.revoke_key(records[0].key_id, NOW + 11)
    registry.create_key("w", "any-actor", NOW + 20)
    ids = {key.key_id for key in registry.keys("w")}
    assert records[2].key_id not in ids
    assert {records[0].key_id, records[1].key_id} <= ids


# -- agents that sign --------------------------------------------------------------------------


def test_an_agent_belongs_to_one_workspace_at_a_time(registry: Registry, another: Registry) -> None:
    registry.create_workspace("w", NOW)
    registry.create_workspace("v", NOW)
    admitted = registry.admit_agent(agent_did(), "w", NOW)
    assert registry.admit_agent(agent_did(), "w", NOW + 5) == admitted
    assert another.workspace_of(agent_did()) == "w"
    with pytest.raises(RegistryRefused) as refused:
        another.admit_agent(agent_did(), "v", NOW)
    assert '"w"' not in str(refused.value)
    assert not registry.remove_agent(agent_did(), "v")
    assert registry.remove_agent(agent_did(), "w")
    assert another.workspace_of(agent_did()) is None
    another.admit_agent(agent_did(), "v", NOW)
    assert [agent.did for agent in registry.agents("v")] == [agent_did()]
    assert registry.agents("w") == []
    assert len(registry.agents()) == 1


def test_only_agents_that_can_sign_are_admitted(registry: Registry) -> None:
    registry.create_workspace("w", NOW)
    for did in ("did:web:example.com", X25519_DID, "x"):
        with pytest.raises(NameRefused):
            registry.admit_agent(did, "w", NOW)
    with pytest.raises(RegistryRefused, match="no workspace"):
        registry.admit_agent(agent_did(), "v", NOW)
    assert registry.agents() == []


def test_agents_are_bounded(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "AGENTS_PER_WORKSPACE_MAX", 1)
    registry.create_workspace("w", NOW)
    registry.admit_agent(agent_did(1), "w", NOW)
    with pytest.raises(RegistryRefused, match="at most 1"):
        registry.admit_agent(agent_did(2), "w", NOW)


# -- nonces ------------------------------------------------------------------------------------


def spent(registry: Registry, nonce: str, boot_ms: int, did: str = "did:a:b") -> bool:
    return registry.spend_nonce(did, nonce, Moment(boot_ms, NOW + boot_ms))


def test_a_nonce_is_spent_once_by_each_agent(registry: Registry, another: Registry) -> None:
    assert spent(registry, "n", 1_000)
    assert not spent(another, "n", 1_001)
    assert spent(another, "n", 1_002, did="did:a:B")
    assert spent(another, "N", 1_003)


def test_a_nonce_outlives_the_connection(tmp_path: Path) -> None:
    first = open_registry(DataFolder.open(tmp_path), os.urandom)
    assert spent(first, "n", 1_000)
    first.close()
    second = open_registry(DataFolder.open(tmp_path), os.urandom)
    assert not spent(second, "n", 1_000 + limits.NONCE_KEPT_MS)
    second.close()


def nonces_kept(registry: Registry) -> int:
    return int(registry._rows("SELECT count(*) FROM nonces")[0][0])


def test_nonces_are_forgotten_by_the_boot_clock(registry: Registry) -> None:
    for number in range(20):
        assert spent(registry, str(number), 1_000)
    assert spent(registry, "a", 1_000 + limits.NONCE_KEPT_MS)
    assert nonces_kept(registry) == 21
    for number in range(4):
        assert spent(registry, f"late {number}", 1_001 + limits.NONCE_KEPT_MS)
    assert nonces_kept(registry) == 5
    assert spent(registry, "0", 1_002 + limits.NONCE_KEPT_MS)


def test_setting_the_wall_clock_forgets_no_nonce(registry: Registry) -> None:
    year_ms = 365 * 86_400_000
    assert registry.spend_nonce("did:a:b", "n", Moment(1_000, NOW))
    assert registry.spend_nonce("did:a:b", "m", Moment(2_000, NOW + year_ms))
    assert not registry.spend_nonce("did:a:b", "n", Moment(3_000, NOW + 2_000))


def test_after_a_restart_of_the_machine_nonces_are_kept_for_a_full_term(registry: Registry) -> None:
    assert spent(registry, "n", 10_000_000)
    assert not spent(registry, "n", 5_000)
    assert not spent(registry, "n", 5_000 + limits.NONCE_KEPT_MS)
    assert spent(registry, "x", 5_001 + limits.NONCE_KEPT_MS)
    assert spent(registry, "n", 5_002 + limits.NONCE_KEPT_MS)


# -- the first start ---------------------------------------------------------------------------


def test_the_first_start_makes_a_workspace_and_a_key(registry: Registry, tmp_path: Path) -> None:
    made = registry.ensure_local(NOW)
    assert made.made
    assert made.path == tmp_path / "api-key"
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    found = registry.find_key(made.path.read_text().strip())
    assert found is not None
    assert (found.workspace, found.kind, found.revoked_wall_ms) == (LOCAL_WORKSPACE, "any-actor", None)
    content = made.path.read_text()
    assert not registry.ensure_local(NOW + 1).made
    assert made.path.read_text() == content
    assert len(registry.keys()) == 1


def test_a_lost_file_is_made_again_and_the_lost_key_revoked(registry: Registry) -> None:
    path = registry.ensure_local(NOW).path
    lost = path.read_text().strip()
    path.unlink()
    assert registry.ensure_local(NOW + 1).made
    found = registry.find_key(lost)
    assert found is not None
    assert found.revoked_wall_ms == NOW + 1
    renewed = registry.find_key(path.read_text().strip())
    assert renewed is not None
    assert renewed.revoked_wall_ms is None


def test_what_the_operator_revoked_is_not_brought_back(registry: Registry) -> None:
    path = registry.ensure_local(NOW).path
    registry.revoke_key(registry.keys()[0].key_id, NOW)
    path.unlink()
    assert not registry.ensure_local(NOW + 1).made
    assert not path.exists()
    assert len(registry.keys()) == 1


def test_a_workspace_local_made_by_hand_gets_its_key(registry: Registry) -> None:
    registry.create_workspace(LOCAL_WORKSPACE, NOW)
    assert registry.ensure_local(NOW + 1).made


def test_a_key_that_could_not_be_written_does_not_exist(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(registry_module, "keep_api_key", full)
        with pytest.raises(OSError, match="No space"):
            registry.ensure_local(NOW)
    assert registry.keys() == []
    assert registry.workspaces() == []
    assert registry.ensure_local(NOW).made


def test_a_crash_before_the_commit_is_made_good(
    registry: Registry, another: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        pass

    keep = registry_module.keep_api_key

    def crash(path: Path, key: Secret, random_bytes: object) -> None:
        keep(path, key, os.urandom)
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(registry_module, "keep_api_key", crash)
        with pytest.raises(Crash):
            registry.ensure_local(NOW)
    path = another.ensure_local(NOW + 1).path
    found = another.find_key(path.read_text().strip())
    assert found is not None
    assert found.revoked_wall_ms is None


def test_many_first_starts_at_once_make_one_key(tmp_path: Path) -> None:
    barrier = threading.Barrier(6)
    made: list[bool] = []

    def start() -> None:
        barrier.wait()
        opened = open_registry(DataFolder.open(tmp_path), os.urandom)
        made.append(opened.ensure_local(NOW).made)
        opened.close()

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 5 + [True]
    registry = open_registry(DataFolder.open(tmp_path), os.urandom)
    assert registry.find_key((tmp_path / "api-key").read_text().strip()) == registry.keys()[0]
    registry.close()


# -- what can go wrong with the folder ---------------------------------------------------------


def test_a_registry_without_its_secret_is_refused(tmp_path: Path) -> None:
    opened = open_registry(DataFolder.open(tmp_path), os.urandom)
    opened.close()
    (tmp_path / "keys/api-keys.secret").unlink()
    with pytest.raises(FolderRefused, match="restore the two together"):
        open_registry(DataFolder.open(tmp_path), os.urandom)


def test_a_registry_that_was_moved_away_is_not_read_any_more(registry: Registry, tmp_path: Path) -> None:
    registry.ensure_local(NOW)
    (tmp_path / "registry.db").rename(tmp_path / "old.db")
    with pytest.raises(AuthorityUnavailable, match="is gone"):
        registry.keys()
    (tmp_path / "registry.db").touch(mode=0o600)
    with pytest.raises(AuthorityUnavailable, match="empty"):
        registry.keys()
    (tmp_path / "registry.db").unlink()
    open_registry(DataFolder.open(tmp_path), os.urandom).close()
    assert registry.keys() == [], "the file that was moved away has one"


def put_in_place(database: Path, path: Path) -> None:
    """Restore as a person does: the file alone, without what the one before kept beside it."""
    for companion in ("-wal", "-shm"):
        path.with_name(path.name + companion).unlink()
    database.rename(path)


def test_a_restored_registry_is_the_one_that_counts(registry: Registry, tmp_path: Path) -> None:
    registry.create_workspace("acme", NOW)
    _, kept = registry.create_key("acme", "any-actor", NOW)
    registry.close()
    with closing(open_registry(DataFolder.open(tmp_path), os.urandom)) as running:
        shutil.copy(tmp_path / "registry.db", tmp_path / "backup.db")
        _, later = running.create_key("acme", "any-actor", NOW)
        put_in_place(tmp_path / "backup.db", tmp_path / "registry.db")
        assert running.find_key(kept.reveal()) is not None
        assert running.find_key(later.reveal()) is None
        assert running.spend_nonce(agent_did(), "n1", Moment(1, NOW)) is True
        assert running.spend_nonce(agent_did(), "n1", Moment(1, NOW)) is False


def test_a_registry_of_another_plane_lets_nobody_in(registry: Registry, tmp_path: Path) -> None:
    registry.ensure_local(NOW)
    other = tmp_path / "other"
    open_registry(DataFolder.open(other), os.urandom).close()
    put_in_place(other / "registry.db", tmp_path / "registry.db")
    for _ in range(2):
        with pytest.raises(AuthorityUnavailable, match="restore the two together"):
            registry.keys()


def test_no_folder_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(AuthorityUnavailable):
        open_registry(DataFolder(tmp_path / "missing"), os.urandom)


def test_all_files_are_for_their_owner_alone(registry: Registry, tmp_path: Path) -> None:
    registry.ensure_local(NOW)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"registry.db", "api-key", "api-keys.secret"}
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
