"""Real processes for the machine room's tests."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leaseplane

SOURCE = Path(leaseplane.__file__).parent.parent

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a Python process on a piece of code, its arguments in `args`. None outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def start_one(code: str, *args: object, **environ: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", f"import sys, os\nargs = sys.argv[1:]\n{code}", *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE), **environ},
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def run(start: Start) -> Callable[..., str]:
    """Run a piece of code in a process of its own and answer what it printed."""

    def run_one(code: str, *args: object) -> str:
        process = start(code, *args)
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0, out
        return out.strip()

    return run_one
