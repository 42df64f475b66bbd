"""Fifty agents and one file: all of them finish, none overwrites another, and their asks are spread out.

In an environment that has leaseplane (`. .venv/bin/activate`, which `make demo` has made):

    leaseplane serve                 # in one terminal
    python examples/fifty_agents.py  # in another
"""

import shutil
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import plane
from stage import Stage, check_offline, did, expect, run, tell

FILE = "file:src/app.py"
AGENTS = 50
BUCKET_S = 0.25


def edit(line: Connection, name: str, path: str) -> None:
    """One agent: ask until the file is free, obey the wait that each refusal names, edit, let go."""
    line.send("ready")
    line.recv()
    asks = []
    while True:
        asks.append(time.monotonic())
        answer = plane.acquire(FILE, did(name))
        if answer.status == 200:
            break
        expect(answer.body["error"] == "lease_held", f"{name} was to be told to wait: {answer.body}")
        time.sleep(answer.body["retryAfterMs"] / 1000)
    # Read, think, write: the kind of edit that loses what another writes in between.
    file = Path(path)
    edits = int(file.read_text())
    time.sleep(0.01)
    file.write_text(str(edits + 1))
    plane.release(answer.body["lease"])
    line.send((asks, answer.body["lease"]["fence"], answer.raw))


def histogram(asks: list[float], began: float) -> None:
    """How many asks came in each quarter of a second."""
    buckets = Counter(int((asked - began) / BUCKET_S) for asked in asks)
    room = max(shutil.get_terminal_size().columns - 30, 20)
    scale = max(1.0, max(buckets.values()) / room)
    for bucket in range(max(buckets) + 1):
        bar = "#" * round(buckets[bucket] / scale)
        print(f"           {bucket * BUCKET_S:5.2f} s  {buckets[bucket]:4}  {bar}".rstrip(), flush=True)


def story(stage: Stage) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "app.py"
        path.write_text("0")
        agents = [stage.enter(f"agent-{number:02}", edit, str(path)) for number in range(1, AGENTS + 1)]
        for agent in agents:
            expect(agent.hear() == "ready", "every agent was to be ready")
        tell("agents", f"all {AGENTS} are there, and ask for {FILE} at the same moment")
        began = time.monotonic()
        for agent in agents:
            agent.prompt()
        reports = [agent.hear() for agent in agents]
        took_s = time.monotonic() - began
        edits = int(path.read_text())

    asks = [asked for each, _, _ in reports for asked in each]
    tell(
        "agents",
        f"all {AGENTS} have edited it, in {took_s:.1f} s, with {len(asks)} asks in all. When they asked:",
    )
    histogram(asks, began)
    expect(edits == AGENTS, f"{AGENTS} edits were to be in the file, but there are {edits}")
    fences = {fence for _, fence, _ in reports}
    expect(len(fences) == AGENTS, "every grant was to have a fence of its own")
    tell("the file", f"has all {edits} edits: none was overwritten")
    check_offline(max(reports, key=lambda report: report[1])[2])


if __name__ == "__main__":
    sys.exit(run(f"{AGENTS} agents want to edit one file.", story))
