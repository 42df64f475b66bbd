"""`leaseplane demo`: the four stories, played with real processes on a plane made for it.

The stories are the programs in `examples/`: what is shown is what can be read and copied there.
"""

import argparse
import json
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, TextIO

import msgspec

from leaseplane.clock import Clock
from leaseplane.limits import STOP_MS_MAX
from leaseplane.model import AuthorityUnavailable
from leaseplane.surfaces.cli.parser import Commands, add_command, add_json
from leaseplane.surfaces.cli.table import Column
from leaseplane.surfaces.cli.terminal import DONE, REFUSED, Terminal

LEASE_MS: Final = 3_000
"""Unless LEASEPLANE_LEASE_MS says otherwise: one story is about a lease that runs out."""

_STARTED_S_MAX: Final = 20.0
_STORY_S_MAX: Final = 120.0
_ENDED_S_MAX: Final = STOP_MS_MAX / 1000 + 2
_TERMINATED: Final = 128 + signal.SIGTERM


class Story(msgspec.Struct, frozen=True):
    program: str
    title: str


STORIES: Final = (
    Story("two_release_agents.py", "two release agents"),
    Story("crashed_holder.py", "a crashed holder"),
    Story("deadlock.py", "a deadlock"),
    Story("fifty_agents.py", "fifty agents and one file"),
)


class Played(msgspec.Struct, frozen=True):
    number: int
    story: Story
    status: int
    seconds: float


def add_to(commands: Commands) -> None:
    """Declare the command."""
    demo = add_command(
        commands,
        "demo",
        "Play the four stories and tell what happens.",
        "Two release agents, a crashed holder, a deadlock, fifty agents and one file: each agent is a real "
        "process, the plane is one made for this, on this machine only, and gone afterwards. Takes less than "
        "a minute. Status 0 only if every story went as told.",
        run=_demo,
    )
    demo.add_argument(
        "--story",
        type=int,
        choices=range(1, len(STORIES) + 1),
        help="play only this one: " + ", ".join(f"{n} {story.title}" for n, story in enumerate(STORIES, 1)),
    )
    add_json(demo)


def stories_folder() -> Path:
    """Where the programs of the stories are: in the installed package, or beside the source."""
    package = Path(__file__).parents[2]
    installed = package / "examples"
    return installed if installed.exists() else package.parents[1] / "examples"


def _demo(args: argparse.Namespace, terminal: Terminal) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    # With --json stdout is for the result alone.
    told_to = terminal.stderr if args.json else terminal.stdout
    chosen = [args.story] if args.story is not None else range(1, len(STORIES) + 1)
    environment = {
        name: value for name, value in terminal.environment.items() if not name.startswith("LEASEPLANE_")
    }
    lease_ms = terminal.settings.lease_ms or LEASE_MS
    with (
        tempfile.TemporaryDirectory(prefix="leaseplane-demo-") as folder,
        _plane(folder, environment, lease_ms) as url,
    ):
        print(f"A plane for this demo listens on {url}; its leases run {lease_ms / 1000:g} s.", file=told_to)
        api_key = (Path(folder) / "plane" / "api-key").read_text().strip()
        environment |= {"LEASEPLANE_URL": url, "LEASEPLANE_API_KEY": api_key}
        played = [_play(number, environment, told_to, terminal.clock) for number in chosen]
    went_well = all(each.status == 0 for each in played)
    if args.json:
        stories = [
            {
                "story": each.number,
                "title": each.story.title,
                "asTold": each.status == 0,
                "seconds": round(each.seconds, 2),
            }
            for each in played
        ]
        terminal.say_json({"ok": went_well, "stories": stories})
    else:
        terminal.say()
        rows = [
            (
                str(each.number),
                each.story.title,
                "as told" if each.status == 0 else f"otherwise, status {each.status}",
                f"{each.seconds:.1f} s",
                f"examples/{each.story.program}",
            )
            for each in played
        ]
        columns = (
            Column(""),
            Column("story", "cut"),
            Column("went"),
            Column("took", "left out"),
            Column("to read and to copy"),
        )
        terminal.table(columns, rows)
    return DONE if went_well else REFUSED


def _play(number: int, environment: Mapping[str, str], told_to: TextIO, clock: Clock) -> Played:
    """Play one story to its end; its processes are gone then, however it ended."""
    story = STORIES[number - 1]
    print(f"\nStory {number}. ", end="", file=told_to, flush=True)
    began_boot_ms = clock.now().boot_ms
    process = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, str(stories_folder() / story.program)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=told_to,
    )
    try:
        status = process.wait(_STORY_S_MAX)
    except subprocess.TimeoutExpired:
        status = _TERMINATED
    finally:
        # The story ends its agents when it is asked to.
        _stop(process)
    return Played(number, story, status, (clock.now().boot_ms - began_boot_ms) / 1000)


@contextmanager
def _plane(folder: str, environment: Mapping[str, str], lease_ms: int) -> Iterator[str]:
    """A server on a free port and a folder of its own; its URL. Ended in the end."""
    data, log = Path(folder) / "plane", Path(folder) / "log"
    serve = [sys.executable, "-m", "leaseplane", "serve", "--host", "127.0.0.1", "--port", "0"]
    with log.open("wb") as log_file:
        process = subprocess.Popen(  # noqa: S603 - our own program
            [*serve, "--data", str(data), "--log", "warning", "--json"],
            env={**environment, "LEASEPLANE_LEASE_MS": str(lease_ms)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_file,
            # Ctrl-C reaches everything in the terminal at once; the server has to outlive the agents.
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        with process.stdout, selectors.DefaultSelector() as started:
            started.register(process.stdout, selectors.EVENT_READ)
            line = process.stdout.readline() if started.select(_STARTED_S_MAX) else b""
        if not line:
            said = log.read_text(errors="replace").strip() or "it said nothing"
            raise AuthorityUnavailable(f"the demo's plane did not start: {said}")
        yield str(json.loads(line)["url"])
    finally:
        _stop(process)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_ENDED_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    # An exception, so that every process is ended on the way out.
    raise SystemExit(128 + number)
