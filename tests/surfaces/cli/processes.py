"""Real processes of the command `leaseplane`, and a server among them."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import leaseplane

SOURCE = Path(leaseplane.__file__).parent.parent
EXAMPLES = SOURCE.parent / "examples"
PATIENCE_S = 30.0

LEASE = "/api/v1/acp/coordination/lease"
RELEASE = "/api/v1/acp/coordination/release"
WAIT = "/api/v1/acp/coordination/wait"
A, B, C = "did:example:a", "did:example:b", "did:example:c"


def environment(home: Path, **more: str) -> dict[str, str]:
    """What a process inherits: nothing of whoever runs the tests, and a home of its own."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ}
    return {**kept, "HOME": str(home), "PYTHONPATH": str(SOURCE), "PYTHONWARNINGS": "error", **more}


class Said(NamedTuple):
    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        assert self.stdout.count("\n") == 1
        return json.loads(self.stdout)

    @property
    def complaint(self) -> str:
        """The one line that says what is wrong."""
        assert "Traceback" not in self.stderr
        assert self.stderr.count("\n") == 1, self.stderr
        return self.stderr


def leaseplane_command(home: Path, *words: str, stdin: bytes = b"", **settings: str) -> Said:
    """Run one command to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "leaseplane", *words],
        input=stdin,
        capture_output=True,
        env=environment(home, **settings),
        timeout=PATIENCE_S,
    )
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())


class Answer(NamedTuple):
    status: int
    body: dict[str, Any]
    raw: bytes


class Server:
    """One `leaseplane serve`, from its first line on stdout until it is stopped."""

    def __init__(self, home: Path, data: Path, *words: str, **settings: str) -> None:
        self.data = data
        self.process = subprocess.Popen(
            [sys.executable, "-m", "leaseplane", "serve", "--port", "0", "--data", str(data), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(home, **settings),
        )
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()
        found = re.search(r"http://[^\s\"]+:([0-9]+)", self.first_line)
        if found is None:
            self.process.kill()
            raise AssertionError(f"no URL in {self.first_line!r}: {self.process.communicate()}")
        self.url, self.port = found[0], int(found[1])

    @property
    def api_key(self) -> str:
        return (self.data / "api-key").read_text().strip()

    def ask(
        self,
        method: str,
        path: str,
        members: dict[str, Any] | None = None,
        *,
        api_key: str | None = None,
        **headers: str,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            sent = {"Authorization": f"Bearer {api_key or self.api_key}", **headers}
            connection.request(method, path, json.dumps(members) if members else None, sent)
            response = connection.getresponse()
            raw = response.read()
            return Answer(response.status, json.loads(raw), raw)
        finally:
            connection.close()

    def acquire(self, resource: str, actor: str, **more: Any) -> Answer:
        return self.ask("POST", LEASE, {"resource": resource, "actorDid": actor, **more})

    def queue(self, resource: str) -> list[str]:
        """The waiters of a resource, those that are parked with a star."""
        waiting = self.ask("GET", f"{WAIT}?resource={resource}").body["waiting"]
        return [wait["actorDid"] + "*" * wait["parked"] for wait in waiting]

    def stop(self, number: int = signal.SIGTERM) -> Said:
        """Ask it to end, and tell what it said in all."""
        self.process.send_signal(number)
        out, log = self.process.communicate(timeout=PATIENCE_S)
        return Said(self.process.returncode, self.first_line + out, log)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class ParkedCaller:
    """Someone who has asked to be kept in line, in a thread of this process."""

    def __init__(self, server: Server, resource: str, actor: str) -> None:
        self.answers: list[Answer | Exception] = []
        self._thread = threading.Thread(target=self._ask, args=(server, resource, actor), daemon=True)
        self._thread.start()
        while f"{actor}*" not in server.queue(resource):
            assert self._thread.is_alive(), self.answers

    def _ask(self, server: Server, resource: str, actor: str) -> None:
        try:
            self.answers.append(server.acquire(resource, actor, maxWaitMs=60_000))
        except Exception as error:
            self.answers.append(error)

    def answer(self) -> Answer:
        self._thread.join(PATIENCE_S)
        (answer,) = self.answers
        assert isinstance(answer, Answer), answer
        return answer
