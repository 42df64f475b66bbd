"""`leaseplane run` on a terminal: a person types into an interactive shell."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.surfaces.cli.processes import PATIENCE_S, environment
from tests.surfaces.cli.test_guard import group_runs, wait_until

CTRL_C, CTRL_Z, CTRL_BACKSLASH = "\x03", "\x1a", "\x1c"
PROMPT = "ready> "


class Shell:
    """An interactive bash in a pseudo-terminal of its own."""

    def __init__(self, home: Path, **settings: str) -> None:
        self.home = home
        self.text = ""
        self.settings = {"LEASEPLANE_DATA": str(home / "data"), **settings}
        ours, theirs = pty.openpty()
        self.fd = ours
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noediting", "-i"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=home,
            env=environment(home, PS1=PROMPT, TERM="dumb", HISTFILE="", **self.settings),
            start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
        )
        os.close(theirs)
        self.until(PROMPT)
        self.do(f"alias l='{sys.executable} -m leaseplane'")

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def until(self, pattern: str, patience_s: float = PATIENCE_S) -> str:
        """Read until this is shown; what was shown up to there, which is not looked at again."""
        deadline = time.monotonic() + patience_s
        while (found := re.search(pattern, self.text)) is None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                raise TimeoutError(f"{pattern!r} was not shown, but {self.text!r}")
            try:
                self.text += os.read(self.fd, 4096).decode(errors="replace").replace("\r\n", "\n")
            except OSError:
                raise EOFError(f"the terminal is closed after {self.text!r}") from None
        shown, self.text = self.text[: found.end()], self.text[found.end() :]
        return shown

    def start(self, line: str) -> None:
        """Type a line that keeps the shell busy."""
        self.type(f"{line}\n")
        self.until(re.escape(line[-20:]) + ".*\n")

    def do(self, line: str) -> str:
        """Type a line, wait for the prompt, and answer what was shown between."""
        self.start(line)
        return self.until(PROMPT).removesuffix(PROMPT)

    def status(self) -> int:
        return int(self.do("echo status $?").split()[1])

    def jobs(self) -> str:
        return self.do("jobs")

    def is_in_background(self) -> bool:
        """Whether it has given the terminal to a job."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(stat[5]) != self.process.pid

    def waiting(self) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "leaseplane", "wait", "--json"],
            env=environment(self.home, **self.settings),
            capture_output=True,
            text=True,
        )
        return done.stdout

    def close(self) -> None:
        os.close(self.fd)
        self.process.kill()
        self.process.wait()


NewShell = Callable[..., Shell]


@pytest.fixture
def new_shell(tmp_path: Path) -> Iterator[NewShell]:
    shells: list[Shell] = []

    def start(**settings: str) -> Shell:
        shells.append(Shell(tmp_path, **settings))
        return shells[-1]

    yield start
    for each in shells:
        each.close()


@pytest.fixture
def shell(new_shell: NewShell) -> Shell:
    return new_shell()


def shown_line(raw: str) -> str:
    """What a line that was written anew in place shows in the end."""
    return raw.rsplit("\r", 1)[-1].rstrip()


# -- the command has the terminal --------------------------------------------------------------


def test_the_command_reads_from_the_terminal(shell: Shell) -> None:
    shell.start("l run lock:a -- sh -c 'echo name; read x; echo got $x'")
    shell.until("name\n")
    shell.type("ada\n")
    assert "got ada" in shell.until(PROMPT)
    assert shell.status() == 0


def test_the_shell_has_the_terminal_again(shell: Shell) -> None:
    assert "one" in shell.do("l run lock:a -- echo one")
    assert "two" in shell.do("cat <<< two")
    assert shell.status() == 0


def test_ctrl_c_ends_the_command(shell: Shell) -> None:
    shell.start("l run lock:a -- sh -c 'echo on; exec sleep 100'")
    shell.until("on\n")
    shell.type(CTRL_C)
    shell.until(PROMPT)
    assert shell.status() == 130
    assert '"released":1' in shell.do("l trust --json").replace(" ", "")


def test_ctrl_c_is_the_commands_to_handle(shell: Shell) -> None:
    shell.start(
        "l run lock:a -- sh -c 'trap \"echo caught; exit 5\" INT; echo on; while :; do sleep 0.02; done'"
    )
    shell.until("on\n")
    shell.type(CTRL_C)
    assert "caught" in shell.until(PROMPT)
    assert shell.status() == 5


def test_ctrl_backslash(shell: Shell) -> None:
    shell.start("ulimit -c 0; l run lock:a -- sh -c 'echo on; exec sleep 100'")
    shell.until("on\n")
    shell.type(CTRL_BACKSLASH)
    shell.until(PROMPT)
    assert shell.status() == 131


def test_ctrl_c_ends_the_script_around_it_too(shell: Shell) -> None:
    command = f'{sys.executable} -m leaseplane run lock:a -- sh -c "echo on; exec sleep 100"'
    for around in ("bash", "dash"):
        shell.start(f"{around} -c '{command}; echo next'")
        shell.until("on\n")
        shell.type(CTRL_C)
        assert "next" not in shell.until(PROMPT)
        assert shell.status() == 130


def test_a_terminal_that_the_command_left_without_echo(shell: Shell) -> None:
    shell.do("l run lock:a -- sh -c 'stty -echo; kill -KILL $$'")
    assert shell.status() == 137
    assert " echo " in shell.do("stty -a")


# -- in a pipeline -----------------------------------------------------------------------------


def test_a_pager_behind_it_has_the_keys(shell: Shell) -> None:
    shell.start("l run lock:a -- echo text | sh -c 'cat; echo key; read x </dev/tty; echo got $x'")
    shell.until("key\n")
    shell.type("q\n")
    assert "got q" in shell.until(PROMPT)


def test_a_command_that_is_given_its_input_may_ask_the_terminal(shell: Shell) -> None:
    shell.start("echo data | l run lock:a -- sh -c 'cat; read x </dev/tty; echo got $x' | cat")
    shell.until("data\n")
    shell.type("yes\n")
    assert "got yes" in shell.until(PROMPT)
    assert shell.do("echo ${PIPESTATUS[*]}") != ""
    shell.start("echo data | l run lock:a -- sh -c 'cat; exec sleep 100' | cat")
    shell.until("data\n")
    shell.type(CTRL_C)
    shell.until(PROMPT)
    assert shell.status() == 130


# -- stopped and continued ---------------------------------------------------------------------


def test_ctrl_z_and_fg(shell: Shell) -> None:
    shell.start("l run lock:a -- sh -c 'echo on; read x; echo got $x; exit 7'")
    shell.until("on\n")
    shell.type(CTRL_Z)
    assert "Stopped" in shell.until(PROMPT)
    assert "Stopped" in shell.jobs()
    shell.start("fg")
    shell.type("ada\n")
    assert "got ada" in shell.until(PROMPT)
    assert shell.status() == 7


def test_ctrl_z_and_bg(shell: Shell) -> None:
    shell.start("l run lock:a -- bash -c 'echo on; until test -e go; do sleep 0.02; done; echo done'")
    shell.until("on\n")
    shell.type(CTRL_Z)
    shell.until(PROMPT)
    shell.do("bg")
    assert "Running" in shell.jobs()
    (shell.home / "go").touch()
    shell.until("done\n")
    assert shell.do("wait %1; echo $?").split()[-1] == "0" or "Done" in shell.jobs()


def test_ctrl_z_in_a_pipeline_stops_all_of_it(shell: Shell) -> None:
    shell.start("l run lock:a -- sh -c 'echo on; exec sleep 100' | cat")
    shell.until("on\n")
    shell.type(CTRL_Z)
    assert "Stopped" in shell.until(PROMPT)
    shell.start("fg")
    wait_until(shell.is_in_background)
    shell.type(CTRL_C)
    shell.until(PROMPT)
    assert shell.jobs().strip() == ""


def test_stopped_for_longer_than_the_lease_runs(new_shell: NewShell) -> None:
    shell = new_shell(LEASEPLANE_LEASE_MS="1500")
    shell.start("l run lock:a -- sh -c 'echo $$ > group; echo on; exec sleep 100'")
    shell.until("on\n")
    group = int((shell.home / "group").read_text())
    shell.type(CTRL_Z)
    shell.until(PROMPT)
    wait_until(lambda: not group_runs(group), 3)
    assert "fresh" in shell.do("l run lock:a --quiet --timeout 5 -- echo fresh")
    assert "ending the command" in shell.do("fg")
    assert shell.status() == 4


def test_a_job_in_the_background_that_reads_is_stopped_until_it_is_in_the_foreground(shell: Shell) -> None:
    shell.do("l run lock:a -- sh -c 'read x; echo got $x' &")
    wait_until(lambda: "Stopped" in shell.jobs())
    shell.start("fg")
    shell.type("ada\n")
    assert "got ada" in shell.until(PROMPT)


def test_a_terminal_that_goes_away_ends_the_command(new_shell: NewShell, tmp_path: Path) -> None:
    shell = new_shell()
    shell.start("l run lock:a -- sh -c 'echo $$ > group; echo on; exec sleep 100'")
    shell.until("on\n")
    group = int((shell.home / "group").read_text())
    os.close(shell.fd)
    shell.fd = os.open(os.devnull, os.O_RDONLY)
    wait_until(lambda: not group_runs(group))


# -- while it waits ----------------------------------------------------------------------------


@pytest.fixture
def held(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = ["run", "lock:a", "--note", "moving the table", "--", "sh", "-c", "echo on; exec sleep 100"]
    holder = subprocess.Popen(
        [sys.executable, "-m", "leaseplane", *words],
        env=environment(tmp_path, LEASEPLANE_DATA=str(tmp_path / "data")),
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"on\n"
    yield holder
    holder.terminate()
    holder.communicate()


Held = subprocess.Popen[bytes]


def test_the_line_counts_and_leaves_no_trace(shell: Shell, held: Held) -> None:
    shell.do("stty columns 200")
    shell.start("l run lock:a -- echo mine")
    shell.until(r"1st in line for lock:a, held by did:key:z6Mk….... .*for \d+ s: moving the table")
    first = re.search(r"for (\d+) s", shell.until(r"for \d+ s"))
    second = re.search(r"for (\d+) s", shell.until(r"for \d+ s"))
    assert first is not None and second is not None
    assert int(second[1]) > int(first[1])
    held.send_signal(signal.SIGTERM)
    shown = shell.until("mine\n") + shell.until(PROMPT)
    line = shown.split("\n")[0]
    assert shown_line(line) == "mine", "written over the blanked line"


def test_it_fits_the_terminal(shell: Shell, held: Held) -> None:
    shell.do("stty columns 50")
    shell.start("l run lock:a -- echo mine")
    shell.until("1st in line")
    time.sleep(1.5)
    shell.type(CTRL_C)
    for drawn in shell.until(PROMPT).split("\r"):
        assert len(drawn.split("^C")[0].strip("\n")) < 50


def test_ctrl_c_while_waiting_leaves_no_wait(shell: Shell, held: Held) -> None:
    shell.start("l run lock:a -- touch started")
    shell.until("1st in line")
    assert '"waiting":[{' in shell.waiting().replace(" ", "")
    shell.type(CTRL_C)
    shown = shell.until(PROMPT)
    assert "Traceback" not in shown
    assert shell.status() == 130
    assert '"waiting":[]' in shell.waiting().replace(" ", "")
    assert not (shell.home / "started").exists()


def test_ctrl_c_while_waiting_ends_the_script_around_it_too(shell: Shell, held: Held) -> None:
    shell.start(f"bash -c '{sys.executable} -m leaseplane run lock:a -- true; echo next'")
    shell.until("1st in line")
    shell.type(CTRL_C)
    assert "next" not in shell.until(PROMPT)


def test_ctrl_z_while_waiting(shell: Shell, held: Held) -> None:
    shell.start("l run lock:a -- echo mine")
    shell.until("1st in line")
    shell.type(CTRL_Z)
    assert "Stopped" in shell.until(PROMPT)
    # Nor is it stopped in a transaction, right after it was told who is in the way: nobody waits for it.
    held.send_signal(signal.SIGTERM)
    assert held.wait(5) == 143
    shell.start("fg")
    shell.until("mine\n")
    shell.until(PROMPT)
    assert shell.status() == 0


def test_in_the_background_nothing_is_written_into_the_prompt(shell: Shell, held: Held) -> None:
    shell.do("l run lock:a -- echo mine &")
    wait_until(lambda: '"waiting":[{' in shell.waiting().replace(" ", ""))
    time.sleep(1.2)
    assert "in line" not in shell.do("true")
    held.send_signal(signal.SIGTERM)
    shell.until("mine\n")


def test_quietly(shell: Shell, held: Held) -> None:
    assert "in line" not in shell.do("l run lock:a --quiet --timeout 1 -- true").split("not granted")[0]
    assert shell.status() == 1


def test_without_a_terminal_one_line_before_and_one_after(shell: Shell, held: Held) -> None:
    shell.start("l run lock:a -- echo mine 2> log")
    log = shell.home / "log"
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
    held.send_signal(signal.SIGTERM)
    shell.until(PROMPT)
    before, after = log.read_text().splitlines()
    assert before.startswith("leaseplane run: 1st in line for lock:a, held by did:key:z6Mk")
    assert re.fullmatch(r"leaseplane run: got lock:a after \d+ s", after)
