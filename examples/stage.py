"""The stage of the stories: agents that are processes, lines that say what happens, and what is expected.

Nothing here is needed to use a plane; that is all in `plane.py`.
"""

import importlib.util
import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import plane

if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors="replace")

PATIENCE_S = 90.0
"""How long a story waits for one of its agents before it gives up."""

# Processes of one machine share this clock; the agents inherit when it was started.
BEGAN = float(os.environ.setdefault("STORY_BEGAN", str(time.monotonic())))


class WentOtherwise(Exception):
    """The story did not go as it is told."""


def expect(truth: bool, otherwise: str) -> None:
    """Go on only if the story is true so far."""
    if not truth:
        raise WentOtherwise(otherwise)


def tell(who: str, what: str) -> None:
    """One line of the story: when, who, what."""
    columns = shutil.get_terminal_size().columns
    head = f"{time.monotonic() - BEGAN:6.2f} s  {who:<10} "
    told = textwrap.fill(what, max(columns - len(head), 40), break_on_hyphens=False)
    told = told.replace("\n", "\n" + " " * len(head))
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        head = f"\033[2m{head[:10]}\033[0m\033[1m{head[10:]}\033[0m"
    # In one write, so that the lines of several processes do not mix.
    sys.stdout.write(f"{head}{told}\n")
    sys.stdout.flush()


class Agent:
    """One agent: a process of its own, and a line to it."""

    def __init__(self, name: str, process: "multiprocessing.process.BaseProcess", line: Connection) -> None:
        self.name = name
        self.process = process
        self._line = line

    def hear(self) -> Any:
        """The next thing that it reports."""
        try:
            if self._line.poll(PATIENCE_S):
                return self._line.recv()
        except EOFError:
            pass
        raise WentOtherwise(f"{self.name} was to report something, and did not")

    def prompt(self, what: Any = None) -> None:
        """Let it go on."""
        self._line.send(what)


class Stage:
    """Where the agents of one story play. None of them outlives it."""

    def __init__(self) -> None:
        # From a process that has imported all and done nothing: fifty new interpreters take seconds to start.
        self._context = multiprocessing.get_context("forkserver")
        self._agents: list[Agent] = []

    def enter(self, name: str, play: Callable[..., None], *given: Any) -> Agent:
        """Start an agent: `play(line, name, *given)` in a process of its own."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_play, args=(play, theirs, name, *given), name=name)
        process.start()
        theirs.close()
        agent = Agent(name, process, ours)
        self._agents.append(agent)
        return agent

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self._agents:
            agent.process.kill()
        for agent in self._agents:
            agent.process.join()


def _play(play: Callable[..., None], line: Connection, name: str, *given: Any) -> None:
    # Ctrl-C is for the story, which ends its agents itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        play(line, name, *given)
    except EOFError:
        # The story is over, and was not able to say so.
        sys.exit(1)
    except (WentOtherwise, OSError) as error:
        tell(name, f"cannot go on: {error}")
        sys.exit(1)


def did(name: str) -> str:
    """The DID by which the agents of the stories are known. Yours would have a key of its own (did:key)."""
    return f"did:example:{name}"


def name_of(actor: str) -> str:
    return actor.removeprefix("did:example:")


def until(what: Callable[[], bool], otherwise: str) -> None:
    """Wait until something is so."""
    give_up = time.monotonic() + PATIENCE_S
    while not what():
        expect(time.monotonic() < give_up, otherwise)
        time.sleep(0.05)


def check_offline(answer_raw: bytes) -> None:
    """Check the receipt in an answer without asking the plane: only its public keys are needed."""
    keys = plane.ask("GET", plane.KEYS).body
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LEASEPLANE_")}
    with tempfile.TemporaryDirectory() as folder:
        jwks = Path(folder) / "jwks.json"
        jwks.write_text(json.dumps(keys))
        verify = [sys.executable, "-m", "leaseplane", "verify", "-", "--jwks", str(jwks)]
        done = subprocess.run(verify, input=answer_raw, capture_output=True, env=environment, check=False)
    said = (done.stdout or done.stderr).decode(errors="replace").strip()
    tell("anyone", f"leaseplane verify - --jwks jwks.json: {said}")
    expect(done.returncode == 0, "the receipt of an answer was not valid")


def run(title: str, story: Callable[[Stage], None]) -> int:
    """Play a story; 0 if it went as it is told, 2 where leaseplane is not installed, 3 without a plane."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if importlib.util.find_spec("leaseplane") is None:
        # `plane.py` does not need it; a story ends with `leaseplane verify`, and would end badly.
        print(
            f"leaseplane is not installed for this Python ({sys.executable}). Activate its environment, "
            f". .venv/bin/activate, and run this again: python {sys.argv[0]}",
            file=sys.stderr,
        )
        return 2
    print(title, flush=True)
    try:
        asked = plane.ask("GET", plane.WAIT)
        expect(asked.status == 200, f"the plane does not let us ask: {asked.body.get('message')}")
        with Stage() as stage:
            story(stage)
    except WentOtherwise as otherwise:
        print(f"The story went otherwise: {otherwise}.", file=sys.stderr, flush=True)
        return 1
    except OSError as error:
        print(
            f"The plane cannot be reached: {error}. Start one: leaseplane serve", file=sys.stderr, flush=True
        )
        return 3
    except KeyboardInterrupt:
        return 130
    return 0
