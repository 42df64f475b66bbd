"""One agent at a time per database: a migration of several steps, none of which runs without the lease.

    python examples/one_per_database.py shop

Start it twice at once: the second says who is in the way, waits its turn, and finds the work done. It works
on this machine's data folder, or asks the server at LEASEPLANE_URL.
"""

import sqlite3
import sys
import tempfile
from pathlib import Path

from leaseplane import Deadlock, LeaseHeld, LeaseLost, Plane

STEPS = (
    "CREATE TABLE IF NOT EXISTS users (id INTEGER PRIMARY KEY, name TEXT)",
    "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, user_id INTEGER REFERENCES users)",
    "CREATE INDEX IF NOT EXISTS orders_by_user ON orders (user_id)",
)


def in_the_way(held: LeaseHeld) -> None:
    """Told with each refusal while we wait."""
    print(f"waiting for {held.holder}: {held.note}; place {held.position} in line", flush=True)


def migrate(plane: Plane, name: str, path: Path) -> None:
    """Bring the database up to date, alone."""
    with plane.lease(f"lock:db/{name}", timeout=60, note="migrating", on_wait=in_the_way) as lease:
        print(f"holding lock:db/{name}, fence {lease.fence}", flush=True)
        with sqlite3.connect(path) as database:
            for step in STEPS:
                # By local time and without asking anyone: a process that was suspended must not go on.
                lease.ensure_held()
                database.execute(step)
        database.close()
    print(f"{name} is up to date", flush=True)


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else "shop"
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.gettempdir()) / f"{name}.db"
    with Plane() as plane:
        try:
            migrate(plane, name, path)
        except LeaseHeld as held:
            print(f"gave up after a minute: {held}", file=sys.stderr)
            return 1
        except Deadlock as deadlock:
            print(f"waiting would never end: {deadlock}", file=sys.stderr)
            return 1
        except LeaseLost as lost:
            print(f"stopped: {lost}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
