"""The peer of embedded use: a Redis of the benchmark's own, that syncs to disk before it answers."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import redis

START_S_MAX = 10.0
STOP_S_MAX = 10.0


class RedisMissing(Exception):
    """There is no Redis to measure against. The message says what is missing, and how to get it."""


class Redis(NamedTuple):
    """A running Redis: its version, and the ways to it by their names."""

    version: str
    ways: "dict[str, redis.Redis]"


@contextlib.contextmanager
def redis_server(folder: Path, *, command: str = "redis-server") -> Iterator[Redis]:
    """Redis on the loopback and on a Unix socket, with its data in `folder`.

    `appendonly yes` and `appendfsync always`: like ours, it has synced what it answers. No snapshots, which
    would disturb it. Raises `RedisMissing`.
    """
    found = shutil.which(command)
    if found is None:
        raise RedisMissing(f"{command} is not installed (Debian and Ubuntu: apt-get install redis-server)")
    try:
        import redis
    except ImportError:
        raise RedisMissing("the Python package redis is not installed (`make` installs it)") from None
    folder.mkdir()
    port = _free_port()
    # A socket's path ends at 108 bytes; the process is started in the folder instead.
    process = subprocess.Popen(
        (
            *(
                found,
                "--bind",
                "127.0.0.1",
                "--port",
                str(port := _free_port()),
                "--unixsocket",
                "redis.sock",
            ),
            *("--dir", ".", "--appendonly", "yes", "--appendfsync", "always", "--save", ""),
        ),
        stdout=subprocess.DEVNULL,
        cwd=folder,
        start_new_session=True,
    )
    ways = {
        "the loopback": redis.Redis(host="127.0.0.1", port=port),
        "a Unix socket": redis.Redis(unix_socket_path=str(folder / "redis.sock")),
    }
    try:
        version = _version_when_ready(process, ways["the loopback"])
        yield Redis(version, ways)
    finally:
        for way in ways.values():
            way.close()
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def _version_when_ready(process: "subprocess.Popen[bytes]", client: "redis.Redis") -> str:
    import redis

    give_up_at = time.monotonic() + START_S_MAX
    while True:
        try:
            settings = client.config_get("append*")
            assert settings["appendonly"] == "yes" and settings["appendfsync"] == "always", settings
            return str(client.info("server")["redis_version"])
        except redis.ConnectionError as error:
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise RedisMissing(f"redis-server did not start: {error}") from error
            time.sleep(0.02)
