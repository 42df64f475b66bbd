"""`leaseplane completion`: real shells, on real terminals, in which somebody presses the tab key."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.surfaces.cli.processes import PATIENCE_S, Said, environment, leaseplane_command

from leaseplane.surfaces.cli.commands import COMMANDS
from leaseplane.surfaces.cli.completion import SHELLS

Press = Callable[[str], list[str]]

READY = "READY>"
ON_ITS_TERMINAL = "import os, sys; os.login_tty(0); os.execvp(sys.argv[1], sys.argv[1:])"

# What was completed is told by a function that stands where the command would: it is what the shell read
# in the end, however it drew the line before.
BASH = """
PS1='READY>'
leaseplane() { local IFS='|'; echo "SAID[$*]"; }
eval "$(cat script)"
"""
ZSH = """
PS1='READY>'
autoload -Uz compinit && compinit -u -D
leaseplane() { local IFS='|'; echo "SAID[$*]" }
eval "$(cat script)"
"""
ZSH_FPATH = """
PS1='READY>'
fpath=($PWD/functions $fpath)
autoload -Uz compinit && compinit -u -D
leaseplane() { local IFS='|'; echo "SAID[$*]" }
"""
FISH = """
function fish_prompt; echo -n 'READY>'; end
function leaseplane; echo "SAID["(string join '|' -- $argv)"]"; end
source script
"""
STARTS = {
    "bash": (BASH, ("bash", "--noprofile", "--rcfile", "rc", "-i")),
    "zsh": (ZSH, ("zsh", "-i")),
    "zsh, from fpath": (ZSH_FPATH, ("zsh", "-i")),
    "fish": (FISH, ("fish", "--no-config", "--init-command", "source rc", "-i")),
}


class Shell:
    """One interactive shell on a terminal of its own."""

    def __init__(self, kind: str, place: Path) -> None:
        rc, words = STARTS[kind]
        for name in ("rc", ".zshrc"):
            (place / name).write_text(rc)
        self._terminal, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (50, 200))
        more = {"TERM": "dumb", "ZDOTDIR": str(place), "PATH": f"{place}/bin:{os.environ['PATH']}"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", ON_ITS_TERMINAL, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=place,
            env=environment(place, **more),
        )
        os.close(theirs)
        self.wait_for(READY)

    def wait_for(self, pattern: str) -> "re.Match[str]":
        seen, until = "", time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, seen)) is None:
            readable, _, _ = select.select([self._terminal], [], [], max(0, until - time.monotonic()))
            assert readable, f"{pattern} was not to be seen in {seen!r}"
            seen += os.read(self._terminal, 65_536).decode(errors="replace")
        return found

    def press(self, line: str) -> list[str]:
        """Type `line`, the tab key and Enter; the words that `leaseplane` got."""
        os.write(self._terminal, f"{line}\t\n".encode())
        # zsh takes the slash behind a folder away again.
        return [word.rstrip("/") for word in self.wait_for(r"SAID\[(.*)\]")[1].split("|")]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


@pytest.fixture(scope="module", params=STARTS)
def press(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Press]:
    kind = request.param
    shell = kind.partition(",")[0]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    place = tmp_path_factory.mktemp("shell")
    script = leaseplane_command(place, "completion", shell)
    assert (script.status, script.stderr) == (0, "")
    (place / "script").write_text(script.stdout)
    (place / "functions").mkdir()
    (place / "functions" / "_leaseplane").write_text(script.stdout)
    # One of each that begins alike, so that it shows which was looked for.
    (place / "plane-receipt.json").touch()
    (place / "plan-b").mkdir()
    (place / "plan-a").touch()
    (place / "bin").mkdir()
    (place / "bin" / "plan-zzz").write_text("#!/bin/sh\n")
    (place / "bin" / "plan-zzz").chmod(0o755)
    opened = Shell(kind, place)
    yield opened.press
    opened.close()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("leaseplane dem", "demo"),
        ("leaseplane workspace dis", "workspace dismiss"),
        ("leaseplane key rot", "key rotate-signing"),
        ("leaseplane completion zs", "completion zsh"),
        ("leaseplane serve --allow-h", "serve --allow-host"),
        ("leaseplane key create --any", "key create --any-actor"),
        # A colon ends a word for bash, and a value that is also a command's name is no command.
        ("leaseplane acquire lock:x --idem", "acquire lock:x --idempotency-key"),
        ("leaseplane acquire lock:x --note key --ti", "acquire lock:x --note key --timeout"),
        ("leaseplane acquire lock:x --access de", "acquire lock:x --access delete"),
        ("leaseplane verify plane-", "verify plane-receipt.json"),
        ("leaseplane verify x --jwks plane-", "verify x --jwks plane-receipt.json"),
        ("leaseplane serve --data plan-", "serve --data plan-b"),
        ("leaseplane run lock:x --time", "run lock:x --timeout"),
        ("leaseplane run lock:x --no", "run lock:x --note"),
        # Behind the dashes there are programs, then files, and none of our options.
        ("leaseplane run lock:x -- plan-z", "run lock:x -- plan-zzz"),
        (
            "leaseplane run lock:x --timeout 3 -- cat plane-",
            "run lock:x --timeout 3 -- cat plane-receipt.json",
        ),
        ("leaseplane run lock:x -- plan-zzz --time", "run lock:x -- plan-zzz --time"),
    ],
)
def test_the_tab_key(press: Press, typed: str, words: str) -> None:
    assert press(typed) == words.split()


# -- without a shell ---------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_is_in_the_script(command: Callable[..., Said], shell: str) -> None:
    said = command("completion", shell)
    assert (said.status, said.stderr) == (0, "")
    for each in COMMANDS:
        assert re.search(rf"\b{each.name}\b", said.stdout), each.name


def test_a_shell_that_is_not_known(command: Callable[..., Said]) -> None:
    refused = command("completion", "tcsh")
    assert (refused.status, refused.stdout) == (2, "")
    assert "'bash', 'zsh', 'fish'" in refused.complaint
