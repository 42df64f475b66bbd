"""`leaseplane run`: embedded and by URL, with real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.surfaces.cli.processes import PATIENCE_S, A, Said, Server, environment
from tests.surfaces.cli.test_guard import group_runs, runs, wait_until

Serve = Callable[..., Server]

WORDS = [sys.executable, "-m", "leaseplane"]
IGNORES_TERM = "trap '' TERM; echo $$ > ready; while :; do sleep 0.05; done"
WAITS = "echo $$ > ready; exec sleep 100"


class World:
    """A plane, embedded or at a URL, and the commands that use it."""

    def __init__(self, home: Path, **settings: str) -> None:
        self.home = home
        self.settings = settings
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str, **more: Any) -> subprocess.Popen[bytes]:
        settings = more.pop("settings", {})
        process = subprocess.Popen(
            [*WORDS, *words],
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "cwd": self.home,
                "env": environment(self.home, **self.settings, **settings),
                "start_new_session": True,
                **more,
            },
        )
        self.started.append(process)
        return process

    def run(self, resource: str, *words: str, options: tuple[str, ...] = (), **more: Any) -> Any:
        return self.start("run", resource, *options, "--", *words, **more)

    def shell(self, resource: str, text: str, *options: str, **more: Any) -> Any:
        return self.run(resource, "sh", "-c", text, options=options, **more)

    def say(self, *words: str) -> Said:
        return said(self.start(*words))

    def waiting(self) -> list[Any]:
        return list(self.say("wait", "--json").json["waiting"])

    def wait_for_waiters(self, count: int) -> None:
        wait_until(lambda: len(self.waiting()) == count)

    def trust(self) -> Any:
        return self.say("trust", "--json").json

    def ready(self) -> int:
        """Until the command says that it runs; its process, which is its group."""
        wait_until(lambda: self.path("ready").exists() and self.path("ready").read_text().endswith("\n"))
        return int(self.path("ready").read_text())

    def path(self, name: str) -> Path:
        return self.home / name

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()


def said(process: Any) -> Said:
    out, error = process.communicate(timeout=PATIENCE_S)
    return Said(process.returncode, (out or b"").decode(), (error or b"").decode())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """An embedded plane whose leases run as usual."""
    it = World(tmp_path, LEASEPLANE_DATA=str(tmp_path / "data"))
    yield it
    it.close()


@pytest.fixture
def brief(tmp_path: Path) -> Iterator[World]:
    """An embedded plane whose leases run for two seconds."""
    it = World(tmp_path, LEASEPLANE_DATA=str(tmp_path / "data"), LEASEPLANE_LEASE_MS="2000")
    yield it
    it.close()


@pytest.fixture(params=["embedded", "by URL"])
def either(request: pytest.FixtureRequest, tmp_path: Path, serve: Serve) -> Iterator[World]:
    if request.param == "embedded":
        it = World(tmp_path, LEASEPLANE_DATA=str(tmp_path / "data"))
    else:
        server = serve()
        it = World(tmp_path, LEASEPLANE_URL=server.url, LEASEPLANE_API_KEY=server.api_key)
    yield it
    it.close()


# -- a command that runs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_status_is_the_commands(world: World, text: str, status: int) -> None:
    done = said(world.shell("lock:a", text))
    assert (done.status, done.stdout, done.stderr) == (status, "", "")


def test_it_runs_under_a_lease_that_is_let_go_of(either: World) -> None:
    done = said(either.shell("lock:a", "cat; echo out; echo error >&2", stdin=subprocess.DEVNULL))
    assert (done.status, done.stdout, done.stderr) == (0, "out\n", "error\n")
    assert (either.trust()["released"], either.trust()["expired"]) == (1, 0)


def test_what_the_environment_says(either: World) -> None:
    done = said(either.run("lock:a", *WORDS, "acquire", "lock:a", "--json"))
    lease = done.json["lease"]
    assert lease["renewed"] is True, "within the command it is the same holder"
    told = said(either.run("lock:a", "env"))
    env = dict(line.split("=", 1) for line in told.stdout.splitlines())
    assert int(env["LEASEPLANE_FENCE"]) > lease["fence"]
    assert env["LEASEPLANE_LEASE_ID"].startswith("lease-")
    assert (env["LEASEPLANE_RESOURCE"], env["LEASEPLANE_HELD"]) == ("lock:a", "lock:a")


def test_it_sees_nothing_else_of_ours(world: World) -> None:
    program = "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"
    assert said(world.run("lock:a", sys.executable, "-c", program)).stdout == "[0, 1, 2, 3]\n"


def test_in_a_pipeline(world: World) -> None:
    leaseplane = " ".join(WORDS)
    text = f"printf 'b\\na\\n' | {leaseplane} run lock:a -- sort | {leaseplane} run lock:b -- cat -n"
    done = subprocess.run(
        ["sh", "-c", text], env=environment(world.home, **world.settings), capture_output=True, text=True
    )
    assert (done.stdout.split(), done.stderr) == (["1", "a", "2", "b"], "")


def test_with_everything_closed(world: World) -> None:
    process = world.shell(
        "lock:a",
        "ls /proc/$$/fd > files; exit 9",
        preexec_fn=lambda: [os.close(fd) for fd in range(3)],
    )
    assert process.wait(PATIENCE_S) == 9
    # The shell has opened `files`, for `ls`; whatever it keeps aside is above.
    assert "2" not in world.path("files").read_text().split()


def test_in_the_background_of_a_script(world: World) -> None:
    leaseplane = " ".join(WORDS)
    text = f"{leaseplane} run lock:a -- sh -c 'sleep 0.2; exit 6' & wait $!; echo $?"
    done = subprocess.run(
        ["sh", "-c", text], env=environment(world.home, **world.settings), capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("6\n", "")


def test_what_it_leaves_behind_is_ended_before_the_lease_is_let_go_of(world: World) -> None:
    first = world.shell(
        "lock:a", "(echo $$ > ready; exec sleep 100) & while ! test -s ready; do sleep 0.01; done"
    )
    assert said(first).status == 0
    assert not group_runs(world.ready())


# -- never two at once -------------------------------------------------------------------------

ONE_AT_A_TIME = """
import os, sys, time
path = sys.argv[1]
held = os.open(path + '.held', os.O_CREAT | os.O_EXCL)  # fails where another is in here
with open(path, 'a') as file:
    file.write('in ' + os.environ['LEASEPLANE_FENCE'] + '\\n')
    file.flush()
    time.sleep(0.01)
    file.write('out\\n')
os.unlink(path + '.held')
"""


def test_twenty_four_at_once_run_one_at_a_time(either: World) -> None:
    file = either.path("appended")
    processes = [
        either.run("lock:file", sys.executable, "-c", ONE_AT_A_TIME, str(file), options=("--quiet",))
        for _ in range(24)
    ]
    for process in processes:
        done = said(process)
        assert (done.status, done.stderr) == (0, "")
    lines = file.read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["in", "out"] * 24
    fences = [int(line.split()[1]) for line in lines[::2]]
    assert fences == sorted(set(fences)), "each has a larger fence than the one before"
    assert either.waiting() == []
    assert (either.trust()["released"], either.trust()["expired"]) == (24, 0)


# -- inside another ----------------------------------------------------------------------------


def test_inside_another_what_is_held_is_not_asked_for(either: World) -> None:
    inner = " ".join(WORDS)
    text = (
        "echo $LEASEPLANE_FENCE $LEASEPLANE_LEASE_ID; "
        f"{inner} run lock:b -- {inner} run lock:a --timeout 0 -- "
        "sh -c 'echo $LEASEPLANE_FENCE $LEASEPLANE_LEASE_ID $LEASEPLANE_RESOURCE $LEASEPLANE_HELD'"
    )
    first, second = said(either.shell("lock:a", text)).stdout.splitlines()
    assert second == f"{first} lock:a lock:a lock:b"


def test_inside_one_that_says_only_what_it_holds_a_wrong_fence_is_not_passed_on(world: World) -> None:
    given = {"LEASEPLANE_HELD": "lock:a\nlock:b", "LEASEPLANE_FENCE": "7", "LEASEPLANE_RESOURCE": "lock:b"}
    text = "echo ${LEASEPLANE_FENCE-none} $LEASEPLANE_RESOURCE"
    assert said(world.shell("lock:a", text, settings=given)).stdout == "none lock:a\n"
    assert said(world.shell("lock:b", text, settings=given)).stdout == "7 lock:b\n"
    assert not world.path("data").exists(), "nothing was asked"


def test_two_parts_of_one_agent_exclude_each_other_and_wait_as_one(world: World) -> None:
    """What runs inside another waits as the same node: no deadlock with itself, but with another."""
    inner = " ".join(WORDS)
    one = world.shell(
        "lock:a", f"touch a; while ! test -e b; do sleep 0.01; done; {inner} run lock:b -- true"
    )
    wait_until(world.path("a").exists)
    other = world.shell("lock:b", f"touch b; {inner} run lock:a --timeout 20 -- true")
    statuses = sorted((said(one).status, said(other).status))
    assert statuses == [0, 1], "one is told of the deadlock, the other gets its turn"


def test_killing_the_outer_one_ends_the_inner_one(world: World) -> None:
    inner = " ".join(WORDS)
    outer = world.run("lock:a", *inner.split(), "run", "lock:b", "--", "sh", "-c", IGNORES_TERM)
    group = world.ready()
    began = time.monotonic()
    outer.kill()
    wait_until(lambda: not group_runs(group))
    assert time.monotonic() - began < 4


# -- refused, and never started ----------------------------------------------------------------


def held(world: World) -> Any:
    process = world.shell("lock:a", WAITS, "--note", "moving the table")
    world.ready()
    return process


def test_still_held_after_the_timeout(either: World) -> None:
    held(either)
    for timeout in ("0", "0.5"):
        done = said(either.run("lock:a", "touch", "started", options=("--timeout", timeout, "--quiet")))
        assert done.status == 1
        assert "1st in line for lock:a, held by did:key:z6Mk…" in done.complaint
        assert "moving the table" in done.complaint
    assert not either.path("started").exists()
    assert either.waiting() == []


def test_where_nobody_is_reached_the_command_is_not_started(world: World) -> None:
    nobody = {"LEASEPLANE_URL": "http://127.0.0.1:9", "LEASEPLANE_API_KEY": "lpk_x"}
    done = said(world.run("lock:a", "touch", "started", settings=nobody))
    assert done.status == 3
    assert done.complaint
    (world.home / "no-folder").write_text("a file")
    done = said(world.run("lock:a", "touch", "started", options=("--data", "no-folder")))
    assert done.status in (2, 3)
    assert done.complaint
    assert not world.path("started").exists()


def test_a_key_that_is_refused(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    world = World(tmp_path, LEASEPLANE_URL=server.url, LEASEPLANE_API_KEY="lpk_wrong")
    done = said(world.run("lock:a", "touch", "started"))
    assert done.status in (1, 2)
    assert done.complaint
    assert not world.path("started").exists()


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        (["run"], 2, "RESOURCE"),
        (["run", "lock:a"], 2, "say the command, behind --"),
        (["run", "lock:a", "--"], 2, "say the command, behind --"),
        (["run", "--", "true"], 2, "RESOURCE"),
        (["run", "lock:a", "true"], 2, "'true' is not understood; the command stands behind --"),
        (["run", "lock:a", "--tmeout", "5", "--", "true"], 2, "'--tmeout' is not understood"),
        (["run", "lock:a", "--timeout", "soon", "--", "true"], 2, "number of seconds"),
        (["run", "file:../x", "--", "true"], 2, "segment"),
        (["run", "lock:a", "--note", "\x07", "--", "true"], 2, "control characters"),
        (["run", "lock:a", "--", "no-such-command"], 127, "there is no command 'no-such-command'"),
        (["run", "lock:a", "--", "./no/such"], 127, "there is no command"),
        (["run", "lock:a", "--", "/etc/passwd"], 126, "'/etc/passwd' cannot be run: not executable"),
        (["run", "lock:a", "--", "/"], 126, "is a folder"),
    ],
)
def test_what_cannot_be_is_said_before_anyone_waits(
    world: World, words: list[str], status: int, complaint: str
) -> None:
    done = world.say(*words)
    assert done.status == status
    assert complaint in done.complaint
    assert not world.path("data").exists()


def test_options_of_the_command_are_its_own(world: World) -> None:
    done = said(world.run("lock:a", "echo", "--timeout", "-x", "--", "--help"))
    assert done.stdout == "--timeout -x -- --help\n"


# -- signals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_while_waiting_ends_the_wait(world: World, number: signal.Signals) -> None:
    held(world)
    waiting = world.run("lock:a", "touch", "started")
    world.wait_for_waiters(1)
    waiting.send_signal(number)
    done = said(waiting)
    assert done.status == 128 + number
    assert "Traceback" not in done.stderr
    assert world.waiting() == []
    assert not world.path("started").exists()


def test_by_url_a_signal_while_waiting_ends_the_wait(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    world = World(tmp_path, LEASEPLANE_URL=server.url, LEASEPLANE_API_KEY=server.api_key)
    try:
        assert server.acquire("lock:a", A).status == 200
        waiting = world.run("lock:a", "touch", "started")
        wait_until(lambda: server.queue("lock:a"))
        waiting.send_signal(signal.SIGTERM)
        assert said(waiting).status == 143
        assert server.queue("lock:a") == []
    finally:
        world.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_while_it_runs_is_the_commands(world: World, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    it = world.shell("lock:a", f"trap 'exit 5' {name}; echo $$ > ready; while :; do sleep 0.02; done")
    world.ready()
    it.send_signal(number)
    assert said(it).status == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2])
def test_a_command_that_a_signal_ended(world: World, number: signal.Signals) -> None:
    it = world.shell("lock:a", WAITS)
    world.ready()
    it.send_signal(number)
    done = said(it)
    assert (done.status, done.stderr) == (128 + number, "")
    assert world.trust()["released"] == 1


def test_a_command_that_ignores_term_keeps_the_lease(brief: World) -> None:
    it = brief.shell("lock:a", IGNORES_TERM)
    group = brief.ready()
    it.send_signal(signal.SIGTERM)
    other = said(brief.run("lock:a", "true", options=("--timeout", "4", "--quiet")))
    assert other.status == 1, "longer than a lease: it is renewed"
    assert runs(group)
    os.killpg(group, signal.SIGKILL)
    assert said(it).status == 137


def test_what_nohup_ignores_is_ignored(world: World) -> None:
    it = world.shell(
        "lock:a",
        "echo $$ > ready; sleep 0.5; echo done",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    world.ready()
    it.send_signal(signal.SIGHUP)
    assert said(it).stdout == "done\n"


# -- a lease that is lost ----------------------------------------------------------------------


def test_a_wrapper_that_is_killed_takes_the_command_with_it(world: World) -> None:
    it = world.shell("lock:a", f"sleep 100 & {IGNORES_TERM}")
    group = world.ready()
    it.kill()
    wait_until(lambda: not group_runs(group), 5)


def test_a_wrapper_that_is_killed_while_waiting_starts_nothing(world: World) -> None:
    first = held(world)
    waiting = world.run("lock:a", "touch", "started")
    world.wait_for_waiters(1)
    waiting.kill()
    waiting.wait()
    first.send_signal(signal.SIGTERM)
    assert said(first).status == 143
    assert said(world.run("lock:a", "true")).status == 0
    assert not world.path("started").exists()


def test_a_wrapper_that_is_stopped_loses_the_lease_and_the_command(brief: World) -> None:
    it = brief.shell("lock:a", f"sleep 100 & {IGNORES_TERM}")
    group = brief.ready()
    os.kill(it.pid, signal.SIGSTOP)
    wait_until(lambda: not group_runs(group), 4)
    os.kill(it.pid, signal.SIGCONT)
    done = said(it)
    assert done.status == 4
    assert "the lease of lock:a" in done.stderr


def test_the_group_is_gone_before_another_has_the_lease(brief: World) -> None:
    """The next one looks, the moment that it is started, for what the one before left running."""
    it = brief.shell("lock:a", f"sleep 100 & {IGNORES_TERM}")
    group = brief.ready()
    look = (
        "import os, sys; group = sys.argv[1]; "
        "stats = [open(f'/proc/{p}/stat').read().rpartition(')')[2].split() for p in os.listdir('/proc') "
        "if p.isdigit() and os.path.exists(f'/proc/{p}/stat')]; "
        "print(sum(s[2] == group and s[0] not in 'ZX' for s in stats))"
    )
    looks = brief.run("lock:a", sys.executable, "-c", look, str(group), options=("--quiet",))
    brief.wait_for_waiters(1)
    os.kill(it.pid, signal.SIGSTOP)
    assert said(looks).stdout == "0\n"
    os.kill(it.pid, signal.SIGCONT)
    assert said(it).status == 4


def test_an_operator_who_breaks_the_lease_ends_the_command(brief: World) -> None:
    it = brief.shell("lock:a", IGNORES_TERM)
    group = brief.ready()
    assert brief.say("break", "lock:a", "--reason", "stuck").status == 0
    done = said(it)
    assert done.status == 4
    assert "ending the command" in done.stderr
    assert not group_runs(group)


def test_a_lease_that_was_broken_and_nobody_knew(world: World) -> None:
    it = world.shell("lock:a", "echo $$ > ready; while ! test -e go; do sleep 0.01; done")
    world.ready()
    assert world.say("break", "lock:a", "--reason", "stuck").status == 0
    world.path("go").touch()
    done = said(it)
    assert done.status == 4, "it may have overlapped with another"
    assert "was over before it was released" in done.complaint


def test_where_the_guard_is_killed_the_command_ends(world: World) -> None:
    it = world.shell("lock:a", f"sleep 100 & {IGNORES_TERM}")
    group = world.ready()
    stat = Path(f"/proc/{group}/stat").read_text().rpartition(")")[2].split()
    os.kill(int(stat[1]), signal.SIGKILL)
    done = said(it)
    assert done.status == 137
    assert not group_runs(group)
    assert world.trust()["released"] == 1


def test_a_guard_that_is_stopped_is_done_without(brief: World) -> None:
    it = brief.shell("lock:a", IGNORES_TERM)
    group = brief.ready()
    guard = int(Path(f"/proc/{group}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGSTOP)
    assert brief.say("break", "lock:a", "--reason", "stuck").status == 0
    assert said(it).status == 4
    assert not group_runs(group)
    assert not runs(guard)


# -- a server that comes and goes --------------------------------------------------------------


def test_a_server_that_is_restarted_while_it_runs(serve: Serve, tmp_path: Path) -> None:
    server = serve(LEASEPLANE_LEASE_MS="3000")
    world = World(tmp_path, LEASEPLANE_URL=server.url, LEASEPLANE_API_KEY=server.api_key)
    try:
        it = world.shell("lock:a", "echo $$ > ready; sleep 5; exit 8")
        world.ready()
        server.process.kill()
        server.process.wait()
        again = serve("--port", str(server.port))
        assert said(it).status == 8
        assert again.acquire("lock:a", A).status == 200
    finally:
        world.close()


def test_a_server_that_stays_away_ends_the_command_in_time(serve: Serve, tmp_path: Path) -> None:
    server = serve(LEASEPLANE_LEASE_MS="3000")
    world = World(tmp_path, LEASEPLANE_URL=server.url, LEASEPLANE_API_KEY=server.api_key)
    try:
        it = world.shell("lock:a", f"sleep 100 & {IGNORES_TERM}")
        group = world.ready()
        began = time.monotonic()
        server.process.kill()
        wait_until(lambda: not group_runs(group), 4)
        assert time.monotonic() - began < 3
        done = said(it)
        assert done.status == 4
        assert "could not be renewed" in done.stderr
    finally:
        world.close()


def test_a_command_that_ends_while_the_server_is_away(serve: Serve, tmp_path: Path) -> None:
    server = serve(LEASEPLANE_LEASE_MS="3000")
    world = World(tmp_path, LEASEPLANE_URL=server.url, LEASEPLANE_API_KEY=server.api_key)
    try:
        it = world.shell("lock:a", "echo $$ > ready; while ! test -e go; do sleep 0.01; done; exit 3")
        world.ready()
        server.process.kill()
        world.path("go").touch()
        done = said(it)
        assert done.status == 3
        assert "could not be let go of, and runs out by itself" in done.complaint
    finally:
        world.close()


# -- the plane it is told of -------------------------------------------------------------------


def test_what_asks_from_within_asks_the_same_plane_as_the_same_agent(world: World, tmp_path: Path) -> None:
    done = said(
        world.run(
            "lock:a",
            *WORDS,
            "acquire",
            "lock:b",
            "--json",
            options=("--data", "other", "--agent", "did:example:ada"),
            settings={"LEASEPLANE_URL": "http://127.0.0.1:9"},
        )
    )
    assert json.loads(done.stdout)["lease"]["holder"] == "did:example:ada"
    assert (tmp_path / "other").exists() and not (tmp_path / "data").exists()


def test_leaves_no_process_and_no_file_behind(world: World) -> None:
    for _ in range(10):
        assert said(world.run("lock:a", "true")).status == 0
    assert list((world.home / "data" / "processes").iterdir()) == []
