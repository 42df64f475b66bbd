"""A pool of workers over many resources: each takes the next one that nobody else has.

    python examples/worker_pool.py 3

Three processes share twelve tasks. Nothing hands the tasks out: a worker asks for one, goes on to the next
where it is held, and comes back when the plane said to. A worker that dies loses its task to another when its
lease runs out, so what a task does has to bear being done again.
"""

import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

from leaseplane import LeaseHeld, Plane

TASKS = tuple(f"task:{number:02}" for number in range(12))


def work(number: int, done: Path) -> None:
    """Take tasks until none is left. Each worker has a plane of its own: its leases exclude the others'."""
    with Plane(instance=f"worker-{number}") as plane:
        while left := [task for task in TASKS if not marker(done, task).exists()]:
            stand_back_ms = 0
            for task in left:
                try:
                    lease = plane.acquire(task, timeout=0, note=f"worker {number}")
                except LeaseHeld as held:
                    # Jittered, and longer the more there are before us.
                    stand_back_ms = max(stand_back_ms, held.retry_after_ms)
                    continue
                with lease:
                    # Whoever had it before us may have finished it.
                    if not marker(done, task).exists():
                        time.sleep(0.02)
                        marker(done, task).write_text(f"worker {number}, fence {lease.fence}\n")
                        print(f"worker {number} did {task}", flush=True)
                    stand_back_ms = 0
            time.sleep(stand_back_ms / 1000)


def marker(done: Path, task: str) -> Path:
    return done / task.replace(":", "-")


def main() -> int:
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory() as folder:
        done = Path(folder)
        pool = [multiprocessing.Process(target=work, args=(number, done)) for number in range(workers)]
        for each in pool:
            each.start()
        for each in pool:
            each.join()
        if any(each.exitcode for each in pool):
            print("a worker failed", file=sys.stderr)
            return 1
        print(f"all {len(list(done.iterdir()))} tasks are done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
