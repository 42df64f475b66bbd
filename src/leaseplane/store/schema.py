"""The schema of the plane's database, as the steps that lead to it. A step is never edited once released.

Rows are addressed by (workspace, resource); `resources` has one row for each resource that is held
or waited for, with the time at which the alarm has to look at it. Times `…_boot_ms` are of the boot
named in `meta`.
"""

from typing import Final

APPLICATION_ID: Final = 0x6C70_0001
"""SQLite's `application_id`: tells the plane's database from any other file."""

MIGRATIONS: Final = (
    """
    CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;

    CREATE TABLE resources (
        workspace TEXT NOT NULL,
        resource TEXT NOT NULL,
        alarm_boot_ms INTEGER NOT NULL,
        queued INTEGER NOT NULL,
        PRIMARY KEY (workspace, resource)
    ) WITHOUT ROWID;
    CREATE INDEX resources_alarm ON resources (alarm_boot_ms);

    CREATE TABLE leases (
        workspace TEXT NOT NULL,
        resource TEXT NOT NULL,
        actor TEXT NOT NULL,
        instance TEXT NOT NULL,
        lease_id TEXT NOT NULL,
        access TEXT NOT NULL,
        fence INTEGER NOT NULL,
        granted_wall_ms INTEGER NOT NULL,
        granted_boot_ms INTEGER NOT NULL,
        ends_boot_ms INTEGER NOT NULL,
        ends_wall_ms INTEGER NOT NULL,
        note TEXT,
        handed BLOB,
        gone TEXT,
        upgraded_from BLOB,
        PRIMARY KEY (workspace, resource, actor, instance)
    ) WITHOUT ROWID;
    CREATE INDEX leases_handed ON leases (fence) WHERE handed IS NOT NULL;

    CREATE TABLE waits (
        workspace TEXT NOT NULL,
        resource TEXT NOT NULL,
        actor TEXT NOT NULL,
        instance TEXT NOT NULL,
        root TEXT NOT NULL,
        access TEXT NOT NULL,
        asked_access TEXT NOT NULL,
        seq INTEGER NOT NULL,
        since_wall_ms INTEGER NOT NULL,
        asked_wall_ms INTEGER NOT NULL,
        asked_boot_ms INTEGER NOT NULL,
        chance_boot_ms INTEGER NOT NULL,
        note TEXT,
        edge INTEGER NOT NULL,
        parked BLOB,
        PRIMARY KEY (workspace, resource, actor, instance)
    ) WITHOUT ROWID;
    CREATE INDEX waits_node ON waits (workspace, actor, root);
    CREATE INDEX waits_parked ON waits (seq) WHERE parked IS NOT NULL;

    CREATE TABLE trust (
        workspace TEXT NOT NULL,
        actor TEXT NOT NULL,
        halves INTEGER NOT NULL,
        released INTEGER NOT NULL,
        expired INTEGER NOT NULL,
        PRIMARY KEY (workspace, actor)
    ) WITHOUT ROWID;

    CREATE TABLE counts (
        workspace TEXT PRIMARY KEY,
        leases INTEGER NOT NULL,
        waits INTEGER NOT NULL,
        parked INTEGER NOT NULL,
        idempotency INTEGER NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE deadlocks (
        workspace TEXT NOT NULL,
        actor TEXT NOT NULL,
        instance TEXT NOT NULL,
        resource TEXT NOT NULL,
        holder_actor TEXT NOT NULL,
        holder_instance TEXT NOT NULL,
        waiting_on TEXT NOT NULL,
        at_wall_ms INTEGER NOT NULL,
        until_boot_ms INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        PRIMARY KEY (workspace, actor, instance, resource)
    ) WITHOUT ROWID;

    CREATE TABLE idempotency (
        workspace TEXT NOT NULL,
        credential TEXT NOT NULL,
        actor TEXT NOT NULL,
        path TEXT NOT NULL,
        key TEXT NOT NULL,
        expires_boot_ms INTEGER NOT NULL,
        record BLOB NOT NULL,
        PRIMARY KEY (workspace, credential, actor, path, key)
    ) WITHOUT ROWID;
    CREATE INDEX idempotency_expiry ON idempotency (expires_boot_ms);

    CREATE TABLE outbox (seq INTEGER PRIMARY KEY AUTOINCREMENT, event BLOB NOT NULL);

    CREATE TABLE deliveries (
        request_id TEXT PRIMARY KEY,
        process_id TEXT NOT NULL,
        delivery BLOB NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX deliveries_process ON deliveries (process_id);
    """,
)
