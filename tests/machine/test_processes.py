import fcntl
import os
import select
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leaseplane.model import AuthorityUnavailable
from leaseplane.store import processes as processes_module
from leaseplane.store.folder import FolderRefused
from leaseplane.store.kernel_lock import KernelLock
from leaseplane.store.processes import Presence

ME, YOU, THIRD = "00000000000000aa", "00000000000000bb", "00000000000000cc"
PRELUDE = """
from pathlib import Path
from leaseplane.store.processes import Presence
def there(*more):
    print('there', *more, flush=True)
"""
STAY = PRELUDE + "p = Presence.open(Path(args[0]), args[1]); there(); sys.stdin.readline()"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "processes"
    place.mkdir(mode=0o700)
    return place


@pytest.fixture
def me(folder: Path) -> Iterator[Presence]:
    presence = Presence.open(folder, ME)
    yield presence
    presence.close()


def is_readable(presence: Presence) -> bool:
    return bool(select.select([presence.fileno()], [], [], 0)[0])


def stay(start: Any, folder: Path, process_id: str = YOU) -> Any:
    process = start(STAY, folder, process_id)
    assert process.stdout.readline() == "there\n"
    return process


def kill(process: Any) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


# -- being there -------------------------------------------------------------------------------


def test_it_leaves_private_files_and_takes_them_away(folder: Path, run: Any) -> None:
    code = PRELUDE + (
        "os.umask(0); f = Path(args[0]); p = Presence.open(f, args[1])\n"
        "print(sorted((n.name, oct(n.stat().st_mode)) for n in f.iterdir())); p.close(); p.close()\n"
        "print(list(f.iterdir()))"
    )
    lock, sock = oct(stat.S_IFREG | 0o600), oct(stat.S_IFSOCK | 0o600)
    assert run(code, folder, ME) == f"{[(f'{ME}.lock', lock), (f'{ME}.sock', sock)]}\n[]"


def test_others_are_those_in_the_folder(me: Presence, folder: Path) -> None:
    (folder / "README.lock").touch()
    with_you = Presence.open(folder, YOU)
    assert me.others() == {YOU}
    assert with_you.others() == {ME}
    with_you.close()
    assert me.others() == set()


def test_it_works_whatever_the_folder_is_called(tmp_path: Path) -> None:
    folder = tmp_path / ("long " * 40) / ("länger " * 15) / "processes"
    folder.mkdir(parents=True)
    assert len(os.fsencode(folder)) > 300
    with_me, with_you = Presence.open(folder, ME), Presence.open(folder, YOU)
    assert with_me.wake(YOU)
    assert is_readable(with_you)
    with_me.close()
    with_you.close()


def test_without_proc_too_long_a_name_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(processes_module.sys, "platform", "darwin")
    with pytest.raises(FolderRefused, match="shorter"):
        Presence.open(folder, ME)
    assert list(folder.iterdir()) == []


def test_without_proc_a_short_name_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    monkeypatch.setattr(processes_module.sys, "platform", "darwin")
    with_me, with_you = Presence.open(folder, ME), Presence.open(folder, YOU)
    assert with_me.wake(YOU)
    assert is_readable(with_you)
    assert stat.S_IMODE((folder / f"{ME}.sock").stat().st_mode) == 0o600
    with_me.close()
    with_you.close()


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(AuthorityUnavailable, match="cannot be used"):
        Presence.open(tmp_path / "gone", ME)


def test_an_object_that_is_forgotten_is_dead(me: Presence, folder: Path) -> None:
    with pytest.warns(ResourceWarning):
        Presence.open(folder, YOU)
    assert me.dead({YOU}) == {YOU}


# -- waking ------------------------------------------------------------------------------------


def test_a_wake_up_is_seen_until_it_is_drained(me: Presence, folder: Path) -> None:
    with_you = Presence.open(folder, YOU)
    assert not is_readable(with_you)
    assert me.wake(YOU)
    assert me.wake(YOU)
    assert is_readable(with_you)
    assert is_readable(with_you)
    with_you.drain()
    assert not is_readable(with_you)
    with_you.drain()
    with_you.close()


def test_a_wake_up_reaches_another_process(me: Presence, folder: Path, start: Any) -> None:
    code = PRELUDE + (
        "import select\np = Presence.open(Path(args[0]), args[1]); there()\n"
        "print(bool(select.select([p.fileno()], [], [], 20)[0]), flush=True)"
    )
    process = start(code, folder, YOU)
    assert process.stdout.readline() == "there\n"
    assert me.wake(YOU)
    assert process.stdout.readline() == "True\n"


def test_one_that_is_not_there_is_not_woken(me: Presence, folder: Path, start: Any) -> None:
    assert not me.wake(YOU)
    kill(stay(start, folder))
    assert not me.wake(YOU)


def test_a_full_inbox_counts_as_woken(me: Presence, folder: Path) -> None:
    with_you = Presence.open(folder, YOU)
    assert all(me.wake(YOU) for _ in range(2_000))
    assert is_readable(with_you)
    with_you.drain()
    assert not is_readable(with_you)
    with_you.close()


def test_sleepers_with_full_inboxes_do_not_keep_another_from_being_woken(me: Presence, folder: Path) -> None:
    # What was sent and not read is on the sender's account, and the account is bounded.
    sleepers = [Presence.open(folder, f"{number:016x}") for number in range(60)]
    for sleeper in sleepers:
        assert all(me.wake(sleeper.process_id) for _ in range(20))
    with pytest.raises(BlockingIOError):
        with_you = Presence.open(folder, YOU)
        me._inbox.sendto(b".", str(folder / f"{YOU}.sock"))
    assert not is_readable(with_you)
    assert me.wake(YOU)
    assert is_readable(with_you)
    for presence in (*sleepers, with_you):
        presence.close()


# -- dying -------------------------------------------------------------------------------------


def test_silence_is_not_death_and_a_kill_is(me: Presence, folder: Path, start: Any) -> None:
    process = stay(start, folder)
    process.send_signal(signal.SIGSTOP)
    assert me.dead({YOU, ME, THIRD}) == {THIRD}
    kill(process)
    assert me.dead({YOU, ME}) == {YOU}
    assert me.others() == {YOU}


def test_those_who_look_do_not_make_the_dead_seem_alive(me: Presence, folder: Path, start: Any) -> None:
    kill(stay(start, folder))
    descriptor = os.open(folder, os.O_RDONLY)
    looking = KernelLock.is_free(f"{YOU}.lock", folder_fd=descriptor)
    os.close(descriptor)
    assert looking
    with (folder / f"{YOU}.lock").open("r+") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert me.dead({YOU}) == {YOU}


def test_a_lock_that_cannot_be_looked_at_proves_nothing(
    me: Presence, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_you = Presence.open(folder, YOU)

    def out_of_descriptors(*_: object, **__: object) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", out_of_descriptors)
        assert me.dead({YOU}) == set()
        assert me.bury(YOU) is False
    with_you.close()


def test_the_dead_are_buried_and_the_living_are_not(me: Presence, folder: Path, start: Any) -> None:
    process = stay(start, folder)
    assert me.bury(YOU) is False
    assert me.bury(ME) is False
    kill(process)
    assert me.bury(YOU) is True
    assert me.bury(YOU) is True
    assert sorted(name.name for name in folder.iterdir()) == [f"{ME}.lock", f"{ME}.sock"]
    assert me.dead({YOU}) == {YOU}


def test_two_buriers_do_not_get_in_each_others_way(me: Presence, folder: Path, start: Any) -> None:
    kill(stay(start, folder))
    descriptor = os.open(folder, os.O_RDONLY)
    # The other has the lock, and is about to remove the files.
    other = KernelLock.try_take(f"{YOU}.lock", folder_fd=descriptor)
    assert other is not None
    assert me.bury(YOU) is False
    assert (folder / f"{YOU}.sock").exists()
    other.close()
    os.close(descriptor)
    assert me.bury(YOU) is True


def test_a_burier_that_comes_second_removes_nothing(
    me: Presence, folder: Path, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(stay(start, folder))
    take = KernelLock.try_take

    def take_late(name: str, **more: Any) -> Any:
        lock = take(name, **more)
        # Meanwhile another has buried it and gone, and what has the socket's name now is not the dead one's.
        (folder / name).unlink()
        return lock

    monkeypatch.setattr(KernelLock, "try_take", staticmethod(take_late))
    assert me.bury(YOU) is True
    assert (folder / f"{YOU}.sock").exists()


# -- appearing ---------------------------------------------------------------------------------


def test_a_lock_is_not_seen_before_it_is_held(
    me: Presence, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def flock_looked_at(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX:
            assert me.others() == set()
            flock(descriptor, operation)
            assert me.others() == set()
        else:
            flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_looked_at)
    with_you = Presence.open(folder, YOU)
    assert me.others() == {YOU}
    with_you.close()


def test_four_hundred_that_appear_are_never_taken_for_dead(me: Presence, folder: Path, start: Any) -> None:
    code = PRELUDE + (
        "kept = [Presence.open(Path(args[0]), f'{int(args[1]) + n:016x}') for n in range(200)]\n"
        "there(); sys.stdin.readline()"
    )
    processes = [start(code, folder, 1_000 * (number + 1)) for number in range(2)]
    while len(found := me.others()) < 400:
        assert me.dead(found) == set()
    for process in processes:
        assert process.stdout.readline() == "there\n"


def test_a_sweeper_between_making_and_locking_is_survived(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, taken = KernelLock.try_take, []

    def take_swept(name: str, **more: Any) -> Any:
        lock = take(name, **more)
        taken.append(name)
        if len(taken) == 1:
            # Swept after it was locked: renaming it fails.
            (folder / name).unlink()
        elif len(taken) == 2:
            # A sweeper holds its lock at this moment.
            lock.close()
            return None
        return lock

    monkeypatch.setattr(KernelLock, "try_take", staticmethod(take_swept))
    presence = Presence.open(folder, ME)
    monkeypatch.undo()
    assert len(taken) == 3
    with_you = Presence.open(folder, YOU)
    assert with_you.dead({ME}) == set()
    assert with_you.wake(ME)
    presence.close()
    with_you.close()


def test_what_died_before_its_lock_had_its_name_is_swept(folder: Path) -> None:
    (folder / f"{YOU}.new").touch()
    descriptor = os.open(folder, os.O_RDONLY)
    living = KernelLock.try_take(f"{THIRD}.new", folder_fd=descriptor, create=True)
    assert living is not None
    Presence.open(folder, ME).close()
    assert [name.name for name in folder.iterdir()] == [f"{THIRD}.new"]
    living.close()
    os.close(descriptor)


# -- forking -----------------------------------------------------------------------------------


def test_a_forked_child_has_no_part_in_its_parents_presence(me: Presence, folder: Path, start: Any) -> None:
    code = PRELUDE + (
        "from leaseplane.model import AuthorityUnavailable\n"
        "p = Presence.open(Path(args[0]), args[1])\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try: p.wake(args[2])\n"
        "    except AuthorityUnavailable: refused = True\n"
        "    p.close(); there(refused, p.fileno()); sys.stdin.readline(); os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "there('still'); sys.stdin.readline()"
    )
    process = start(code, folder, YOU, ME)
    assert process.stdout.readline() == "there True -1\n"
    # The child has closed its copy: the parent still lives, and is still woken.
    assert me.dead({YOU}) == set()
    assert me.wake(YOU)
    process.stdin.write("child may exit\n")
    process.stdin.flush()
    assert process.stdout.readline() == "there still\n"
    assert me.dead({YOU}) == set()
    assert me.wake(YOU)


def test_a_parent_that_dies_is_dead_though_its_forked_child_lives(
    me: Presence, folder: Path, start: Any
) -> None:
    code = PRELUDE + (
        "p = Presence.open(Path(args[0]), args[1])\n"
        "if os.fork() == 0: there('child', os.getpid()); sys.stdin.readline(); os._exit(0)\n"
        "os.wait()\n"
    )
    process = start(code, folder, YOU)
    child = int(process.stdout.readline().split()[2])
    kill(process)
    os.kill(child, 0)
    assert me.dead({YOU}) == {YOU}
    assert me.wake(YOU) is False
    process.stdin.write("go\n")
    process.stdin.flush()


def test_a_started_program_inherits_nothing(me: Presence, folder: Path, start: Any) -> None:
    code = PRELUDE + (
        "import subprocess\n"
        "p = Presence.open(Path(args[0]), args[1])\n"
        "s = subprocess.Popen(['cat'], stdin=sys.stdin, stdout=subprocess.DEVNULL, close_fds=False)\n"
        "there(); s.wait()"
    )
    process = start(code, folder, YOU)
    assert process.stdout.readline() == "there\n"
    kill(process)
    assert me.dead({YOU}) == {YOU}


def test_the_inbox_never_blocks(me: Presence) -> None:
    with socket.socket(fileno=os.dup(me.fileno())) as inbox:
        assert os.get_blocking(inbox.fileno()) is False
