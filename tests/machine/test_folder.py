import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from leaseplane.model import AuthorityUnavailable
from leaseplane.store.folder import DataFolder, FolderRefused, ServerOwner, ServerOwnership, default_folder

FIRST = ServerOwner(pid=4711, url="http://127.0.0.1:7411", started_wall_ms=1_700_000_000_000)
SECOND = ServerOwner(pid=4712, url="http://127.0.0.1:7412", started_wall_ms=1_700_000_000_000)
PRELUDE = """
from pathlib import Path
from leaseplane.store.folder import *
def take(path, url):
    owner = ServerOwner(pid=os.getpid(), url=url, started_wall_ms=1_700_000_000_000)
    return ServerOwnership.take(DataFolder.open(Path(path)), owner)
"""


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return DataFolder.open(tmp_path / "data")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- where it is and who may use it ------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "xdg_data_home", "expected"),
    [
        ("linux", None, "/home/a/.local/share/leaseplane"),
        ("linux", "", "/home/a/.local/share/leaseplane"),
        ("linux", "/big/disk", "/big/disk/leaseplane"),
        ("linux", "not/absolute", "/home/a/.local/share/leaseplane"),
        ("darwin", "/big/disk", "/home/a/Library/Application Support/leaseplane"),
    ],
)
def test_the_default_is_the_platforms(platform: str, xdg_data_home: str | None, expected: str) -> None:
    found = default_folder(platform=platform, home=Path("/home/a"), xdg_data_home=xdg_data_home)
    assert found == Path(expected)


def test_it_is_made_private_with_its_parents(tmp_path: Path, run: Any) -> None:
    run(PRELUDE + "os.umask(0); DataFolder.open(Path(args[0]))", tmp_path / "a" / "data")
    made = DataFolder(tmp_path / "a" / "data")
    assert [mode(path) for path in (made.path, made.keys, made.processes)] == [0o700] * 3


def test_the_owner_can_use_it_whatever_the_umask(tmp_path: Path, run: Any) -> None:
    run(PRELUDE + "os.umask(0o777); DataFolder.open(Path(args[0]))", tmp_path / "data")
    made = DataFolder(tmp_path / "data")
    assert [mode(path) for path in (made.path, made.keys, made.processes)] == [0o700] * 3


@pytest.mark.parametrize("bits", [0o770, 0o702, 0o1777])
def test_a_folder_that_others_can_write_is_refused_with_the_way_to_mend_it(tmp_path: Path, bits: int) -> None:
    path = tmp_path / "data"
    path.mkdir()
    path.chmod(bits)
    with pytest.raises(FolderRefused, match="chmod go-w") as caught:
        DataFolder.open(path)
    assert str(path) in str(caught.value)
    path.chmod(bits & ~0o022)
    DataFolder.open(path)


def test_a_subfolder_that_others_can_write_is_refused(folder: DataFolder) -> None:
    folder.keys.chmod(0o777)
    with pytest.raises(FolderRefused, match="keys"):
        DataFolder.open(folder.path)


def test_anothers_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data"
    path.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(path, 12_345, 12_345)
        DataFolder.open(path)
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    with pytest.raises(FolderRefused, match="belongs to user"):
        DataFolder.open(path)


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(FolderRefused, match="not a folder"):
        DataFolder.open(tmp_path / "data")


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AuthorityUnavailable, match="cannot be made"):
        DataFolder.open(tmp_path / "file" / "data")


# -- the server that owns it -------------------------------------------------------------------


def test_a_second_server_is_refused_naming_the_first(folder: DataFolder, run: Any) -> None:
    first = ServerOwnership.take(folder, FIRST)
    code = PRELUDE + (
        "try: take(args[0], 'http://second')\n"
        "except FolderRefused as refused: print(refused)\n"
        "else: print('taken')"
    )
    told = run(code, folder.path)
    assert "http://127.0.0.1:7411 (process 4711, started 2023-11-14T22:13:20Z)" in told
    assert mode(folder.path / "server.lock") == 0o600
    first.close()
    first.close()
    assert run(code, folder.path) == "taken"


def test_a_second_server_in_the_same_process_is_refused_too(folder: DataFolder) -> None:
    first = ServerOwnership.take(folder, FIRST)
    with pytest.raises(FolderRefused, match="7411"):
        ServerOwnership.take(folder, SECOND)
    first.close()
    ServerOwnership.take(folder, SECOND).close()


def test_an_owner_that_was_killed_owns_nothing(folder: DataFolder, start: Any) -> None:
    code = PRELUDE + "o = take(args[0], 'http://first'); print('there', flush=True); sys.stdin.readline()"
    process = start(code, folder.path)
    assert process.stdout.readline() == "there\n"
    with pytest.raises(FolderRefused, match="http://first"):
        ServerOwnership.take(folder, SECOND)
    process.send_signal(signal.SIGKILL)
    process.wait()
    second = ServerOwnership.take(folder, SECOND)
    with pytest.raises(FolderRefused, match="7412"):
        ServerOwnership.take(folder, FIRST)
    second.close()


def test_an_owner_that_has_not_said_its_name_yet_is_waited_for(folder: DataFolder) -> None:
    first = ServerOwnership.take(folder, FIRST)
    lock = folder.path / "server.lock"
    name = lock.read_bytes()
    # What the last owner, which died, had left.
    lock.write_bytes(name.replace(b"7411", b"1234"))
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        lock.write_bytes(name if len(slept) > 1 else b"")

    with pytest.raises(FolderRefused, match="7411"):
        ServerOwnership.take(folder, SECOND, sleep=sleep)
    lock.write_bytes(b"")
    with pytest.raises(FolderRefused, match="just starting"):
        ServerOwnership.take(folder, SECOND, sleep=lambda _: None)
    first.close()


def test_a_forked_child_neither_keeps_nor_frees_the_ownership(folder: DataFolder, start: Any) -> None:
    code = PRELUDE + (
        "o = take(args[0], 'http://parent')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    o.close(); print('closed', flush=True); sys.stdin.readline(); os._exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    process = start(code, folder.path)
    assert process.stdout.readline() == "closed\n"
    with pytest.raises(FolderRefused, match="http://parent"):
        ServerOwnership.take(folder, SECOND)
    process.send_signal(signal.SIGKILL)
    process.wait()
    ServerOwnership.take(folder, SECOND).close()
    process.stdin.write("go\n")
    process.stdin.flush()
