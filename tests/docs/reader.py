"""The reader: someone with a fresh home folder who types in what a page says, block by block.

The text is run as it stands, but for the port: where the page says 7411, one is taken that is free. The
commands of this project are in `.venv`, as `make` leaves them: who does not activate it does not find them.
A command that is meant to fail says so in a comment at its end: `# exit status 1`.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.docs.output import difference_of_json, difference_of_text
from tests.docs.pages import Block

import leaseplane

STANDARD_PORT = "7411"
SHELL_S_MAX = 90
SERVER_S_MAX = 20

_EXPECTED_STATUS = re.compile(r"# exit status (\d+)")


def read_along(blocks: list[Block], folder: Path) -> None:
    """Do what a page says. Raises AssertionError where it does not come out as the page says."""
    port = str(_free_port())
    reader = _Reader(folder, port)
    blocks = [block._replace(text=block.text.replace(STANDARD_PORT, port)) for block in blocks]
    with ExitStack() as terminals:
        for block in blocks:
            if block.info == "sh serve":
                terminals.enter_context(_Server(reader, block, port))
        reader.type_in(blocks)


class _Reader:
    def __init__(self, folder: Path, port: str) -> None:
        self.work = folder / "work"
        self.prints = folder / "prints"
        home, programs = folder / "home", self.work / ".venv/bin"
        for each in (self.work, self.prints, home):
            each.mkdir()
        programs.mkdir(parents=True)
        (programs / "activate").write_text(f'PATH="{programs}:$PATH"\n')
        for name, run in (("leaseplane", "-m leaseplane"), ("python", "")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {run} "$@"\n')
            program.chmod(0o755)
        # Of whoever runs the tests: what a fresh machine has. Its own environments are left out.
        on_path = [each for each in os.environ["PATH"].split(":") if not Path(each, "leaseplane").exists()]
        self.environment = {
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "LEASEPLANE_PORT": port,
            "PATH": ":".join(on_path),
            "PYTHONPATH": str(Path(leaseplane.__file__).parents[1]),
        }

    def type_in(self, blocks: list[Block]) -> None:
        for block in blocks:
            if block.info.startswith("python "):
                (self.work / block.info.split(" ")[1]).write_text(block.text)
        typed = [block for block in blocks if block.info == "sh"]
        script = ['exec 9>"$PRINTS/failed"', "trap 'echo \"$LINENO $?\" >&9' ERR"]
        lines: list[range] = []
        for number, block in enumerate(typed):
            script.append(f'exec >"$PRINTS/{number}.out" 2>"$PRINTS/{number}.err" </dev/null')
            body = block.text.splitlines()
            lines.append(range(len(script) + 1, len(script) + len(body) + 1))
            script += body
        path = self.prints / "page.sh"
        path.write_text("\n".join(script) + "\n")
        shell = subprocess.Popen(
            ["bash", str(path)],
            cwd=self.work,
            env={**self.environment, "PRINTS": str(self.prints)},
            start_new_session=True,
        )
        try:
            shell.wait(SHELL_S_MAX)
        finally:
            _end(shell, signal.SIGKILL)
        self._compare(blocks, typed, lines)

    def _compare(self, blocks: list[Block], typed: list[Block], lines: list[range]) -> None:
        failed = [tuple(map(int, line.split())) for line in self._printed("failed").splitlines()]
        for number, block in enumerate(typed):
            said = self._printed(f"{number}.err")
            at = f"line {block.line}:\n{block.text}"
            statuses = [status for line, status in failed if line in lines[number]]
            expected = [int(status) for status in _EXPECTED_STATUS.findall(block.text)]
            assert statuses == expected, f"{at}exit statuses {statuses} instead of {expected}\n{said}"
            assert "Traceback" not in said, f"{at}{said}"
            difference = None
            for shown in blocks[blocks.index(block) + 1 :][:1]:
                printed = self._printed(f"{number}.out")
                if shown.info == "json output":
                    difference = difference_of_json(shown.text, printed)
                elif shown.info == "text output":
                    difference = difference_of_text(shown.text, printed)
            assert difference is None, f"{at}{difference}\n{said}"

    def _printed(self, name: str) -> str:
        path = self.prints / name
        return path.read_text() if path.exists() else ""


class _Server:
    """What a page has run in another terminal, from the moment it answers."""

    def __init__(self, reader: _Reader, block: Block, port: str) -> None:
        self._port = port
        self._said = reader.prints / "server.err"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                ["bash", "-c", block.text],
                cwd=reader.work,
                env=reader.environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def __enter__(self) -> None:
        deadline = time.monotonic() + SERVER_S_MAX
        while time.monotonic() < deadline and self._process.poll() is None:
            with (
                suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}/healthz", timeout=5),
            ):
                return
            time.sleep(0.02)
        _end(self._process, signal.SIGKILL)
        raise AssertionError(f"the server does not answer:\n{self._said.read_text()}")

    def __exit__(self, *raised: object) -> None:
        _end(self._process, signal.SIGTERM)
        assert "Traceback" not in self._said.read_text(), self._said.read_text()


def _end(process: "subprocess.Popen[bytes]", signal_number: int) -> None:
    """End a process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal_number)
    try:
        process.wait(SERVER_S_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port
