"""Servers and commands, all of them real processes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.surfaces.cli.processes import Said, Server, leaseplane_command

from leaseplane.surfaces.cli.program import main

Serve = Callable[..., Server]
Command = Callable[..., Said]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start servers; none outlives the test."""
    started: list[Server] = []

    def start(*words: str, data: Path | None = None, **settings: str) -> Server:
        server = Server(tmp_path, data or tmp_path / "data", *words, **settings)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests of a module."""
    home = tmp_path_factory.mktemp("home")
    server = Server(home, home / "data", "--log", "debug")
    yield server
    server.close()


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Run commands."""

    def run(*words: str, stdin: bytes = b"", **settings: str) -> Said:
        return leaseplane_command(tmp_path, *words, stdin=stdin, **settings)

    return run


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run commands in this process, which is quicker: for what is refused before anything is done."""

    def run(*words: str, **settings: str) -> Said:
        with monkeypatch.context() as environment:
            for name, value in settings.items():
                environment.setenv(name, value)
            status = main(words)
        return Said(status, *capsys.readouterr())

    return run
