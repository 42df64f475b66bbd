"""Two release agents, one production: the second waits its turn, and is never let in early.

In an environment that has leaseplane (`. .venv/bin/activate`, which `make demo` has made):

    leaseplane serve                       # in one terminal
    python examples/two_release_agents.py  # in another
"""

import sys
import time
from multiprocessing.connection import Connection

import plane
from stage import Stage, check_offline, did, expect, name_of, run, tell, until

PRODUCTION = "lock:deploy/production"
DEPLOYMENT_S = 1.0


def first(line: Connection, name: str) -> None:
    """The agent that comes first."""
    granted = plane.acquire(PRODUCTION, did(name), note="rolling out 4.2")
    expect(granted.status == 200, f"{name} was to get {PRODUCTION}: {granted.body.get('message')}")
    lease = granted.body["lease"]
    tell(name, f"has the lease of {PRODUCTION}, fence {lease['fence']}, and deploys")
    line.send(lease)
    line.recv()
    # A lease ends by itself: whoever works for longer renews it, well before its end.
    renewed = plane.acquire(PRODUCTION, did(name), leaseId=lease["leaseId"])
    expect(renewed.body["lease"]["fence"] == lease["fence"], f"{name} was to keep its lease")
    tell(name, f"renews its lease, and is told how many wait for it: {renewed.body['waiting']}")
    time.sleep(DEPLOYMENT_S)
    released = plane.release(lease)
    expect(released.status == 200, f"{name} was to release its own lease")
    tell(name, f"is done and lets go; its trust is now {released.body['trust']}")
    line.send(released.body["trust"])


def second(line: Connection, name: str) -> None:
    """The agent that finds production taken."""
    refused = plane.acquire(PRODUCTION, did(name), note="hotfix 4.2.1")
    expect(refused.status == 409 and refused.body["error"] == "lease_held", f"{name} was to be refused")
    holder, note = refused.body["holder"], refused.body["note"]
    tell(name, f"is refused: {name_of(holder)} holds it for “{note}”. It asks to be kept in line")
    line.send(holder)
    granted = plane.acquire(PRODUCTION, did(name), note="hotfix 4.2.1", maxWaitMs=60_000)
    expect(granted.status == 200, f"{name} was to get {PRODUCTION} in the end")
    lease = granted.body["lease"]
    tell(name, f"is handed the lease in the same step, fence {lease['fence']}, and deploys")
    time.sleep(DEPLOYMENT_S / 2)
    plane.release(lease)
    tell(name, "is done and lets go")
    line.send((lease, refused.raw))


def story(stage: Stage) -> None:
    trust_before = plane.trust(did("atlas"))
    atlas = stage.enter("atlas", first)
    first_lease = atlas.hear()

    vega = stage.enter("vega", second)
    expect(vega.hear() == did("atlas"), "the refusal was to name the holder")
    until(lambda: [wait["parked"] for wait in plane.waiting(PRODUCTION)] == [True], "vega was to be parked")
    tell("the plane", f"shows the queue of {PRODUCTION}: 1. vega")

    atlas.prompt()
    expect(atlas.hear() == min(100, trust_before + 0.5), "a release was to raise atlas's trust by 0.5")
    second_lease, refusal = vega.hear()
    expect(second_lease["fence"] > first_lease["fence"], "the later grant was to have the larger fence")
    check_offline(refusal)


if __name__ == "__main__":
    sys.exit(run("Two release agents want to deploy to production.", story))
