"""The servers that are measured: the plane itself, and its peers. Each is a process, on loopback only."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STOP_S_MAX = 10.0


class Server:
    """A running server: where it listens, and what it has cost."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, data: Path | None = None) -> None:
        self._process = process
        self.port = port
        self.data = data

    @property
    def api_key(self) -> str:
        """The key that the plane made for the commands of this machine."""
        assert self.data is not None, "a peer has no keys"
        return (self.data / "api-key").read_text(encoding="ascii").strip()

    def cpu_s(self) -> float:
        """The CPU time of all its threads so far, from the scheduler's own nanoseconds."""
        return cpu_s(self._process.pid)

    def metrics(self) -> dict[str, float]:
        """What `/metrics` shows, without what has labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        return {
            name: float(value)
            for name, _, value in (line.partition(" ") for line in lines)
            if "{" not in name and name != "#"
        }

    def stop(self) -> None:
        """End it in an orderly way, or by force where it takes too long."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def cpu_s(pid: int) -> float:
    """The CPU time of a process's threads so far, from the scheduler's own nanoseconds."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


@contextlib.contextmanager
def plane(folder: Path, **settings: str) -> Iterator[Server]:
    """`leaseplane serve` on a data folder; `settings` are its environment variables, without the prefix."""
    data = folder / "plane"
    environment = {f"LEASEPLANE_{name}": value for name, value in settings.items()}
    command = ("-m", "leaseplane", "serve", "--port", "0", "--json", "--log", "warning", "--data", str(data))
    process = python(command, environment)
    try:
        assert process.stdout is not None
        told = json.loads(_first_line(process))
        server = Server(process, int(told["url"].rpartition(":")[2]), data)
        yield server
    finally:
        _end(process)


@contextlib.contextmanager
def peer(name: str) -> Iterator[Server]:
    """One of the applications in `bench.peers`, on uvicorn as the plane uses it."""
    process = python(("-m", "bench.peers", name), {})
    try:
        yield Server(process, int(_first_line(process)))
    finally:
        _end(process)


def python(
    command: tuple[str, ...], environment: Mapping[str, str] | None = None, *, stdin: int | None = None
) -> "subprocess.Popen[bytes]":
    """A process of this Python and of this tree, whatever settings surround it; its output is a pipe."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LEASEPLANE_")}
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    return subprocess.Popen(
        (sys.executable, *command),
        stdin=stdin,
        stdout=subprocess.PIPE,
        env={**inherited, "PYTHONPATH": path, **(environment or {})},
        # A Ctrl-C is for the benchmark, which ends its servers itself.
        start_new_session=True,
    )


def _first_line(process: "subprocess.Popen[bytes]") -> bytes:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a server did not start: {process.args!r}")
    return line


def _end(process: "subprocess.Popen[bytes]") -> None:
    Server(process, 0).stop()
    assert process.stdout is not None
    process.stdout.close()
