"""The operator's registry: workspaces, API keys, admitted agents, and the nonces that were spent.

A SQLite file of its own, `registry.db`, so that it never contends with leases. Server and commands
open it side by side; what one has committed the next look of any other sees. A `Registry` may be used
from any thread, but by one at a time: each of its operations is one read or one short transaction,
and two threads that use it at once would find themselves in each other's. Open another one instead.

A copy of the file without `keys/api-keys.secret` neither holds an API key nor lets one be tested; with
another secret beside it no key would ever fit, so it is refused.
"""

import hmac
import os
import sqlite3
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from leaseplane.dids import check_actor, public_key_of
from leaseplane.identity.api_keys import (
    API_KEY,
    KeyHash,
    RandomBytes,
    keep_api_key,
    key_id_of,
    load_key_hash,
    mint_api_key,
)
from leaseplane.limits import (
    AGENTS_PER_WORKSPACE_MAX,
    API_KEYS_PER_WORKSPACE_MAX,
    NONCE_KEPT_MS,
    NONCES_FORGOTTEN_AT_ONCE_MAX,
    REGISTRY_BUSY_GIVE_UP_MS,
    WORKSPACES_MAX,
)
from leaseplane.model import AuthorityUnavailable, Moment, OutcomeUnknown
from leaseplane.resources import check_label, check_workspace
from leaseplane.secret import Secret
from leaseplane.store.database import (
    PATIENCE,
    Database,
    DatabaseReplaced,
    immediately,
    open_database,
    patiently,
    storage_faults,
)
from leaseplane.store.folder import DataFolder, FolderRefused

KeyKind: TypeAlias = Literal["bound", "any-actor", "operator", "test"]

LOCAL_WORKSPACE: Final = "local"
APPLICATION_ID: Final = 0x6C707267
"""`lprg`: tells `file` and us that this SQLite file is a registry."""

MIGRATIONS: Final = (
    """
    CREATE TABLE workspaces (
      name TEXT PRIMARY KEY,
      created_wall_ms INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE api_keys (
      key_id TEXT PRIMARY KEY,
      workspace TEXT NOT NULL,
      kind TEXT NOT NULL,
      actor TEXT,
      label TEXT NOT NULL,
      hash BLOB NOT NULL,
      created_wall_ms INTEGER NOT NULL,
      expires_wall_ms INTEGER,
      revoked_wall_ms INTEGER
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX api_keys_by_workspace ON api_keys (workspace, created_wall_ms);
    CREATE TABLE agents (
      did TEXT PRIMARY KEY,
      workspace TEXT NOT NULL,
      admitted_wall_ms INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX agents_by_workspace ON agents (workspace, did);
    CREATE TABLE nonces (
      did TEXT NOT NULL,
      nonce TEXT NOT NULL,
      spent_boot_ms INTEGER NOT NULL,
      PRIMARY KEY (did, nonce)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX nonces_by_age ON nonces (spent_boot_ms);
    CREATE TABLE facts (
      fact TEXT PRIMARY KEY,
      value BLOB NOT NULL
    ) STRICT, WITHOUT ROWID;
    """,
)

# An operation of the registry is over in a millisecond. Whoever keeps it longer has been stopped, and
# the event loop, where signed requests are checked, must not stand still for as long.
_PATIENCE: Final = msgspec.structs.replace(PATIENCE, give_up_ms=REGISTRY_BUSY_GIVE_UP_MS)


class RegistryRefused(Exception):
    """An operator asked for what cannot be; the message says what and why. Nothing was changed."""


class Workspace(msgspec.Struct, frozen=True):
    name: str
    created_wall_ms: int


class KeyRecord(msgspec.Struct, frozen=True):
    """What is known of an API key; never the key, nor its hash."""

    key_id: str
    workspace: str
    kind: KeyKind
    actor: str | None
    """The one DID that a bound key may name."""
    label: str
    created_wall_ms: int
    expires_wall_ms: int | None
    revoked_wall_ms: int | None


class Agent(msgspec.Struct, frozen=True):
    """An agent whose signed requests count, in one workspace."""

    did: str
    workspace: str
    admitted_wall_ms: int


class LocalKey(msgspec.Struct, frozen=True):
    """Where the commands of this machine find their API key, and whether it was made just now."""

    path: Path
    made: bool


_KEY_COLUMNS: Final = (
    "key_id, workspace, kind, actor, label, created_wall_ms, expires_wall_ms, revoked_wall_ms"
)


def open_registry(folder: DataFolder, random_bytes: RandomBytes) -> "Registry":
    """Open the registry in the data folder, made on first use. The caller closes it.

    Raises `FolderRefused` where a person has to help (written by a newer version; its secret is not
    the one its keys were made with), `AuthorityUnavailable` where it may work again later.
    """
    try:
        key_hash = load_key_hash(folder.keys, random_bytes)
    except OSError as error:
        raise AuthorityUnavailable(f"{folder.keys} cannot be used: {error.strerror}") from error
    return Registry(_opened(folder.path / "registry.db", key_hash), key_hash, random_bytes, folder)


def _opened(path: Path, key_hash: KeyHash) -> Database:
    connection = open_database(path, migrations=MIGRATIONS, application_id=APPLICATION_ID)
    assert isinstance(connection, Database)
    try:
        _check_key_hash(connection, key_hash)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_key_hash(connection: sqlite3.Connection, key_hash: KeyHash) -> None:
    def found() -> bytes | None:
        row = connection.execute("SELECT value FROM facts WHERE fact = 'key hash'").fetchone()
        return None if row is None else bytes(row[0])

    with storage_faults(connection):
        kept = patiently(found)
    if kept is None:
        with immediately(connection):
            connection.execute(
                "INSERT OR IGNORE INTO facts (fact, value) VALUES ('key hash', ?)", (key_hash.fingerprint,)
            )
            kept = found()
    if kept != key_hash.fingerprint:
        raise FolderRefused(
            "keys/api-keys.secret is not the secret with which the API keys in registry.db were made, so "
            "none of them would work: restore the two together, or move both away to begin anew"
        )


class Registry:
    """The registry of one data folder. See the head of this module for who may use it when.

    Every operation raises `AuthorityUnavailable` where the file cannot be read or written; operations
    that change something, `spend_nonce` aside, also `OutcomeUnknown` where the commit may or may not stand.
    """

    def __init__(
        self,
        connection: Database,
        key_hash: KeyHash,
        random_bytes: RandomBytes,
        folder: DataFolder,
    ) -> None:
        self._connection = connection
        self._random_bytes = random_bytes
        self._folder = folder
        self.key_hash = key_hash

    def close(self) -> None:
        self._connection.close()

    # -- workspaces ----------------------------------------------------------------------------

    def create_workspace(self, name: str, now_wall_ms: int) -> Workspace:
        """Make a workspace. Raises `NameRefused`, and `RegistryRefused` where there is one of that name."""
        check_workspace(name)
        with immediately(self._connection, patience=_PATIENCE):
            if self._workspace_exists(name):
                raise RegistryRefused(f'There is a workspace "{name}" already.')
            self._insert_workspace(name, now_wall_ms)
        return Workspace(name, now_wall_ms)

    def workspaces(self) -> list[Workspace]:
        """All workspaces, by name."""
        rows = self._rows("SELECT name, created_wall_ms FROM workspaces ORDER BY name")
        return [Workspace(*row) for row in rows]

    # -- API keys ------------------------------------------------------------------------------

    def create_key(
        self,
        workspace: str,
        kind: KeyKind,
        now_wall_ms: int,
        *,
        actor: str | None = None,
        label: str = "",
        expires_wall_ms: int | None = None,
    ) -> tuple[KeyRecord, Secret]:
        """Make an API key: what is known of it from now on, and the key itself, never to be seen again.

        `actor` is the DID of a `bound` key, and of no other. Of a workspace's many keys the longest
        revoked ones are forgotten. Raises `NameRefused`, and `RegistryRefused` where there is no such
        workspace or it has too many keys.
        """
        assert (kind == "bound") == (actor is not None), "a bound key, and no other, has an actor"
        check_workspace(workspace)
        check_label(label)
        if actor is not None:
            check_actor(actor)
        with immediately(self._connection, patience=_PATIENCE):
            if not self._workspace_exists(workspace):
                raise RegistryRefused(f'There is no workspace "{workspace}".')
            return self._insert_key(
                workspace, kind, now_wall_ms, actor=actor, label=label, expires_wall_ms=expires_wall_ms
            )

    def keys(self, workspace: str | None = None) -> list[KeyRecord]:
        """The API keys of one workspace or of all, revoked ones too, oldest first. No secrets."""
        rows = self._rows(
            f"SELECT {_KEY_COLUMNS} FROM api_keys WHERE workspace = ifnull(?, workspace) "  # noqa: S608
            "ORDER BY workspace, created_wall_ms, key_id",
            workspace,
        )
        return [KeyRecord(*row) for row in rows]

    def revoke_key(self, key_id: str, now_wall_ms: int, *, workspace: str | None = None) -> KeyRecord:
        """Revoke an API key: within a second no process accepts it. Once revoked it stays so.

        With `workspace`, a key of another one is as unknown as any. Raises `RegistryRefused` where
        there is no such key; it does not repeat `key_id`, which may be a whole key pasted by mistake.
        """
        with immediately(self._connection, patience=_PATIENCE):
            self._connection.execute(
                "UPDATE api_keys SET revoked_wall_ms = ? WHERE key_id = ? AND revoked_wall_ms IS NULL "
                "AND workspace = ifnull(?, workspace)",
                (now_wall_ms, key_id, workspace),
            )
            record = self._key(key_id)
            if record is None or workspace not in (None, record.workspace):
                told = "There is no API key of this id; `key list` shows them."
                if API_KEY.fullmatch(key_id) is not None:
                    told = (
                        "That is a whole API key. Its id is its first part, which ends before the second _; "
                        "`key list` shows the ids."
                    )
                raise RegistryRefused(told)
        return record

    def find_key(self, api_key: str) -> KeyRecord | None:
        """What is known of the key that was shown, or None where it is not one of this plane.

        Raises `ApiKeyMalformed` where it cannot be one, without looking. A key that was revoked or
        has expired is found: the caller looks at both.
        """
        key_id = key_id_of(api_key)
        rows = self._rows(f"SELECT hash, {_KEY_COLUMNS} FROM api_keys WHERE key_id = ?", key_id)  # noqa: S608
        if not rows or not hmac.compare_digest(rows[0][0], self.key_hash(api_key.encode("ascii"))):
            return None
        return KeyRecord(*rows[0][1:])

    def key(self, key_id: str) -> KeyRecord | None:
        """What is known of the key with this id, also where it was revoked or has expired; None for none."""
        rows = self._rows(f"SELECT {_KEY_COLUMNS} FROM api_keys WHERE key_id = ?", key_id)  # noqa: S608
        return KeyRecord(*rows[0]) if rows else None

    # -- agents that sign ----------------------------------------------------------------------

    def admit_agent(self, did: str, workspace: str, now_wall_ms: int) -> Agent:
        """Let the agent that holds the key of `did` ask in `workspace` by signed requests, and in no other.

        Admitting it again where it is changes nothing. Raises `NameRefused` where `did` is not the
        did:key of an Ed25519 key, `RegistryRefused` where there is no such workspace, another one has
        the agent, or there are too many.
        """
        check_workspace(workspace)
        public_key_of(did)
        with immediately(self._connection, patience=_PATIENCE):
            if not self._workspace_exists(workspace):
                raise RegistryRefused(f'There is no workspace "{workspace}".')
            row = self._connection.execute(
                "SELECT did, workspace, admitted_wall_ms FROM agents WHERE did = ?", (did,)
            ).fetchone()
            if row is not None:
                if row[1] != workspace:
                    raise RegistryRefused(
                        "This agent belongs to another workspace; it has to be removed there first."
                    )
                return Agent(*row)
            if self._count("SELECT count(*) FROM agents WHERE workspace = ?", workspace) >= (
                AGENTS_PER_WORKSPACE_MAX
            ):
                raise RegistryRefused(f"A workspace has at most {AGENTS_PER_WORKSPACE_MAX} agents that sign.")
            self._connection.execute(
                "INSERT INTO agents (did, workspace, admitted_wall_ms) VALUES (?, ?, ?)",
                (did, workspace, now_wall_ms),
            )
        return Agent(did, workspace, now_wall_ms)

    def remove_agent(self, did: str, workspace: str) -> bool:
        """Let an agent's signed requests count no more; answer whether they did. Effective at once."""
        with immediately(self._connection, patience=_PATIENCE):
            removed = self._connection.execute(
                "DELETE FROM agents WHERE did = ? AND workspace = ?", (did, workspace)
            ).rowcount
        return removed > 0

    def agents(self, workspace: str | None = None) -> list[Agent]:
        """The agents admitted to one workspace or to all, by DID."""
        rows = self._rows(
            "SELECT did, workspace, admitted_wall_ms FROM agents WHERE workspace = ifnull(?, workspace) "
            "ORDER BY workspace, did",
            workspace,
        )
        return [Agent(*row) for row in rows]

    def workspace_of(self, did: str) -> str | None:
        """The workspace in which this agent's signed requests count, if any."""
        rows = self._rows("SELECT workspace FROM agents WHERE did = ?", did)
        return str(rows[0][0]) if rows else None

    def spend_nonce(self, did: str, nonce: str, now: Moment) -> bool:
        """Remember, durably, that `did` has used `nonce`; False where it had been used before.

        A nonce is forgotten after `NONCE_KEPT_MS` of the boot clock, which no one can set: by then
        its request is stale. After a restart of the machine that clock begins anew; a nonce from
        before is then kept for longer, never for less.
        """
        try:
            with immediately(self._connection, patience=_PATIENCE):
                spent = self._connection.execute(
                    "INSERT OR IGNORE INTO nonces (did, nonce, spent_boot_ms) VALUES (?, ?, ?)",
                    (did, nonce, now.boot_ms),
                ).rowcount
                # Stamps ahead of the clock are from before a restart: without a new one they would stay
                # for as long as the machine then had been running.
                self._connection.execute(
                    "UPDATE nonces SET spent_boot_ms = ? WHERE spent_boot_ms > ?", (now.boot_ms, now.boot_ms)
                )
                # More than one at a time, so that the table shrinks; few, so that nobody waits for it.
                self._connection.execute(
                    "DELETE FROM nonces WHERE (did, nonce) IN (SELECT did, nonce FROM nonces "
                    "WHERE spent_boot_ms < ? ORDER BY spent_boot_ms LIMIT ?)",
                    (now.boot_ms - NONCE_KEPT_MS, NONCES_FORGOTTEN_AT_ONCE_MAX),
                )
        except OutcomeUnknown as error:
            # It concerns the nonce alone: no lease was asked for yet, and a new signature settles it.
            raise AuthorityUnavailable("the request was not let through; sign it anew") from error
        return spent > 0

    # -- the first start -----------------------------------------------------------------------

    def ensure_local(self, now_wall_ms: int) -> LocalKey:
        """See that there is a workspace `local` with an any-actor key for the commands of this machine.

        The key is kept in `DATA/api-key`, mode 0600. It is made once; if the file has been lost, it is
        revoked and another is made; if the operator has revoked it, that stands. Raises `OSError`
        where the file cannot be written; then nothing was made.
        """
        path = self._folder.api_key
        with immediately(self._connection, patience=_PATIENCE):
            if not self._workspace_exists(LOCAL_WORKSPACE):
                self._insert_workspace(LOCAL_WORKSPACE, now_wall_ms)
            row = self._connection.execute("SELECT value FROM facts WHERE fact = 'local key'").fetchone()
            if row is not None:
                record = self._key(bytes(row[0]).decode())
                if path.exists() or record is None or record.revoked_wall_ms is not None:
                    return LocalKey(path, made=False)
                self._connection.execute(
                    "UPDATE api_keys SET revoked_wall_ms = ? WHERE key_id = ?", (now_wall_ms, record.key_id)
                )
            record, api_key = self._insert_key(
                LOCAL_WORKSPACE, "any-actor", now_wall_ms, label="this machine"
            )
            self._connection.execute(
                "INSERT OR REPLACE INTO facts (fact, value) VALUES ('local key', ?)",
                (record.key_id.encode(),),
            )
            # Before the commit: a crash here leaves a file with a key that nobody knows, and the next
            # start makes both anew; the other way round the key would be in no one's hands.
            keep_api_key(path, api_key, self._random_bytes)
        return LocalKey(path, made=True)

    # -- within a transaction ------------------------------------------------------------------

    def _workspace_exists(self, name: str) -> bool:
        return self._count("SELECT count(*) FROM workspaces WHERE name = ?", name) > 0

    def _insert_workspace(self, name: str, now_wall_ms: int) -> None:
        if self._count("SELECT count(*) FROM workspaces") >= WORKSPACES_MAX:
            raise RegistryRefused(f"A plane has at most {WORKSPACES_MAX} workspaces.")
        self._connection.execute(
            "INSERT INTO workspaces (name, created_wall_ms) VALUES (?, ?)", (name, now_wall_ms)
        )

    def _insert_key(
        self,
        workspace: str,
        kind: KeyKind,
        now_wall_ms: int,
        *,
        actor: str | None = None,
        label: str = "",
        expires_wall_ms: int | None = None,
    ) -> tuple[KeyRecord, Secret]:
        if self._count("SELECT count(*) FROM api_keys WHERE workspace = ?", workspace) >= (
            API_KEYS_PER_WORKSPACE_MAX
        ):
            forgotten = self._connection.execute(
                "DELETE FROM api_keys WHERE key_id = (SELECT key_id FROM api_keys WHERE workspace = ? "
                "AND revoked_wall_ms IS NOT NULL ORDER BY revoked_wall_ms LIMIT 1)",
                (workspace,),
            ).rowcount
            if not forgotten:
                raise RegistryRefused(f"A workspace has at most {API_KEYS_PER_WORKSPACE_MAX} API keys.")
        key_id, api_key = mint_api_key(self._random_bytes)
        record = KeyRecord(key_id, workspace, kind, actor, label, now_wall_ms, expires_wall_ms, None)
        self._connection.execute(
            f"INSERT INTO api_keys (hash, {_KEY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            (self.key_hash(api_key.reveal().encode("ascii")), *msgspec.structs.astuple(record)),
        )
        return record, api_key

    def _key(self, key_id: str) -> KeyRecord | None:
        row = self._connection.execute(
            f"SELECT {_KEY_COLUMNS} FROM api_keys WHERE key_id = ?",  # noqa: S608
            (key_id,),
        ).fetchone()
        return None if row is None else KeyRecord(*row)

    def _count(self, query: str, *parameters: str) -> int:
        return int(self._connection.execute(query, parameters).fetchone()[0])

    def _rows(self, query: str, *parameters: str | None) -> list[tuple[Any, ...]]:
        """Read from the file that lies in the data folder now: a restored one may have other keys."""
        path = self._connection.path
        try:
            found = os.stat(path)  # noqa: PTH116 - half the price of Path.stat, on every look-up
        except OSError as error:
            raise DatabaseReplaced(f"{path} is gone: {error.strerror}") from error
        if (found.st_dev, found.st_ino) != self._connection.identity:
            if not found.st_size:
                raise DatabaseReplaced(f"{path} has been replaced by an empty file")
            try:
                restored = _opened(path, self.key_hash)
            except FolderRefused as refused:
                raise DatabaseReplaced(str(refused)) from refused
            self._connection.close()
            self._connection = restored
        connection = self._connection
        with storage_faults(connection):
            return patiently(lambda: connection.execute(query, parameters).fetchall(), _PATIENCE)
