"""A holder dies and never comes back: its lease runs out, and the next in line is served.

In an environment that has leaseplane (`. .venv/bin/activate`, which `make demo` has made):

    leaseplane serve                   # in one terminal
    python examples/crashed_holder.py  # in another

A lease runs 30 seconds, so that is how long this takes, unless the plane's operator has fixed another
term (LEASEPLANE_LEASE_MS=3000 leaseplane serve --data /tmp/a-new-folder).
"""

import sys
import time
from multiprocessing.connection import Connection

import plane
from stage import Stage, check_offline, did, expect, run, tell, until

DATABASE = "lock:db/migrate"
LATE_S_MAX = 1.0
"""The plane reclaims within a quarter of a second; the rest is for a busy machine."""


def holder(line: Connection, name: str) -> None:
    """Takes the lease and would hold it for ever."""
    asked = time.monotonic()
    granted = plane.acquire(DATABASE, did(name), note="migrating")
    expect(granted.status == 200, f"{name} was to get {DATABASE}: {granted.body.get('message')}")
    line.send((asked, granted.body["lease"]))
    line.recv()


def next_in_line(line: Connection, name: str) -> None:
    """Asks once, and is answered when its turn has come."""
    granted = plane.acquire(DATABASE, did(name), maxWaitMs=300_000)
    expect(granted.status == 200, f"{name} was to get {DATABASE} in the end")
    line.send((time.monotonic(), granted.body["lease"], granted.raw))
    plane.release(granted.body["lease"])
    line.send("done")


def story(stage: Stage) -> None:
    trust_before = plane.trust(did("atlas"))
    atlas = stage.enter("atlas", holder)
    asked, first_lease = atlas.hear()
    term_s = first_lease["ttlMs"] / 1000
    tell("atlas", f"has the lease of {DATABASE} for {term_s:g} s, fence {first_lease['fence']}")

    vega = stage.enter("vega", next_in_line)
    until(lambda: len(plane.waiting(DATABASE)) == 1, "vega was to be in the queue")
    tell("vega", "waits in line for it")

    atlas.process.kill()
    atlas.process.join()
    expect(atlas.process.exitcode == -9, "atlas was to die of SIGKILL")
    tell("atlas", "is killed (SIGKILL) while it holds the lease; it can tell nobody")

    granted, second_lease, answer = vega.hear()
    waited_s = granted - asked
    tell("vega", f"is handed the lease {waited_s:.2f} s after atlas asked, fence {second_lease['fence']}")
    expect(waited_s >= term_s, "the lease was not to be taken back before its end")
    expect(waited_s <= term_s + LATE_S_MAX, "the lease was to be taken back at its end")
    expect(second_lease["fence"] > first_lease["fence"], "the later grant was to have the larger fence")
    expect(vega.hear() == "done", "vega was to let go")

    trust_after = plane.trust(did("atlas"))
    tell(
        "the plane", f"lowers the trust of atlas, which let its lease run out: {trust_before} → {trust_after}"
    )
    expect(trust_after == max(0, trust_before - 5), "trust was to fall by 5, once")
    check_offline(answer)


if __name__ == "__main__":
    sys.exit(run("A holder dies, and does not come back.", story))
