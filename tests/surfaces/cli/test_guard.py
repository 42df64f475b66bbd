"""The guard: whatever happens to a wrapper, its command has ended when it must have. Real processes."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.surfaces.cli.processes import PATIENCE_S, SOURCE, environment

ROOT = Path(__file__).resolve().parents[3]

NEVER_MS = 60_000
IGNORES_TERM = "trap '' TERM; echo ready > ready; while :; do sleep 0.05; done"
# Not a loop of a shell's: in the middle of its vfork(2) a stop comes to the child alone.
WAITS = "echo ready > ready; exec sleep 100"


class Guarded:
    """One wrapper with a command, told what to do and asked what it was told."""

    def __init__(self, home: Path, *command: str, options: tuple[str, ...] = (), **popen: object) -> None:
        self.home = home
        orders_fd, self._orders = os.pipe()
        words = (sys.executable, "-m", "tests.surfaces.cli.guarded", "--orders", str(orders_fd))
        self.process = subprocess.Popen(
            [*words, *options, "--", *command],
            pass_fds=[orders_fd],
            stdout=subprocess.PIPE,
            cwd=home,
            env=environment(home, PYTHONPATH=f"{SOURCE}:{ROOT}", REMOVED="not yet"),
            start_new_session=True,
            **{"stdin": subprocess.DEVNULL, **popen},  # type: ignore[call-overload]
        )
        os.close(orders_fd)
        self._unread = b""
        _, group, _, guard = self.line().split()
        self.group, self.guard = int(group), int(guard)

    def line(self, patience_s: float = PATIENCE_S) -> str:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        deadline = time.monotonic() + patience_s
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise TimeoutError(f"nothing was said, after {self._unread!r}")
            more = os.read(fd, 4096)
            if not more:
                return ""
            self._unread += more
        line, self._unread = self._unread.split(b"\n", 1)
        return line.decode()

    def tell(self, line: str) -> None:
        os.write(self._orders, f"{line}\n".encode())

    def begin(self, term_ms: int = NEVER_MS, kill_ms: int = NEVER_MS) -> None:
        self.tell(f"hold {term_ms} {kill_ms}")
        self.tell("begin")

    def ready(self) -> None:
        """Until the command says that it runs."""
        wait_until((self.home / "ready").exists)

    def finish(self) -> None:
        self.tell("close")
        assert self.line() == "closed"
        assert self.process.wait(PATIENCE_S) == 0

    def close(self) -> None:
        os.close(self._orders)
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        for number in (self.guard, self.group):
            # Only what is still ours: a stopped guard, say.
            if runs(number):
                os.kill(number, signal.SIGKILL)


Guard = Callable[..., Guarded]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guard]:
    started: list[Guarded] = []

    def start(*command: str, **more: object) -> Guarded:
        started.append(Guarded(tmp_path, *command, **more))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for each in started:
        each.close()


def wait_until(holds: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def stat_of(pid: int) -> tuple[str, int] | None:
    """The state of a process and its group."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, _, group = text.rpartition(")")[2].split()[:3]
    return state, int(group)


def runs(pid: int) -> bool:
    told = stat_of(pid)
    return told is not None and told[0] not in "ZX"


def group_runs(group: int) -> bool:
    """Whether anything of this process group can still do something."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return any(runs(pid) and (stat_of(pid) or ("", 0))[1] == group for pid in pids)


def shell(text: str) -> tuple[str, str, str]:
    return "sh", "-c", text


# -- a command that ends by itself -------------------------------------------------------------


@pytest.mark.parametrize(("text", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_its_status_is_told_and_nothing_is_left(guarded: Guard, text: str, status: int) -> None:
    it = guarded(*shell(text))
    it.begin()
    assert it.line() == f"ended {status}"
    assert it.line() == "gone"
    it.finish()
    assert not runs(it.guard)


def test_what_its_environment_gets(guarded: Guard, tmp_path: Path) -> None:
    it = guarded(*shell('echo "$ADDED ${REMOVED-unset}" > told'))
    it.begin()
    assert [it.line(), it.line()] == ["ended 0", "gone"]
    assert (tmp_path / "told").read_text() == "yes unset\n"


def test_a_command_that_is_not_there_or_cannot_be_run(guarded: Guard, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("echo no\n")
    for name, status in (("no-such-command", 127), ("./no/such", 127), ("./plain", 126), ("/", 126)):
        it = guarded(name, stderr=subprocess.PIPE)
        it.begin()
        assert it.line() == f"ended {status}"
        assert it.line() == "gone"
        it.finish()
        assert it.process.stderr is not None
        with it.process.stderr as complaint:
            assert complaint.read().count(b"\n") == 1


def test_a_script_without_a_first_line_is_a_shells(guarded: Guard, tmp_path: Path) -> None:
    (tmp_path / "script").write_text('echo "$1" > told\n')
    (tmp_path / "script").chmod(0o755)
    it = guarded("./script", "an argument")
    it.begin()
    assert it.line() == "ended 0"
    assert (tmp_path / "told").read_text() == "an argument\n"


def test_it_is_started_with_what_the_wrapper_was_started_with(guarded: Guard, tmp_path: Path) -> None:
    """Neither our files nor our signals: a process has 0, 1, 2 and SIGPIPE's own way."""
    program = (
        "import os, signal; "
        "print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1], file=open('fds', 'w')); "
        "print(open('/proc/self/status').read(), file=open('status', 'w'))"
    )
    it = guarded(sys.executable, "-c", program)
    it.begin()
    assert it.line() == "ended 0"
    # Whatever is above 2 was opened by the command: `ls` of its files, and the file that it wrote to.
    assert (tmp_path / "fds").read_text() in ("[0, 1, 2]\n", "[0, 1, 2, 3]\n")
    status = dict(
        line.split(":\t") for line in (tmp_path / "status").read_text().splitlines() if ":\t" in line
    )
    assert int(status["SigBlk"], 16) == 0
    # What Python ignores for itself, and whatever these tests were started to ignore: as it is with us.
    ours = dict(
        line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line
    )
    assert int(status["SigIgn"], 16) == int(ours["SigIgn"], 16)
    assert int(status["SigIgn"], 16) >> signal.SIGPIPE - 1 & 1


def test_what_the_parent_ignored_stays_ignored(guarded: Guard, tmp_path: Path) -> None:
    it = guarded(
        *shell("grep SigIgn /proc/self/status > told"),
        preexec_fn=lambda: (
            signal.signal(signal.SIGHUP, signal.SIG_IGN),
            signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        ),
    )
    it.begin()
    assert [it.line(), it.line()] == ["ended 0", "gone"]
    ignored = int((tmp_path / "told").read_text().split()[1], 16)
    assert ignored >> (signal.SIGHUP - 1) & 1
    assert not ignored >> (signal.SIGPIPE - 1) & 1
    it.finish()


def test_with_the_standard_files_closed(guarded: Guard, tmp_path: Path) -> None:
    it = guarded(
        *shell("ls -l /proc/$$/fd > told 2> /dev/null"), preexec_fn=lambda: (os.close(0), os.close(2))
    )
    it.begin()
    assert it.line().startswith("ended")
    assert it.line() == "gone"
    assert " 0 -> " not in (tmp_path / "told").read_text()
    it.finish()


def test_whoever_reads_its_output_does_not_wait_for_the_guard(guarded: Guard) -> None:
    """Only the command and the wrapper have the caller's files: the guard has none."""
    it = guarded(*shell(WAITS))
    it.begin()
    it.ready()
    names = {os.readlink(entry) for entry in Path(f"/proc/{it.guard}/fd").iterdir()}
    assert {name for name in names if not name.startswith("pipe:")} == {"/dev/null"}
    pipe_of_stdout = os.readlink(f"/proc/{it.process.pid}/fd/1")
    assert pipe_of_stdout not in names
    it.tell("end 5000")
    assert [it.line(), it.line(), it.line()] == ["ending", "ended 143", "gone"]


# -- what it leaves behind, and how it is ended ------------------------------------------------


def test_what_it_leaves_in_its_group_is_ended(guarded: Guard) -> None:
    it = guarded(*shell("sleep 100 & sleep 100 & exit 3"))
    it.begin()
    assert it.line() == "ended 3"
    assert it.line(1.5) == "gone", "TERM is enough for these"
    assert not group_runs(it.group)


def test_what_it_leaves_and_ignores_term_is_killed(guarded: Guard) -> None:
    it = guarded(
        *shell(f"({IGNORES_TERM}) & while ! test -f ready; do sleep 0.01; done; exit 3"),
        options=("--kill-after", "300"),
    )
    it.begin()
    assert it.line() == "ended 3"
    began = time.monotonic()
    assert it.line() == "gone"
    assert 0.2 < time.monotonic() - began < 5
    assert not group_runs(it.group)


def test_ended_with_its_children(guarded: Guard) -> None:
    it = guarded(*shell(f"(sleep 100; :) & (sh -c 'sleep 100; :') & {IGNORES_TERM}"))
    it.begin()
    it.ready()
    it.tell("end 200")
    assert [it.line(), it.line(), it.line()] == ["ending", "ended 137", "gone"]
    assert not group_runs(it.group)


def test_a_signal_reaches_the_whole_group(guarded: Guard, tmp_path: Path) -> None:
    child = "trap 'echo child >> told; exit' USR1; echo ready > ready; while :; do sleep 0.02; done"
    it = guarded(
        *shell(f"trap 'wait; echo leader >> told; exit 5' USR1; ({child}) & while :; do sleep 0.02; done")
    )
    it.begin()
    it.ready()
    it.tell(f"signal {int(signal.SIGUSR1)}")
    assert it.line() == "ended 5"
    assert sorted((tmp_path / "told").read_text().split()) == ["child", "leader"]


def test_a_command_that_ignores_term_goes_on(guarded: Guard) -> None:
    it = guarded(*shell(IGNORES_TERM))
    it.begin()
    it.ready()
    it.tell(f"signal {int(signal.SIGTERM)}")
    with pytest.raises(TimeoutError):
        it.line(0.5)
    assert runs(it.group)


def test_a_stop_is_told_and_a_stopped_command_can_be_ended(guarded: Guard) -> None:
    it = guarded(*shell(WAITS))
    it.begin()
    it.ready()
    it.tell(f"signal {int(signal.SIGSTOP)}")
    assert it.line() == f"stopped {int(signal.SIGSTOP)}"
    it.tell(f"signal {int(signal.SIGCONT)}")
    it.tell(f"signal {int(signal.SIGTSTP)}")
    assert it.line() == f"stopped {int(signal.SIGTSTP)}"
    it.tell("end 5000")
    assert [it.line(), it.line(), it.line()] == ["ending", "ended 143", "gone"]


# -- deadlines ---------------------------------------------------------------------------------


def test_it_is_ended_when_its_time_comes(guarded: Guard) -> None:
    it = guarded(*shell(IGNORES_TERM))
    began = time.monotonic()
    it.begin(300, 600)
    assert it.line() == "ending"
    assert 0.2 < time.monotonic() - began < 0.55
    assert it.line() == "ended 137"
    assert 0.55 < time.monotonic() - began < 1.5
    assert it.line() == "gone"


def test_later_deadlines_move_it_on(guarded: Guard) -> None:
    it = guarded(*shell(WAITS))
    it.begin(400, 600)
    it.ready()
    it.tell(f"hold {NEVER_MS} {NEVER_MS}")
    it.tell("hold 0 0")  # told by another thread, and late
    with pytest.raises(TimeoutError):
        it.line(0.8)
    assert runs(it.group)


def test_a_wrapper_that_is_stopped_does_not_keep_it(guarded: Guard) -> None:
    it = guarded(*shell(f"sleep 100 & {IGNORES_TERM}"))
    it.begin(500, 800)
    it.ready()
    os.kill(it.process.pid, signal.SIGSTOP)
    began = time.monotonic()
    wait_until(lambda: not group_runs(it.group))
    assert time.monotonic() - began < 2
    os.kill(it.process.pid, signal.SIGCONT)
    assert [it.line(), it.line(), it.line()] == ["ending", "ended 137", "gone"]


def test_a_go_that_comes_too_late_starts_nothing(guarded: Guard, tmp_path: Path) -> None:
    it = guarded("touch", "started")
    it.tell("hold 300 400")
    it.tell("begin-late")
    assert [it.line(), it.line(), it.line()] == ["ending", "ended 143", "gone"]
    assert not (tmp_path / "started").exists()


# -- a wrapper that is killed ------------------------------------------------------------------


def test_killed_before_the_go_nothing_is_started(guarded: Guard, tmp_path: Path) -> None:
    it = guarded("touch", "started")
    it.process.kill()
    wait_until(lambda: not runs(it.guard) and not group_runs(it.group))
    assert not (tmp_path / "started").exists()


def test_killed_between_the_deadline_and_the_go_nothing_is_started(guarded: Guard, tmp_path: Path) -> None:
    it = guarded("touch", "started")
    it.tell(f"hold {NEVER_MS} {NEVER_MS}")
    it.process.kill()
    wait_until(lambda: not runs(it.guard) and not group_runs(it.group))
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(("text", "within_s"), [(WAITS, 0.28), (IGNORES_TERM, 2.0)])
def test_killed_while_the_command_runs_it_is_ended(guarded: Guard, text: str, within_s: float) -> None:
    it = guarded(*shell(f"sleep 100 & {text}"))
    it.begin()
    it.ready()
    began = time.monotonic()
    it.process.kill()
    wait_until(lambda: not group_runs(it.group))
    assert time.monotonic() - began < within_s
    wait_until(lambda: not runs(it.guard))


def test_killed_while_the_command_is_stopped_it_is_ended(guarded: Guard) -> None:
    it = guarded(*shell(WAITS))
    it.begin()
    it.ready()
    os.killpg(it.group, signal.SIGSTOP)
    assert it.line().startswith("stopped")
    it.process.kill()
    wait_until(lambda: not group_runs(it.group))


def test_killed_at_any_moment(guarded: Guard, tmp_path: Path) -> None:
    """However far it has got, nothing runs afterwards."""
    for delay_ms in range(0, 60, 4):
        it = Guarded(tmp_path, *shell(f"sleep 100 & {IGNORES_TERM}"), options=("--orphan-kill-after", "50"))
        it.begin()
        time.sleep(delay_ms / 1000)
        it.process.kill()
        wait_until(lambda it=it: not runs(it.guard) and not group_runs(it.group))  # type: ignore[misc]
        it.close()


def test_a_wrapper_that_gives_up_leaves_nothing(guarded: Guard, tmp_path: Path) -> None:
    it = guarded("touch", "started")
    it.finish()
    assert not runs(it.guard) and not group_runs(it.group)
    assert not (tmp_path / "started").exists()


# -- a guard that is killed --------------------------------------------------------------------


def test_where_the_guard_is_killed_so_is_the_command(guarded: Guard) -> None:
    it = guarded(*shell(f"sleep 100 & {IGNORES_TERM}"))
    it.begin()
    it.ready()
    os.kill(it.guard, signal.SIGKILL)
    assert it.line() == "guard lost"
    # The command itself by the kernel, at once, also where the wrapper is gone as well.
    wait_until(lambda: not runs(it.group))
    it.tell("put-down")
    assert it.line() == "put down"
    assert not group_runs(it.group)
    it.finish()


def test_where_the_guard_is_killed_before_the_go_nothing_is_started(guarded: Guard, tmp_path: Path) -> None:
    it = guarded("touch", "started")
    os.kill(it.guard, signal.SIGKILL)
    assert it.line() == "guard lost"
    it.begin()
    assert it.line().startswith("missing ")
    it.finish()
    assert not (tmp_path / "started").exists()


def test_a_guard_that_does_not_act_is_done_without(guarded: Guard) -> None:
    it = guarded(*shell(f"sleep 100 & {IGNORES_TERM}"))
    it.begin()
    it.ready()
    os.kill(it.guard, signal.SIGSTOP)
    for _ in range(5_000):
        it.tell("end 0")
    it.tell("put-down")
    # In either order: that it is put down, and that with it the guard is gone.
    assert sorted([it.line(), it.line()]) == ["guard lost", "put down"]
    assert not group_runs(it.group)
    it.finish()
    assert not runs(it.guard)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGTSTP])
def test_what_a_terminal_sends_does_not_end_the_guard(guarded: Guard, number: signal.Signals) -> None:
    it = guarded(*shell(WAITS))
    it.begin()
    it.ready()
    os.kill(it.guard, number)
    it.tell("end 1000")
    assert [it.line(), it.line(), it.line()] == ["ending", "ended 143", "gone"]


# -- groups and terminals ----------------------------------------------------------------------


def test_each_has_a_group_of_its_own_in_one_session(guarded: Guard) -> None:
    it = guarded(*shell(WAITS))
    it.begin()
    it.ready()
    assert os.getpgid(it.group) == it.group != os.getpgid(it.process.pid)
    assert os.getpgid(it.guard) == it.guard
    # So that the group is no orphan: an orphan's Ctrl-Z does nothing.
    assert os.getsid(it.guard) == os.getsid(it.group) == os.getsid(it.process.pid)


def test_a_daemon_is_out_of_reach(guarded: Guard, tmp_path: Path) -> None:
    """Documented: whoever leaves the group is not known to us any more."""
    it = guarded(
        *shell(
            "setsid sh -c 'echo $$ > daemon; exec sleep 100' & while ! test -s daemon; do sleep 0.01; done"
        )
    )
    it.begin()
    assert [it.line(), it.line()] == ["ended 0", "gone"]
    daemon = int((tmp_path / "daemon").read_text())
    assert runs(daemon)
    os.kill(daemon, signal.SIGKILL)


def test_two_hundred_leave_neither_files_nor_processes(tmp_path: Path) -> None:
    program = """
import os, time
from tests.surfaces.cli.guarded import boot_ms
from leaseplane.surfaces.cli.guard import Ended, Gone, start_guard
files = os.listdir('/proc/self/fd')
for number in range(200):
    guard = start_guard(['true'], os.environ, boot_ms, kill_after_ms=1000, orphan_kill_after_ms=0)
    told = []
    if number % 4:
        guard.hold_until(boot_ms() + 60000, boot_ms() + 60000)
        guard.begin({}, boot_ms() + 60000)
        while Gone() not in told:
            told += guard.events(10000)
        assert told == [Ended(0, 0), Gone()], told
    guard.close()
assert os.listdir('/proc/self/fd') == files
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print('no child')
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(tmp_path, PYTHONPATH=f"{SOURCE}:{ROOT}"),
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("no child\n", "")


def test_in_a_terminal_the_command_is_in_its_session(guarded: Guard, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        it = guarded(
            *shell("tty > told; sleep 0.1"),
            stdin=theirs,
            stderr=theirs,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
        )
        it.begin()
        assert it.line() == "ended 0"
        assert (tmp_path / "told").read_text().startswith("/dev/pts/")
    finally:
        os.close(ours)
        os.close(theirs)
