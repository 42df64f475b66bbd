"""Each example alone, as someone runs it who has just started a server; and when things go otherwise."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.surfaces.cli.processes import EXAMPLES, PATIENCE_S, Said, Server, environment

from leaseplane.surfaces.cli.demo import STORIES


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path, tmp_path / "data")
    yield running
    running.close()


def example(home: Path, program: str, **settings: str) -> Said:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / program)],
        capture_output=True,
        text=True,
        env=environment(home, **settings),
        timeout=PATIENCE_S,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def test_with_the_key_that_the_server_keeps(server: Server, tmp_path: Path) -> None:
    said = example(tmp_path, "deadlock.py", LEASEPLANE_URL=server.url, LEASEPLANE_DATA=str(server.data))
    assert said.status == 0, said.stdout + said.stderr
    assert said.stderr == ""
    assert max(map(len, said.stdout.splitlines())) <= 80


def test_a_story_that_goes_otherwise(server: Server, tmp_path: Path) -> None:
    server.acquire("lock:deploy/production", "did:example:mallory")
    settings = {"LEASEPLANE_URL": server.url, "LEASEPLANE_API_KEY": server.api_key}
    said = example(tmp_path, "two_release_agents.py", **settings)
    assert said.status == 1
    assert "The story went otherwise" in said.stderr
    assert "Traceback" not in said.stdout + said.stderr


def test_with_a_python_that_has_no_leaseplane(server: Server, tmp_path: Path) -> None:
    # -S: nothing that was installed; and no PYTHONPATH.
    done = subprocess.run(
        [sys.executable, "-S", str(EXAMPLES / "deadlock.py")],
        capture_output=True,
        text=True,
        env={**environment(tmp_path, LEASEPLANE_URL=server.url), "PYTHONPATH": ""},
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2
    assert "leaseplane is not installed for this Python" in done.stderr
    assert "activate" in done.stderr
    assert done.stdout == ""


def test_every_example_says_how_it_is_started() -> None:
    for story in STORIES:
        told = (EXAMPLES / story.program).read_text().split('"""')[1]
        assert ". .venv/bin/activate" in told
        assert f"python examples/{story.program}" in told


def test_without_a_plane(tmp_path: Path) -> None:
    no_key = example(tmp_path, "deadlock.py")
    assert no_key.status == 3
    assert "Start one: leaseplane serve" in no_key.stderr
    settings = {"LEASEPLANE_URL": "http://127.0.0.1:1", "LEASEPLANE_API_KEY": "lpk_x"}
    nobody = example(tmp_path, "fifty_agents.py", **settings)
    assert nobody.status == 3
    for said in (no_key, nobody):
        assert "Traceback" not in said.stdout + said.stderr
