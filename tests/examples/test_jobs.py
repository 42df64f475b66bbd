"""The examples for the common jobs: each does its job, embedded and at a URL, and stops where it has to."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.client.places import PATIENCE_S, plane_in
from tests.surfaces.cli.processes import EXAMPLES, Server, environment

from leaseplane import Plane


def words_of(program: str, *more: str) -> list[str]:
    run = [sys.executable] if program.endswith(".py") else ["sh"]
    return [*run, str(EXAMPLES / program), *more]


def settings_for(home: Path, **more: str) -> dict[str, str]:
    given = environment(home)
    # The commands of the environment that runs the tests, which need not be activated.
    path = f"{Path(sys.executable).parent}:{given['PATH']}"
    return {**given, "PATH": path, "LEASEPLANE_DATA": str(home / "plane"), **more}


def run(program: str, *more: str, home: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        words_of(program, *more),
        env=settings_for(home, **settings),
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
    )


@contextmanager
def holding(home: Path, resource: str) -> Iterator[Plane]:
    """Somebody else has the resource."""
    with plane_in(home / "plane", "did:example:mallory") as plane, plane.lease(resource, note="in the way"):
        yield plane


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path, tmp_path / "plane")
    yield running
    running.close()


def test_a_database_is_migrated_by_one_at_a_time(tmp_path: Path) -> None:
    with holding(tmp_path, "lock:db/shop") as other:
        waits = subprocess.Popen(
            words_of("one_per_database.py", "shop", str(tmp_path / "shop.db")),
            env=settings_for(tmp_path),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert waits.stdout is not None
        assert waits.stdout.readline() == "waiting for did:example:mallory: in the way; place 1 in line\n"
        assert [wait["resource"] for wait in other.waiting().waiting] == ["lock:db/shop"]
    out, _ = waits.communicate(timeout=PATIENCE_S)
    assert waits.returncode == 0
    assert out.splitlines()[-1] == "shop is up to date"


def test_a_database_is_migrated_under_a_server(server: Server, tmp_path: Path) -> None:
    done = run(
        "one_per_database.py", "shop", str(tmp_path / "shop.db"), home=tmp_path, LEASEPLANE_URL=server.url
    )
    assert (done.returncode, done.stderr) == (0, "")
    waits = server.ask("GET", "/api/v1/acp/coordination/wait").body
    assert waits["waiting"] == []


def test_a_pool_does_each_task_once(tmp_path: Path) -> None:
    done = run("worker_pool.py", "3", home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    tasks = re.findall(r"did (task:\d\d)", done.stdout)
    assert sorted(tasks) == [f"task:{number:02}" for number in range(12)]


def test_asyncio_waits_gives_up_and_stops(tmp_path: Path) -> None:
    done = run("with_asyncio.py", home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "edited by 3, one after another",
        "timed out: held for “holding on”",
        "timed out by asyncio",
        "cancelled",
        "still waiting: 0",
        "smoke test passed",
    ]


def test_a_fence_stops_a_writer_that_was_paused(tmp_path: Path) -> None:
    done = run("fence_in_sql.py", home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ada wakes up and writes: False" in done.stdout
    assert done.stdout.splitlines()[-1] == "web-1 is rebooting"


def test_a_deployment_runs_under_its_lease(tmp_path: Path) -> None:
    done = run("deploy_in_ci.sh", "sh", "-c", "echo deployed; exit 7", home=tmp_path)
    assert (done.returncode, done.stdout) == (7, "deployed\n")


def test_a_deployment_that_is_refused_is_not_started(tmp_path: Path) -> None:
    with holding(tmp_path, "lock:deploy/production") as other:
        done = run("deploy_in_ci.sh", "touch", "deployed", home=tmp_path, DEPLOY_WAIT_S="0.2")
        assert done.returncode == 1
        assert "did:example:mallory" in done.stderr and "in the way" in done.stderr
        assert not (tmp_path / "deployed").exists()
        assert other.waiting().waiting == []
