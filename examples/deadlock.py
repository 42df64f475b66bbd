"""Two agents that each wait for what the other holds: refused as a deadlock, and both finish.

In an environment that has leaseplane (`. .venv/bin/activate`, which `make demo` has made):

    leaseplane serve             # in one terminal
    python examples/deadlock.py  # in another
"""

import sys
import time
from multiprocessing.connection import Connection

import plane
from stage import Stage, check_offline, did, expect, name_of, run, tell, until

SCHEMA, CONFIG = "lock:db/schema", "lock:config"


def patient(line: Connection, name: str) -> None:
    """Holds the schema and waits for the config."""
    schema = take(name, SCHEMA)
    line.send("holding")
    line.recv()
    tell(name, f"needs {CONFIG} too, and waits in line for it")
    config = take(name, CONFIG, maxWaitMs=60_000)
    work(name)
    plane.release(config)
    plane.release(schema)
    tell(name, "is done and lets go of both")
    line.send("done")


def yielding(line: Connection, name: str) -> None:
    """Holds the config, is told that waiting for the schema would never end, and gives way."""
    config = take(name, CONFIG)
    line.send("holding")
    line.recv()
    refused = plane.acquire(SCHEMA, did(name), maxWaitMs=60_000)
    expect(refused.body.get("error") == "deadlock", f"{name} was to be refused as a deadlock: {refused.body}")
    tell(name, f"asks for {SCHEMA} and is refused at once: deadlock. The cycle:")
    for edge in refused.body["cycle"]:
        waiter, held_by = name_of(edge["actorDid"]), name_of(edge["heldBy"])
        tell("", f"    {waiter} waits for {edge['waitsFor']}, which {held_by} holds")
    line.send(refused.raw)
    plane.release(config)
    tell(name, f"lets go of {CONFIG}, so that the other can finish, and asks again for both")
    schema = take(name, SCHEMA, maxWaitMs=60_000)
    config = take(name, CONFIG, maxWaitMs=60_000)
    work(name)
    plane.release(config)
    plane.release(schema)
    tell(name, "is done and lets go of both")
    line.send("done")


def take(name: str, resource: str, **more: int) -> dict[str, object]:
    granted = plane.acquire(resource, did(name), **more)
    expect(granted.status == 200, f"{name} was to get {resource}: {granted.body.get('message')}")
    lease: dict[str, object] = granted.body["lease"]
    tell(name, f"has {resource}")
    return lease


def work(name: str) -> None:
    tell(name, "has all it needs, and works")
    time.sleep(0.5)


def story(stage: Stage) -> None:
    atlas, vega = stage.enter("atlas", patient), stage.enter("vega", yielding)
    expect(atlas.hear() == vega.hear() == "holding", "each was to hold one of the two")

    atlas.prompt()
    until(lambda: len(plane.waiting(CONFIG)) == 1, "atlas was to wait for the config")
    vega.prompt()
    refusal = vega.hear()
    expect(atlas.hear() == "done", "atlas was to finish")
    expect(vega.hear() == "done", "vega was to finish")
    check_offline(refusal)


if __name__ == "__main__":
    sys.exit(run("Two agents each wait for what the other holds.", story))
