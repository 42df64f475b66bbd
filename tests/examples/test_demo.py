"""The demo plays the examples: every story has to go as it is told, and leave nothing behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.surfaces.cli.processes import PATIENCE_S, Said, environment, leaseplane_command

from leaseplane.surfaces.cli.demo import STORIES, stories_folder


def processes_with(text: str) -> list[str]:
    """The processes of this machine that have `text` in their environment: they inherit it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            has_it = text.encode() in entry.read_bytes()
        except OSError:
            continue
        if has_it and int(entry.parent.name) != os.getpid():
            found.append((entry.parent / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Said, Path]:
    """The whole demo, once."""
    home = tmp_path_factory.mktemp("demo")
    return leaseplane_command(home, "demo", "--json", TMPDIR=str(home), COLUMNS="100"), home


def test_every_story_goes_as_it_is_told(played: tuple[Said, Path]) -> None:
    said, _ = played
    assert said.status == 0, said.stderr
    assert said.json["ok"] is True
    stories = said.json["stories"]
    assert [(each["story"], each["title"], each["asTold"]) for each in stories] == [
        (number, story.title, True) for number, story in enumerate(STORIES, 1)
    ]
    assert sum(each["seconds"] for each in stories) < 60


def test_what_is_told(played: tuple[Said, Path]) -> None:
    told = played[0].stderr
    assert "Story 1. Two release agents" in told
    assert "is refused: atlas holds it for “rolling out 4.2”" in told
    assert "is handed the lease in the same step" in told
    assert "is killed (SIGKILL)" in told
    assert "50.5 → 45.5" in told
    assert "vega waits for lock:db/schema, which atlas holds" in told
    assert "atlas waits for lock:config, which vega holds" in told
    assert "has all 50 edits" in told
    assert told.count("leaseplane verify - --jwks jwks.json: Valid: ") == 4
    assert "#####" in told
    # Whoever pipes it gets no colours, and no line that is too long.
    assert "\x1b" not in told
    assert max(map(len, told.splitlines())) <= 100


def test_nothing_is_left_behind(played: tuple[Said, Path]) -> None:
    _, home = played
    assert not list(home.glob("leaseplane-demo-*"))
    assert until_none(lambda: processes_with(f"TMPDIR={home}"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_ended_early_it_ends_all_its_processes(tmp_path: Path, number: signal.Signals) -> None:
    # A lease that outlasts the test, so that the second story can only be ended.
    process = subprocess.Popen(
        [sys.executable, "-m", "leaseplane", "demo", "--story", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path, LEASEPLANE_LEASE_MS="60000", TMPDIR=str(tmp_path)),
        start_new_session=True,
    )
    assert process.stdout is not None
    while "SIGKILL" not in process.stdout.readline():
        assert process.poll() is None
    assert processes_with(f"TMPDIR={tmp_path}")
    if number == signal.SIGINT:
        # As a terminal does it: to everything in the foreground.
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, complaints = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    assert complaints == ""
    assert not list(tmp_path.glob("leaseplane-demo-*"))
    assert until_none(lambda: processes_with(f"TMPDIR={tmp_path}"))


def until_none(found: Callable[[], list[str]]) -> bool:
    give_up = time.monotonic() + 5
    while found():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.05)
    return True


def test_the_stories_are_the_examples() -> None:
    folder = stories_folder()
    told = {path.name for path in folder.glob("*.py") if "import plane" in path.read_text()}
    assert told == {story.program for story in STORIES} | {"stage.py"}
