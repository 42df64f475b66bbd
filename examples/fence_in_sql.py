"""A fence checked in SQL: what a lease alone cannot stop, the row does.

    python examples/fence_in_sql.py

A holder that is paused for longer than its lease wakes up and writes, as if nothing had happened: no lease
can stop it, since it looks at no clock before it writes. So each row keeps the fence it was last written
with, and a write with a lower one changes nothing. The story takes two seconds: it plays on a data folder of
its own, whose leases run for one.
"""

import os
import sqlite3
import sys
import tempfile
from pathlib import Path

from leaseplane import LeaseLost, Plane

MACHINES = "table:machines"


def write(database: sqlite3.Connection, name: str, state: str, fence: int) -> bool:
    """Set a machine's state. False where somebody with a later grant has written since."""
    with database:
        changed = database.execute(
            "INSERT INTO machines (name, state, fence) VALUES (?, ?, ?) "
            "ON CONFLICT (name) DO UPDATE SET state = excluded.state, fence = excluded.fence "
            "WHERE excluded.fence >= machines.fence",
            (name, state, fence),
        )
    return changed.rowcount == 1


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LEASEPLANE_LEASE_MS"] = "1000"
        database = sqlite3.connect(Path(folder) / "machines.db")
        database.execute("CREATE TABLE machines (name TEXT PRIMARY KEY, state TEXT, fence INTEGER NOT NULL)")
        with Plane(data=Path(folder) / "plane") as ada, Plane(data=Path(folder) / "plane") as bob:
            # A single ask, which nothing renews: as if the process that asked was paused from here on.
            paused = ada.ask(MACHINES, instance="paused")
            print(f"ada holds {MACHINES}, and is paused")
            with bob.lease(MACHINES, timeout=10, note="taking over") as lease:
                print(
                    "bob has it when ada's lease has run out, with a larger fence:",
                    lease.fence > paused.fence,
                )
                print("bob writes:", write(database, "web-1", "rebooting", lease.fence))
                print("ada wakes up and writes:", write(database, "web-1", "deleted", paused.fence))
            (state,) = database.execute("SELECT state FROM machines").fetchone()
        database.close()
    print(f"web-1 is {state}")
    return 0 if state == "rebooting" else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LeaseLost as lost:
        sys.exit(f"the machine was too busy for leases of one second: {lost}")
