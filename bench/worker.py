"""One of several processes that use one data folder, embedded: `python -m bench.worker DATA`.

It does what it reads, a JSON array `[what, …]` a line, and writes what came of it, one JSON value a line.
Times are of the monotonic clock, which all processes of a machine share.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from leaseplane import Lease, LeaseHeld, Plane

WAIT_S = 120.0


class Worker:
    """What can be asked of a worker, method by method."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._lease: Lease | None = None

    def acquire(self, resource: str, timeout_s: float = WAIT_S) -> float:
        """Wait for the lease; when it was there."""
        self._lease = self._plane.acquire(resource, timeout=timeout_s)
        return time.monotonic()

    def release(self) -> float:
        """Let go of it; when that began."""
        assert self._lease is not None
        began = time.monotonic()
        self._lease.release()
        return began

    def wait_parked(self, resource: str, number: int) -> int:
        """Return when so many requests are parked."""
        while True:
            parked = sum(bool(each["parked"]) for each in self._plane.waiting(resource).waiting)
            if parked >= number:
                return parked
            time.sleep(0.002)

    def try_at(self, resource: str, at: float) -> tuple[bool, float]:
        """Try for the lease at that instant; whether it was granted, and when that was known."""
        time.sleep(max(0.0, at - time.monotonic()))
        try:
            self._lease = self._plane.acquire(resource, timeout=0)
        except LeaseHeld:
            return False, time.monotonic()
        return True, time.monotonic()


def main() -> None:
    with Plane(data=sys.argv[1], agent="did:example:bench") as plane:
        worker = Worker(plane)
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            what, *arguments = json.loads(line)
            do: Callable[..., Any] = getattr(worker, what)
            print(json.dumps(do(*arguments)), flush=True)


if __name__ == "__main__":
    main()
